"""The agent's life: wait for a conductor, say hello, serve, audit, beat, goodbye."""

from collections.abc import Callable
from collections.abc import Mapping
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

from compute_agent import audits
from compute_agent import beats
from compute_agent import claims
from compute_agent import core
from compute_agent import demand
from compute_agent import holdings
from compute_agent import identity
from compute_agent import manager
from compute_agent import progress
from compute_agent import resource_tracker
from compute_agent import rpcapi
from compute_agent import tenure
from compute_agent import verifier
from compute_agent import watchdog
from compute_agent.inventory import bounded
from compute_agent.inventory import source as inventory_source
from conductor import rpcapi as conductor_rpcapi
from musterbook import backoff
from musterbook import context
from musterbook import daemon
from musterbook import errors
from musterbook import levels
from musterbook import names
from musterbook import rpc
from musterbook.servicegroup import beat
from musterbook.servicegroup import db_driver
from musterbook.servicegroup import driver as group_driver
from musterbook.servicegroup import reach
from objects import base
from objects import service as service_obj

LOG = logging.getLogger(__name__)

#: Seconds a goodbye may take; a conductor that is gone finds out by the silence.
_GOODBYE_TIMEOUT = 1.0
_PING_TIMEOUT = 3.0
_JOIN_STEP = 0.1
#: Seconds between two audits while one node can't be saved, growing.
_FIRST_AGAIN = 1.0
_MOST_AGAIN = 10.0
#: Seconds a hello may take: longer than a conductor's ping of the process that had
#: the host before.
_HELLO_TIMEOUT = 10.0
# The order of a stop: what tells others comes before what waits for work in hand.
_GOODBYE, _LEAVE, _SERVE, _AUDIT, _VERIFY = range(5)
#: Errors of a hello that pass by waiting.
_PASSING = (
    errors.ConductorUnavailable,
    errors.AgentUnavailable,
    errors.DatabaseUnavailable,
    errors.DatabaseBusy,
    errors.DatabaseShape,
    errors.RemoteFailure,
    errors.UnsupportedObject,  # a conductor that is yet to be upgraded
)
#: Nodes that a log line names.
_TOLD = 10
_BOOT_ID = pathlib.Path("/proc/sys/kernel/random/boot_id")


class Agent(daemon.Part):
    """One host's compute agent.

    :param conf: the checked configuration
    :param transport: the process's transport
    :param make_driver: makes the group connection of a member name; the db driver's
        goes by the ways to a conductor
    :param beat_interval: returns the seconds between two beats, as configured now
    :param host: None: the option host
    """

    name = "agent"

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        transport: rpc.Transport,
        make_driver: Callable[[str, db_driver.Ways], group_driver.GroupDriver],
        beat_interval: Callable[[], float],
        host: str | None = None,
    ) -> None:
        progress.check(conf)
        self._conf = conf
        self._host = host or conf.host
        self._transport = transport
        self._make_driver = make_driver
        self._beat_interval = beat_interval
        self._conductor = conductor_rpcapi.ConductorAPI(
            transport, conf.rpc_response_timeout, conf.upgrade_levels.conductor
        )
        self._process_uuid = str(uuidlib.uuid4())
        self._secret = secrets.token_urlsafe(32)
        self._identity = identity.IdentityFile(self._state_folder())
        self._saved: identity.Identity | None = None
        self._known: Mapping[str, str] = {}  # our nodes, by name, as the book confirmed
        # Each loop in a thread of its own.
        self._make_heart: Callable[..., beat.Beat] = beat.Beat
        self._make_verifier: Callable[..., verifier.Verifier] = verifier.Verifier
        self._make_audits: Callable[..., audits.Audits] = audits.Audits
        self._make_watchdog: Callable[..., watchdog.Watchdog] = watchdog.Watchdog
        self._source = self._make_source()
        self._reader = bounded.BoundedReader(
            self._source, conf.inventory.timeout, conf.inventory.source
        )
        self._stopping = threading.Event()
        self._demand = demand.Demand()
        self._doubted = threading.Event()  # that the book holds what we wrote
        self._forgotten: int | None = None  # the incarnation that was said to be
        self._shortened: str | None = None  # what was said of the audits' interval
        # What stop() has to undo, by rank: see _published.
        self._undo: list[tuple[int, Callable[[], object]]] = []
        self._undo_lock = threading.Lock()
        # What reset() and abandon() tell, as far as start() has got.
        self._on_reset: list[Callable[[], None]] = []
        self._on_abandon: list[Callable[[], None]] = []

    def start(self) -> None:
        """Wait for a conductor, be granted the host, serve, audit, beat.

        Serving comes right after the grant: it is the answer to a conductor's ping
        that keeps a second process from being granted the host, and this one from
        being taken for dead while its first audit takes long.

        Returns once the host can be seen in the group.

        :raises ConfigurationError: the broker or the group backend refuses this process
        :raises HostTaken: a living process serves this host
        :raises NodeTaken: a living process has the nodes that this one had when its
            host had another name
        :raises Superseded: another process was granted the host meanwhile
        """
        self._saved = self._identity.read()
        if not self._wait_for_servers():
            return
        grant = self._hello()
        if grant is None:
            return  # told to stop while waiting
        held = tenure.Tenure(grant)
        marks = progress.Progress(self._conf.stalled_after)
        if not self._published(_GOODBYE, lambda: self._goodbye(held)):
            return
        claimer = claims.Claimer(
            self._conductor,
            held,
            marks,
            self._conf.rpc_response_timeout,
            lambda: progress.audit_interval(self._conf),
            self._stopping,
        )
        claimer.know(self._known)
        tracker = resource_tracker.ResourceTracker(
            self._reader,
            core.Policy.from_conf(self._conf),
            holdings.Holdings(
                held,
                lambda *node: self._adopt(held, *node),
                self._known,
            ),
            lambda nodes: self._keep(held, claimer, nodes),
            self._stopping,
            marks,
        )
        looker = self._make_verifier(
            self._conductor,
            held,
            self._conf.verify_interval,
            _HELLO_TIMEOUT,
            on_superseded=self.fail,
            on_forgotten=lambda exc: self._renew(held, heart, exc),
            on_verified=lambda: self._verified(tracker, dog),
        )
        ways = db_driver.Ways(
            beats.teller(self._conductor, held, looker.look),
            beats.reader(self._conductor),
        )
        heart: beat.Beat = self._make_heart(
            lambda: self._make_driver(held.grant.member, ways),
            service_obj.COMPUTE_TOPIC,
            self._beat_interval(),
            rng=random.Random(),  # noqa: S311  # no secret depends on it
            on_rejoin=looker.look,
        )
        server = self._make_server(
            grant.host,
            manager.ComputeManager(
                held,
                self._process_uuid,
                heart,
                lambda: self._look(looker),
                claimer,
                self._demand,
                tracker.reread,
            ),
        )
        # Before it starts, which may take as long as the broker does.
        if not self._published(_SERVE, lambda: _stop_server(server)):
            return
        server.start()
        self._on_abandon.append(server.abandon)
        # Before anything that may hang: a host whose first audit does is never up.
        dog: watchdog.Watchdog = self._make_watchdog(
            self._conductor, held, marks, server.full_since, looker.look
        )
        marks.begin()
        dog.start()
        if not self._published(_VERIFY, dog.stop):
            return
        looker.start()
        if not self._published(_VERIFY, looker.stop):
            return
        self._audit_first(tracker)
        # In this order: a beat that is stopped before it starts never joins, and a
        # join after the goodbye would take it back.
        if not self._published(_LEAVE, heart.stop):
            return
        heart.start()
        audit = self._make_audits(
            self._conf, lambda: self._audit_again(tracker, looker), self._demand.wanted
        )
        if not self._published(_AUDIT, audit.stop):
            return
        self._on_reset += [
            lambda: tracker.set_policy(core.Policy.from_conf(self._conf)),
            lambda: looker.set_interval(self._conf.verify_interval),
            lambda: heart.set_interval(self._beat_interval()),
            lambda: marks.set_seconds(self._conf.stalled_after),
            lambda: audit.set_interval(progress.audit_interval(self._conf)),
        ]
        self.reset()
        if not self._stopping.is_set():
            LOG.info(
                "Host %s: serving as incarnation %s", grant.host, grant.incarnation
            )
            self._wait_joined(heart)

    def stop(self) -> None:
        """Say goodbye, leave the group, then finish what is in hand.

        Goodbye comes first: a leader that sees the member leave without it would say
        suspect for a moment. A conductor that doesn't answer delays leaving by
        _GOODBYE_TIMEOUT at most.
        """
        self._stopping.set()
        self._demand.close()
        with self._undo_lock:
            undo, self._undo = self._undo, []
        for _, step in sorted(undo, key=lambda item: item[0]):
            try:
                step()
            except Exception:
                # The others matter no less: a beat that goes on shows a dead host.
                LOG.exception("One step of the stop failed, going on with the others")
        self._reader.close()

    def reset(self) -> None:
        """Take up the configuration as it is now; the membership stays."""
        self._reader.set_timeout(self._conf.inventory.timeout)
        for take_up in tuple(self._on_reset):
            take_up()
        shortened = progress.shortened(self._conf)
        if shortened != self._shortened:
            self._shortened = shortened
            self._say_shortened(shortened)

    def abandon(self) -> None:
        """Tell callers that their calls are not finished."""
        for tell in tuple(self._on_abandon):
            tell()

    def _published(self, rank: int, undo: Callable[[], object]) -> bool:
        """Leave it to stop() to undo a step of the start; return whether to go on.

        When stop() has already passed, the step is undone here.
        """
        with self._undo_lock:
            if not self._stopping.is_set():
                self._undo.append((rank, undo))
                return True
        undo()
        return False

    # -- what it is made of: musterbook-hollow has others --------------------------

    def _state_folder(self) -> pathlib.Path:
        return pathlib.Path(self._conf.state_path)

    def _say_shortened(self, what: str | None) -> None:
        """Say that audits come more often than configured, or (None) no more."""
        if what is not None:
            LOG.warning("%s", what)

    def _make_source(self) -> inventory_source.InventorySource:
        return inventory_source.load(self._conf)

    def _make_server(
        self, host: str, endpoint: manager.ComputeManager
    ) -> rpc.AnyServer:
        return rpc.Server(
            self._transport,
            rpcapi.TOPIC,
            host,
            [endpoint],
            rpc.ContextSerializer(base.ObjectSerializer()),
        )

    def _wait_for_servers(self) -> bool:
        """Wait for the broker, ask the backend; return False when told to stop."""
        if not rpc.wait_for_broker(self._conf, self._stopping):
            return False
        # Only whether it refuses us, which no waiting mends; that it is away is for
        # the beat to say, and no reason not to serve.
        reach.attempt(lambda: self._make_driver(f"{self._host}#", beats.NO_WAYS))
        return True

    # -- hello and goodbye ---------------------------------------------------------

    def _hello(self) -> context.Grant | None:
        """Say hello until a conductor grants or refuses; None when told to stop."""
        pauses = backoff.Backoff(0.2, 10.0)
        began = time.monotonic()
        attempts = 0
        while not self._stopping.is_set():
            try:
                grant = self._say_hello()
            except _PASSING as exc:
                pause = pauses.pause()
                # News once; then a sign of life with growing gaps.
                LOG.log(
                    logging.WARNING if attempts == 0 else logging.INFO,
                    "Waiting for a conductor (%.0f s so far), next try in %.1f s: %s",
                    time.monotonic() - began,
                    pause,
                    exc.message,
                )
                attempts += 1
                self._stopping.wait(pause)
                continue
            if attempts:
                waited = time.monotonic() - began
                LOG.warning("A conductor answered after %.1f s", waited)
            return grant
        return None

    def _say_hello(self, old: context.Grant | None = None) -> context.Grant:
        asking = context.service_context()
        # Costs a waiting agent and a busy conductor little.
        self._conductor.ping(asking, timeout=_PING_TIMEOUT)
        saved = self._saved if old is None else None
        if saved is not None and names.fold(saved.host) == names.fold(self._host):
            self._known, saved = saved.nodes, None
        answer = self._conductor.hello(
            asking,
            host=self._host if old is None else old.host,
            process_uuid=self._process_uuid,
            boot_id=_boot_id(),
            release=importlib.metadata.version("musterbook"),
            secret=self._secret,
            had=None if old is None else old.incarnation,
            version=levels.SERVICE_LEVEL,
            formerly=None if saved is None else saved.host,
            nodes=[] if saved is None else [(u, n) for n, u in saved.nodes.items()],
            timeout=_HELLO_TIMEOUT,
        )
        if saved is not None:
            if saved.nodes and "nodes" not in answer:
                # Going on would make them anew, and forget what the file knows.
                raise conductor_rpcapi.untold(answer["host"], saved.host)
            owners = dict(answer.get("nodes") or ())
            self._take_along(saved, answer["host"], owners)
        return context.Grant(
            host=answer["host"], incarnation=answer["incarnation"], secret=self._secret
        )

    def _take_along(
        self, saved: identity.Identity, host: str, owners: Mapping[str, str | None]
    ) -> None:
        """Note, and say, which nodes of its former name a renamed host has now.

        :param owners: uuid to the host that the book names; None: there is no record
        """
        ours, left = {}, {}
        for name, uuid in saved.nodes.items():
            owner = owners.get(uuid)
            if owner is not None and names.fold(owner) == names.fold(host):
                ours[name] = uuid
            elif owner is not None:
                left[name] = f"{uuid}, of host {owner}"
        self._known = ours
        if ours:
            LOG.warning(
                "Host renamed from %s to %s: node %s taken over with what is used of "
                "it. The service of %s stays in the book until somebody deletes it",
                saved.host,
                host,
                _listed(ours),
                saved.host,
            )
        if left:
            LOG.warning(
                "Host renamed from %s to %s: node %s not taken over, since %s has "
                "nodes of its own or another host has them now; delete what is not "
                "needed",
                saved.host,
                host,
                _listed(left),
                host,
            )

    def _renew(
        self, held: tenure.Tenure, heart: beat.Beat, exc: errors.GrantForgotten
    ) -> None:
        """Say hello again and go on serving, under the new number.

        :raises HostTaken: another process was faster
        :raises MusterbookError: what may pass
        """
        if self._stopping.is_set():
            return
        if self._forgotten != exc.incarnation:
            self._forgotten = exc.incarnation
            LOG.warning("%s; saying hello again", exc.message)
        grant = self._say_hello(held.grant)
        if grant.host != held.grant.host:
            # Another spelling, under which our queue isn't looked for: start anew.
            self.fail(exc)
            return
        held.renew(grant)
        heart.rename()
        self._demand.ask()
        LOG.warning(
            "Host %s: serving as incarnation %s from now on",
            grant.host,
            grant.incarnation,
        )
        if self._stopping.is_set():
            self._goodbye(held)  # the one that stop() said may have been the former's

    def _look(self, looker: verifier.Verifier) -> None:
        """Look whether the database knows us, and what it has of our nodes."""
        self._doubted.set()
        looker.look()

    def _verified(
        self, tracker: resource_tracker.ResourceTracker, dog: watchdog.Watchdog
    ) -> None:
        tracker.reread()
        if self._doubted.is_set():
            self._doubted.clear()
            self._demand.ask()
            dog.repeat()

    def _wait_joined(self, heart: beat.Beat) -> None:
        """Wait for the first join; the beat's thread says in the log what it lacks."""
        while not (heart.wait_joined(_JOIN_STEP) or self._stopping.is_set()):
            refused = heart.status().refused
            if refused is not None:
                raise reach.refused(refused)

    def _goodbye(self, held: tenure.Tenure) -> None:
        try:
            self._conductor.goodbye(held.context, timeout=_GOODBYE_TIMEOUT)
        except errors.Superseded as exc:
            LOG.warning("%s", exc.message)
        except errors.MusterbookError as exc:
            LOG.warning("No goodbye, the silence will say it: %s", exc.message)

    def _keep(
        self, held: tenure.Tenure, claimer: claims.Claimer, nodes: Mapping[str, str]
    ) -> None:
        """Keep which nodes the book has confirmed, by name."""
        self._identity.keep(identity.Identity(held.grant.host, dict(nodes)))
        claimer.know(nodes)

    # -- audits --------------------------------------------------------------------

    def _adopt(self, held: tenure.Tenure, uuid: str, name: str, formerly: str) -> None:
        """Ask for a node, for no longer than an audit's other calls may take."""
        seconds = min(resource_tracker.CALL_SECONDS, self._conf.rpc_response_timeout)
        self._conductor.adopt_node(held.context, uuid, name, formerly, timeout=seconds)

    def _audit_first(self, tracker: resource_tracker.ResourceTracker) -> None:
        """Audit before joining; what fails now is tried again periodically."""
        # Logged by the tracker; the periodic audit goes on.
        # That the database has just been replaced is found out by the verifier.
        with contextlib.suppress(errors.InventoryUnavailable, errors.GrantForgotten):
            if self._audit(tracker).failed:
                self._demand.ask()

    def _audit_again(
        self, tracker: resource_tracker.ResourceTracker, looker: verifier.Verifier
    ) -> None:
        """Audit; what can't be saved is tried until the next audit is due."""
        pauses = backoff.Backoff(_FIRST_AGAIN, _MOST_AGAIN)
        due = time.monotonic() + progress.audit_interval(self._conf)
        while not self._audit_once(tracker, looker):
            pause = pauses.pause()
            if time.monotonic() + pause >= due or not self._demand.pause(pause):
                return

    def _audit_once(
        self, tracker: resource_tracker.ResourceTracker, looker: verifier.Verifier
    ) -> bool:
        """Return whether there is nothing to be tried again soon."""
        try:
            return not self._audit(tracker).failed
        except errors.InventoryUnavailable:
            return True  # logged by the tracker when it begins and when it ends
        except errors.GrantForgotten:
            looker.look()  # which says hello again
            return False
        except errors.Superseded as exc:
            self.fail(exc)
            return True

    def _audit(
        self, tracker: resource_tracker.ResourceTracker
    ) -> resource_tracker.AuditResult:
        """Audit for all who have asked so far, and let them know."""
        self._demand.begin()
        try:
            result = tracker.audit()
        except errors.MusterbookError as exc:
            self._demand.end(None, exc)
            raise
        except Exception as exc:
            self._demand.end(None, errors.RemoteFailure(class_name=type(exc).__name__))
            raise
        self._demand.end(result)
        return result


def _stop_server(server: rpc.AnyServer) -> None:
    server.stop()
    server.wait()


def _listed(nodes: Mapping[str, str]) -> str:
    """Return some nodes for a log line: names, each with what is told of it."""
    told = [f"{name} ({about})" for name, about in sorted(nodes.items())]
    more = [f"and {len(told) - _TOLD} more"] if len(told) > _TOLD else []
    return ", ".join(told[:_TOLD] + more)


def _boot_id() -> str | None:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return None
