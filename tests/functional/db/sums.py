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
