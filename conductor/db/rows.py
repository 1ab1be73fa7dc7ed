"""Turning stored rows into what the store port promises; odd old rows included."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from collections.abc import Set
import datetime
import json
from typing import Any
import uuid as uuidlib

import sqlalchemy as sa

from conductor.db import booking
from conductor.db import models
from conductor.db import types
from musterbook import custom
from musterbook import errors

#: A row as SQLAlchemy or one of ours hands it out.
Stored = sa.RowMapping | Mapping[str, Any]

_SERVICE_INSTANTS = {
    c.name for c in models.services.c if isinstance(c.type, types.UtcDateTime)
}
#: Columns with a JSON object of ours, NULL where it is empty, and what checks them.
CUSTOM: Mapping[str, Callable[[object, str], dict[str, Any]]] = {
    "custom_resources": custom.check_resources,
    "labels": custom.check_labels,
}
#: Of the uuids that are derived for rows which have none.
_NAMESPACE = uuidlib.UUID("5e1b0d3c-6f0a-4c55-9a55-0b7f3b0d6a11")
#: What they all have, by uuid5, as their 15th character.
_DERIVED_VERSION = "5"


def legacy_uuid(table: str, row_id: int, created_at: datetime.datetime | None) -> str:
    """Return the uuid of a row of Juno's shape, the same at each reading.

    It is stored when the row is first written; until then it is found by the same
    derivation. Made of what never changes about the row.
    """
    made = created_at.strftime("%Y%m%d%H%M%S") if created_at is not None else ""
    return str(uuidlib.uuid5(_NAMESPACE, f"{table}/{row_id}/{made}"))


def may_be_derived(uuid: str) -> bool:
    """Tell whether legacy_uuid may have made it: no uuid that an agent makes."""
    return uuid[14:15] == _DERIVED_VERSION


def node(row: Stored) -> dict[str, Any]:
    """Return a compute node's row as the store port describes it."""
    return made_node({**row})


def nodes(result: sa.CursorResult[Any]) -> list[dict[str, Any]]:
    """Return compute nodes' rows as the store port describes them."""
    names = tuple(result.keys())
    return [made_node(dict(zip(names, row, strict=True))) for row in result]


def made_node(found: dict[str, Any]) -> dict[str, Any]:
    """Turn the stored row of a compute node, a copy, into node()'s; return it."""
    found["deleted"] = bool(found["deleted"])
    found["stats"] = parse_stats(found["stats"])
    for name in CUSTOM:
        if found[name] is not None:
            found[name] = parse_custom(name, found[name])
    if found["uuid"] is None:
        found["uuid"] = legacy_uuid("compute_nodes", found["id"], found["created_at"])
    return with_usage_confirmed(found)


def with_usage_confirmed(row: dict[str, Any]) -> dict[str, Any]:
    """Put what the store port knows of a row's booking in its place; return the row."""
    row["usage_confirmed"] = row.pop("booking") == booking.Booking.CONFIRMED
    return row


def service(row: Stored) -> dict[str, Any]:
    """Return a service's row as the store port describes it."""
    found: dict[str, Any] = {**row}
    for flag in ("deleted", "disabled", "forced_down"):
        found[flag] = bool(found[flag])
    if found["uuid"] is None:
        found["uuid"] = legacy_uuid("services", found["id"], found["created_at"])
    return found


def listed_service(names: Sequence[str], text: str) -> dict[str, Any]:
    """Return the row of a service out of types.as_json, as service() does.

    :param names: of the columns that the text was made of
    """
    found = dict(zip(names, json.loads(text), strict=True))
    for name in _SERVICE_INSTANTS & found.keys():
        found[name] = _instant(found[name])
    return service(found)


def _instant(text: str | None) -> datetime.datetime | None:
    """Return the instant of a JSON value; None for dates that don't exist."""
    if text is None:
        return None
    try:
        return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)
    except ValueError:
        return None


def parse_stats(text: str | None) -> dict[str, str | None] | None:
    """Return the stored statistics; None for what isn't a JSON object."""
    if not text:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    return {
        key: value if value is None or isinstance(value, str) else json.dumps(value)
        for key, value in found.items()
    }


def parse_custom(name: str, text: str) -> dict[str, Any] | None:
    """Return what a column of CUSTOM holds; None for what nobody of ours wrote."""
    try:
        return CUSTOM[name](json.loads(text), name) or None
    except (ValueError, errors.InvalidInput):
        return None


def inserted_id(result: sa.CursorResult[Any]) -> int:
    """Return the id that the database gave the inserted row."""
    key = result.inserted_primary_key
    assert key is not None
    return int(key[0])


def instant() -> datetime.datetime:
    """Return now for created_at and its like: whole seconds, as MySQL keeps them.

    This process's clock: these are for people, nothing is decided by them.
    """
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


def find_legacy(connection: sa.Connection, table: sa.Table, uuid: str) -> int | None:
    """Return the id of the live row without a stored uuid that derives to this one."""
    return find_legacy_ids(connection, table, {uuid}).get(uuid)


def find_legacy_ids(
    connection: sa.Connection, table: sa.Table, uuids: Set[str]
) -> dict[str, int]:
    """Return, by uuid, the live rows without a stored one that derive to these.

    All such rows are read, so only for what may be derived: most others are random.

    :param uuids: in lower case
    """
    derived = {uuid for uuid in uuids if may_be_derived(uuid)}
    if not derived:
        return {}
    bare = sa.select(table.c.id, table.c.created_at).where(
        table.c.uuid.is_(None), models.live(table)
    )
    found: dict[str, int] = {}
    for row_id, created_at in connection.execute(bare):
        uuid = legacy_uuid(table.name, row_id, created_at)
        if uuid in derived:
            found[uuid] = int(row_id)
    return found
