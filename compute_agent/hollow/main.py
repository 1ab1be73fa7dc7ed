"""musterbook-hollow: many compute agents in one process, with made-up hardware."""

from musterbook import entry

if __name__ == "__main__":
    entry.guard(reloads=True)  # before the imports that take seconds

from collections.abc import Callable
import functools

from oslo_config import cfg
from oslo_log import log as logging

from compute_agent import core
from compute_agent import progress
from compute_agent import resource_tracker
from compute_agent.hollow import fleet
from compute_agent.hollow import machinery
from conductor import rpcapi as conductor_rpcapi
from musterbook import conf as conf_module
from musterbook import daemon
from musterbook import errors
from musterbook import logs
from musterbook import names
from musterbook import rpc
from musterbook.conf import reload as conf_reload
from musterbook.servicegroup import factory
from musterbook.servicegroup import shared
from musterbook.servicegroup import url as group_url
from objects import base

LOG = logging.getLogger(__name__)

ABOUT = "Runs many agents in one process, to try a fleet's size before it is there."
PROG = "musterbook-hollow"
CHECKS = (rpc.check, factory.check, core.Policy.from_conf, progress.check)
PREPARE = (logs.register_options, daemon.register_options, rpc.register_options)
MOST_HOSTS = 10_000

CLI_OPTS = [
    cfg.IntOpt(
        "hosts",
        default=10,
        min=1,
        max=MOST_HOSTS,
        help="How many hosts to run. A host costs this process about 0.1 MiB.",
    ),
    cfg.StrOpt(
        "prefix",
        default="hollow-",
        help="The hosts are named by it and a number. Names of real hosts are refused "
        "by the conductor as long as those live.",
    ),
    cfg.IntOpt(
        "first",
        default=1,
        min=0,
        help="The number of the first host; several processes share out a fleet by it.",
    ),
    cfg.FloatOpt(
        "join-rate",
        default=0.0,
        min=0.0,
        max=10_000.0,
        help="Hosts that start in a second; 0 starts them as fast as it goes.",
    ),
]


def run(argv: list[str]) -> int:
    """Load the configuration, build the parts, run them; return the exit code."""
    load = functools.partial(
        conf_module.load, argv, PROG, prepare=PREPARE, cli=CLI_OPTS, about=ABOUT
    )
    conf = load()
    hosts = host_names(conf)
    logs.setup(conf)
    if (shortened := progress.shortened(conf)) is not None:
        LOG.warning("%s", shortened)
    url = factory.prepare(conf)
    transport = rpc.make_transport(conf, to_others=True)
    seconds = min(resource_tracker.CALL_SECONDS, conf.rpc_response_timeout)
    base.MusterObject.indirection_api = conductor_rpcapi.ConductorAPI(
        transport, seconds
    )
    made = machinery.Machinery(
        transport,
        _roads(conf, url),
        len(hosts),
        lambda: factory.interval(conf),
    )
    part = fleet.HollowFleet(
        conf,
        transport,
        lambda member, ways: factory.make_driver(conf, member, ways),
        made,
        hosts,
        conf.join_rate,
        _show,
    )
    reloader = conf_reload.Reloader(conf, load, (*CHECKS, logs.check))
    process = daemon.Process(
        [[part]],
        conf.graceful_shutdown_timeout,
        reload=reloader.reload,
        close=transport.cleanup,
    )
    try:
        return process.run()
    finally:
        transport.cleanup()


def _roads(
    conf: cfg.ConfigOpts, url: group_url.GroupURL | None
) -> Callable[[], machinery.MakeDriver]:
    """Return what makes the way by which some of the hosts reach the group."""

    def make() -> machinery.MakeDriver:
        if url is None:
            return lambda member, ways: factory.make_driver(conf, member, ways)
        road = shared.Road(url)
        return lambda member, _: road.driver(member)

    return make


def host_names(conf: cfg.ConfigOpts) -> list[str]:
    """Return the names of the hosts.

    :raises ConfigurationError: they can't be names of hosts
    """
    hosts = [f"{conf.prefix}{conf.first + n}" for n in range(conf.hosts)]
    last = hosts[-1]
    try:
        names.check(last, "option prefix")
    except errors.InvalidName as exc:
        raise errors.ConfigurationError(exc.message, option="prefix") from None
    if len(last) > names.MAX_HOST_LENGTH:
        raise errors.ConfigurationError(
            option="prefix",
            reason=f"is too long: {last} has {len(last)} characters, at most "
            f"{names.MAX_HOST_LENGTH} are allowed",
        )
    return hosts


def _show(serving: int, hosts: int) -> None:
    print(f"{serving} of {hosts} hosts serve", flush=True)  # noqa: T201  # the command's output


def main() -> int:
    """Run the command and return its exit code."""
    return daemon.command(run)


if __name__ == "__main__":
    entry.leave(main())
