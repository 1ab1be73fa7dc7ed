"""What follows from a change of capacity, reserved amounts or usage.

Reserved amounts are part of usage, and free amounts follow from both. All of it is
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
from conductor.db import rows


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


#: The columns of free amounts.
FREE = frozenset(r.free for r in RESOURCES if r.free is not None)
#: The stored amounts, wide enough for what is computed with them.
STORED: Mapping[str, Any] = {
    column.name: sa.cast(column, sa.BigInteger)
    for resource in RESOURCES
    for column in models.compute_nodes.c
    if column.name in resource
}


def beyond_reserved(row: rows.Stored) -> str:
    """Return what of a stored row is used beyond what is reserved, '' for nothing."""
    return ", ".join(
        f"{resource.used} {row[resource.used]}, {row[resource.reserved]} reserved"
        for resource in RESOURCES
        if row[resource.used] > row[resource.reserved]
    )


def following(
    values: Mapping[str, Any], stored: Mapping[str, Any] = STORED
) -> dict[str, Any]:
    """Return the columns that follow from the change.

    :param values: what the caller changes; what it sets itself is left alone
        (legacy agents compute used and free amounts themselves)
    :param stored: the old row: as expressions, or a row's values
    :return: expressions or values accordingly (values, too, where only what is
        given matters)
    """
    free: dict[str, Any] = {}
    used: dict[str, Any] = {}
    new = {**stored, **values}
    for resource in RESOURCES:
        new_used = new[resource.used]
        if resource.reserved in values and resource.used not in values:
            new_used = new_used - stored[resource.reserved] + new[resource.reserved]
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


def kept(old: rows.Stored, values: Mapping[str, Any]) -> dict[str, int]:
    """Return the used amounts of a row that comes back, with what is reserved now.

    :param old: the row as it was deleted; amounts that no column could hold any more
        are left out
    :param values: of the new row
    """
    used = {
        r.used: old[r.used] - old[r.reserved] + (values.get(r.reserved) or 0)
        for r in RESOURCES
    }
    return {name: amount for name, amount in used.items() if limits.countable(amount)}


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
