"""The UPDATE of a compute node, built once for each set of columns it is asked for.

Building it for every save took half of the conductor's CPU for the database. Only
values differ from one save to the next: they are parameters.
"""

from collections.abc import Mapping
import enum
import functools
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from conductor.db import booking
from conductor.db import grants
from conductor.db import models
from conductor.db import types
from conductor.db import usage

_T = models.compute_nodes
#: What an agent reports about the hardware and who owns it: written only if the
#: writer knows the newest.
CAPACITY = frozenset(
    {
        "host", "hypervisor_hostname", "vcpus", "memory_mb", "local_gb",
        "hypervisor_type", "hypervisor_version", "cpu_info", "host_ip",
        "supported_instances", "numa_topology", "disk_available_least",
        "reserved_vcpus", "reserved_memory_mb", "reserved_local_gb",
        "cpu_allocation_ratio", "ram_allocation_ratio", "disk_allocation_ratio",
        "boot_id", "booted_at", "custom_resources", "labels",
    }
)  # fmt: skip
#: Above it, a row's usage is booked, and the next report is like any other.
_BOOKED = int(booking.Booking.UNREPORTED)
_SHAPES = 256


class Owner(enum.Enum):
    """Which live rows an update is for."""

    GRANTED = "those of the grant's host, while the grant is the current one"
    HOSTED = "those with a host"  # of both only those that are booked: see booking
    ANY = "all: the caller has locked the row and looked"


class Shape(NamedTuple):
    """What the text of an update depends on.

    :ivar names: columns that the caller sets
    :ivar own: columns that the store sets, besides the generations
    :ivar checked: only while the inventory generation is the given one
    :ivar returning: the database has UPDATE .. RETURNING
    """

    names: frozenset[str]
    own: frozenset[str]
    checked: bool
    owner: Owner
    returning: bool


class Plan:
    """The update of one shape; any thread may run it.

    :ivar in_one: one statement also tells what followed; else a SELECT does, which
        must be in the same transaction
    """

    def __init__(self, shape: Shape) -> None:
        given = {name: _new(name) for name in sorted(shape.names | shape.own)}
        dependent = usage.following(given)
        wanted = list(dependent)
        computed: dict[str, Any] = dict(dependent)
        if CAPACITY & shape.names:
            computed["inventory_generation"] = _T.c.inventory_generation + _number(1)
            if not shape.checked:
                wanted.append("inventory_generation")
        self._wanted = tuple(wanted)
        self._returning = shape.returning and bool(wanted)
        free_only = bool(wanted) and usage.FREE.issuperset(wanted)
        self._packed = free_only and not shape.returning
        self.in_one = not wanted or self._returning or self._packed
        fixed = {
            "deleted": _number(0),
            "stream_version": sa.null(),
            "generation": _T.c.generation + _number(1),
        }
        if self._packed:
            fixed["generation"] += _packing(wanted)
        statement = (
            _T.update()
            .where(
                _T.c.id == sa.bindparam("node_id", type_=sa.Integer()),
                _owned(shape.owner),
                usage.storable(dependent),
            )
            .ordered_values(*usage.ordered(computed, given | fixed))
        )
        if shape.checked:
            expected = sa.bindparam("expected", type_=sa.Integer())
            statement = statement.where(_T.c.inventory_generation == expected)
        if self._returning:
            statement = statement.returning(*(_T.c[name] for name in wanted))
        self._statement = statement

    def run(
        self,
        connection: sa.Connection,
        node_id: int,
        values: Mapping[str, Any],
        conditions: Mapping[str, Any],
    ) -> dict[str, Any] | None:
        """Update the row; return the amounts and the generation that followed.

        :param values: of the columns that are set, by name
        :param conditions: ``expected`` if it is checked, and the grant's parameters
        :return: None: no row met the conditions
        """
        parameters: dict[str, Any] = {f"new_{n}": v for n, v in values.items()}
        parameters |= {"node_id": node_id, **conditions}
        result = connection.execute(self._statement, parameters)
        if self._returning:
            # To the end, where SQLite commits and says so if it can't.
            found = result.mappings().all()
            return dict(found[0]) if found else None
        if not result.rowcount:
            return None
        if self._packed:
            return _unpacked(result.lastrowid, self._wanted)
        if self._wanted:
            # The row is locked by this transaction: these are the values just set.
            query = sa.select(*(_T.c[name] for name in self._wanted))
            set_now = connection.execute(query.where(_T.c.id == node_id))
            return dict(set_now.mappings().one())
        return {}


@functools.lru_cache(_SHAPES)
def plan(shape: Shape) -> Plan:
    """Return the plan of this shape."""
    return Plan(shape)


def _new(name: str) -> sa.BindParameter[Any]:
    """Return the parameter for a column's new value."""
    # Amounts take part in sums that their own columns couldn't hold.
    kind = sa.BigInteger() if name in usage.STORED else _T.c[name].type
    return sa.bindparam(f"new_{name}", type_=kind)


def _number(value: int) -> sa.ColumnClause[int]:
    # In the text: each parameter costs the driver time.
    return sa.literal_column(str(value), sa.BigInteger())


def _owned(owner: Owner) -> sa.ColumnElement[bool]:
    """Return the condition for the row, and that for the grant.

    A grant that is replaced while the statement waits for the row's lock is still
    taken for the current one. The inventory generation is not: what the next process
    has written meanwhile isn't overwritten.
    """
    if owner is Owner.ANY:
        return models.live(_T)
    live = sa.and_(_T.c.deleted == _number(0), _T.c.booking > _number(_BOOKED))
    if owner is Owner.HOSTED:
        return sa.and_(live, _T.c.host.is_not(None))
    host = types.same_name(_T.c.host, grants.HOST)
    return sa.and_(live, host, grants.CONDITION)


# -- MySQL's way of telling two numbers without a second statement -----------------
#
# It has no UPDATE .. RETURNING (nor has MariaDB 10.11), but LAST_INSERT_ID(number)
# comes back with the answer to the UPDATE. SET is evaluated from left to right, so the
# columns hold their new values there.


def _packing(names: list[str]) -> sa.ColumnElement[int]:
    """Return 0, in an expression that also has the free amounts told."""
    packed: Any = _number(0)
    for name in names:
        low = _T.c[name].bitwise_and(_number(2**32 - 1))
        packed = packed.bitwise_lshift(_number(32)).bitwise_or(low)
    return sa.cast(sa.func.last_insert_id(packed).is_(None), sa.Integer)


def _unpacked(number: int, names: tuple[str, ...]) -> dict[str, int]:
    found = {}
    for name in reversed(names):
        low = number & (2**32 - 1)
        found[name] = low - 2**32 if low >= 2**31 else low
        number >>= 32
    return found
