"""musterbook-conductor: owns the database, serves RPC, stands for leader."""

from musterbook import entry

if __name__ == "__main__":
    entry.guard(reloads=True)  # before the imports that take seconds

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import functools
import threading
import uuid as uuidlib

from oslo_config import cfg
from oslo_log import log as logging

from compute_agent import rpcapi as compute_rpcapi
from conductor import canary
from conductor import claim_casts
from conductor import claim_expiry
from conductor import claims
from conductor import grants
from conductor import leader
from conductor import manager
from conductor import pings
from conductor.db import claim_store
from conductor.db import engine as db_engine
from conductor.db import liveness
from conductor.db import reach
from conductor.db import store as db_store
from musterbook import conf as conf_module
from musterbook import context
from musterbook import daemon
from musterbook import errors
from musterbook import levels
from musterbook import logs
from musterbook import rpc
from musterbook import workers
from musterbook.conf import reload as conf_reload
from musterbook.conf import upgrade_levels
from musterbook.servicegroup import driver as group_driver
from musterbook.servicegroup import factory
from musterbook.servicegroup import reach as group_reach
from musterbook.servicegroup import verdict
from objects import service as service_obj
from objects import store

LOG = logging.getLogger(__name__)
ABOUT = "Owns the database, answers agents and schedulers, decides who lives."
PROG = "musterbook-conductor"
PREPARE = (
    logs.register_options,
    daemon.register_options,
    rpc.register_options,
    db_engine.register_options,
)
#: What must hold of a configuration, besides each option by itself.
CHECKS = (rpc.check, factory.check, db_engine.check)


class DatabasePart(daemon.Part):
    """The wait for the database, before anything is served."""

    name = "database"

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._stopping = threading.Event()

    def start(self) -> None:
        """Wait for a database of today's shape.

        :raises ConfigurationError: it refuses this process, or can't be worked with
        :raises DatabaseUnavailable: the SQLite file can't be used
        """
        reach.wait_for_database(self._conf, self._stopping)

    def stop(self) -> None:
        """Wait no longer."""
        self._stopping.set()


class GroupPart(daemon.Part):
    """The wait for the group backend, after all is served that doesn't need it."""

    name = "group"

    def __init__(self, make_driver: Callable[[], group_driver.GroupDriver]) -> None:
        self._make_driver = make_driver
        self._stopping = threading.Event()

    def start(self) -> None:
        """Wait for the backend, so that a conductor that is ready can see who lives.

        :raises ConfigurationError: it refuses this process
        """
        group_reach.wait_for_group(self._make_driver, self._stopping)

    def stop(self) -> None:
        """Wait no longer."""
        self._stopping.set()


class RpcPart(daemon.Part):
    """The conductor's RPC server, on the shared queue and its own."""

    name = "conductor-rpc"

    def __init__(self, conf: cfg.ConfigOpts, server: rpc.Server) -> None:
        self._conf = conf
        self._server = server
        self._stopping = threading.Event()

    def start(self) -> None:
        """Wait for the broker, then serve.

        :raises ConfigurationError: the broker refuses this process
        """
        if rpc.wait_for_broker(self._conf, self._stopping):
            self._server.start()

    def stop(self) -> None:
        """Take nothing new, finish what is in hand."""
        self._stopping.set()
        self._server.stop()
        self._server.wait()

    def abandon(self) -> None:
        """Tell callers that their calls are not finished."""
        self._server.abandon()


class LeaderPart(daemon.Part):
    """Standing for leader.

    :param take_up: gives the leader what can be changed of its configuration
    """

    name = "leader"

    def __init__(self, made: leader.Leader, take_up: Callable[[], None]) -> None:
        self._leader = made
        self._take_up = take_up

    def start(self) -> None:
        """Begin to stand for leader."""
        self._leader.start()

    def stop(self) -> None:
        """Give the lease away."""
        self._leader.stop()

    def reset(self) -> None:
        """Take up the configuration as it is now."""
        self._take_up()


class ExpiryPart(daemon.Part):
    """Giving back what nobody confirmed."""

    name = "claim-expiry"

    def __init__(self, made: claim_expiry.Expiry) -> None:
        self._expiry = made

    def start(self) -> None:
        """Begin to look for claims that are due."""
        self._expiry.start()

    def stop(self) -> None:
        """End."""
        self._expiry.stop()


class CastsPart(daemon.Part):
    """Telling agents of what others claimed."""

    name = "claim-casts"

    def __init__(self, made: claim_casts.Teller) -> None:
        self._teller = made

    def start(self) -> None:
        """Begin to tell."""
        self._teller.start()

    def stop(self) -> None:
        """End."""
        self._teller.stop()


def build(
    conf: cfg.ConfigOpts, transport: rpc.Transport, owner: str
) -> list[daemon.Part]:
    """Bind the store and build the parts of one conductor process.

    :param owner: holds the leader's lease, unique among living processes
    :raises ConfigurationError: an option of the database or the group can't be used
    """
    url = factory.prepare(conf)
    engine = db_engine.from_conf(conf)
    store.bind(db_store.DatabaseStore(engine))
    records = liveness.LivenessStore(engine)
    pin = _compute_pin(conf.upgrade_levels.compute, records)
    agents = compute_rpcapi.ComputeAPI(transport, conf.conductor.ping_timeout, pin)
    granter = grants.Granter(records, agents.ping, _settle(conf))
    teller = claim_casts.Teller(_noting(records), _note_claims(agents))
    booked = claim_store.ClaimStore(
        engine,
        lambda: conf.conductor.claim_unknown_after,
        teller.tell,
        # An eighth: an error says reasons twice, and JSON is packed in JSON.
        min(claim_store.ANSWER_BYTES, conf.rpc_message_limit // 8),
    )
    server = manager.make_server(
        transport,
        conf.host,
        manager.ConductorManager(granter, records),
        claims.ClaimsManager(booked, lambda: conf.conductor.claim_hold_seconds),
    )
    pinger = pings.Pinger(
        _incarnation_of(agents), _rejoin(agents), conf.conductor.ping_workers
    )
    standing = leader.Leader(
        # A lease that runs out behind slow calls would leave nobody to look.
        liveness.LivenessStore(db_engine.urgent(engine)),
        None if url is None else lambda: factory.make_driver(conf, f"reader-{owner}"),
        pinger,
        verdict.Policy.from_conf(conf, factory.member_timeout(conf)),
        leader.Timing.from_conf(conf),
        owner,
        on_stranger=_look(agents),
        bird=None if url is None else _canary(conf, owner),
    )

    expiry = claim_expiry.Expiry(
        booked, standing.term, owner, lambda: conf.conductor.claim_keep_seconds
    )

    def take_up() -> None:
        agents.set_timeout(conf.conductor.ping_timeout)
        standing.take_up(
            verdict.Policy.from_conf(conf, factory.member_timeout(conf)),
            leader.Timing.from_conf(conf),
        )

    parts: list[daemon.Part] = [
        DatabasePart(conf),
        RpcPart(conf, server),
        CastsPart(teller),
        LeaderPart(standing, take_up),
        ExpiryPart(expiry),
    ]
    if url is not None:
        parts.append(GroupPart(lambda: factory.make_driver(conf, f"probe-{owner}")))
    return parts


def _canary(conf: cfg.ConfigOpts, owner: str) -> canary.Canary:
    return canary.Canary(
        lambda member: factory.make_driver(conf, member),
        owner.rpartition("/")[2],  # a slash would part a path in some backends
        factory.interval(conf),
    )


def _settle(conf: cfg.ConfigOpts) -> float:
    """Return for how many seconds the transport may not know of a living agent."""
    # Within one process there is nothing to come back to.
    return 0.0 if rpc.is_inproc(conf.transport_url) else grants.SETTLE_SECONDS


def _compute_pin(pinned: str | None, records: liveness.LivenessStore) -> rpc.Pin:
    """Return which version of their interface may be spoken to agents.

    :param pinned: as configured
    """

    def ask() -> str | None:
        lowest = records.lowest_level(service_obj.COMPUTE_BINARY)
        return None if lowest is None else levels.of(lowest).compute

    if pinned == upgrade_levels.AUTO:
        return rpc.Pin(compute_rpcapi.VERSION, ask=ask)
    return rpc.Pin(compute_rpcapi.VERSION, fixed=pinned)


def _incarnation_of(agents: compute_rpcapi.ComputeAPI) -> Callable[[str], int]:
    def ask(host: str) -> int:
        return int(agents.ping(context.service_context(), host)["incarnation"])

    return ask


def _rejoin(agents: compute_rpcapi.ComputeAPI) -> Callable[[str, int], None]:
    def tell(host: str, incarnation: int) -> None:
        try:
            agents.rejoin(context.service_context(), host, incarnation)
        except errors.MusterbookError as exc:
            LOG.warning("Host %s could not be told to rejoin: %s", host, exc.message)

    return tell


def _noting(
    records: liveness.LivenessStore,
) -> Callable[[Sequence[str]], Iterable[str]]:
    level = levels.compute_with(compute_rpcapi.NOTE_CLAIMS)

    def ask(hosts: Sequence[str]) -> list[str]:
        return records.reached(service_obj.COMPUTE_BINARY, level, hosts)

    return ask


def _note_claims(agents: compute_rpcapi.ComputeAPI) -> Callable[[str], None]:
    def tell(host: str) -> None:
        agents.note_claims(context.service_context(), host)

    return tell


def _look(agents: compute_rpcapi.ComputeAPI) -> Callable[[str], None]:
    def tell(host: str) -> None:
        agents.look(context.service_context(), host)

    return tell


@contextlib.contextmanager
def working(conf: cfg.ConfigOpts) -> Iterator[list[list[daemon.Part]]]:
    """Build the stages of one worker, in the worker; clean up when it has ended.

    :raises MusterbookError: as build
    """
    transport = rpc.make_transport(conf, to_others=True)
    try:
        yield [build(conf, transport, f"{conf.host}/{uuidlib.uuid4()}")]
    finally:
        transport.cleanup()


def run(argv: list[str]) -> int:
    """Load and check the configuration, run workers; return the exit code."""
    load = functools.partial(conf_module.load, argv, PROG, prepare=PREPARE, about=ABOUT)
    conf = load()
    logs.setup(conf)
    # What can be told without connecting to anything is told here, at once.
    for check in (*CHECKS, factory.prepare):
        check(conf)
    return workers.run(
        functools.partial(working, conf),
        conf.conductor.workers,
        conf.graceful_shutdown_timeout,
        conf_reload.Reloader(conf, load, (*CHECKS, logs.check)),
    )


def main() -> int:
    """Run the command and return its exit code."""
    return daemon.command(run)


if __name__ == "__main__":
    entry.leave(main())
