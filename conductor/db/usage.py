"""What follows from a change of capacity, reserved amounts or usage.

Reserved amounts are part of usage, and free amounts follow from both. All of it is
computed by the UPDATE itself from the row's own columns, so that a claim that comes
in between is never lost.
"""

from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

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


def following(values: Mapping[str, Any]) -> dict[str, sa.ColumnElement[int]]:
    """Return the columns that follow from the change, as expressions of the old row.

    :param values: what the caller changes; what it sets itself is left alone
        (legacy agents compute used and free amounts themselves)
    """
    free: dict[str, sa.ColumnElement[int]] = {}
    used: dict[str, sa.ColumnElement[int]] = {}
    for resource in RESOURCES:
        new_used = _new(values, resource.used)
        if resource.reserved in values and resource.used not in values:
            new_used = (
                new_used
                - models.compute_nodes.c[resource.reserved]
                + _new(values, resource.reserved)
            )
            used[resource.used] = new_used
        touched = values.keys() & {resource.capacity, resource.used, resource.reserved}
        if resource.free is not None and touched and resource.free not in values:
            free[resource.free] = _new(values, resource.capacity) - new_used
    return free | used


def _new(values: Mapping[str, Any], name: str) -> sa.ColumnElement[int]:
    """Return the column's value after the change, as far as the caller sets it."""
    if name in values:
        return sa.literal(values[name], sa.Integer)
    return models.compute_nodes.c[name]


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
    """Return the values of a new row: usage starts as what is reserved."""
    row = dict(values)
    for resource in RESOURCES:
        row.setdefault(resource.capacity, 0)
        row.setdefault(resource.reserved, 0)
        row.setdefault(resource.used, row[resource.reserved])
        if resource.free is not None:
            row.setdefault(resource.free, row[resource.capacity] - row[resource.used])
    return row
