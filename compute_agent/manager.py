"""The agent's RPC endpoint: answers on the queue of its host."""

from typing import Any

from oslo_log import log as logging
import oslo_messaging

from compute_agent import rpcapi
from musterbook import rpc
from musterbook.context import Grant
from musterbook.context import RequestContext
from musterbook.servicegroup import beat

LOG = logging.getLogger(__name__)


class ComputeManager:
    """What an agent answers; any thread.

    :param grant: what the conductor granted this process
    :param process_uuid: tells this process from all others
    """

    target = oslo_messaging.Target(version=rpcapi.VERSION)

    def __init__(self, grant: Grant, process_uuid: str, heart: beat.Beat) -> None:
        self._grant = grant
        self._process_uuid = process_uuid
        self._heart = heart

    @rpc.exposed
    def ping(self, context: RequestContext) -> dict[str, Any]:
        """Say which process this is and which incarnation it was granted."""
        return {
            "process_uuid": self._process_uuid,
            "incarnation": self._grant.incarnation,
        }

    @rpc.exposed
    def rejoin(self, context: RequestContext, incarnation: int) -> None:
        """Join the group again, if this is the incarnation that is meant."""
        if incarnation == self._grant.incarnation:
            self._heart.rejoin()
