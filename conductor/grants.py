"""Who may serve a host: hello is answered with a grant or a refusal.

A process that was granted a host keeps it as long as it answers. The newcomer takes
nothing from the host's queue before it is granted, so that an answer to a ping can
only come from a process that was granted the host before. Only silence lets a newcomer
in: somebody who was asked and didn't answer, or a broker that has known of nobody there
for long enough.

A host that was renamed takes its nodes along, if nobody serves its former name.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import threading
import time
from typing import Any

from oslo_log import log as logging

from conductor.db import liveness
from musterbook import errors
from musterbook import names
from musterbook.context import RequestContext
from objects import service as service_obj

LOG = logging.getLogger(__name__)

#: How often a hello that lost a race against another one is decided anew.
_ATTEMPTS = 5
#: Pings at the same time in one process. Each holds one of its 64 RPC threads (oslo's
#: executor_thread_pool_size) for up to ping_timeout; after a power failure every host
#: of the fleet says hello, and the rest of the conductor's work must go on.
PINGS_AT_ONCE = 16
#: Seconds for which a broker may not know of an agent that lives: one that comes back
#: to a restarted broker waits for up to 9 s (see musterbook.rpc.transport), and one
#: that was granted its host just now is about to listen.
SETTLE_SECONDS = 10.0
#: Seconds after which such a time begins anew.
_FORGET_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class Formerly:
    """What an agent knows of the time when its host had another name.

    :ivar nodes: uuid and name of each node that it had then
    """

    host: str
    nodes: Sequence[tuple[str, str]]


class Granter:
    """Decides hellos; any thread, any number of conductors at once.

    :param store: the liveness records
    :param ping: asks a host's agent and returns its answer, which has the process's
        ``process_uuid``; bounded in time. Raises AgentUnavailable when nobody
        answers, AgentNotThere when the broker knows of nobody, AgentNotAsked when
        nobody could be asked
    :param settle: seconds for which the broker must have known of nobody, before that
        says that nobody is there
    """

    def __init__(
        self,
        store: liveness.LivenessStore,
        ping: Callable[[RequestContext, str], Mapping[str, Any]],
        settle: float = SETTLE_SECONDS,
    ) -> None:
        self._store = store
        self._ping = ping
        self._absences = _Absences(settle)
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
        formerly: Formerly | None = None,
    ) -> dict[str, Any]:
        """Return the host as stored and the incarnation granted to the process.

        :param had: the incarnation as which the process serves already, if the
            database has forgotten it; the new one is higher
        :param version: the process's service level; None: it doesn't say
        :param formerly: the host's former name and nodes; the answer then has, as
            ``nodes``, each uuid with the host whose it is now, or None
        :raises NodeTaken: a node of the former name is a living process's
        :raises HostTaken: the process that has the grant answers, or somebody does
            of whom can't be told that it is another
        :raises AgentNotAsked: that process could not be asked now; try again
        :raises DatabaseBusy: other hellos for this host won every race
        """
        for _ in range(_ATTEMPTS):
            known = self._store.known(host, service_obj.COMPUTE_BINARY)
            if known is not None and not known.is_of(process_uuid, secret):
                self._refuse_if_taken(context, known, process_uuid)
            claim = self._claim(context, formerly)
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
                    claim=claim,
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
            answer: dict[str, Any] = {"host": stored, "incarnation": incarnation}
            if formerly is not None:
                answer["nodes"] = self._now(stored, formerly)
            return answer
        raise errors.DatabaseBusy(reason=f"too many processes say hello for {host}")

    def _refuse_if_taken(
        self,
        context: RequestContext,
        known: liveness.KnownService,
        process_uuid: str,
    ) -> None:
        if known.incarnation is None or known.said_goodbye:
            return
        if self._answers(context, known, process_uuid):
            LOG.warning(
                "Host %s: refused process %s, process %s serves it and answers",
                known.host,
                process_uuid,
                known.process_uuid,
            )
            raise errors.HostTaken(host=known.host, process_uuid=known.process_uuid)

    def _claim(
        self, context: RequestContext, formerly: Formerly | None
    ) -> liveness.Claim | None:
        """Return what the newcomer may take over of its former name, None: nothing.

        :raises NodeTaken: the process of that name lives
        :raises AgentUnavailable: whether it does can't be told now; try again
        """
        if formerly is None:
            return None
        # First who serves, then what it has: the grant looks at the former again.
        known = self._store.known(formerly.host, service_obj.COMPUTE_BINARY)
        uuids = [uuid for uuid, _ in formerly.nodes]
        found = self._store.nodes_of(formerly.host, uuids)
        if not found:
            return None
        if known is not None and self._lives(context, known):
            uuid, name = found[0]
            LOG.warning(
                "Refused an agent that claims compute node %s (uuid %s): host %s, "
                "process %s, has it and lives",
                name,
                uuid,
                known.host,
                known.process_uuid,
            )
            raise errors.NodeTaken(
                host=known.host,
                uuid=uuid,
                hypervisor_hostname=name,
                process_uuid=known.process_uuid,
            )
        return liveness.Claim(
            known.host if known is not None else formerly.host,
            known.incarnation if known is not None else None,
            frozenset(uuid for uuid, _ in found),
        )

    def _lives(self, context: RequestContext, known: liveness.KnownService) -> bool:
        """Return whether somebody serves a host.

        :raises AgentUnavailable: it is seen and doesn't answer, which may pass
        """
        if known.said_goodbye or (known.incarnation is None and not known.up):
            return False
        if self._answers(context, known):
            return True
        if known.up:
            # Unlike a second process of the host, nothing would supersede it.
            raise errors.AgentUnavailable(
                f"host {known.host}, from which this one takes its nodes over, is seen "
                "up but doesn't answer; waiting until it is gone",
                host=known.host,
                method="ping",
            )
        return False

    def _now(self, host: str, formerly: Formerly) -> list[list[str | None]]:
        """Return whose the nodes are now, and say which of them have been moved."""
        found = self._store.hosts_of([uuid for uuid, _ in formerly.nodes])
        by_uuid = dict(formerly.nodes)
        for uuid, owner in found:
            if owner is not None and names.fold(owner) == names.fold(host):
                LOG.warning(
                    "Host %s was %s: compute node %s (uuid %s) is its now",
                    host,
                    formerly.host,
                    by_uuid[uuid],
                    uuid,
                )
        return [[uuid, owner] for uuid, owner in found]

    def _answers(
        self,
        context: RequestContext,
        known: liveness.KnownService,
        newcomer: str | None = None,
    ) -> bool:
        """Return whether the process that has the grant may be alive.

        :param newcomer: uuid of the process that asks for it
        :raises AgentNotAsked: that can't be told now
        """
        try:
            with self._one_of_few(known.host):
                answer = self._ping(context, known.host)
        except errors.AgentNotAsked:
            raise
        except errors.AgentNotThere:
            if not known.down:
                self._absences.check(known.host)
            return False
        except errors.AgentUnavailable:
            return False
        except errors.MusterbookError as exc:
            # Whoever answers with an error answers.
            LOG.warning("Host %s: ping answered oddly: %s", known.host, exc.message)
            return True
        uuid = answer.get("process_uuid") if isinstance(answer, Mapping) else None
        if uuid in (None, known.process_uuid):
            return True
        if uuid == newcomer:
            return False  # it serves the host, and the database has forgotten it
        # A process that was superseded hears the same queue until it notices.
        raise errors.AgentNotAsked(
            host=known.host, method="ping", reason="a process without a grant answers"
        )

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


class _Absences:
    """Since when the broker knows of no agent of a host; any thread may ask.

    :param settle: seconds until that means that there is none
    """

    def __init__(self, settle: float) -> None:
        self._settle = settle
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[float, float]] = {}  # host to first and last time
        self._prune_at = 0.0

    def check(self, host: str) -> None:
        """Note that the broker knows of nobody; return if it has for long enough.

        :raises AgentNotAsked: it hasn't
        """
        now, key = time.monotonic(), names.fold(host)
        with self._lock:
            if now >= self._prune_at:  # not each time: a whole fleet may be starting
                self._prune_at = now + _FORGET_SECONDS
                self._seen = {
                    h: times
                    for h, times in self._seen.items()
                    if now - times[1] < _FORGET_SECONDS
                }
            first, last = self._seen.get(key, (now, now))
            if now - last >= _FORGET_SECONDS:
                first = now
            lasted = now - first
            if lasted >= self._settle:
                self._seen.pop(key, None)
                return
            self._seen[key] = first, now
        raise errors.AgentNotAsked(
            host=host,
            method="ping",
            reason=f"it may be about to listen, wait for {self._settle - lasted:.1f} s",
        )
