"""The conductor's RPC endpoint for claims: checks what comes, the store decides.

Every method may run in any thread and may be called twice for one request.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from oslo_log import log as logging
import oslo_messaging

from conductor import claim_requests
from conductor import rpcapi
from conductor.db import claim_store
from musterbook import errors
from musterbook import names
from musterbook import rpc
from musterbook.context import RequestContext

LOG = logging.getLogger(__name__)

#: Claims in one answer of list_claims.
MOST_LISTED = 1000
_ERRORS: Mapping[str, type[errors.MusterbookError]] = {
    "refused": errors.ClaimRefused,
    "conflict": errors.ClaimConflict,
}


class ClaimsManager:
    """What a conductor answers about claims.

    :param store: decides and keeps them
    :param hold_seconds: returns for how long a claim is held that doesn't say it
    """

    target = oslo_messaging.Target(version=rpcapi.VERSION)

    def __init__(
        self, store: claim_store.ClaimStore, hold_seconds: Callable[[], float]
    ) -> None:
        self._store = store
        self._hold_seconds = hold_seconds

    @rpc.exposed
    def claim(self, context: RequestContext, request: Mapping[str, Any]) -> Any:
        """Book one claim; return what claim_many returns of it.

        :raises ClaimRefused: with all reasons
        :raises ClaimConflict: the uuid is known with other content
        :raises ClaimGone: it was released, or expired
        :raises Superseded, GrantForgotten: an agent asks that isn't the granted one
        """
        (answer,) = self.claim_many(context, [request], atomic=False)
        outcome = answer["outcome"]
        if outcome == "claimed":
            return answer
        if outcome == "gone":
            state = answer["reasons"][0]["reason"]
            raise errors.ClaimGone(uuid=answer["uuid"], state=state)
        facts = {n: answer[n] for n in answer if n != "outcome"}
        raise _ERRORS[outcome](**facts)

    @rpc.exposed
    def claim_many(
        self,
        context: RequestContext,
        requests: Sequence[Mapping[str, Any]],
        atomic: bool,
    ) -> list[dict[str, Any]]:
        """Book claims, each on the first of its candidates that has room.

        :param atomic: all of them, or none
        :return: in the same order, each with ``uuid`` and ``outcome``: claimed,
            refused, conflict or gone; see ClaimWriter.claim
        :raises InvalidInput: one of them can't be; nothing was booked
        """
        if not isinstance(atomic, bool):
            raise errors.InvalidInput(field="atomic", reason="is not true or false")
        parsed = claim_requests.parse(requests, self._hold_seconds())
        return self._store.claim(parsed, atomic=atomic, grant=context.grant)

    @rpc.exposed
    def confirm_claim(self, context: RequestContext, uuid: str) -> None:
        """Keep a claim; of a move, give back what it takes over from.

        :raises ClaimNotFound, ClaimGone:
        """
        self._store.confirm(claim_requests.check_uuid(uuid, "uuid"))

    @rpc.exposed
    def release_claim(
        self,
        context: RequestContext,
        uuid: str,
        owner: str | None = None,
        attempt: str | None = None,
    ) -> None:
        """Give a claim back; harmless if it is gone, or not yet there.

        :param owner: noted of a uuid that isn't known yet; it guards nothing
        :param attempt: only if it was answered to this call of claim and to no other
        """
        if attempt is not None:
            attempt = claim_requests.check_uuid(attempt, "attempt")
        self._store.release(
            claim_requests.check_uuid(uuid, "uuid"),
            claim_requests.check_owner(owner, "owner"),
            attempt,
        )

    @rpc.exposed
    def list_claims(
        self,
        context: RequestContext,
        owner: str | None = None,
        host: str | None = None,
        limit: int | None = None,
        marker: str | None = None,
        finished: bool = False,
    ) -> list[dict[str, Any]]:
        """Return claims in the order in which they were made, up to limit.

        Fewer if they are large; the last page is the one that is empty.

        :raises MarkerNotFound: the claim ``marker`` isn't known (any more)
        """
        if host is not None:
            names.check(host, "host")
        if marker is not None:
            marker = claim_requests.check_uuid(marker, "marker")
        if not isinstance(finished, bool):
            raise errors.InvalidInput(field="finished", reason="is not true or false")
        wanted = MOST_LISTED if limit is None else limit
        if type(wanted) is not int or not 0 < wanted <= MOST_LISTED:
            raise errors.InvalidInput(
                field="limit", reason=f"is not a number from 1 to {MOST_LISTED}"
            )
        return self._store.claims(
            owner=claim_requests.check_owner(owner, "owner"),
            host=host,
            finished=finished,
            limit=wanted,
            marker=marker,
        )
