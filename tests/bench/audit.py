"""An agent's audit, unchanged and changed, beside an echo with one raw UPDATE."""

import dataclasses
import statistics
from typing import Any

import sqlalchemy as sa

from tests.bench import child
from tests.bench import machine
from tests.bench import options
from tests.bench import procs
from tests.bench import report
from tests.bench import rpc_pair
from tests.bench import world

#: Cycles whose calls and statements are counted, of each kind.
COUNTED = 20
_BOUND = 1.5
#: Figures of a window by name, and how tables call them.
_SHOWN = {
    "rate": "cycles/s",
    "p50_ms": "p50 ms",
    "caller_cpu_ms": "agent",
    "server_cpu_ms": "conductor",
    "broker_cpu_ms": "broker",
    "database_cpu_ms": "database",
    "foreign_cores": "foreign",
}
_KINDS = {"unchanged": False, "changed": True}


class _Side(rpc_pair.Side):
    """Audits of one kind.

    :param changed: whether the hardware is another at each of them
    """

    def __init__(self, agents: child.Child, meter: procs.Meter, changed: bool) -> None:
        super().__init__(agents, meter)
        self._agents = agents
        self._changed = changed

    def _run(self, callers: int, seconds: float = 0.0, count: int = 0) -> Any:
        done = self._agents.ask(
            "run",
            seconds + count + 120.0,
            callers=callers,
            seconds=seconds,
            count=count,
            changed=self._changed,
        )
        self.calls += done["calls"]
        return done


class _Log:
    """The statements about nodes that a MariaDB of ours runs."""

    def __init__(self, url: str) -> None:
        self._engine = sa.create_engine(url)

    def begin(self) -> None:
        with self._engine.begin() as connection:
            connection.execute(sa.text("SET GLOBAL log_output = 'TABLE'"))
            connection.execute(sa.text("TRUNCATE mysql.general_log"))
            connection.execute(sa.text("SET GLOBAL general_log = 'ON'"))

    def end(self) -> int:
        query = sa.text(
            "SELECT COUNT(*) FROM mysql.general_log"
            " WHERE command_type IN ('Query', 'Execute')"
            " AND CONVERT(argument USING utf8mb4) LIKE '%compute\\_nodes%'"
            " AND CONVERT(argument USING utf8mb4) NOT LIKE '%general\\_log%'"
        )
        with self._engine.begin() as connection:
            connection.execute(sa.text("SET GLOBAL general_log = 'OFF'"))
            return int(connection.execute(query).scalar_one())

    def close(self) -> None:
        self._engine.dispose()


def run(chosen: options.Options) -> report.Report:
    """Measure, on servers of its own, and end all it has started."""
    hosts = max(chosen.callers)
    with world.World() as here:
        conductor = here.conductor()
        agents = here.start("agents", "tests.bench.audit_agent")
        agents.ask("connect", rabbit=here.rabbit_url)
        known = agents.ask("create", hosts=hosts)
        counted = _count(here, agents)
        servers = {"broker": here.broker.pid, "database": here.database.pid}
        meter = procs.Meter({"server": conductor.pid, "caller": agents.pid, **servers})
        floor, sizes, _ = rpc_pair.floor(here, "save", known, servers)
        sides = {"floor": floor} | {
            kind: _Side(agents, meter, changed) for kind, changed in _KINDS.items()
        }
        windows = rpc_pair.alternate(sides, chosen)
        about = machine.describe(here.versions())
    message_bytes = {
        "ours": {name: known[name] for name in ("request", "answer")},
        "floor": sizes,
    }
    return _report(chosen, windows, counted, message_bytes, about)


def _count(here: world.World, agents: child.Child) -> dict[str, dict[str, float]]:
    """Return RPCs and statements of one cycle of each kind."""
    log = _Log(here.database_url)
    counted = {}
    for kind, changed in _KINDS.items():
        log.begin()
        calls = agents.ask("count", cycles=COUNTED, changed=changed)
        statements = log.end()
        counted[kind] = {"rpcs": calls / COUNTED, "statements": statements / COUNTED}
    log.close()
    return counted


def _report(
    chosen: options.Options,
    windows: dict[str, list[dict[str, float]]],
    counted: dict[str, dict[str, float]],
    message_bytes: dict[str, dict[str, int]],
    about: dict[str, Any],
) -> report.Report:
    medians = {side: _medians(found) for side, found in windows.items()}
    ratios = {
        callers: {
            name: cell[name] / medians["floor"][callers][name]
            for name in _SHOWN
            if name != "foreign_cores" and medians["floor"][callers][name]
        }
        for callers, cell in medians["changed"].items()
    }
    most = str(max(chosen.callers))
    bounds = [
        report.Bound(
            f"{what} of an unchanged and a changed cycle together",
            sum(cell[name] for cell in counted.values()),
            1.0,
        )
        for name, what in (("rpcs", "RPCs"), ("statements", "statements"))
    ]
    name = f"conductor CPU of a changed cycle over floor, {most} hosts"
    bounds.append(report.Bound(name, ratios[most]["server_cpu_ms"], _BOUND))
    return report.Report(
        bench="audit",
        options=dataclasses.asdict(chosen),
        figures={
            "windows": windows,
            "medians": medians,
            "counted": counted,
            "message_bytes": message_bytes,
        },
        ratios=ratios,
        machine=about,
        bounds=bounds,
        tables=[_table(medians, counted)],
        notes=["an unchanged cycle asks nobody: its floor is the reading alone"],
    )


def _medians(windows: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return the median of each figure by number of hosts."""
    cells: dict[str, list[dict[str, float]]] = {}
    for window in windows:
        cells.setdefault(str(int(window["callers"])), []).append(window)
    return {
        callers: {n: statistics.median(w[n] for w in found) for n in _SHOWN}
        for callers, found in cells.items()
    }


def _table(
    medians: dict[str, dict[str, dict[str, float]]],
    counted: dict[str, dict[str, float]],
) -> report.Table:
    rows: list[list[str | float]] = []
    for callers in medians["floor"]:
        for side, cells in medians.items():
            counts = counted.get(side, {"rpcs": 1.0, "statements": 1.0})
            figures = [cells[callers][name] for name in _SHOWN]
            rows.append([f"{callers} {side}", *counts.values(), *figures])
    columns = ["hosts", "RPCs", "statements", *_SHOWN.values()]
    title = "audit; agent to database: CPU ms a cycle; foreign: cores busy elsewhere"
    return report.Table(title, columns, rows)
