"""Soft-delete a compute node whose host is gone for good, or that is in the way.

With --force even if more of it is used than what is reserved for the host: what runs
there is then on no node's account. Its agent, while it runs, creates it again, under
its uuid and with its usage. db purge removes it for good.
"""

import argparse

from oslo_config import cfg

from conductor import commands
from conductor.commands import progress
from conductor.db import engine as db_engine
from conductor.db import migration
from conductor.db import store as db_store
from musterbook import errors

EPILOG = (
    "Exit codes: 0 it is deleted; 1 it is in use, and --force was not given; 2 there "
    "is no live node of this uuid, or the command line or an option can't be used; 3 "
    "the database can't be reached or used."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("uuid", metavar="UUID", help="the node's uuid")
    parser.add_argument("--force", action="store_true", help="even if it is in use")


def run(conf: cfg.ConfigOpts, say: commands.Say) -> int:
    """Delete it, and say what was deleted; return the exit code."""
    engine = db_engine.from_conf(conf, commands.STATEMENT_SECONDS, by_hand=True)
    migration.check_current(engine)
    store = db_store.DatabaseStore(engine)
    arguments = conf.category
    try:
        node = store.compute_node_get(uuid=arguments.uuid)
        # Not if it goes to another host meanwhile.
        store.compute_node_destroy(
            node["id"], node["host"], force=bool(arguments.force)
        )
    except errors.ComputeNodeNotFound as exc:
        say(progress.shown(exc.message))
        return commands.STUCK
    except errors.ComputeNodeInUse as exc:
        say(progress.shown(exc.message))
        return commands.MORE
    host, name = (
        progress.shown(node[field]) for field in ("host", "hypervisor_hostname")
    )
    say(f"deleted: compute node {node['id']} (host {host}, name {name})")
    return commands.DONE
