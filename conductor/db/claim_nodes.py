"""The nodes that claims are about: found by uuid, locked by id, usage written.

Whoever changes what is taken of a node locks its row first, and of several nodes in the
order of their ids.
"""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
import json
import threading
from typing import Any

import sqlalchemy as sa

from conductor.db import allocations
from conductor.db import booking
from conductor.db import claim_rules
from conductor.db import models
from conductor.db import rows
from conductor.db import types
from conductor.db import usage

_T = models.compute_nodes
_BY_UUID = sa.select(_T.c.uuid, _T.c.id).where(
    _T.c.uuid.in_(sa.bindparam("uuids", expanding=True))
)
#: Read as one JSON array: the driver describes each column of an answer in Python.
_PACKED = ("uuid", "host", "hypervisor_hostname", "deleted", "booking", *usage.AMOUNTS)
#: Ratios aren't among them: JSON shows a float's digits otherwise than SQL.
_COLUMNS = [
    types.as_json(*(_T.c[name] for name in _PACKED)).label("packed"),
    *(
        _T.c[name]
        for name in ("id", "created_at", *booking.RATIOS, *claim_rules.CUSTOM_COLUMNS)
    ),
]
# Of deleted ones too: what is allocated of them stays, and comes back with them.
_LOCKED = (
    sa.select(*_COLUMNS)
    .where(_T.c.id.in_(sa.bindparam("ids", expanding=True)))
    .order_by(_T.c.id)
    .with_for_update()
)
_WRITE_CUSTOM = (
    _T.update()
    .where(_T.c.id == sa.bindparam("node_id"))
    .values(custom_used=sa.bindparam("text"))
)
#: Nodes whose usage one statement writes; each has all of them to choose from.
_MOST_WRITTEN = 50


class Ids:
    """Remembers which id a node's uuid has; any thread.

    It saves a statement of each claim. What it says is looked at again under the lock,
    as the database may have been replaced, or a node purged and made anew.
    """

    _MOST = 20_000

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the ids
        self._ids: dict[str, int] = {}

    def find(self, connection: sa.Connection, uuids: Iterable[str]) -> set[int]:
        """Return the ids of the nodes, deleted or not, that have these uuids."""
        wanted = set(uuids)
        with self._lock:
            found = {u: self._ids[u] for u in wanted if u in self._ids}
        missing = wanted - found.keys()
        if missing:
            read = dict(
                tuple(row)
                for row in connection.execute(_BY_UUID, {"uuids": sorted(missing)})
            )
            with self._lock:
                if len(self._ids) > self._MOST:
                    self._ids.clear()
                self._ids |= read
            found |= read
            # Of Juno's shape, without a stored one.
            found |= rows.find_legacy_ids(connection, _T, missing - read.keys())
        return set(found.values())

    def forget(self) -> None:
        """Ask the database again."""
        with self._lock:
            self._ids.clear()


def lock(connection: sa.Connection, ids: Collection[int]) -> list[dict[str, Any]]:
    """Lock nodes in the order of their ids and return what there is of them, booked.

    Rows of Juno's shape stay as they are, which ``bare`` says.
    """
    if not ids:
        return []
    found = _locked(connection, ids)
    unbooked = {
        row["id"]: row["uuid"]
        for row in found
        if row["booking"] == booking.Booking.NONE and not row["bare"]
    }
    if not unbooked:
        return found
    for node_id, reached in allocations.book(connection, unbooked).items():
        change = _T.update().where(_T.c.id == node_id).values(booking=reached)
        connection.execute(change)
    return _locked(connection, ids)


def _locked(connection: sa.Connection, ids: Collection[int]) -> list[dict[str, Any]]:
    result = connection.execute(_LOCKED, {"ids": sorted(ids)})
    names = (*result.keys(),)[1:]
    return [_named(row[0], zip(names, row[1:], strict=True)) for row in result]


def _named(packed: str, others: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(zip(_PACKED, json.loads(packed), strict=True))
    row.update(others)
    row["bare"] = row["uuid"] is None or row["host"] is None
    if row["uuid"] is None:
        row["uuid"] = rows.legacy_uuid(_T.name, row["id"], row["created_at"])
    return row


class Changes:
    """What is taken of locked nodes, and given back: written at once.

    :param locked: what lock() returned
    """

    def __init__(self, locked: Iterable[Mapping[str, Any]]) -> None:
        self._rows = {row["id"]: row for row in locked}
        self._sums: dict[int, dict[str, int]] = {}

    def add(self, node_id: int, resources: Mapping[str, int], sign: int = 1) -> None:
        """Count an allocation in, or out of it; of a node that is gone: nothing."""
        if node_id not in self._rows:
            return
        sums = self._sums.setdefault(node_id, {})
        for name, amount in resources.items():
            sums[name] = sums.get(name, 0) + sign * amount

    def write(self, connection: sa.Connection) -> None:
        """Write usage, and what follows of it."""
        ids = sorted(self._sums)
        for first in range(0, len(ids), _MOST_WRITTEN):
            some = ids[first : first + _MOST_WRITTEN]
            connection.exec_driver_sql(_update({one: self._new(one) for one in some}))
        for node_id in ids:
            self._write_custom(connection, node_id)

    def _new(self, node_id: int) -> dict[str, int]:
        row, sums = self._rows[node_id], self._sums[node_id]
        values: dict[str, int] = {}
        for resource in usage.RESOURCES:
            used = row[resource.used] + sums.get(resource.capacity, 0)
            values[resource.used] = used
            if resource.free is not None:
                values[resource.free] = row[resource.capacity] - used
        return values

    def _write_custom(self, connection: sa.Connection, node_id: int) -> None:
        sums = {
            name: amount
            for name, amount in self._sums[node_id].items()
            if name not in claim_rules.RESOURCES
        }
        if not sums or not claim_rules.readable(self._rows[node_id]["custom_used"]):
            # What can't be read stays, for db check to be found: a number would be
            # taken for the sum.
            return
        used_now = dict(claim_rules.counts(self._rows[node_id]["custom_used"]))
        for name, amount in sums.items():
            used_now[name] = max(0, used_now.get(name, 0) + amount)
        left = {name: amount for name, amount in sorted(used_now.items()) if amount}
        text = json.dumps(left) if left else None
        connection.execute(_WRITE_CUSTOM, {"node_id": node_id, "text": text})


def _update(new: Mapping[int, Mapping[str, int]]) -> str:
    """Return one statement that writes the usage of some nodes.

    Its text has the numbers in it: a parameter costs the driver more than a number
    costs the server, and a statement for each node costs both a round trip.

    :param new: columns and values by a node's id; the same columns of each
    """
    names = next(iter(new.values()))
    if len(new) == 1:
        ((node_id, values),) = new.items()
        told = [f"{name} = {int(values[name])}" for name in names]
        where = f"= {int(node_id)}"
    else:
        told = [
            f"{name} = CASE id "
            + " ".join(f"WHEN {int(i)} THEN {int(v[name])}" for i, v in new.items())
            + " END"
            for name in names
        ]
        where = f"IN ({', '.join(str(int(node_id)) for node_id in new)})"
    told += ["generation = generation + 1", "stream_version = NULL"]
    return f"UPDATE {_T.name} SET {', '.join(told)} WHERE id {where}"  # noqa: S608  # numbers, and names of ours


def amounts(row: Mapping[str, Any] | sa.RowMapping) -> dict[str, int]:
    """Return what an allocation's row holds, by resource."""
    found = {name: int(row[name]) for name in claim_rules.RESOURCES if row[name]}
    return found | claim_rules.counts(row["custom"])


def instant(connection: sa.Connection) -> Any:
    """Return the database's clock."""
    return connection.execute(sa.select(types.now())).scalar_one()
