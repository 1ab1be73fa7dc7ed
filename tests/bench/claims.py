"""Claims by agent, conductor and batch, beside echoes with the bare statements."""

import contextlib
import dataclasses
import statistics
from typing import Any

from tests import util
from tests.bench import child
from tests.bench import claim_fleet
from tests.bench import machine
from tests.bench import options
from tests.bench import procs
from tests.bench import report
from tests.bench import rpc_pair
from tests.bench import world

#: Claims in one call of claim_many.
BATCH = 100
_BOUND = 1.5
_BATCH_BOUND = 5000.0
_AGENT_SECONDS = 90.0
_AGENT = "claimed-by-agent"
#: Figures of a window by name, and how tables call them; CPU in ms of a claim.
_SHOWN = {
    "rate": "claims/s",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "agent_cpu_ms": "agent",
    "server_cpu_ms": "cond.",
    "database_cpu_ms": "db",
    "caller_cpu_ms": "caller",
    "broker_cpu_ms": "broker",
    "foreign_cores": "foreign",
}
Node = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class _Cell:
    """What is measured: by which way, with how many, from how many nodes."""

    way: str
    schedulers: int
    nodes: int

    @property
    def batch(self) -> int:
        """Claims of one call."""
        return BATCH if self.way == "batch" else 1

    def __str__(self) -> str:
        return f"{self.way} {self.schedulers}/{self.nodes}"


class _Side(rpc_pair.Side):
    """Ours, or the floor; what it is to do is said before each window."""

    def __init__(self, callers: child.Child, meter: procs.Meter) -> None:
        super().__init__(callers, meter)
        self._child = callers
        self.way = ""
        self.nodes: list[Node] = []
        self.batch = 1

    def _run(self, callers: int, seconds: float = 0.0, count: int = 0) -> Any:
        done = self._child.ask(
            "run",
            seconds + count + 120.0,
            way=self.way,
            nodes=self.nodes,
            batch=self.batch,
            callers=callers,
            seconds=seconds,
            count=count,
        )
        # A call's latency, but a claim's rate and CPU.
        return {**done, "calls": done["calls"] * self.batch}


@dataclasses.dataclass
class _Bench:
    """What there is of both sides."""

    sides: dict[str, _Side]
    nodes: list[Node]
    of_agent: list[Node]
    sizes: dict[str, dict[str, dict[str, int]]]

    def measure(self, cell: _Cell, chosen: options.Options) -> list[dict[str, Any]]:
        """Measure a cell, the sides in turn; return the windows."""
        nodes = self.of_agent if cell.way == "agent" else self.nodes[: cell.nodes]
        windows = []
        for side in self.sides.values():
            side.way, side.nodes, side.batch = cell.way, nodes, cell.batch
            side.call(cell.schedulers, cell.schedulers)
        for _ in range(chosen.windows):
            for name, side in self.sides.items():
                window = side.window(cell.schedulers, chosen.seconds)
                windows.append({"side": name, "cell": str(cell), **window})
        return windows


def run(chosen: options.Options) -> report.Report:
    """Measure, on servers of its own, and end all it has started."""
    cells = [
        _Cell(way, schedulers, nodes)
        for way in ("conductor", "batch")
        for nodes in chosen.fleets
        for schedulers in chosen.schedulers
    ]
    cells += [_Cell("agent", schedulers, 1) for schedulers in chosen.schedulers]
    with world.World() as here:
        config = here.sync()
        with contextlib.closing(claim_fleet.Fleet(here.database_url)) as fleet:
            nodes = fleet.fill(max(chosen.fleets))
            made = _start(here, config, fleet, nodes)
            windows = [w for cell in cells for w in made.measure(cell, chosen)]
            incorrect = fleet.incorrect()
        about = machine.describe(here.versions())
    return _report(chosen, cells, windows, made.sizes, incorrect, about)


def _start(
    here: world.World, config: str, fleet: claim_fleet.Fleet, nodes: list[Node]
) -> _Bench:
    """Start both sides, and make their messages as large as each other's."""
    # All at once, as each takes a while.
    conductor = here.start_conductor(config)
    path = claim_fleet.write_agent(here.folder, _AGENT, here.common())
    agent = here.start("agent", "compute_agent.main", "--config-file", path)
    callers = here.start("callers", "tests.bench.claim_caller")
    module = "tests.bench.claim_floor"
    floor = {
        role: here.start(f"floor-{role}", module, role) for role in ("server", "relay")
    }
    floor_callers = here.start("floor-callers", module, "callers")
    callers.ask("connect", rabbit=here.rabbit_url)

    def of_agent() -> list[Node]:
        agent.check()
        return [node for node in fleet.nodes() if node["host"] == _AGENT]

    its = util.wait_until(of_agent, _AGENT_SECONDS, "the agent's node")
    fleet.say_up()  # of its host as well
    for one in floor.values():
        one.ask("setup", rabbit=here.rabbit_url, database=here.database_url)
    floor_callers.ask("connect", rabbit=here.rabbit_url)
    sizes: dict[str, dict[str, dict[str, int]]] = {"ours": {}, "floor": {}}
    for way in ("conductor", "batch", "agent"):
        asked: dict[str, Any] = {
            "way": way,
            "nodes": its if way == "agent" else nodes[:1],
        }
        asked["batch"] = _Cell(way, 1, 1).batch
        ours = callers.ask("sizes", **asked)
        sizes["ours"][way] = ours
        sizes["floor"][way] = floor_callers.ask("sizes", **asked, **ours)
    servers = {"broker": here.broker.pid, "database": here.database.pid}
    meters = {
        "floor": {"server": floor["server"].pid, "agent": floor["relay"].pid},
        "ours": {"server": conductor.pid, "agent": agent.pid},
    }
    who = {"floor": floor_callers, "ours": callers}
    sides = {
        name: _Side(one, procs.Meter({**meters[name], "caller": one.pid, **servers}))
        for name, one in who.items()
    }
    return _Bench(sides, nodes, its, sizes)


Medians = dict[str, dict[str, dict[str, float]]]


def _report(
    chosen: options.Options,
    cells: list[_Cell],
    windows: list[dict[str, Any]],
    sizes: dict[str, dict[str, dict[str, int]]],
    incorrect: int,
    about: dict[str, Any],
) -> report.Report:
    medians: Medians = {
        side: {str(cell): _median(windows, side, str(cell)) for cell in cells}
        for side in ("floor", "ours")
    }
    ratios = {str(cell): _ratios(medians, str(cell)) for cell in cells}
    batches = [str(cell) for cell in cells if cell.way == "batch"]
    fastest = max(batches, key=lambda cell: medians["ours"][cell]["rate"])
    return report.Report(
        bench="claims",
        options=dataclasses.asdict(chosen),
        figures={
            "windows": windows,
            "medians": medians,
            "message_bytes": sizes,
            "nodes_with_wrong_usage": incorrect,
        },
        ratios=ratios,
        machine=about,
        bounds=_bounds(cells, medians, ratios, fastest, incorrect),
        tables=[_table(cells, medians, ratios)],
        notes=[
            f"a batch is a call of {BATCH} claims: its p50 and p99 are the call's",
            "decided: conductor and database together, of which the bound is",
            _room_note(medians, fastest),
        ],
    )


def _median(windows: list[dict[str, Any]], side: str, cell: str) -> dict[str, float]:
    own = [w for w in windows if (w["side"], w["cell"]) == (side, cell)]
    found = {name: statistics.median(w[name] for w in own) for name in _SHOWN}
    decided = [w["server_cpu_ms"] + w["database_cpu_ms"] for w in own]
    return {**found, "decided_cpu_ms": statistics.median(decided)}


def _ratios(medians: Medians, cell: str) -> dict[str, float]:
    ours, floor = medians["ours"][cell], medians["floor"][cell]
    return {
        name: ours[name] / floor[name]
        for name in ours
        if floor[name] and name != "foreign_cores"
    }


def _bounds(
    cells: list[_Cell],
    medians: Medians,
    ratios: dict[str, dict[str, float]],
    fastest: str,
    incorrect: int,
) -> list[report.Bound]:
    single = [str(cell) for cell in cells if cell.way == "conductor"]
    worst = max(single, key=lambda cell: ratios[cell]["decided_cpu_ms"])
    return [
        report.Bound(
            f"CPU of conductor and database for a claim over floor, worst ({worst})",
            ratios[worst]["decided_cpu_ms"],
            _BOUND,
        ),
        report.Bound(
            f"claims/s by batch ({fastest})",
            medians["ours"][fastest]["rate"],
            _BATCH_BOUND,
            "min",
        ),
        report.Bound("nodes whose usage isn't the sum of all claims", incorrect, 0),
    ]


def _room_note(medians: Medians, cell: str) -> str:
    """Say what a batch takes of the machine, as far as others didn't slow it down."""
    ours = medians["ours"][cell]
    spent = sum(ours[name] for name in _SHOWN if name.endswith("_cpu_ms"))
    return (
        f"{cell}: {spent:.3f} ms of CPU a claim in all processes together, "
        f"{ours['server_cpu_ms']:.3f} in the conductor's one; "
        f"{ours['foreign_cores']:.1f} cores were busy elsewhere"
    )


def _table(
    cells: list[_Cell], medians: Medians, ratios: dict[str, dict[str, float]]
) -> report.Table:
    names = [*_SHOWN, "decided_cpu_ms"]
    rows: list[list[str | float]] = []
    for cell in map(str, cells):
        floor, ours = ([medians[s][cell][n] for n in names] for s in ("floor", "ours"))
        shown = ratios[cell]
        rows += [
            [cell.replace("conductor", "cond."), "floor", *floor],
            ["", "ours", *ours],
            ["", "ratio", *(shown.get(name, "") for name in names)],
        ]
    title = "claims; by way, schedulers/nodes; CPU in ms of a claim; foreign: cores"
    return report.Table(title, ["cell", "side", *_SHOWN.values(), "decided"], rows)
