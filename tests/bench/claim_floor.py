"""The floor of a claim: a stock echo that runs the bare statements of its transaction.

Locks the nodes, looks for the uuids and the hosts, inserts, updates and commits, by
SQLAlchemy Core on a plain pooled engine; it decides nothing and checks nothing. What
goes by the agent is called by a second stock echo, which runs nothing.

python -m tests.bench.claim_floor server|relay|callers
"""

import datetime
import functools
import random
import sys
from typing import Any
import uuid as uuidlib

import oslo_messaging
import sqlalchemy as sa

from tests import rpc_lab
from tests.bench import child
from tests.bench import loop
from tests.bench import wire

_TOPICS = {"server": "claim-floor", "relay": "claim-relay"}
_TIMEOUT = 60
_NOW = datetime.datetime(2026, 11, 30, 8, 15)  # noqa: DTZ001  # as it is stored
_POOL = 64  # as many as the stock server has threads
Node = dict[str, Any]
#: uuid of a claim, id and host of its node
Pick = list[Any]


class Endpoint:
    """Runs the statements, answers with text.

    :param engine: of the database with the nodes
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        metadata = sa.MetaData()
        nodes, services, allocations = (
            sa.Table(name, metadata, autoload_with=engine)
            for name in ("compute_nodes", "services", "allocations")
        )
        amounts = ["vcpus_used", "memory_mb_used", "free_ram_mb"]
        self._lock = (
            sa.select(*(nodes.c[name] for name in ("id", *amounts)))
            .where(nodes.c.id.in_(sa.bindparam("ids", expanding=True)))
            .order_by(nodes.c.id)
            .with_for_update()
        )
        self._known = sa.select(allocations.c.uuid, allocations.c.state).where(
            allocations.c.uuid.in_(sa.bindparam("uuids", expanding=True))
        )
        self._hosts = sa.select(
            services.c.host, services.c.disabled, services.c.state
        ).where(services.c.host.in_(sa.bindparam("hosts", expanding=True)))
        self._insert = allocations.insert()
        self._update = (
            nodes.update()
            .where(nodes.c.id == sa.bindparam("key"))
            .values({name: sa.bindparam(f"new_{name}") for name in amounts})
            .values(generation=nodes.c.generation + 1, stream_version=None)
        )

    def book(self, ctxt: Any, picks: list[Pick], filler: str, answer: int) -> str:
        """Run the transaction for all of the picks."""
        taken: dict[int, int] = {}
        for _, key, _ in picks:
            taken[key] = taken.get(key, 0) + 1
        with self._engine.begin() as connection:
            rows = connection.execute(self._lock, {"ids": sorted(taken)}).all()
            uuids = [uuid for uuid, _, _ in picks]
            assert not connection.execute(self._known, {"uuids": uuids}).all()
            hosts = sorted({host for _, _, host in picks})
            assert connection.execute(self._hosts, {"hosts": hosts}).all()
            connection.execute(self._insert, [_row(*pick[:2]) for pick in picks])
            connection.execute(self._update, [_new(row, taken[row.id]) for row in rows])
        return "x" * answer


def _row(uuid: str, node_id: int) -> dict[str, Any]:
    return {
        "uuid": uuid,
        "node_id": node_id,
        "kind": "claim",
        "state": "held",
        "vcpus": 1,
        "memory_mb": 1,
        "local_gb": 0,
        "owner": "floor",
        "created_at": _NOW,
        "expires_at": _NOW + datetime.timedelta(days=1),
    }


def _new(row: Any, taken: int) -> dict[str, int]:
    return {
        "key": row.id,
        "new_vcpus_used": row.vcpus_used + taken,
        "new_memory_mb_used": row.memory_mb_used + taken,
        "new_free_ram_mb": row.free_ram_mb - taken,
    }


class Relay:
    """Passes a request on, and the answer back."""

    def __init__(self, transport: Any) -> None:
        target = oslo_messaging.Target(topic=_TOPICS["server"])
        self._client = oslo_messaging.get_rpc_client(
            transport, target, timeout=_TIMEOUT
        )

    def book(self, ctxt: Any, **request: Any) -> Any:
        """Ask the server."""
        return self._client.call({}, "book", **request)


class Server:
    """What the bench asks a server for.

    :param role: server or relay
    """

    def __init__(self, role: str) -> None:
        self._role = role
        self._server: Any = None

    def setup(self, rabbit: str, database: str) -> None:
        """Serve."""
        transport = oslo_messaging.get_rpc_transport(rpc_lab.make_conf(rabbit))
        if self._role == "relay":
            endpoint: Any = Relay(transport)
        else:
            engine = sa.create_engine(
                database, pool_size=_POOL, isolation_level="READ COMMITTED"
            )
            endpoint = Endpoint(engine)
        target = oslo_messaging.Target(topic=_TOPICS[self._role], server="floor")
        self._server = oslo_messaging.get_rpc_server(transport, target, [endpoint])
        self._server.start()

    def close(self) -> None:
        """Stop: its threads would keep the process from ending."""
        if self._server is not None:
            self._server.stop()
            self._server.wait()


class Callers:
    """What the bench asks the floor's callers for."""

    def connect(self, rabbit: str) -> None:
        """Connect."""
        self._transport = oslo_messaging.get_rpc_transport(rpc_lab.make_conf(rabbit))
        self._clients = {
            role: oslo_messaging.get_rpc_client(
                self._transport, oslo_messaging.Target(topic=topic), timeout=_TIMEOUT
            )
            for role, topic in _TOPICS.items()
        }
        self._shapes: dict[str, tuple[str, int]] = {}

    def sizes(
        self, way: str, nodes: list[Node], batch: int, request: int, answer: int
    ) -> dict[str, int]:
        """Make the messages of a way as large as these; return their sizes."""
        self._shapes[way] = ("", answer - 2)  # and two quotes
        one = functools.partial(self._call, way, nodes, batch, random.Random())
        bare = wire.measure(self._transport, one)
        filler = "x" * max(0, request - bare.request)
        self._shapes[way] = (filler, answer - 2)
        return wire.measure(self._transport, one)._asdict()

    def run(
        self,
        way: str,
        nodes: list[Node],
        batch: int,
        callers: int,
        seconds: float,
        count: int,
    ) -> dict[str, Any]:
        """Run the closed loop; ``calls`` are calls, of ``batch`` claims each."""
        call = functools.partial(self._call, way, nodes, batch)
        return loop.run([call] * callers, seconds=seconds, count=count)

    def _call(
        self, way: str, nodes: list[Node], batch: int, rng: random.Random
    ) -> None:
        filler, answer = self._shapes[way]
        chosen = [rng.choice(nodes) for _ in range(batch)]
        picks = [[str(uuidlib.uuid4()), node["id"], node["host"]] for node in chosen]
        client = self._clients["relay" if way == "agent" else "server"]
        client.call({}, "book", picks=picks, filler=filler, answer=answer)


def main(role: str) -> None:
    """Serve the bench's questions."""
    if role == "callers":
        callers = Callers()
        child.serve(
            {"connect": callers.connect, "sizes": callers.sizes, "run": callers.run}
        )
        return
    server = Server(role)
    try:
        child.serve({"setup": server.setup})
    finally:
        server.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
