"""Rows from Juno that a node left at a host which it roamed from unnoticed.

Such a row has no uuid of a source's: the former agent never reported it. All that can
be compared is its name, which other machines may have as well. So it is taken for the
node only if it is the only one, nobody can be serving it there, and none of our
agents has reported it.
"""

from collections.abc import Sequence
import logging
from typing import Any

import sqlalchemy as sa

from conductor.db import models
from conductor.db import rows
from conductor.db import services
from conductor.db import types
from musterbook import errors
from musterbook import names
from objects import service as service_obj

LOG = logging.getLogger(__name__)

_T = models.compute_nodes
#: The service that service_id names, live or not.
_OWNER = models.services.alias("any_owner")
_SERVED = frozenset({"up", "suspect"})


def find(connection: sa.Connection, host: str, name: str) -> rows.Stored | None:
    """Return the row, locked, with its uuid and the host that it is taken from.

    Its service is locked before it, so that nobody is granted that host meanwhile.

    :param host: where the node turned up
    :returns: None: there is none, it is served, or it is this host's own
    :raises InvalidInput: there are several, or whether one is served isn't known yet
    """
    found = [row for row in _named(connection, name) if _is_derived(row)]
    elsewhere = [r for r in found if r["formerly"] and not _same(r["formerly"], host)]
    if not elsewhere or len(elsewhere) < len(found):
        return None  # what is this host's own, or nobody's, comes first
    if len(elsewhere) > 1:
        raise _refusal(
            f"{_told(elsewhere)} have it from Juno, and nothing tells which one this "
            "is; delete the others"
        )
    (left,) = elsewhere
    if _is_served(connection, left):
        return None
    query = sa.select(_T).where(_T.c.id == left["id"], models.live(_T))
    locked = connection.execute(query.with_for_update()).mappings().first()
    if locked is None or not _is_derived(locked) or locked["host"] != left["host"]:
        raise _refusal(f"{_told(elsewhere)} was changed just now")
    return {**locked, "formerly": left["formerly"]}


def _named(connection: sa.Connection, name: str) -> Sequence[rows.Stored]:
    query = (
        sa.select(
            _T.c.id,
            _T.c.uuid,
            _T.c.created_at,
            _T.c.host,
            sa.func.coalesce(_T.c.host, _OWNER.c.host).label("formerly"),
        )
        .select_from(_T.outerjoin(_OWNER, _OWNER.c.id == _T.c.service_id))
        .where(types.same_name(_T.c.hypervisor_hostname, name), models.live(_T))
        .order_by(_T.c.id)
    )
    return connection.execute(query).mappings().all()


def _is_derived(row: rows.Stored) -> bool:
    derived = rows.legacy_uuid(_T.name, row["id"], row["created_at"])
    return row["uuid"] in (None, derived)


def _is_served(connection: sa.Connection, left: rows.Stored) -> bool:
    """Return whether the host of a row may have an agent; its service is locked."""
    host = left["formerly"]
    service = services.find(connection, host, service_obj.COMPUTE_BINARY, lock=True)
    if service is None or service["forced_down"] or service["goodbye_at"] is not None:
        return False
    current = (service["state_incarnation"] or 0) == (service["incarnation"] or 0)
    state = service["state"] if current else None
    if state in _SERVED:
        LOG.warning(
            "A node turned up at another host under the name that %s has from Juno; as "
            "that host is %s, they are taken for two",
            _told([left]),
            state,
        )
        return True
    if service["incarnation"] is None:
        return False  # who isn't seen either isn't there: as for a renamed host
    if left["host"] is not None:
        return True  # an agent may have reported it, by a source without uuids
    if state != "down":
        raise _refusal(
            f"{_told([left])} came from Juno under this name, and it isn't known yet "
            "whether that host is up"
        )
    return False


def _told(found: Sequence[rows.Stored]) -> str:
    listed = ", ".join(f"{row['id']} (of host {row['formerly']})" for row in found)
    return f"compute node{'s' if len(found) > 1 else ''} {listed}"


def _refusal(reason: str) -> errors.InvalidInput:
    return errors.InvalidInput(field="name", reason=reason)


def _same(one: Any, other: str) -> bool:
    return isinstance(one, str) and names.fold(one) == names.fold(other)
