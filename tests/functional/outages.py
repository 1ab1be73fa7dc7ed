"""What the tests of outages look at while something is away."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import threading
import time
from typing import Any

import sqlalchemy as sa

from musterbook import context
from musterbook import errors
from tests import util
from tests.functional import lab as labs

#: Seconds after its end within which all must be well, on a machine that isn't busy.
WELL = 15.0
#: And on one that is.
BUSY = 120.0
#: Seconds for the answer to a ping: less than a statement may take (30 s), which a
#: ping must never wait for.
PING = 20.0


class Watch:
    """Asks for the fleet and pings a conductor, over and over, in threads of its own.

    :ivar states: what was ever told of each node
    :ivar slowest: seconds that the slowest answer to a ping took
    :ivar unanswered: pings without an answer within PING
    """

    def __init__(self, lab: labs.Lab) -> None:
        self._lab = lab
        self.states: dict[str, set[str]] = {}
        self.slowest = 0.0
        self.unanswered = 0
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._repeat, args=(step,), name="watch")
            for step in (self._look, self._ping)
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)

    def _repeat(self, step: Callable[[], None]) -> None:
        while not self._stopping.wait(0.1):
            step()

    def _look(self) -> None:
        with contextlib.suppress(errors.MusterbookError):
            for name, row in self._lab.fleet().items():
                self.states.setdefault(name, set()).add(row["state"])

    def _ping(self) -> None:
        began = time.monotonic()
        try:
            self._lab.conductor.ping(context.service_context(), timeout=PING)
        except errors.MusterbookError:
            self.unanswered += 1
        self.slowest = max(self.slowest, time.monotonic() - began)


class Scheduler:
    """Asks which hosts are alive, over and over, in a thread of its own.

    :ivar answers: each successful one: the state of each node
    """

    def __init__(self, lab: labs.Lab) -> None:
        self._lab = lab
        self.answers: list[dict[str, str]] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scheduler")

    def __enter__(self) -> "Scheduler":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping.set()
        self._thread.join(60)

    def _run(self) -> None:
        asking = ["hypervisor_hostname", "state"]
        while not self._stopping.wait(0.1):
            try:
                answer = self._lab.conductor.get_fleet(
                    context.service_context(), asking
                )["columns"]
            except errors.MusterbookError:
                continue
            found = zip(answer["hypervisor_hostname"], answer["state"], strict=True)
            self.answers.append(dict(found))

    def told(self, host: str) -> set[str]:
        """Return all that was ever said of a host."""
        return {answer[host] for answer in self.answers}


@contextlib.contextmanager
def watched(lab: labs.Lab, *, suspect: bool = False) -> Iterator[Watch]:
    """Watch while in it; nobody may be called down meanwhile.

    :param suspect: whether somebody may be called that
    """
    watch = Watch(lab)
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()
    for node, states in watch.states.items():
        allowed = {"up", "unknown"} | ({"suspect"} if suspect else set())
        assert states <= allowed, f"{node} was {states}"


def fleet(lab: labs.Lab) -> dict[str, dict[str, Any]]:
    """Return the fleet by node, nothing while nobody can tell."""
    try:
        return lab.fleet()
    except errors.MusterbookError:
        return {}


def change(lab: labs.Lab, host: str, memory_mb: int) -> None:
    """Give a host other memory, which its agent finds at its next audit."""
    lab.write_nodes(host, {host: {**labs.NODE, "memory_mb": memory_mb}})


def wait_well(lab: labs.Lab, memory_mb: dict[str, int], limit: float = BUSY) -> float:
    """Wait until these hosts are up with this memory; return the seconds it took."""
    began = time.monotonic()

    def well() -> bool:
        rows = fleet(lab)
        return all(
            host in rows
            and rows[host]["state"] == "up"
            and rows[host]["memory_mb"] == memory
            for host, memory in memory_mb.items()
        )

    util.wait_until(well, limit, f"all up with {memory_mb}")
    return time.monotonic() - began


def check_alive(processes: list[labs.Process]) -> None:
    """Check that none has ended, and that none was surprised."""
    for process in processes:
        assert process.popen.poll() is None, process.errors()[-4000:]
        assert "Traceback" not in process.errors()


def wait_said(processes: list[labs.Process], text: str, times: int) -> None:
    """Wait until each process has said so that often."""
    for process in processes:
        util.wait_until(
            lambda said=process: said.errors().count(text) >= times,  # type: ignore[misc]
            BUSY,
            f"{text!r} in {process.err.name}",
        )


def check_said(processes: list[labs.Process], text: str, times: int) -> None:
    """Check that each process has said so exactly that often."""
    for process in processes:
        assert process.errors().count(text) == times, process.errors()[-4000:]


def check_rows(lab: labs.Lab, hosts: int) -> None:
    """Check that each host has one service and one node, deleted ones included."""
    engine = sa.create_engine(lab.database)
    try:
        with engine.connect() as connection:
            for table in ("services", "compute_nodes"):
                counts = [
                    sa.func.count(),
                    sa.func.count(sa.distinct(sa.column("host"))),
                ]
                query = sa.select(*counts).select_from(sa.table(table))
                assert tuple(connection.execute(query).one()) == (hosts, hosts)
    finally:
        engine.dispose()
