"""The client side of the compute agents: how a conductor asks one host.

Version history:
    1.0 - ping, rejoin, look
    1.1 - claim, audit, note_claims
"""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
from typing import Any

from musterbook import errors
from musterbook import rpc
from musterbook.context import RequestContext
from objects import base

TOPIC = "compute"
VERSION = "1.1"
#: What a method needs that says nothing else: any agent has it. A newer method, or
#: argument, passes the version that has it as interface, by which the pin goes.
_FIRST = "1.0"
_CLAIMS = "1.1"
_AUDIT = "1.1"
#: Public: who casts to many agents leaves out those that are older.
NOTE_CLAIMS = "1.1"
#: Seconds that an audit may be waited for.
LONGEST_WAIT = 60.0


class ComputeAPI:
    """Calls to the agent of a host; thread-safe.

    :param transport: the process's transport
    :param timeout: seconds an answer may take
    :param pin: newest version of the interface to speak; None: the newest there is
    """

    def __init__(
        self, transport: rpc.Transport, timeout: float, pin: rpc.Pin | None = None
    ) -> None:
        self._client = rpc.Client(
            transport,
            TOPIC,
            _FIRST,
            rpc.ContextSerializer(base.ObjectSerializer()),
            unavailable=_unavailable,
            not_there=_not_there,
            timeout=timeout,
            pin=pin,
        )

    def set_timeout(self, timeout: float) -> None:
        """Change the seconds an answer may take."""
        self._client.timeout = timeout

    def ping(
        self, context: RequestContext, host: str, timeout: float | None = None
    ) -> dict[str, Any]:
        """Return ``process_uuid`` and ``incarnation`` of the host's agent.

        :raises AgentUnavailable: it didn't answer in time
        :raises AgentNotThere: the broker has no queue of it
        :raises AgentNotAsked: the broker can't be reached
        """
        with _naming(host):
            answer: dict[str, Any] = self._client.call(
                context, "ping", server=host, timeout=timeout
            )
        return answer

    def rejoin(self, context: RequestContext, host: str, incarnation: int) -> None:
        """Tell this incarnation of a host's agent to join its group again.

        :raises AgentNotAsked: the broker can't be reached
        """
        with _naming(host):
            self._client.cast(context, "rejoin", server=host, incarnation=incarnation)

    def look(self, context: RequestContext, host: str) -> None:
        """Tell a host's agent to look whether its grant is still the current one.

        :raises AgentNotAsked: the broker can't be reached
        """
        with _naming(host):
            self._client.cast(context, "look", server=host)

    def claim(
        self,
        context: RequestContext,
        host: str,
        request: Mapping[str, Any],
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Let the host's agent look whether it can take a claim, and book it.

        :param request: as of the conductor's claim; without candidates, of a host
            with one node, for that
        :return: as of the conductor's claim
        :raises ClaimRefused: with all reasons, of the host or the conductor
        :raises ClaimConflict, ClaimGone: as of the conductor's claim
        :raises ConductorUnavailable, DatabaseUnavailable: the agent got no answer from
            there, and releases the claim: ask again under a new uuid
        :raises AgentUnavailable: what became of it is unknown: release it
        :raises VersionPinned: the agents may be too old to be asked
        """
        with _naming(host):
            answer: dict[str, Any] = self._client.call(
                context,
                "claim",
                server=host,
                interface=_CLAIMS,
                timeout=timeout,
                request=dict(request),
            )
        return answer

    def note_claims(self, context: RequestContext, host: str) -> None:
        """Tell a host's agent that others changed what is claimed of its nodes.

        It reads them again soon. Nothing depends on it: a cast that is lost is made up
        for by the next one, or by whatever else makes the agent read.

        :raises AgentNotAsked: the broker can't be reached
        :raises VersionPinned: the agents may be too old to be told
        """
        with _naming(host):
            self._client.cast(
                context, "note_claims", server=host, interface=NOTE_CLAIMS
            )

    def audit(
        self, context: RequestContext, host: str, wait: float = 5.0
    ) -> dict[str, Any]:
        """Have a host audited now, and say what that did.

        Who asks while others do shares their audit; it reads the source after all of
        them have asked. To be repeated at will.

        :param wait: seconds to wait for its end, at most LONGEST_WAIT; 0: none
        :return: ``ended``: whether it has; if not, it is yet to come, or in hand. Then
            ``seconds``; ``error`` (code, message) if it could not be done; or else
            ``counts`` of nodes by what was done (created, saved, unchanged, elsewhere,
            deleted, failed), ``nodes``, some names of those that changed, and
            ``failed``, some reasons by name
        :raises AgentUnavailable: it didn't answer in time, or there is none
        :raises AgentNotAsked: the broker can't be reached
        :raises UnsupportedObject, VersionPinned: it is older than that, or may be
        :raises InvalidInput: wait isn't from 0 to LONGEST_WAIT
        """
        seconds = check_wait(wait)
        with _naming(host):
            answer: dict[str, Any] = self._client.call(
                context,
                "audit",
                server=host,
                timeout=self._client.timeout + seconds,
                interface=_AUDIT,
                wait=seconds,
            )
        return answer


def check_wait(wait: object) -> float:
    """Return the seconds to wait for an audit.

    :raises InvalidInput: it isn't from 0 to LONGEST_WAIT
    """
    number = isinstance(wait, int | float) and not isinstance(wait, bool)
    if not number or not 0.0 <= float(wait) <= LONGEST_WAIT:  # type: ignore[arg-type]  # it is a number
        raise errors.InvalidInput(
            field="wait", reason=f"is not from 0 to {LONGEST_WAIT:g} seconds"
        )
    return float(wait)  # type: ignore[arg-type]  # it is a number


@contextlib.contextmanager
def _naming(host: str) -> Iterator[None]:
    """Say which host didn't answer, which the client doesn't know."""
    try:
        yield
    except errors.AgentUnavailable as exc:
        raise type(exc)(None, **exc.kwargs | {"host": host}) from None


def _not_there(method: str, seconds: float) -> errors.MusterbookError:
    return errors.AgentNotThere(method=method, seconds=seconds)


def _unavailable(method: str, seconds: float, asked: bool) -> errors.MusterbookError:
    if asked:
        return errors.AgentUnavailable(method=method, seconds=seconds)
    return errors.AgentNotAsked(
        method=method, reason="the message broker can't be reached"
    )
