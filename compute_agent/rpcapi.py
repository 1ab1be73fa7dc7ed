"""The client side of the compute agents: how a conductor asks one host.

Version history:
    1.0 - ping, rejoin
"""

from typing import Any

from musterbook import errors
from musterbook import rpc
from musterbook.context import RequestContext
from objects import base

TOPIC = "compute"
VERSION = "1.0"


class ComputeAPI:
    """Calls to the agent of a host; thread-safe.

    :param transport: the process's transport
    :param timeout: seconds an answer may take
    """

    def __init__(self, transport: rpc.Transport, timeout: float) -> None:
        self._client = rpc.Client(
            transport,
            TOPIC,
            VERSION,
            rpc.ContextSerializer(base.ObjectSerializer()),
            unavailable=_unavailable,
            timeout=timeout,
        )

    def ping(
        self, context: RequestContext, host: str, timeout: float | None = None
    ) -> dict[str, Any]:
        """Return ``process_uuid`` and ``incarnation`` of the host's agent.

        :raises AgentUnavailable: it didn't answer in time
        """
        try:
            answer: dict[str, Any] = self._client.call(
                context, "ping", server=host, timeout=timeout
            )
        except errors.AgentUnavailable as exc:
            raise errors.AgentUnavailable(
                host=host, method="ping", seconds=exc.kwargs["seconds"]
            ) from None
        return answer

    def rejoin(self, context: RequestContext, host: str, incarnation: int) -> None:
        """Tell this incarnation of a host's agent to join its group again."""
        self._client.cast(context, "rejoin", server=host, incarnation=incarnation)


def _unavailable(method: str, seconds: float) -> errors.MusterbookError:
    return errors.AgentUnavailable(method=method, seconds=seconds)
