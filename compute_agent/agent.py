"""The agent's life: wait for a conductor, say hello, audit, serve, beat, goodbye."""

from collections.abc import Callable
import contextlib
import importlib.metadata
import pathlib
import random
import secrets
import threading
import time
import uuid as uuidlib

from oslo_config import cfg
from oslo_log import log as logging
from oslo_service import loopingcall
from oslo_service import periodic_task

from compute_agent import core
from compute_agent import manager
from compute_agent import resource_tracker
from compute_agent import rpcapi
from compute_agent.inventory import bounded
from compute_agent.inventory import source as inventory_source
from conductor import rpcapi as conductor_rpcapi
from musterbook import backoff
from musterbook import context
from musterbook import daemon
from musterbook import errors
from musterbook import rpc
from musterbook.servicegroup import beat
from musterbook.servicegroup import driver as group_driver
from objects import base
from objects import service as service_obj

LOG = logging.getLogger(__name__)

#: Seconds a goodbye may take; a conductor that is gone finds out by the silence.
_GOODBYE_TIMEOUT = 1.0
_PING_TIMEOUT = 3.0
_BOOT_ID = pathlib.Path("/proc/sys/kernel/random/boot_id")


class Agent(daemon.Part):
    """One host's compute agent.

    :param conf: the checked configuration
    :param transport: the process's transport
    :param make_driver: makes the group connection of a member name
    :param beat_interval: seconds between two beats
    """

    name = "agent"

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        transport: rpc.Transport,
        make_driver: Callable[[str], group_driver.GroupDriver],
        beat_interval: float,
    ) -> None:
        self._conf = conf
        self._transport = transport
        self._make_driver = make_driver
        self._beat_interval = beat_interval
        self._conductor = conductor_rpcapi.ConductorAPI(
            transport, conf.rpc_response_timeout
        )
        self._process_uuid = str(uuidlib.uuid4())
        self._secret = secrets.token_urlsafe(32)
        self._source = inventory_source.load(conf)
        self._reader = bounded.BoundedReader(
            self._source, conf.inventory.timeout, conf.inventory.source
        )
        self._policy = core.Policy.from_conf(conf)
        self._stopping = threading.Event()
        self._grant: context.Grant | None = None
        self._server: rpc.Server | None = None
        self._heart: beat.Beat | None = None
        self._timer: loopingcall.DynamicLoopingCall | None = None

    def start(self) -> None:
        """Wait for a conductor, be granted the host, audit, serve, beat.

        :raises HostTaken: a living process serves this host
        """
        grant = self._hello()
        if grant is None:
            return  # told to stop while waiting
        self._grant = grant
        tracker = resource_tracker.ResourceTracker(
            grant.host, self._reader, self._policy, context.service_context(grant)
        )
        self._audit_first(tracker)
        if self._stopping.is_set():
            return
        self._heart = beat.Beat(
            lambda: self._make_driver(grant.member),
            service_obj.COMPUTE_TOPIC,
            self._beat_interval,
            rng=random.Random(),  # noqa: S311  # no secret depends on it
        )
        self._server = rpc.Server(
            self._transport,
            rpcapi.TOPIC,
            grant.host,
            [manager.ComputeManager(grant, self._process_uuid, self._heart)],
            rpc.ContextSerializer(base.ObjectSerializer()),
        )
        self._server.start()
        self._heart.start()
        self._timer = _periodic_audit(
            self._conf, tracker, self._conf.update_resources_interval
        )
        LOG.info("Host %s: serving as incarnation %s", grant.host, grant.incarnation)

    def stop(self) -> None:
        """Leave the group and say goodbye at once, then finish what is in hand."""
        self._stopping.set()
        # Goodbye first: a leader that sees the member leave without it would say
        # suspect for a moment. A conductor that doesn't answer delays leaving by
        # _GOODBYE_TIMEOUT at most.
        if self._grant is not None:
            self._goodbye(self._grant)
        if self._heart is not None:
            self._heart.stop()
        if self._timer is not None:
            self._timer.stop()
        if self._server is not None:
            self._server.stop()
            self._server.wait()
        self._reader.close()

    # -- hello and goodbye ---------------------------------------------------------

    def _hello(self) -> context.Grant | None:
        """Say hello until a conductor grants or refuses; None when told to stop."""
        pauses = backoff.Backoff(0.2, 10.0)
        waiting_since: float | None = None
        while not self._stopping.is_set():
            try:
                answer = self._say_hello()
            except (
                errors.ConductorUnavailable,
                errors.DatabaseUnavailable,
                errors.DatabaseBusy,
            ) as exc:
                pause = pauses.pause()
                waiting_since = waiting_since or time.monotonic()
                LOG.warning(
                    "Waiting for a conductor (%.0f s so far), next try in %.1f s: %s",
                    time.monotonic() - waiting_since,
                    pause,
                    exc.message,
                )
                self._stopping.wait(pause)
            else:
                return answer
        return None

    def _say_hello(self) -> context.Grant:
        # The ping costs a waiting agent little; hello may take as long as the
        # conductor's own ping of the process that had the host before.
        asking = context.service_context()
        self._conductor.ping(asking, timeout=_PING_TIMEOUT)
        answer = self._conductor.hello(
            asking,
            host=self._conf.host,
            process_uuid=self._process_uuid,
            boot_id=_boot_id(),
            release=importlib.metadata.version("musterbook"),
            secret=self._secret,
        )
        return context.Grant(
            host=answer["host"], incarnation=answer["incarnation"], secret=self._secret
        )

    def _goodbye(self, grant: context.Grant) -> None:
        try:
            self._conductor.goodbye(
                context.service_context(grant), timeout=_GOODBYE_TIMEOUT
            )
        except errors.Superseded as exc:
            LOG.warning("%s", exc.message)
        except errors.MusterbookError as exc:
            LOG.warning("No goodbye, the silence will say it: %s", exc.message)

    # -- audits --------------------------------------------------------------------

    def _audit_first(self, tracker: resource_tracker.ResourceTracker) -> None:
        """Audit before serving; what fails now is tried again periodically."""
        # Logged by the tracker; the periodic audit goes on.
        with contextlib.suppress(errors.InventoryUnavailable):
            tracker.audit()


def _periodic_audit(
    conf: cfg.ConfigOpts,
    tracker: resource_tracker.ResourceTracker,
    interval: float,
) -> loopingcall.DynamicLoopingCall:
    """Start auditing every ``interval`` seconds; return what stops it."""

    class Audits(periodic_task.PeriodicTasks):  # type: ignore[misc]  # oslo.service is untyped
        # A class per agent: the library keeps spacing and tasks on the class.
        @periodic_task.periodic_task(spacing=interval, name="audit")  # type: ignore[untyped-decorator]  # oslo.service is untyped
        def audit(self, _: context.RequestContext) -> None:
            # Logged by the tracker when it begins and when it ends.
            with contextlib.suppress(errors.InventoryUnavailable):
                tracker.audit()

    audits = Audits(conf)
    timer = loopingcall.DynamicLoopingCall(
        audits.run_periodic_tasks, context.service_context()
    )
    # Spread over the interval: agents that start together don't audit together.
    timer.start(
        initial_delay=random.uniform(0, interval),  # noqa: S311  # no secret
        periodic_interval_max=interval,
        stop_on_exception=False,
    )
    return timer


def _boot_id() -> str | None:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return None
