"""Who may serve a host: hello is answered with a grant or a refusal.

A process that was granted a host keeps it as long as it answers. The newcomer takes
nothing from the host's queue before it is granted, so that an answer to a ping can
only come from a process that was granted the host before. Only silence lets a newcomer
in: somebody who was asked and didn't answer, or a broker that knows of nobody there.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import threading
from typing import Any

from oslo_log import log as logging

from conductor.db import liveness
from musterbook import errors
from musterbook.context import RequestContext
from objects import service as service_obj

LOG = logging.getLogger(__name__)

#: How often a hello that lost a race against another one is decided anew.
_ATTEMPTS = 5
#: Pings at the same time in one process. Each holds one of its 64 RPC threads (oslo's
#: executor_thread_pool_size) for up to ping_timeout; after a power failure every host
#: of the fleet says hello, and the rest of the conductor's work must go on.
PINGS_AT_ONCE = 16


class Granter:
    """Decides hellos; any thread, any number of conductors at once.

    :param store: the liveness records
    :param ping: asks a host's agent and returns its answer, which has the process's
        ``process_uuid``; bounded in time. Raises AgentUnavailable when nobody
        answers, AgentNotAsked when nobody could be asked
    """

    def __init__(
        self,
        store: liveness.LivenessStore,
        ping: Callable[[RequestContext, str], Mapping[str, Any]],
    ) -> None:
        self._store = store
        self._ping = ping
        self._pings = threading.BoundedSemaphore(PINGS_AT_ONCE)

    def hello(
        self,
        context: RequestContext,
        *,
        host: str,
        process_uuid: str,
        boot_id: str | None,
        release: str,
        secret: str,
        had: int | None = None,
        version: int | None = None,
    ) -> dict[str, Any]:
        """Return the host as stored and the incarnation granted to the process.

        :param had: the incarnation as which the process serves already, if the
            database has forgotten it; the new one is higher
        :param version: the process's service level; None: it doesn't say
        :raises HostTaken: the process that has the grant answers, or somebody does
            of whom can't be told that it is another
        :raises AgentNotAsked: that process could not be asked now; try again
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
                    had=had,
                    version=version or 0,
                )
            except liveness.GrantConflict:
                continue  # another hello came first: look again who has the host
            LOG.info(
                "Host %s: granted incarnation %s to process %s (%s)%s",
                host,
                incarnation,
                process_uuid,
                release,
                "" if had is None else f"; it had {had}, which the database forgot",
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
        if self._answers(context, known):
            LOG.warning(
                "Host %s: refused process %s, process %s serves it and answers",
                known.host,
                process_uuid,
                known.process_uuid,
            )
            raise errors.HostTaken(host=known.host, process_uuid=known.process_uuid)

    def _answers(self, context: RequestContext, known: liveness.KnownService) -> bool:
        """Return whether the process that has the grant may be alive."""
        try:
            with self._one_of_few(known.host):
                answer = self._ping(context, known.host)
        except errors.AgentNotAsked:
            raise
        except errors.AgentUnavailable:
            return False
        except errors.MusterbookError as exc:
            # Whoever answers with an error answers.
            LOG.warning("Host %s: ping answered oddly: %s", known.host, exc.message)
            return True
        uuid = answer.get("process_uuid") if isinstance(answer, Mapping) else None
        return uuid is None or uuid == known.process_uuid

    @contextlib.contextmanager
    def _one_of_few(self, host: str) -> Iterator[None]:
        # Without waiting: who waits here holds the thread that is to be kept free.
        if not self._pings.acquire(blocking=False):
            raise errors.AgentNotAsked(
                host=host,
                method="ping",
                reason=f"{PINGS_AT_ONCE} other starting agents are being looked into",
            )
        try:
            yield
        finally:
            self._pings.release()
