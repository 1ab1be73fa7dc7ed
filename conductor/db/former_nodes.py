"""Which row comes back when a node is created: it keeps its id, uuid and usage."""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from conductor.db import models
from conductor.db import rows
from conductor.db import types

_T = models.compute_nodes
_S = models.services


def id_of_uuid(connection: sa.Connection, uuid: str) -> int | None:
    """Return the id of the row that has or shows this uuid, deleted or not."""
    query = sa.select(_T.c.id).where(_T.c.uuid == uuid)
    found: int | None = connection.execute(query).scalar()
    if found is None and rows.may_be_derived(uuid):
        found = rows.find_legacy(connection, _T, uuid)
    return found


def deleted_of_uuid(
    connection: sa.Connection, values: Mapping[str, Any]
) -> rows.Stored | None:
    """Return the deleted row of this uuid, locked."""
    uuid = values.get("uuid")
    row_id = None if uuid is None else id_of_uuid(connection, uuid)
    if row_id is None:
        return None
    query = sa.select(_T).where(_T.c.id == row_id, _T.c.deleted > 0)
    return connection.execute(query.with_for_update()).mappings().first()


def orphan(connection: sa.Connection, values: Mapping[str, Any]) -> rows.Stored | None:
    """Return the live row that only its deleted service gave this identity, locked.

    Of several that of the newest service, which the migration would keep as well.
    Before orphans comes a very old row, with NULL in deleted, whose host is stored:
    neither look-ups nor the unique key know it.
    """
    name = types.same_name(_T.c.hypervisor_hostname, values["hypervisor_hostname"])
    very_old = sa.select(_T.c.id, _T.c.service_id).where(
        types.same_name(_T.c.host, values["host"]), name, _T.c.deleted.is_(None)
    )
    orphans = (
        sa.select(_T.c.id, _T.c.service_id)
        .select_from(_T.join(_S, _S.c.id == _T.c.service_id))
        .where(
            types.same_name(_S.c.host, values["host"]),
            sa.not_(models.live(_S)),
            _T.c.host.is_(None),
            name,
            models.live(_T),
        )
        .order_by(_T.c.service_id.desc(), _T.c.id.desc())
    )
    for query in (very_old.order_by(_T.c.id), orphans):
        found = connection.execute(query).first()
        if found is not None:
            # Unless the migration has come before.
            locked = sa.select(_T).where(
                _T.c.id == found.id,
                models.live(_T),
                sa.or_(_T.c.host.is_(None), _T.c.deleted.is_(None)),
            )
            return connection.execute(locked.with_for_update()).mappings().first()
    return None


def deleted_of_identity(
    connection: sa.Connection, values: Mapping[str, Any]
) -> rows.Stored | None:
    """Return the row of this identity that was deleted last, locked."""
    query = (
        sa.select(_T)
        .where(
            types.same_name(_T.c.host, values["host"]),
            types.same_name(_T.c.hypervisor_hostname, values["hypervisor_hostname"]),
            _T.c.deleted > 0,
        )
        # Databases differ in where they sort a date that is NULL.
        .order_by(_T.c.deleted_at.is_(None), _T.c.deleted_at.desc(), _T.c.id.desc())
        .limit(1)
        .with_for_update()
    )
    return connection.execute(query).mappings().first()
