"""Usage is the sum: reckoned anew from the rows, without the code under test."""

from typing import Any

import sqlalchemy as sa

NODES = (
    "SELECT id, booking, vcpus_used, memory_mb_used, local_gb_used, reserved_vcpus,"
    " reserved_memory_mb, reserved_local_gb FROM compute_nodes WHERE deleted = 0"
)
ALLOCATIONS = (
    "SELECT node_id, kind, state, vcpus, memory_mb, local_gb FROM allocations"
    " ORDER BY id"
)
LIVE = ("held", "confirmed")


def allocations(engine: sa.Engine, node_id: int | None = None) -> list[Any]:
    """Return kind, state and amounts of all allocations, or of a node's."""
    with engine.connect() as connection:
        found = connection.execute(sa.text(ALLOCATIONS)).all()
    return [tuple(row[1:]) for row in found if node_id in (None, row.node_id)]


def held(engine: sa.Engine) -> int:
    """Return how many nodes' usage is what is reserved and one held allocation."""
    query = (
        "SELECT COUNT(*) FROM compute_nodes n JOIN allocations a ON a.node_id = n.id"
        " WHERE a.kind = 'legacy' AND a.state = 'held'"
        " AND n.vcpus_used = n.reserved_vcpus + a.vcpus"
        " AND n.memory_mb_used = n.reserved_memory_mb + a.memory_mb"
        " AND n.local_gb_used = n.reserved_local_gb + a.local_gb"
    )
    with engine.connect() as connection:
        return int(connection.execute(sa.text(query)).scalar_one())


def check(engine: sa.Engine) -> None:
    """Assert that each booked live node's usage is the sum, of one legacy at most."""
    with engine.connect() as connection:
        nodes = connection.execute(sa.text(NODES)).all()
    for node in nodes:
        if not node.booking:
            continue
        live = [a for a in allocations(engine, node.id) if a[1] in LIVE]
        assert [a[0] for a in live] in ([], ["legacy"])
        reserved = node[5:8]
        total = tuple(map(sum, zip(reserved, *(a[2:] for a in live), strict=True)))
        assert tuple(node[2:5]) == total, f"node {node.id}: {node}, {live}"
