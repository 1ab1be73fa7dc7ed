"""musterbook-compute: the compute agent of one host."""

from musterbook import entry

if __name__ == "__main__":
    entry.guard(reloads=True)  # before the imports that take seconds

import functools

from oslo_config import cfg

from compute_agent import agent
from compute_agent import core
from compute_agent import progress
from compute_agent import resource_tracker
from conductor import rpcapi as conductor_rpcapi
from musterbook import conf as conf_module
from musterbook import daemon
from musterbook import logs
from musterbook import rpc
from musterbook.conf import reload as conf_reload
from musterbook.servicegroup import factory
from objects import base

ABOUT = "Keeps the records of this host true and shows that it lives."
PROG = "musterbook-compute"
#: What must hold of a configuration, besides each option by itself.
CHECKS = (rpc.check, factory.check, core.Policy.from_conf, progress.check)
PREPARE = (logs.register_options, daemon.register_options, rpc.register_options)


def run(argv: list[str]) -> int:
    """Load the configuration, build the parts, run them; return the exit code."""
    load = functools.partial(conf_module.load, argv, PROG, prepare=PREPARE, about=ABOUT)
    conf = load()
    logs.setup(conf)
    factory.prepare(conf)
    transport = rpc.make_transport(conf, to_others=True)
    base.MusterObject.indirection_api = carrier(conf, transport)
    part = agent.Agent(
        conf,
        transport,
        lambda member, ways: factory.make_driver(conf, member, ways),
        lambda: factory.interval(conf),
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


def carrier(
    conf: cfg.ConfigOpts, transport: rpc.Transport
) -> conductor_rpcapi.ConductorAPI:
    """Return what carries the calls of audits, with their own short limit."""
    seconds = min(resource_tracker.CALL_SECONDS, conf.rpc_response_timeout)
    return conductor_rpcapi.ConductorAPI(
        transport, seconds, conf.upgrade_levels.conductor
    )


def main() -> int:
    """Run the command and return its exit code."""
    return daemon.command(run)


if __name__ == "__main__":
    entry.leave(main())
