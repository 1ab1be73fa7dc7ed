"""The client's side of claims, part of conductor.rpcapi.ConductorAPI."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from musterbook.context import RequestContext

#: The version of the interface that has them.
INTERFACE = "1.2"


class ClaimCalls:
    """Calls about claims; thread-safe.

    Every method may raise ConductorUnavailable within the time-out, besides what is
    named, and VersionPinned where the conductors may be too old to be asked. What it
    came to is then unknown: ask again, under the same uuids.
    """

    def _call(
        self,
        context: RequestContext,
        method: str,
        *,
        timeout: float | None = None,
        interface: str | None = None,
        **args: Any,
    ) -> Any:
        raise NotImplementedError

    def claim(
        self,
        context: RequestContext,
        request: Mapping[str, Any],
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Book one claim, on the first of its candidates that has room.

        :param request: ``uuid``; ``resources``: name to amount; ``candidates``: uuids
            of nodes; optional: ``owner``; ``seconds``, until it must be confirmed;
            ``replaces``: the claim that it takes over from when it is confirmed
        :return: ``uuid``, ``node``, ``host``, ``hypervisor_hostname``, ``state``,
            ``resources``, ``owner``, ``replaces``, ``created_at``, ``expires_at``;
            the same when it is asked again
        :raises ClaimRefused: with all reasons
        :raises ClaimConflict: the uuid is known with other content
        :raises ClaimGone: it was released, or expired
        """
        answer: dict[str, Any] = self._call(
            context,
            "claim",
            timeout=timeout,
            interface=INTERFACE,
            request=dict(request),
        )
        return answer

    def claim_many(
        self,
        context: RequestContext,
        requests: Sequence[Mapping[str, Any]],
        *,
        atomic: bool = False,
        timeout: float | None = None,
    ) -> list[dict[str, Any]]:
        """Book many claims at once; return what became of each, in the same order.

        :param requests: as of claim(), at most 500, with at most 10,000 candidates
            and 2,000 nodes in all
        :param atomic: book all of them or none
        :return: as of claim(), with ``outcome``: claimed, refused, conflict or gone;
            all but the first with ``reasons`` and, if there were too many for an
            answer, ``reasons_left_out``, their number
        """
        answer: list[dict[str, Any]] = self._call(
            context,
            "claim_many",
            timeout=timeout,
            interface=INTERFACE,
            requests=[dict(request) for request in requests],
            atomic=atomic,
        )
        return answer

    def confirm_claim(
        self, context: RequestContext, uuid: str, timeout: float | None = None
    ) -> None:
        """Keep a claim for good; ClaimNotFound, ClaimGone."""
        self._call(
            context, "confirm_claim", timeout=timeout, interface=INTERFACE, uuid=uuid
        )

    def release_claim(
        self,
        context: RequestContext,
        uuid: str,
        owner: str | None = None,
        timeout: float | None = None,
        attempt: str | None = None,
    ) -> None:
        """Give a claim back; one that isn't known can't be booked any more.

        :param owner: noted of a uuid that isn't known yet; it guards nothing
        :param attempt: only if it was answered to no other call of claim than the one
            whose request had this ``attempt``, a uuid
        """
        self._call(
            context,
            "release_claim",
            timeout=timeout,
            interface=INTERFACE,
            uuid=uuid,
            owner=owner,
            attempt=attempt,
        )

    def list_claims(
        self,
        context: RequestContext,
        *,
        owner: str | None = None,
        host: str | None = None,
        limit: int | None = None,
        marker: str | None = None,
        finished: bool = False,
        timeout: float | None = None,
    ) -> list[dict[str, Any]]:
        """Return claims in the order in which they were made.

        :param owner: only that one's
        :param host: only of nodes of this host
        :param limit: at most so many, and never more than 1000; fewer if they are
            large: the last page is the one that is empty
        :param marker: uuid of the last one of the page before
        :param finished: also those that are over and still known
        :raises MarkerNotFound: that one isn't known (any more)
        """
        answer: list[dict[str, Any]] = self._call(
            context,
            "list_claims",
            timeout=timeout,
            interface=INTERFACE,
            owner=owner,
            host=host,
            limit=limit,
            marker=marker,
            finished=finished,
        )
        return answer

    def move_claim(
        self,
        context: RequestContext,
        uuid: str,
        request: Mapping[str, Any],
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Book a claim that takes over from another one when it is confirmed.

        Until then both are booked. To revert, release the new one.

        :param uuid: of the claim that is moved
        :param request: as of claim(); without resources it asks for the same
        """
        return self.claim(context, {**request, "replaces": uuid}, timeout)
