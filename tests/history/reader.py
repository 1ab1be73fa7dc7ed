"""Looks at what is stored, in one statement, and records it."""

from collections.abc import Sequence
import contextlib
import threading

import sqlalchemy as sa
from sqlalchemy import exc as sa_exc

from tests.history import events

#: One statement sees one state of the database.
_QUERY = sa.text(
    "SELECT n.uuid AS node, n.vcpus_used - n.reserved_vcpus AS used, n.generation,"
    " a.uuid AS claim, a.vcpus FROM compute_nodes n LEFT JOIN allocations a"
    " ON a.node_id = n.id AND a.state IN ('held', 'confirmed')"
)


class Reader:
    """Reads all nodes again and again, in a thread of its own, until it is stopped.

    :param url: the database; it may go away and come back
    :param interval: seconds between two reads
    """

    def __init__(self, url: str, recorder: events.Recorder, interval: float) -> None:
        self._engine = sa.create_engine(url, poolclass=sa.NullPool)
        self._recorder = recorder
        self._interval = interval
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reader")
        self.count = 0

    def __enter__(self) -> "Reader":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._engine.dispose()

    def _run(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(sa_exc.SQLAlchemyError):
                for read in self.read():
                    self._recorder.add(read)
                self.count += 1
            self._stopping.wait(self._interval)

    def read(self) -> Sequence[events.Read]:
        """Return what is stored now of every node."""
        begin = events.now()
        with self._engine.connect() as connection:
            rows = connection.execute(_QUERY).all()
        end = events.now()
        nodes = {row.node: (int(row.used), int(row.generation)) for row in rows}
        return [
            events.Read(
                node,
                begin,
                end,
                used,
                generation,
                tuple(
                    (row.claim, row.vcpus)
                    for row in rows
                    if row.node == node and row.claim is not None
                ),
            )
            for node, (used, generation) in nodes.items()
        ]
