"""What follows from a change of capacity or reserved amounts.

Usage is what is reserved and what is allocated (see booking), and free amounts follow
from it. All of it is
computed by the UPDATE itself from the row's own columns, so that a claim that comes
in between is never lost. A result that its column can't hold keeps the UPDATE from
matching: left to the databases, each would do something else about it.
"""

from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from conductor.db import limits
from conductor.db import models


class Resource(NamedTuple):
    """The columns of one resource."""

    capacity: str
    used: str
    reserved: str
    free: str | None


RESOURCES = (
    Resource("vcpus", "vcpus_used", "reserved_vcpus", None),
    Resource("memory_mb", "memory_mb_used", "reserved_memory_mb", "free_ram_mb"),
    Resource("local_gb", "local_gb_used", "reserved_local_gb", "free_disk_gb"),
)


#: What a caller may not write, unless it is of version 1.0.
USED = frozenset(r.used for r in RESOURCES)
#: The columns of free amounts.
FREE = frozenset(r.free for r in RESOURCES if r.free is not None)
#: All columns of all resources.
AMOUNTS = tuple(
    column.name
    for resource in RESOURCES
    for column in models.compute_nodes.c
    if column.name in resource
)
#: The stored amounts, wide enough for what is computed with them.
STORED: Mapping[str, Any] = {
    name: sa.cast(models.compute_nodes.c[name], sa.BigInteger) for name in AMOUNTS
}


def beyond_reserved(row: sa.RowMapping | Mapping[str, Any]) -> str:
    """Return what of a stored row is used beyond what is reserved, '' for nothing."""
    return ", ".join(
        f"{resource.used} {row[resource.used]}, {row[resource.reserved]} reserved"
        for resource in RESOURCES
        if row[resource.used] > row[resource.reserved]
    )


def following(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that follow from the change, as expressions.

    :param values: what is changed; amounts among them that would follow are left alone
        (whoever has locked the row computes them itself)
    """
    free: dict[str, Any] = {}
    used: dict[str, Any] = {}
    new = {**STORED, **values}
    for resource in RESOURCES:
        new_used = new[resource.used]
        if resource.reserved in values and resource.used not in values:
            new_used = new_used - STORED[resource.reserved] + new[resource.reserved]
            used[resource.used] = new_used
        touched = values.keys() & {resource.capacity, resource.used, resource.reserved}
        if resource.free is not None and touched and resource.free not in values:
            free[resource.free] = new[resource.capacity] - new_used
    return free | used


def storable(computed: Mapping[str, Any]) -> sa.ColumnElement[bool]:
    """Return the condition that the columns can hold these results of following().

    :param computed: expressions, which depend on the row
    """
    smallest, largest = (
        sa.literal_column(str(limit), sa.BigInteger())
        for limit in (limits.SMALLEST, limits.LARGEST)
    )
    return sa.and_(
        sa.true(),
        *(amount.between(smallest, largest) for amount in computed.values()),
    )


def ordered(
    computed: Mapping[str, Any], values: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    """Return all assignments in an order that means the same everywhere.

    MySQL evaluates SET from left to right with what is already assigned, the others
    with the old row. Free amounts come first, then usage, then the given values: no
    expression reads a column that stands before it.
    """
    return [*computed.items(), *values.items()]


def at_creation(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a new row: usage starts as what is reserved.

    :raises InvalidInput: an amount that follows doesn't fit
    """
    row = dict(values)
    for resource in RESOURCES:
        row.setdefault(resource.capacity, 0)
        row.setdefault(resource.reserved, 0)
        row.setdefault(resource.used, row[resource.reserved])
        if resource.free is not None:
            row.setdefault(resource.free, row[resource.capacity] - row[resource.used])
    limits.check(models.compute_nodes, {name: row[name] for name in sorted(FREE)})
    return row
