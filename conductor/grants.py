"""Who may serve a host: hello is answered with a grant or a refusal.

A process that was granted a host keeps it as long as it answers. The newcomer takes
nothing from the host's queue before it is granted, so that an answer to a ping can
only come from the process that has the grant now.
"""

from collections.abc import Callable
from typing import Any

from oslo_log import log as logging

from conductor.db import liveness
from musterbook import errors
from musterbook.context import RequestContext
from objects import service as service_obj

LOG = logging.getLogger(__name__)

#: How often a hello that lost a race against another one is decided anew.
_ATTEMPTS = 5


class Granter:
    """Decides hellos; any thread, any number of conductors at once.

    :param store: the liveness records
    :param ping: asks a host's agent and returns the uuid of the process that
        answers, or None when nobody does within the limit
    """

    def __init__(
        self,
        store: liveness.LivenessStore,
        ping: Callable[[RequestContext, str], str | None],
    ) -> None:
        self._store = store
        self._ping = ping

    def hello(
        self,
        context: RequestContext,
        *,
        host: str,
        process_uuid: str,
        boot_id: str | None,
        release: str,
        secret: str,
    ) -> dict[str, Any]:
        """Return the host as stored and the incarnation granted to the process.

        :raises HostTaken: the process that has the grant answers
        :raises DatabaseBusy: other hellos for this host won every race
        """
        for _ in range(_ATTEMPTS):
            known = self._store.known(host, service_obj.COMPUTE_BINARY)
            self._refuse_if_taken(context, host, known, process_uuid)
            try:
                incarnation = self._store.grant(
                    host,
                    service_obj.COMPUTE_BINARY,
                    service_obj.COMPUTE_TOPIC,
                    process_uuid,
                    boot_id,
                    release,
                    secret,
                    expected=known.incarnation if known is not None else None,
                )
            except liveness.GrantConflict:
                continue  # another hello came first: look again who has the host
            LOG.info(
                "Host %s: granted incarnation %s to process %s (%s)",
                host,
                incarnation,
                process_uuid,
                release,
            )
            stored = known.host if known is not None else host
            return {"host": stored, "incarnation": incarnation}
        raise errors.DatabaseBusy(reason=f"too many processes say hello for {host}")

    def _refuse_if_taken(
        self,
        context: RequestContext,
        host: str,
        known: liveness.KnownService | None,
        process_uuid: str,
    ) -> None:
        if (
            known is None
            or known.incarnation is None
            or known.said_goodbye
            or known.process_uuid == process_uuid
        ):
            return
        if self._ping(context, known.host) == known.process_uuid:
            LOG.warning(
                "Host %s: refused process %s, process %s serves it and answers",
                known.host,
                process_uuid,
                known.process_uuid,
            )
            raise errors.HostTaken(host=known.host, process_uuid=known.process_uuid)
