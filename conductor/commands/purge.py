"""Remove soft-deleted compute nodes and services for good.

Nothing live is touched, nor a service that a node still refers to. A node that is
purged gets a new uuid when its agent creates it again; one that is only soft-deleted
comes back under its old one.
"""

import argparse
import datetime

from oslo_config import cfg

from conductor import commands
from conductor.commands import arguments as values
from conductor.commands import progress
from conductor.db import engine as db_engine
from conductor.db import migration
from conductor.db import purge
from musterbook import errors

EPILOG = (
    "Exit codes: 0 done; 1 there is more to do, run it again; 2 rows have to stay "
    "(each is named), or the command line or an option can't be used; 3 the database "
    "can't be reached or used."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    age = parser.add_mutually_exclusive_group()
    age.add_argument(
        "--before",
        type=values.instant,
        metavar="DATE",
        help="only what was soft-deleted before this date or instant (UTC)",
    )
    age.add_argument(
        "--days",
        type=values.days,
        metavar="N",
        help="only what was soft-deleted more than N days ago, by this machine's clock",
    )
    values.add_batching(parser, "remove")


def run(conf: cfg.ConfigOpts, say: commands.Say) -> int:
    """Remove, telling what happens; return the exit code."""
    engine = db_engine.from_conf(conf, commands.STATEMENT_SECONDS, by_hand=True)
    migration.check_current(engine)
    before, dry_run = _before(conf.category), bool(conf.category.dry_run)
    if dry_run:
        say("dry run: nothing is removed")
    at_first = purge.remaining(engine, before, foresee=True)
    totals = _Totals(say, at_first)
    try:
        for batch in purge.purge(
            engine, before=before, max_count=conf.category.max_count, dry_run=dry_run
        ):
            totals.add(batch)
    except errors.DatabaseBusy as exc:
        totals.say()
        say(f"more to do, run it again: {exc.message}")
        return commands.MORE
    except errors.MusterbookError:
        totals.say()
        raise
    totals.say()
    left = at_first if dry_run else purge.remaining(engine, before)
    done = totals.purged if dry_run else 0
    return _conclusion(say, sum(left.values()) - done, totals.kept)


def _before(arguments: argparse.Namespace) -> datetime.datetime | None:
    """Return the instant that either option tells."""
    if arguments.days is None:
        before: datetime.datetime | None = arguments.before
        return before
    age = datetime.timedelta(days=arguments.days)
    return datetime.datetime.now(datetime.UTC) - age


class _Totals:
    """Counts rows by table, and names those that stay."""

    def __init__(self, say: commands.Say, at_first: dict[str, int]) -> None:
        self._say = say
        self._progress = progress.Progress(say, at_first)
        self._purged = dict.fromkeys(at_first, 0)
        self._kept = dict.fromkeys(at_first, 0)

    def add(self, batch: purge.Batch) -> None:
        """Count a batch."""
        self._purged[batch.table] += batch.purged
        self._kept[batch.table] += len(batch.kept)
        for row in batch.kept:
            self._say(_line(row))
        for uuid in batch.ended:
            self._say(f"released: claim {uuid}, whose compute node is purged")
        self._progress.add(batch.table, batch.purged)

    @property
    def purged(self) -> int:
        """Rows that are, or would be, gone."""
        return sum(self._purged.values())

    @property
    def kept(self) -> int:
        """Rows that have to stay."""
        return sum(self._kept.values())

    def say(self) -> None:
        """Print the totals."""
        for table, number in self._purged.items():
            self._say(f"{table}: purged {number}, kept {self._kept[table]}")


def _conclusion(say: commands.Say, left: int, kept: int) -> int:
    if left > kept:
        say("more to do: run it again")
        return commands.MORE
    if kept:
        say(f"stuck: {progress.rows(kept)} had to stay, named above")
        return commands.STUCK
    say("done")
    return commands.DONE


def _line(row: purge.Kept) -> str:
    what = "compute node" if row.table == "compute_nodes" else "service"
    return f"kept: {what} {row.id} ({progress.shown(row.name)}): {row.reason}"
