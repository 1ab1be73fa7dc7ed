"""Claims that come by the agent: what only the host can know, then the conductor.

The agent holds nothing: the conductor decides and books. No lock is held while it is
asked. If what it did stays unknown, the claim is released by its uuid, so that nothing
half made is left, and nothing can come of a message that is still on its way. Unless
it was answered to somebody meanwhile, or before: each call has a uuid of its own.
"""

from collections.abc import Callable
from collections.abc import Mapping
import threading
import time
from typing import Any
from typing import Protocol
import uuid as uuidlib

from oslo_log import log as logging

from compute_agent import progress
from compute_agent import tenure
from musterbook import errors
from musterbook.context import RequestContext

LOG = logging.getLogger(__name__)

#: Of the seconds that a caller waits for an answer: in how much of them the conductor
#: must have answered, and, if it hasn't, in how much more the release. The rest is for
#: the answer's own way.
_CLAIM_SHARE = 0.6
_RELEASE_SHARE = 0.2
#: Errors after which the claim may be booked or not.
_UNKNOWN = (
    errors.ConductorUnavailable,
    errors.DatabaseUnavailable,
    errors.RemoteFailure,
)
#: Releases that are tried again after audits; beyond, claims expire by themselves.
_MOST_PENDING = 1000
#: Of the seconds between two audits: in how much of them releases are begun after one,
#: and seconds that one of these may take. The audits' thread waits for them.
_AUDIT_SHARE = 0.25
_AGAIN_SECONDS = 10.0
#: Errors that the other releases would meet as well.
_NOBODY_THERE = (errors.ConductorUnavailable, errors.DatabaseUnavailable)


class Conductor(Protocol):
    """What is asked of a conductor; conductor.rpcapi has it."""

    def claim(
        self, context: RequestContext, request: Mapping[str, Any], timeout: float
    ) -> dict[str, Any]:
        """Book a claim."""

    def release_claim(
        self, context: RequestContext, uuid: str, *, timeout: float, attempt: str
    ) -> None:
        """Give one back."""


class Claimer:
    """Answers claims of one host; any thread may call anything.

    :param conductor: decides
    :param held: the grant
    :param marks: whether the agent's loop gets on
    :param seconds: that a caller waits for an answer
    :param interval: returns the seconds between two audits, as configured now
    :param stopping: set when the agent ends: nothing is released again then
    :param clock: monotonic seconds
    """

    def __init__(
        self,
        conductor: Conductor,
        held: tenure.Tenure,
        marks: progress.Progress,
        seconds: float,
        interval: Callable[[], float],
        stopping: threading.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._conductor = conductor
        self._held = held
        self._marks = marks
        self._seconds = seconds
        self._interval = interval
        self._stopping = stopping
        self._clock = clock
        self._lock = threading.Lock()  # guards the two that follow
        self._nodes: Mapping[str, str] = {}  # uuid to name
        # What is to be released, in turn: uuids of claims, each with its call's.
        self._pending: dict[tuple[str, str], None] = {}

    def know(self, nodes: Mapping[str, str]) -> None:
        """Take up which nodes the host has, by name, and try releases again.

        The audits' thread calls it. It takes _AUDIT_SHARE of the time between two
        audits, and one call; what is left comes after the next one.
        """
        with self._lock:
            self._nodes = {uuid: name for name, uuid in nodes.items()}
            pending = list(self._pending)
        until = self._clock() + self._interval() * _AUDIT_SHARE
        for one in pending:
            if self._stopping.is_set() or self._clock() >= until:
                return
            if not self._release_again(one):
                return

    def claim(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Let the conductor book a claim, and return what it says.

        :param request: as of the conductor's; without candidates, of a host with one
            node, for that
        :raises ClaimRefused: the host can't take anything now, a node isn't its, or
            the conductor refuses
        :raises ConductorUnavailable, DatabaseUnavailable: what became of it is
            unknown; it is released: ask again under a new uuid
        :raises Superseded: another process was granted the host
        """
        uuid = request.get("uuid")
        attempt = str(uuidlib.uuid4())
        wanted = {
            **request,
            "candidates": self._candidates(request, uuid),
            "attempt": attempt,
        }
        trouble = self._marks.trouble()
        if trouble is not None:
            raise _refused(uuid, "stalled", f"the host can't take anything: {trouble}")
        try:
            return self._conductor.claim(
                self._held.context, wanted, timeout=self._seconds * _CLAIM_SHARE
            )
        except _UNKNOWN as exc:
            LOG.warning("Claim %s ended unknown and is released: %s", uuid, exc.message)
            self._undo(str(uuid), attempt)
            raise

    def _candidates(self, request: Mapping[str, Any], uuid: object) -> list[Any]:
        with self._lock:
            nodes = self._nodes
        wanted = request.get("candidates")
        if wanted is None:
            if len(nodes) != 1:
                reason = f"is left out, and the host has {len(nodes)} nodes"
                raise errors.InvalidInput(field="candidates", reason=reason)
            return list(nodes)
        if not isinstance(wanted, list | tuple):
            raise errors.InvalidInput(field="candidates", reason="is not a list")
        foreign = [one for one in wanted if str(one).lower() not in nodes]
        if foreign:
            text = f"is not one of the nodes of host {self._held.grant.host}"
            raise errors.ClaimRefused(
                uuid=uuid,
                reasons=[
                    {"node": str(one)[:36], "reason": "other-host", "message": text}
                    for one in foreign[:100]
                ],
            )
        return list(wanted)

    def _undo(self, uuid: str, attempt: str) -> None:
        one = (uuid, attempt)
        with self._lock:
            if len(self._pending) < _MOST_PENDING:
                self._pending[one] = None
        self._release(one, self._seconds * _RELEASE_SHARE)

    def _release_again(self, one: tuple[str, str]) -> bool:
        """Try one once more; return whether the next one can be tried now."""
        seconds = min(self._seconds * _RELEASE_SHARE, _AGAIN_SECONDS)
        self._marks.releasing()
        try:
            failure = self._release(one, seconds)
        finally:
            self._marks.released()
        if failure is not None:
            with self._lock:  # behind the others: they may not wait for this one
                if one in self._pending:
                    del self._pending[one]
                    self._pending[one] = None
        return not isinstance(failure, _NOBODY_THERE)

    def _release(
        self, one: tuple[str, str], seconds: float
    ) -> errors.MusterbookError | None:
        """Release a claim; return why it is to be tried again, None: it is done."""
        uuid, attempt = one
        try:
            self._conductor.release_claim(
                self._held.context, uuid, timeout=seconds, attempt=attempt
            )
        except errors.MusterbookError as exc:
            if isinstance(exc, (*_UNKNOWN, errors.DatabaseBusy)):
                LOG.debug("Claim %s is released later: %s", uuid, exc.message)
                return exc
            LOG.warning("Claim %s is not released: %s", uuid, exc.message)
        with self._lock:
            self._pending.pop(one, None)
        return None


def _refused(uuid: object, word: str, text: str) -> errors.ClaimRefused:
    return errors.ClaimRefused(uuid=uuid, reasons=[{"reason": word, "message": text}])
