"""Tell what is odd about compute nodes and services, and change nothing.

Names orphans, duplicates, rows of Juno's shape (NULL hosts), nodes without a name or
a service, services without a host or nodes, and nodes whose usage isn't the sum of
allocations or whose custom resources can't be read. For information, and no finding:
usage that no agent has confirmed yet. Agents may save meanwhile.
"""

import argparse
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import itertools
import json
from typing import Any

from oslo_config import cfg

from conductor import commands
from conductor.commands import progress
from conductor.db import audit
from conductor.db import engine as db_engine
from conductor.db import levels
from conductor.db import migration
from musterbook import levels as service_levels
from objects import service as service_obj

EPILOG = (
    "Exit codes: 0 nothing found; 1 findings; 2 the command line or an option can't "
    "be used; 3 the database can't be reached or used."
)
_Findings = Iterator[tuple[audit.Kind, Iterator[Mapping[str, Any]]]]
#: Rows of one kind that are listed for people; programs get all.
_LISTED = 20
_LEVEL = service_levels.SERVICE_LEVEL


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--json",
        action="store_true",
        help="print all findings as one JSON object instead of the first "
        f"{_LISTED} of each kind as tables",
    )


def run(conf: cfg.ConfigOpts, say: commands.Say) -> int:
    """Print the findings as they are found; return the exit code."""
    engine = db_engine.from_conf(conf, commands.STATEMENT_SECONDS, by_hand=True)
    migration.check_current(engine)
    store = levels.LevelStore(engine)
    if conf.category.json:
        found = _print_json(audit.findings(engine), store, say)
    else:
        _print_levels(store, say)
        found = _print(audit.findings(engine), say)
    return commands.MORE if found else commands.DONE


def _print_levels(store: levels.LevelStore, say: commands.Say) -> None:
    """Say which agents that run are older than this code, if any are."""
    held = store.holding_back(service_obj.COMPUTE_BINARY, _LEVEL)
    first = list(itertools.islice(held, _LISTED))
    if not first:
        return
    more = sum(1 for _ in held)
    say(
        f"older agents: {len(first) + more} (running with a service level below "
        f"{_LEVEL}; 0: legacy, or it doesn't say)"
    )
    for line in _table([{"host": host, "level": level} for host, level in first]):
        say(f"  {line}")
    if more:
        say(f"  and {more} more; --json lists all")
    say("  what to do: upgrade them; or [upgrade_levels]compute = auto meanwhile")


def _print_json(
    findings: _Findings, store: levels.LevelStore, say: commands.Say
) -> int:
    """Print line by line, so that memory stays flat; return the number of findings."""
    say('{"findings": {')
    counts: dict[bool, dict[str, int]] = {True: {}, False: {}}
    for kind, rows in findings:  # those for information come last
        same = counts[kind.fault]
        if not (kind.fault or same):
            say('}, "information": {')
        say(f'{"," if same else ""}"{kind.name}": [')
        number = 0
        for number, row in enumerate(rows, 1):
            say(f"{',' if number > 1 else ''}{json.dumps(dict(row))}")
        say("]")
        same[kind.name] = number
    total = sum(counts[True].values())
    told = {**counts[True], **counts[False]}
    say(f'}}, "counts": {json.dumps(told)}, "clean": {json.dumps(not total)},')
    lowest = store.lowest_level(service_obj.COMPUTE_BINARY)
    say(f'"service_level": {_LEVEL}, "lowest_level": {json.dumps(lowest)},')
    say('"holding_back": [')
    held = store.holding_back(service_obj.COMPUTE_BINARY, _LEVEL)
    for position, (host, level) in enumerate(held):
        line = json.dumps({"host": host, "level": level})
        say(f"{',' if position else ''}{line}")
    say("]}")
    return total


def _print(findings: _Findings, say: commands.Say) -> int:
    total = 0
    for kind, rows in findings:
        first = list(itertools.islice(rows, _LISTED))
        if not first:
            continue
        number = len(first) + sum(1 for _ in rows)
        total += number if kind.fault else 0
        heading = "" if kind.fault else "for information: "
        say(f"{heading}{kind.name}: {number} ({kind.meaning})")
        for line in _table(first):
            say(f"  {line}")
        if number > len(first):
            say(f"  and {number - len(first)} more; --json lists all")
        say(f"  what to do: {kind.remedy}")
    say(f"{total} findings" if total else "nothing found")
    return total


def _table(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the rows, and the names of their columns above, in columns."""
    found = list(rows)
    names = list(found[0])
    cells = [names, *([progress.shown(row[name]) for name in names] for row in found)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(names))]
    return [
        "  ".join(
            cell.ljust(width) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in cells
    ]
