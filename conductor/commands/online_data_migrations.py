"""Migrate the rows of hosts whose agents don't: offline ones, or not upgraded.

Does for every row of Juno's shape what the agent's next save would do: stores its
host and uuid and lets go of its service. Of several rows with one host and name the
one whose service lives stays, and the others are soft-deleted. Then usage that isn't
the sum of allocations, because older code wrote it, is mended. Agents go on saving
meanwhile; it may be interrupted and run again at any time.
"""

import argparse
from collections.abc import Iterable

from oslo_config import cfg

from conductor import commands
from conductor.commands import arguments as values
from conductor.commands import progress
from conductor.db import engine as db_engine
from conductor.db import mend
from conductor.db import migration
from conductor.db import online
from musterbook import errors

EPILOG = (
    "Exit codes: 0 done, nothing is left; 1 there is more to do, run it again; 2 the "
    "rows that are left need a decision by hand (each is named), or the command line "
    "or an option can't be used; 3 the database can't be reached or used."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    values.add_batching(parser, "migrate or soft-delete")


def run(conf: cfg.ConfigOpts, say: commands.Say) -> int:
    """Migrate, telling what happens; return the exit code."""
    engine = db_engine.from_conf(conf, commands.STATEMENT_SECONDS, by_hand=True)
    migration.check_current(engine)
    arguments = conf.category
    dry_run = bool(arguments.dry_run)
    before = online.count(engine)
    if dry_run:
        say("dry run: nothing is written")
    told = " and ".join(f"{number} of {table}" for table, number in before.items())
    say(f"rows of Juno's shape: {told}")
    totals = _Totals(say, before)
    unmendable = 0
    try:
        for batch in online.migrate(
            engine, max_count=arguments.max_count, dry_run=dry_run
        ):
            totals.add(batch)
        left = (
            sum(before.values()) - totals.found
            if dry_run
            else sum(online.count(engine).values()) - totals.stuck
        )
        # A count may have been reached with the last row.
        if left <= 0 or not totals.reached(arguments.max_count):
            unmendable = _mend(mend.mend(engine, dry_run=dry_run), say)
            _mend_custom(mend.mend_custom(engine, dry_run=dry_run), say)
    except errors.DatabaseBusy as exc:
        totals.say()
        say(f"more to do, run it again: {exc.message}")
        return commands.MORE
    except errors.MusterbookError:
        totals.say()
        raise
    totals.say()
    return _conclusion(say, left, totals.stuck + unmendable)


def _mend(nodes: Iterable[mend.Mended], say: commands.Say) -> int:
    """Mend usage, telling what happens; return how many nodes that was no good for."""
    unmendable = 0
    for mended in nodes:
        say(_mended_line(mended))
        unmendable += mended.problem is not None
    return unmendable


def _mend_custom(nodes: Iterable[mend.MendedCustom], say: commands.Say) -> None:
    for custom in nodes:
        say(
            f"custom usage mended: compute node {custom.id}: used "
            f"{progress.shown(custom.used)}; was {progress.shown(custom.was)}"
        )


def _conclusion(say: commands.Say, left: int, stuck: int) -> int:
    if left > 0:
        say(f"more to do: {progress.rows(left)} left, run it again")
        return commands.MORE
    if stuck:
        say(f"stuck: {progress.rows(stuck)}, named above; see docs/upgrading.md")
        return commands.STUCK
    say("done: no row of Juno's shape is left")
    return commands.DONE


class _Totals:
    """Counts outcomes by table, and names the rows that are worth it."""

    def __init__(self, say: commands.Say, before: dict[str, int]) -> None:
        self._say = say
        self._progress = progress.Progress(say, before)
        self._counts = {
            table: {"migrated": 0, "resolved": 0, "stuck": 0} for table in before
        }

    def add(self, batch: online.Batch) -> None:
        """Count a batch."""
        counts = self._counts[batch.table]
        counts["migrated"] += batch.migrated
        counts["resolved"] += batch.resolved
        counts["stuck"] += batch.stuck
        for row in batch.notable:
            self._say(_line(row))
        self._progress.add(batch.table, batch.changed + batch.stuck)

    @property
    def stuck(self) -> int:
        """Rows that nothing can be done about."""
        return sum(counts["stuck"] for counts in self._counts.values())

    def reached(self, count: int | None) -> bool:
        """Return whether so many rows were, or would be, written."""
        return count is not None and self.found - self.stuck >= count

    @property
    def found(self) -> int:
        """All rows that were looked at."""
        return sum(sum(counts.values()) for counts in self._counts.values())

    def say(self) -> None:
        """Print the totals."""
        for table, counts in self._counts.items():
            parts = ", ".join(f"{name} {number}" for name, number in counts.items())
            self._say(f"{table}: found {sum(counts.values())}, {parts}")


def _line(row: online.Row) -> str:
    what = {"resolved": "resolved, soft-deleted"}.get(row.outcome, row.outcome)
    facts = ", ".join(
        f"{name} {progress.shown(value)}"
        for name, value in (
            ("host", row.host), ("name", row.name), ("service", row.service_id)
        )
    )  # fmt: skip
    return f"{what}: compute node {row.id} ({facts}): {row.reason}"


def _mended_line(node: mend.Mended) -> str:
    facts = ", ".join(
        f"{field} {progress.shown(value)}"
        for field, value in (("host", node.host), ("name", node.name))
    )
    if node.problem is not None:
        return f"not mended: compute node {node.id} ({facts}): {node.problem}"
    return (
        f"usage mended: compute node {node.id} ({facts}): used {node.used}; "
        f"was {node.was}"
    )
