"""The agent's RPC endpoint: answers on the queue of its host."""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from oslo_log import log as logging
import oslo_messaging

from compute_agent import claims
from compute_agent import demand
from compute_agent import rpcapi
from compute_agent import tenure
from musterbook import errors
from musterbook import rpc
from musterbook.context import RequestContext
from musterbook.servicegroup import beat

LOG = logging.getLogger(__name__)


class ComputeManager:
    """What an agent answers; any thread.

    :param held: what the conductor granted this process
    :param process_uuid: tells this process from all others
    :param heart: its beats
    :param look: makes the agent look whether the database knows it and its nodes
    :param claimer: answers claims
    :param audits: where audits are asked for
    :param reread: lets the next audit compare with what is stored now
    """

    target = oslo_messaging.Target(version=rpcapi.VERSION)

    def __init__(
        self,
        held: tenure.Tenure,
        process_uuid: str,
        heart: beat.Beat,
        look: Callable[[], None],
        claimer: claims.Claimer,
        audits: demand.Demand,
        reread: Callable[[], None],
    ) -> None:
        self._held = held
        self._process_uuid = process_uuid
        self._heart = heart
        self._look = look
        self._claimer = claimer
        self._audits = audits
        self._reread = reread

    @rpc.exposed
    def ping(self, context: RequestContext) -> dict[str, Any]:
        """Say which process this is and which incarnation it was granted."""
        return {
            "process_uuid": self._process_uuid,
            "incarnation": self._held.grant.incarnation,
        }

    @rpc.exposed
    def rejoin(self, context: RequestContext, incarnation: int) -> None:
        """Join the group again, if this is the incarnation that is meant."""
        if incarnation == self._held.grant.incarnation:
            self._heart.rejoin()

    @rpc.exposed
    def look(self, context: RequestContext) -> None:
        """Look whether the grant and the nodes are stored: the leader doubts it."""
        self._look()

    @rpc.exposed
    def claim(
        self, context: RequestContext, request: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Book a claim on a node of this host.

        :raises ClaimRefused: with all reasons
        :raises ClaimConflict, ClaimGone:
        :raises ConductorUnavailable, DatabaseUnavailable: it is released
        """
        if not isinstance(request, Mapping):
            raise errors.InvalidInput(field="request", reason="is not an object")
        answer = self._claimer.claim(request)
        # What is given out is given out of what is there: look whether it still is.
        self._audits.ask()
        return answer

    @rpc.exposed
    def note_claims(self, context: RequestContext) -> None:
        """Read the nodes again soon: others changed what is claimed of them."""
        self._reread()
        self._audits.ask()

    @rpc.exposed
    def audit(self, context: RequestContext, wait: float = 0.0) -> dict[str, Any]:
        """Audit soon; requests that come meanwhile share one audit.

        :param wait: seconds to wait for its end
        :return: what ComputeAPI.audit says
        :raises InvalidInput: wait isn't from 0 to rpcapi.LONGEST_WAIT
        """
        seconds = rpcapi.check_wait(wait)
        return demand.told(self._audits.wait(self._audits.ask(), seconds))
