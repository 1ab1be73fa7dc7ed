"""A fleet for the tests of claims, and what is stored, read by other means."""

import json
from typing import Any
import uuid as uuidlib

import sqlalchemy as sa

from conductor import claim_requests
from conductor.db import claim_store
from conductor.db import liveness
from conductor.db import store as db_store
from musterbook import context

LEADER = "leader-of-the-tests"
SECRET = "secret-of-everybody"
NODE: dict[str, Any] = {
    "vcpus": 8,
    "memory_mb": 16384,
    "local_gb": 100,
    "cpu_allocation_ratio": 1.0,
    "ram_allocation_ratio": 1.0,
    "disk_allocation_ratio": 1.0,
}


class Fleet:
    """Hosts that are up, each with a node of 8 CPUs, and who claims them."""

    def __init__(self, engine: sa.Engine, *hosts: str, **more: Any) -> None:
        self.engine = engine
        self.nodes = db_store.DatabaseStore(engine)
        self.records = liveness.LivenessStore(engine)
        self.store = claim_store.ClaimStore(engine, lambda: 60.0)
        self.term = self.records.acquire(liveness.LEASE, LEADER, 3600.0)
        self.uuids: dict[str, str] = {}
        self.grants: dict[str, context.Grant] = {}
        for host in hosts or ("h1",):
            self.add(host, **more)

    def add(self, host: str, **more: Any) -> str:
        """Let a host come up, with a node; return the node's uuid."""
        number = self.records.grant(
            host, "nova-compute", "compute", f"process-{host}", None, "1", SECRET, None
        )
        self.grants[host] = context.Grant(host, number, SECRET)
        self.set_state(host, "up", state_cause="in-group")
        row = self.nodes.compute_node_create(
            {"host": host, "hypervisor_hostname": host, **NODE, **more}
        )
        self.uuids[host] = str(row["uuid"])
        return self.uuids[host]

    def set_state(self, host: str, state: str, **more: Any) -> None:
        """Write a verdict as the leader would, or anything else of the service."""
        values = {"state": state, "host": host, **more}
        columns = ", ".join(f"{name} = :{name}" for name in values if name != "host")
        with self.engine.begin() as c:
            c.execute(
                sa.text(
                    f"UPDATE services SET state_incarnation = incarnation, {columns}"  # noqa: S608
                    " WHERE host = :host"
                ),
                values,
            )

    def ask(self, *hosts: str, **fields: Any) -> dict[str, Any]:
        """Return a request of one CPU, as it comes over the wire."""
        return {
            "uuid": str(uuidlib.uuid4()),
            "resources": {"vcpus": 1},
            "candidates": [self.uuids[host] for host in hosts or ("h1",)],
            **fields,
        }

    def claim(self, *asked: Any, **options: Any) -> list[dict[str, Any]]:
        """Claim what was asked for."""
        return self.store.claim(claim_requests.parse(asked, 600.0), **options)

    def used(self, host: str = "h1") -> tuple[int, int, int]:
        """Return what is used of a host's node."""
        with self.engine.connect() as c:
            row = c.execute(
                sa.text(
                    "SELECT vcpus_used, memory_mb_used, local_gb_used"
                    " FROM compute_nodes WHERE uuid = :uuid"
                ),
                {"uuid": self.uuids[host]},
            ).one()
        return tuple(row)

    def stored(self) -> list[tuple[str, str, int]]:
        """Return uuid, state and CPUs of every claim, in the order of their ids."""
        with self.engine.connect() as c:
            query = "SELECT uuid, state, vcpus FROM allocations ORDER BY id"
            return [tuple(row) for row in c.execute(sa.text(query))]

    def check(self) -> None:
        """Assert that usage is the sum of what is live, of each node."""
        with self.engine.connect() as c:
            nodes = c.execute(
                sa.text(
                    "SELECT id, vcpus, memory_mb, local_gb, vcpus_used, memory_mb_used,"
                    " local_gb_used, reserved_vcpus, reserved_memory_mb,"
                    " reserved_local_gb, free_ram_mb, free_disk_gb, custom_used"
                    " FROM compute_nodes"
                )
            ).all()
            live = c.execute(
                sa.text(
                    "SELECT node_id, vcpus, memory_mb, local_gb, custom"
                    " FROM allocations WHERE state IN ('held', 'confirmed')"
                )
            ).all()
        for node in nodes:
            own = [row for row in live if row.node_id == node.id]
            sums = [sum(row[n] for row in own) for n in (1, 2, 3)]
            used = [a + b for a, b in zip(sums, node[7:10], strict=True)]
            assert list(node[4:7]) == used, node
            assert node.free_ram_mb == node.memory_mb - node.memory_mb_used
            assert node.free_disk_gb == node.local_gb - node.local_gb_used
            custom: dict[str, int] = {}
            for row in own:
                for name, amount in json.loads(row.custom or "{}").items():
                    custom[name] = custom.get(name, 0) + amount
            assert json.loads(node.custom_used or "{}") == custom
