"""Moves: claims that take over from another one when they are confirmed."""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any

import sqlalchemy as sa

from conductor.db import allocations
from conductor.db import claim_nodes
from conductor.db import claim_rules
from conductor.db import models

_A = models.allocations
_FORMER = sa.select(_A).where(
    _A.c.uuid.in_(sa.bindparam("uuids", expanding=True)),
    _A.c.kind == allocations.CLAIM,
    allocations.IS_LIVE,
)
_MOVING = sa.select(_A.c.replaces, _A.c.uuid).where(
    _A.c.replaces.in_(sa.bindparam("uuids", expanding=True)), allocations.IS_LIVE
)


class Moves:
    """The claims from which some requests take over; of one transaction.

    :ivar node_ids: of their nodes, to be locked before lock()
    """

    def __init__(
        self, connection: sa.Connection, requests: Iterable[claim_rules.Request]
    ) -> None:
        self._uuids = sorted({r.replaces for r in requests if r.replaces is not None})
        self._live: dict[str, Any] = {}
        self._moving: dict[str, set[str]] = {}
        self.node_ids: set[int] = set()
        if self._uuids:
            found = connection.execute(_FORMER, {"uuids": self._uuids})
            self.node_ids = {row.node_id for row in found}

    def lock(self, connection: sa.Connection) -> None:
        """Keep them as they are: two moves of one claim come one after the other."""
        if not self._uuids:
            return
        wanted = {"uuids": self._uuids}
        locked = _FORMER.order_by(_A.c.id).with_for_update()
        found = connection.execute(locked, wanted).mappings()
        self._live = {row["uuid"]: row for row in found}
        for former, uuid in connection.execute(_MOVING, wanted):
            self._moving.setdefault(former, set()).add(uuid)

    def filled(self, request: claim_rules.Request) -> claim_rules.Request:
        """Return the request with what it takes over, if it doesn't say itself."""
        if request.resources is not None or request.replaces not in self._live:
            return request
        had = claim_nodes.amounts(self._live[request.replaces])
        return dataclasses.replace(request, resources=had)

    def hopeless(
        self, requests: Sequence[claim_rules.Request]
    ) -> dict[str, claim_rules.Reason]:
        """Return the moves that can't be, by their uuids, and why."""
        found: dict[str, claim_rules.Reason] = {}
        for request in requests:
            former = request.replaces
            if former is None:
                continue
            others = self._moving.setdefault(former, set())
            if former not in self._live:
                text = f"claim {former}, which is to be moved, is not there or gone"
                found[request.uuid] = claim_rules.Reason(None, "nothing-to-move", text)
            elif others:
                text = f"claim {former} is being moved already, by {min(others)}"
                found[request.uuid] = claim_rules.Reason(None, "being-moved", text)
            elif _is_unconfirmed_move(self._live[former]):
                # Confirming the second move would release this one, and nobody the
                # claim from which this one takes over.
                text = f"claim {former} is itself a move that isn't confirmed yet"
                found[request.uuid] = claim_rules.Reason(None, "being-moved", text)
            others.add(request.uuid)
        return found


def _is_unconfirmed_move(claim: Mapping[str, Any]) -> bool:
    return claim["replaces"] is not None and claim["state"] == allocations.HELD
