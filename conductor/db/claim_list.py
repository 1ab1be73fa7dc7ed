"""Listing claims, in pages."""

from collections.abc import Iterable
import json
from typing import Any

import sqlalchemy as sa

from conductor.db import allocations
from conductor.db import claim_nodes
from conductor.db import models
from conductor.db import nodes
from conductor.db import retry
from conductor.db import types
from musterbook import errors

_A = models.allocations
_N = models.compute_nodes
_HOST = sa.func.coalesce(_N.c.host, nodes.OWNER.c.host)
_LIST = (
    sa.select(_A, _N.c.uuid.label("node"), _N.c.hypervisor_hostname, _HOST.label("at"))
    .select_from(
        _A.outerjoin(_N, _N.c.id == _A.c.node_id).outerjoin(nodes.OWNER, nodes.IS_OWNER)
    )
    .where(_A.c.kind == allocations.CLAIM)
    .order_by(_A.c.id)
)
_INSTANTS = ("created_at", "confirmed_at", "expires_at", "finished_at")


class ClaimReader:
    """Lists claims; any thread may call any method.

    :param answer_bytes: that a page may have as JSON, unless it is one claim
    """

    def __init__(self, engine: sa.Engine, answer_bytes: int) -> None:
        self._engine = engine
        self._answer_bytes = answer_bytes

    def claims(
        self,
        *,
        owner: str | None = None,
        host: str | None = None,
        uuids: list[str] | None = None,
        finished: bool = False,
        limit: int = 1000,
        marker: str | None = None,
    ) -> list[dict[str, Any]]:
        """Return up to limit claims in the order in which they were made.

        Fewer if they are large; the last page is the one that is empty.

        :param owner: only that one's
        :param host: only of nodes of this host
        :param uuids: only these
        :param finished: also those that are over and still known
        :param marker: uuid of the claim after which to begin
        :raises MarkerNotFound: it isn't known (any more)
        """
        query = _LIST.limit(limit)
        if not finished:
            query = query.where(allocations.IS_LIVE)
        if owner is not None:
            given = sa.bindparam(None, owner, type_=sa.String())
            query = query.where(
                _A.c.owner == owner, types.exact(_A.c.owner) == types.exact(given)
            )
        if uuids is not None:
            query = query.where(_A.c.uuid.in_(uuids))

        def work(connection: sa.Connection) -> list[dict[str, Any]]:
            after = query
            if marker is not None:
                known = sa.select(_A.c.id).where(_A.c.uuid == marker)
                found = connection.execute(known).scalar()
                if found is None:
                    raise errors.MarkerNotFound(marker=marker)
                after = query.where(_A.c.id > found)
            if host is not None:
                after = after.where(_A.c.node_id.in_(_of_host(connection, host)))
            return self._page(connection.execute(after).mappings())

        return retry.read(self._engine, work)

    def _page(self, rows: Iterable[sa.RowMapping]) -> list[dict[str, Any]]:
        """Return as many claims as an answer takes."""
        found: list[dict[str, Any]] = []
        used = 0
        for row in rows:
            claim = _shown(row)
            used += len(json.dumps(claim))
            if found and used > self._answer_bytes:
                break
            found.append(claim)
        return found


def _of_host(connection: sa.Connection, host: str) -> list[int]:
    """Return the ids of a host's nodes of either shape, deleted or not.

    A condition on two joined tables would have all claims read.
    """
    own = sa.select(_N.c.id).where(types.same_name(_N.c.host, host))
    legacy = (
        sa.select(_N.c.id)
        .select_from(_N.join(nodes.OWNER, nodes.IS_OWNER))
        .where(types.same_name(nodes.OWNER.c.host, host))
    )
    return list(connection.execute(own.union_all(legacy)).scalars())


def _shown(row: sa.RowMapping) -> dict[str, Any]:
    """Return a claim as JSON values."""
    return {
        "uuid": row["uuid"],
        "node": row["node"],
        "host": row["at"],
        "hypervisor_hostname": row["hypervisor_hostname"],
        "state": row["state"],
        "resources": claim_nodes.amounts(row),
        "owner": row["owner"],
        "replaces": row["replaces"],
        **{
            name: None if row[name] is None else row[name].isoformat()
            for name in _INSTANTS
        },
    }
