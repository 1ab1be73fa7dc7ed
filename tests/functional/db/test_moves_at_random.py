"""Everything that may happen to nodes of Juno's at once: nothing of them is lost."""

from collections.abc import Callable
import functools
import random
import threading
import time

import pytest
import sqlalchemy as sa

from conductor.db import audit
from conductor.db import liveness
from conductor.db import mend
from conductor.db import models
from conductor.db import online
from conductor.db import purge
from conductor.db import store as db_store
from musterbook import errors
from tests.functional.db import juno
from tests.functional.db import test_node_moves

pytestmark = pytest.mark.slow
NODES = 40
SECONDS = 20.0
#: What else may come of it: the caller was told, and nothing was done.
TOLD = (errors.MusterbookError, liveness.GrantConflict)


Deed = Callable[[random.Random, int], None]


def uuid(number: int) -> str:
    return f"7d9f9f2e-5a4a-4d15-8f9f-5a0b3bb0{number:04x}"


class World:
    """Agents that take nodes from each other, hosts that are renamed, an operator.

    :ivar done: by the name of what was done, how often it was
    """

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self.store = db_store.DatabaseStore(engine)
        self.records = liveness.LivenessStore(engine)
        self.done: dict[str, int] = {}
        self._ends = time.monotonic() + SECONDS

    def at_random(
        self, seed: int, *deeds: Callable[[random.Random, int], None]
    ) -> None:
        rng = random.Random(seed)
        while time.monotonic() < self._ends:
            deed = rng.choice(deeds)
            try:
                deed(rng, rng.randint(1, NODES))
            except TOLD:
                continue
            name = getattr(deed, "__name__", "")
            self.done[name] = self.done.get(name, 0) + 1

    def agent(self, number: int) -> None:
        host = f"x{number}"
        grant = test_node_moves.granted(self.records, host)

        def find_left(_: random.Random, number: int) -> None:
            self.records.adopt(grant, uuid(number), f"n{number}", host)

        def take(_: random.Random, number: int) -> None:
            ((_uuid, owner),) = self.records.hosts_of([uuid(number)])
            if owner is not None:
                self.records.adopt(grant, uuid(number), f"n{number}", owner)

        def save(rng: random.Random, number: int) -> None:
            generation = self.store.compute_node_get(id=number)["inventory_generation"]
            change = {"vcpus": rng.randint(9, 99)}
            self.store.compute_node_update(number, change, generation, grant)

        def confirm(_: random.Random, number: int) -> None:
            used = {"vcpus": 2, "memory_mb": 4608, "local_gb": 40}
            self.store.compute_node_confirm_usage(number, used)

        self.at_random(number, find_left, take, save, confirm)

    def rename(self, rng: random.Random, number: int) -> None:
        node = self.store.compute_node_get(id=number)
        known = self.records.known(node["host"], "nova-compute")
        before = known.incarnation if known else None
        claim = liveness.Claim(node["host"], before, frozenset([node["uuid"]]))
        test_node_moves.granted(self.records, f"r{rng.randrange(10**6)}", claim)

    def operate(self, _: random.Random, number: int) -> None:
        list(online.migrate(self.engine, max_count=number))
        assert list(mend.mend(self.engine)) == []
        assert not any(batch.purged for batch in purge.purge(self.engine))
        time.sleep(0.2)  # the pace of operators


def test_nothing_is_lost(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        for number in range(1, NODES + 1):
            juno.service(connection, number, f"h{number}")
            juno.node(connection, number, number, f"n{number}")
        if engine.dialect.name == "postgresql":
            connection.execute(sa.text("SELECT setval('services_id_seq', 1000)"))
    world = World(engine)
    failed: list[Exception] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as exc:  # noqa: BLE001  # shown by the test
            failed.append(exc)

    works = [
        *(functools.partial(world.agent, n) for n in range(4)),
        functools.partial(world.at_random, 8, world.rename),
        functools.partial(world.at_random, 9, world.operate),
    ]
    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert set(world.done) == {
        "find_left", "take", "save", "confirm", "rename", "operate"
    }  # fmt: skip
    list(online.migrate(engine))
    nodes = world.store.compute_nodes()
    assert [node["id"] for node in nodes] == list(range(1, NODES + 1))
    assert {node["memory_mb_used"] for node in nodes} == {4608}
    wrong = {kind.name for kind, found in audit.findings(engine) if any(found)}
    assert wrong <= {"services_without_nodes", "unconfirmed_usage"}
    with engine.connect() as connection:
        query = sa.select(models.allocations.c.node_id)
        held = sorted(connection.execute(query).scalars())
    assert held == list(range(1, NODES + 1))
