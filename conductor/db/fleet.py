"""The rows of the fleet question: every live node with the verdict on its host."""

from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
from typing import Any

import sqlalchemy as sa

from conductor.db import models
from conductor.db import nodes
from conductor.db import retry
from conductor.db import rows
from conductor.db import types
from musterbook import errors
from objects import service as service_obj

_N = models.compute_nodes
_S = models.services.alias("service")
_OWNER = nodes.OWNER

_NODE_NAMES = (
    "id", "uuid", "host", "hypervisor_hostname", "hypervisor_type",
    "hypervisor_version", "vcpus", "memory_mb", "local_gb", "vcpus_used",
    "memory_mb_used", "local_gb_used", "reserved_vcpus", "reserved_memory_mb",
    "reserved_local_gb", "cpu_allocation_ratio", "ram_allocation_ratio",
    "disk_allocation_ratio", "free_ram_mb", "free_disk_gb", "disk_available_least",
    "current_workload", "running_vms", "cpu_info", "host_ip", "boot_id",
    "generation", "inventory_generation", "updated_at",
)  # fmt: skip
#: Name in the answer to the service's column.
_SERVICE_NAMES = {
    "service_uuid": "uuid",
    "disabled": "disabled",
    "disabled_reason": "disabled_reason",
    "forced_down": "forced_down",
    "state": "state",
    "state_since": "state_since",
    "state_cause": "state_cause",
    "state_evidence": "state_evidence",
    "incarnation": "incarnation",
    "state_incarnation": "state_incarnation",
}
#: The granted incarnation has said goodbye.
_GOODBYE = "said_goodbye"
COLUMNS: tuple[str, ...] = (*_NODE_NAMES, *_SERVICE_NAMES, _GOODBYE)


@dataclasses.dataclass(frozen=True)
class Fleet:
    """A table of nodes: the columns' names, and their values row by row."""

    names: tuple[str, ...]
    rows: list[tuple[Any, ...]]


class FleetStore:
    """Reads the fleet; any thread may call any method."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def fleet(self, columns: Sequence[str] = COLUMNS) -> Fleet:
        """Return the live nodes that belong to a host, by id, in one query.

        Columns of the service are None where the host has no live compute service.

        :param columns: which and in which order, out of COLUMNS
        :raises InvalidInput: a column that isn't one of them
        """
        for name in columns:
            if name not in _EXPRESSIONS:
                raise errors.InvalidInput(
                    field="columns", reason=f"{name!a} is unknown"
                )
        # Behind what was asked: what identifies rows that have no uuid stored.
        query = _FLEET.with_only_columns(
            *(_EXPRESSIONS[name] for name in columns), *_IDENTIFIERS
        )
        found = retry.read(self._engine, lambda c: c.execute(query).all())
        answer = [_complete(columns, tuple(row)) for row in _each_once(found)]
        return Fleet(names=tuple(columns), rows=answer)


def _service_column(name: str, column: str) -> sa.ColumnElement[Any]:
    """Return a column of the host's service, or of a Juno-shaped row's own one."""
    found = sa.func.coalesce(_S.c[column], _OWNER.c[column])
    if column in {"disabled", "forced_down"}:
        known = sa.func.coalesce(_S.c.id, _OWNER.c.id).is_not(None)
        return sa.case((known, sa.func.coalesce(found, sa.false()))).label(name)
    return found.label(name)


def _said_goodbye() -> sa.ColumnElement[Any]:
    known = sa.func.coalesce(_S.c.id, _OWNER.c.id).is_not(None)
    when = sa.func.coalesce(_S.c.goodbye_at, _OWNER.c.goodbye_at)
    return sa.case((known, when.is_not(None))).label(_GOODBYE)


_HOST = sa.func.coalesce(_N.c.host, _OWNER.c.host)
_EXPRESSIONS: dict[str, sa.ColumnElement[Any]] = {
    **{name: _N.c[name] for name in _NODE_NAMES},
    "host": _HOST.label("host"),
    **{name: _service_column(name, column) for name, column in _SERVICE_NAMES.items()},
    _GOODBYE: _said_goodbye(),
}
_IDENTIFIERS = (
    _N.c.id.label("own_id"),
    _N.c.created_at.label("own_created_at"),
    sa.func.coalesce(_S.c.id, _OWNER.c.id).label("service_id"),
    sa.func.coalesce(_S.c.created_at, _OWNER.c.created_at).label("service_created_at"),
    _S.c.deleted.is_(None).label("service_is_old"),
)
_FLEET = (
    sa.select(_N.c.id)
    .select_from(
        _N.outerjoin(_OWNER, nodes.IS_OWNER).outerjoin(
            _S,
            sa.and_(
                types.same_name(_S.c.host, _N.c.host),
                _S.c.binary == service_obj.COMPUTE_BINARY,
                models.live(_S),
            ),
        )
    )
    .where(models.live(_N), _HOST.is_not(None))
    .order_by(_N.c.id)
)


def _each_once(found: Sequence[Any]) -> Iterable[Any]:
    """Return the rows with each node once.

    A node comes twice if its host has a very old service row besides the new; the
    one that counts is that of services.find. Chosen here rather than by the query:
    databases sort rows as wide as these slowly.
    """
    once: dict[int, Any] = {}
    for row in found:
        other = once.setdefault(row.own_id, row)
        if other is not row and _rank(row) < _rank(other):
            once[row.own_id] = row
    return once.values()


def _rank(row: Any) -> tuple[bool, int]:
    return bool(row.service_is_old), int(row.service_id)


def _complete(columns: Sequence[str], row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the row without its identifiers, the uuids it lacks derived."""
    width = len(columns)
    node_id, node_made, service_id, service_made, _ = row[width:]
    answer = row[:width]
    if None not in answer:
        return answer
    values = list(answer)
    for at, name in enumerate(columns):
        if values[at] is None and name == "uuid":
            values[at] = rows.legacy_uuid("compute_nodes", node_id, node_made)
        elif values[at] is None and name == "service_uuid" and service_id is not None:
            values[at] = rows.legacy_uuid("services", service_id, service_made)
    return tuple(values)
