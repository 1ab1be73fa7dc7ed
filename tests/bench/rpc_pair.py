"""Measures one RPC of ours beside its floor, window by window in turn.

So noise of the machine hits both, and what is compared is from one run.
"""

from collections.abc import Mapping
import dataclasses
import statistics
from typing import Any

from tests.bench import child
from tests.bench import machine
from tests.bench import options
from tests.bench import procs
from tests.bench import report
from tests.bench import world

#: Figures of a window by name, and how tables call them.
FIGURES = {
    "rate": "calls/s",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "server_cpu_ms": "server",
    "caller_cpu_ms": "caller",
    "broker_cpu_ms": "broker",
    "database_cpu_ms": "database",
    "foreign_cores": "foreign",
}
_RATIOS = [name for name in FIGURES if name != "foreign_cores"]
_WARM_UP_CALLS = 300
_MEMORY_CALLERS = 8
#: A call that takes longer than this, on average, means that something is stuck.
_SLOWEST_CALL = 0.25
_SLACK_SECONDS = 120.0
MEMORY_LIMIT_MIB = 100.0

Medians = dict[int, dict[str, float]]


class Side:
    """Ours, or the floor: the process with the callers, and whose CPU is counted."""

    def __init__(self, callers: child.Child, meter: procs.Meter) -> None:
        self._callers = callers
        self._meter = meter
        self.calls = 0

    def window(self, callers: int, seconds: float) -> dict[str, float]:
        """Measure one window; return the FIGURES and ``callers``, ``calls``."""
        start = self._meter.read()
        done = self._run(callers, seconds=seconds)
        end = self._meter.read()
        cpu = procs.per_call_ms(start, end, done["calls"])
        return {
            "callers": callers,
            "calls": done["calls"],
            "rate": done["calls"] / done["seconds"],
            "p50_ms": done["p50_ms"],
            "p99_ms": done["p99_ms"],
            **{f"{name}_cpu_ms": value for name, value in cpu.items()},
            "foreign_cores": procs.foreign_cores(start, end),
            **({"busy": done["busy"]} if "busy" in done else {}),
        }

    def call(self, callers: int, count: int) -> None:
        """Make calls that aren't measured."""
        self._run(callers, count=count)

    def _run(self, callers: int, seconds: float = 0.0, count: int = 0) -> Any:
        limit = seconds + count * _SLOWEST_CALL + _SLACK_SECONDS
        done = self._callers.ask(
            "run", limit, callers=callers, seconds=seconds, count=count
        )
        self.calls += done["calls"]
        return done


@dataclasses.dataclass
class Outcome:
    """What was measured.

    :ivar windows: of each side, all of them in order
    :ivar memory: MiB of the conductor's largest process, and after how many calls
    :ivar bytes: sizes of the messages of each side
    :ivar alone_ms: CPU of the floor's statement in one thread, without RPC
    """

    windows: dict[str, list[dict[str, float]]]
    memory: dict[str, float]
    bytes: dict[str, dict[str, int]]
    alone_ms: float
    machine: dict[str, Any]

    def medians(self, side: str) -> Medians:
        """Return the median of each figure by number of callers."""
        cells: dict[int, list[dict[str, float]]] = {}
        for window in self.windows[side]:
            cells.setdefault(int(window["callers"]), []).append(window)
        return {
            callers: {
                name: statistics.median(window[name] for window in windows)
                for name in FIGURES
            }
            for callers, windows in cells.items()
        }


def measure(operation: str, chosen: options.Options) -> Outcome:
    """Measure an operation of tests.bench.rpc_caller and its floor."""
    with world.World() as here:
        conductor = here.conductor()
        callers = here.start("callers", "tests.bench.rpc_caller", operation)
        callers.ask("connect", rabbit=here.rabbit_url)
        memory = {"start_mib": procs.largest_mib(conductor.pid)}
        known = callers.ask("create", nodes=chosen.nodes)
        servers = {"broker": here.broker.pid, "database": here.database.pid}
        ours = Side(
            callers,
            procs.Meter(
                {"server": conductor.pid, "caller": callers.pid, **servers},
            ),
        )
        stock, sizes, alone_ms = floor(here, operation, known, servers)
        windows = alternate({"floor": stock, "ours": ours}, chosen)
        left = chosen.calls_for_memory - ours.calls - chosen.nodes
        if left > 0:
            ours.call(min(_MEMORY_CALLERS, chosen.nodes), left)
        memory["after_mib"] = procs.largest_mib(conductor.pid)
        memory["calls"] = ours.calls + chosen.nodes
        return Outcome(
            windows,
            memory,
            {"ours": {n: known[n] for n in ("request", "answer")}, "floor": sizes},
            alone_ms,
            machine.describe(here.versions()),
        )


def floor(
    here: world.World, operation: str, known: dict[str, Any], servers: dict[str, int]
) -> tuple[Side, dict[str, int], float]:
    """Start the floor's server and callers.

    :return: the side, the sizes of its messages, CPU ms of its statement alone
    """
    module = "tests.bench.rpc_floor"
    server = here.start("floor-server", module, "server", operation)
    server.ask(
        "setup",
        rabbit=here.rabbit_url,
        database=here.database_url,
        answer=known["answer"],
    )
    ids = known["ids"]
    numbers = ids if operation == "save" else list(range(len(ids)))
    alone_ms: float = server.ask("alone", operation=operation, numbers=numbers)
    callers = here.start("floor-callers", module, "callers", operation)
    sizes: dict[str, int] = callers.ask(
        "setup", rabbit=here.rabbit_url, request=known["request"], ids=known["ids"]
    )
    pids = {"server": server.pid, "caller": callers.pid, **servers}
    return Side(callers, procs.Meter(pids)), sizes, alone_ms


def alternate(
    sides: Mapping[str, Side], chosen: options.Options
) -> dict[str, list[dict[str, float]]]:
    """Measure the sides in turn; return the windows of each."""
    windows: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for side in sides.values():
        side.call(max(chosen.callers), min(_WARM_UP_CALLS, chosen.calls_for_memory))
    for callers in chosen.callers:
        for _ in range(chosen.windows):
            for name, side in sides.items():
                windows[name].append(side.window(callers, chosen.seconds))
    return windows


def ratios(outcome: Outcome) -> dict[str, dict[str, float | None]]:
    """Return ours over floor of each figure by number of callers.

    None where the floor's figure is below what can be told from nothing.
    """
    ours, floor = outcome.medians("ours"), outcome.medians("floor")
    return {
        str(callers): {
            name: cell[name] / floor[callers][name] if floor[callers][name] else None
            for name in _RATIOS
        }
        for callers, cell in ours.items()
    }


def memory_bound(outcome: Outcome) -> report.Bound:
    """Return the bound on the conductor's memory."""
    calls = f"{outcome.memory['calls']:,.0f} calls"
    name = f"conductor's resident MiB per worker after {calls}"
    return report.Bound(name, outcome.memory["after_mib"], MEMORY_LIMIT_MIB)


def make_report(
    name: str,
    chosen: options.Options,
    outcome: Outcome,
    bounds: list[report.Bound],
    notes: list[str],
) -> report.Report:
    """Return the report of a bench of this form."""
    found = {side: outcome.medians(side) for side in ("floor", "ours")}
    compared = ratios(outcome)
    figures = {
        "windows": outcome.windows,
        "medians": {
            side: {str(callers): cell for callers, cell in cells.items()}
            for side, cells in found.items()
        },
        "memory": outcome.memory,
        "message_bytes": outcome.bytes,
        "floor_statement_alone_cpu_ms": outcome.alone_ms,
    }
    return report.Report(
        bench=name,
        options=dataclasses.asdict(chosen),
        figures=figures,
        ratios=compared,
        machine=outcome.machine,
        bounds=bounds,
        tables=[_table(name, found, compared)],
        notes=[*notes, _memory_note(outcome)],
    )


def _memory_note(outcome: Outcome) -> str:
    memory = outcome.memory
    return (
        f"conductor's largest process: {memory['start_mib']:.0f} MiB at start, "
        f"{memory['after_mib']:.0f} MiB after {memory['calls']:,.0f} calls"
    )


def _table(
    name: str,
    found: dict[str, Medians],
    compared: dict[str, dict[str, float | None]],
) -> report.Table:
    rows: list[list[str | float]] = []
    for callers in found["ours"]:
        for side in ("floor", "ours"):
            cell = found[side][callers]
            rows.append([f"{callers} {side}", *(cell[figure] for figure in FIGURES)])
        shown = compared[str(callers)]
        row: list[str | float] = [f"{callers} ratio"]
        for figure in FIGURES:
            value = shown.get(figure)
            row.append("" if value is None else value)
        rows.append(row)
    title = f"{name}; server to database: CPU ms a call; foreign: cores busy elsewhere"
    return report.Table(title, ["callers", *FIGURES.values()], rows)
