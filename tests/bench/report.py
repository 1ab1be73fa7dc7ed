"""What a bench found: as a table for people, as JSON for comparing."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import json
import pathlib
import sys
from typing import Any
from typing import Literal

from rich import console as rich_console
from rich import table as rich_table

_WIDTH = 110


@dataclasses.dataclass(frozen=True)
class Bound:
    """A figure that must not be passed.

    :ivar sense: "max": the value may be the limit at most; "min": at least
    """

    name: str
    value: float
    limit: float
    sense: Literal["max", "min"] = "max"

    @property
    def holds(self) -> bool:
        """Whether it is kept."""
        if self.sense == "max":
            return self.value <= self.limit
        return self.value >= self.limit

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**dataclasses.asdict(self), "holds": self.holds}


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows for people; numbers are printed with three digits that count."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float]]


@dataclasses.dataclass(frozen=True)
class Report:
    """The outcome of one bench.

    :ivar options: what it was told
    :ivar figures: raw figures, JSON values
    :ivar ratios: of ours to something measured in the same run
    :ivar machine: see tests.bench.machine
    :ivar notes: sentences on how to take the figures
    """

    bench: str
    options: Mapping[str, Any]
    figures: Mapping[str, Any]
    ratios: Mapping[str, Any]
    machine: Mapping[str, Any]
    bounds: Sequence[Bound]
    tables: Sequence[Table]
    notes: Sequence[str] = ()

    @property
    def holds(self) -> bool:
        """Whether every bound is kept."""
        return all(bound.holds for bound in self.bounds)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; the tables say nothing that isn't in the figures."""
        return {
            "bench": self.bench,
            "options": dict(self.options),
            "figures": dict(self.figures),
            "ratios": dict(self.ratios),
            "machine": dict(self.machine),
            "bounds": [bound.to_dict() for bound in self.bounds],
            "notes": list(self.notes),
        }

    def write(self, path: pathlib.Path) -> None:
        """Write the JSON."""
        path.write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")

    def show(self) -> None:
        """Print the tables, the notes and the bounds."""
        # Into a file or a pipe: wide enough for all columns.
        width = None if sys.stdout.isatty() else _WIDTH
        console = rich_console.Console(highlight=False, markup=False, width=width)
        for table in self.tables:
            console.print(_rich(table))
        for note in self.notes:
            console.print(note)
        for bound in self.bounds:
            word = "holds" if bound.holds else "DOES NOT HOLD"
            relation = "at most" if bound.sense == "max" else "at least"
            console.print(
                f"{bound.name}: {number(bound.value)}, {relation} "
                f"{number(bound.limit)}: {word}"
            )


def number(value: float) -> str:
    """Return a number with at least three digits that count."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _rich(table: Table) -> rich_table.Table:
    made = rich_table.Table(title=table.title, title_justify="left")
    for position, column in enumerate(table.columns):
        made.add_column(column, justify="right" if position else "left")
    for row in table.rows:
        made.add_row(*(v if isinstance(v, str) else number(v) for v in row))
    return made
