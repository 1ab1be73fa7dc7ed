"""The floor of an RPC to the database: stock parts and nothing of ours.

A stock oslo.messaging server that answers with text of the same size after one
statement of SQLAlchemy Core on a plain pooled engine; and its callers.

python -m tests.bench.rpc_floor server|callers save|get
"""

from collections.abc import Callable
import functools
import random
import sys
import time
from typing import Any

import oslo_messaging
import sqlalchemy as sa

from tests import rpc_lab
from tests.bench import child
from tests.bench import loop
from tests.bench import rpc_nodes
from tests.bench import wire

_TOPIC = "floor"
_TIMEOUT = 60
_ALONE_WARM_UP = 50
_POOL = 64  # as many as the stock server has threads


class Endpoint:
    """Runs the statement, answers with text.

    :param engine: of the database with the nodes
    :param answer: the text
    """

    def __init__(self, engine: sa.Engine, answer: str) -> None:
        self._engine = engine
        self._answer = answer
        table = sa.Table("compute_nodes", sa.MetaData(), autoload_with=engine)
        fields = rpc_nodes.changes(random.Random())
        self._update = (
            table.update()
            .where(table.c.id == sa.bindparam("key"))
            .values({name: sa.bindparam(name) for name in fields})
        )
        self._select = sa.select(table).where(
            table.c.host == sa.bindparam("host"),
            table.c.hypervisor_hostname == sa.bindparam("node"),
            table.c.deleted == 0,
        )

    def save(self, ctxt: Any, key: int, values: dict[str, int], filler: str) -> str:
        """Update a row by its primary key and commit."""
        with self._engine.begin() as connection:
            connection.execute(self._update, {"key": key, **values})
        return self._answer

    def get(self, ctxt: Any, host: str, node: str, filler: str) -> str:
        """Read a whole row by its unique key."""
        with self._engine.connect() as connection:
            connection.execute(self._select, {"host": host, "node": node}).one()
        return self._answer


def _run(endpoint: Endpoint, operation: str, number: int, rng: random.Random) -> None:
    """Run the statement without being called.

    :param number: the id of the node to save, or the number of the one to get
    """
    if operation == "save":
        endpoint.save(None, number, rpc_nodes.changes(rng), "")
    else:
        endpoint.get(None, *rpc_nodes.identity(number), "")


class Server:
    """What the bench asks the floor's server for."""

    _endpoint: Endpoint

    def __init__(self) -> None:
        self._server: Any = None

    def setup(self, rabbit: str, database: str, answer: int) -> None:
        """Serve; ``answer`` is the size of an answer in bytes of JSON."""
        transport = oslo_messaging.get_rpc_transport(rpc_lab.make_conf(rabbit))
        engine = sa.create_engine(database, pool_size=_POOL)
        self._endpoint = Endpoint(engine, "x" * (answer - 2))  # and two quotes
        self._server = oslo_messaging.get_rpc_server(
            transport,
            oslo_messaging.Target(topic=_TOPIC, server="floor"),
            [self._endpoint],
        )
        self._server.start()

    def alone(self, operation: str, numbers: list[int]) -> float:
        """Return the CPU ms of the statement in one thread that does nothing else.

        Before any call is served: whatever else this process does counts, too.
        """
        rng = random.Random()
        for number in numbers[:_ALONE_WARM_UP]:
            _run(self._endpoint, operation, number, rng)
        began = time.thread_time()
        for number in numbers:
            _run(self._endpoint, operation, number, rng)
        return (time.thread_time() - began) * 1000 / len(numbers)

    def close(self) -> None:
        """Stop: its threads would keep the process from ending."""
        if self._server is not None:
            self._server.stop()
            self._server.wait()


class Callers:
    """What the bench asks the floor's callers for.

    :param operation: save or get
    """

    def __init__(self, operation: str) -> None:
        operations: dict[str, Callable[[range, random.Random], None]] = {
            "save": self._save,
            "get": self._get,
        }
        self._call = operations[operation]
        self._filler = ""
        self._ids: list[int] = []

    def setup(self, rabbit: str, request: int, ids: list[int]) -> dict[str, int]:
        """Connect; return the sizes of the messages, made equal to ``request``."""
        transport = oslo_messaging.get_rpc_transport(rpc_lab.make_conf(rabbit))
        self._client = oslo_messaging.get_rpc_client(
            transport, oslo_messaging.Target(topic=_TOPIC), timeout=_TIMEOUT
        )
        self._ids = ids
        one = functools.partial(self._call, range(len(ids)), random.Random())
        bare = wire.measure(transport, one)
        self._filler = "x" * max(0, request - bare.request)
        return wire.measure(transport, one)._asdict()

    def run(self, callers: int, seconds: float, count: int) -> dict[str, Any]:
        """Run the closed loop; each thread has nodes of its own."""
        calls: list[loop.Call] = [
            functools.partial(self._call, range(number, len(self._ids), callers))
            for number in range(callers)
        ]
        return loop.run(calls, seconds=seconds, count=count)

    def _save(self, numbers: range, rng: random.Random) -> None:
        key = self._ids[rng.choice(numbers)]
        values = rpc_nodes.changes(rng)
        self._client.call({}, "save", key=key, values=values, filler=self._filler)

    def _get(self, numbers: range, rng: random.Random) -> None:
        host, node = rpc_nodes.identity(rng.choice(numbers))
        self._client.call({}, "get", host=host, node=node, filler=self._filler)


def main(role: str, operation: str) -> None:
    """Serve the bench's questions."""
    if role == "callers":
        callers = Callers(operation)
        child.serve({"setup": callers.setup, "run": callers.run})
        return
    server = Server()
    try:
        child.serve({"setup": server.setup, "alone": server.alone})
    finally:
        server.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
