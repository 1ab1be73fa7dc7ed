"""What rows of Juno's shape cost a query by host once none is left: nothing.

On MariaDB, PostgreSQL and SQLite, without such rows. Ours is the store's method, its
floor the same method with a SELECT that knows nothing of Juno's shape. Both in turn,
call by call, so that both meet the same neighbours; a figure is the median call. The
floor is measured against itself as well, as a third in the turn: that ratio is what a
figure of this run can be wrong by.
"""

from collections.abc import Callable
import dataclasses
import itertools
import random
import statistics
import time
from typing import Any

import sqlalchemy as sa

from conductor.db import limits
from conductor.db import models
from conductor.db import retry
from conductor.db import rows
from conductor.db import store as db_store
from conductor.db import types
from tests.bench import fleet_table
from tests.bench import machine
from tests.bench import options
from tests.bench import report
from tests.bench import rpc_nodes

_T = models.compute_nodes
#: What the bound is stated for; --nodes overrides it.
_NODES = 10_000
#: What is told from noise.
LIMIT = 1.05
#: Calls of each side a window of a second; a window is at least one of them.
_CALLS = 300
_HOST = _T.c.host, sa.bindparam("host", type_=sa.String())
_NAME = _T.c.hypervisor_hostname, sa.bindparam("name", type_=sa.String())
#: In another order than ours. Of two statements that are the same SQLAlchemy keeps one,
#: and compares the other with it, part by part, at each call: 30 us.
_BY_HOST = sa.select(_T).where(_T.c.deleted == 0, types.same_name(*_HOST))
_BY_IDENTITY = _BY_HOST.where(types.same_name(*_NAME))
_Call = Callable[[str, str], Any]
_Cells = dict[str, dict[str, list[float]]]


def run(chosen: options.Options) -> report.Report:
    """Measure, on servers of its own, and end all it has started."""
    default = options.Options().nodes
    nodes = _NODES if chosen.nodes == default else chosen.nodes
    windows: dict[str, _Cells] = {}
    statements: dict[str, dict[str, int]] = {}
    versions: dict[str, str] = {}
    for kind in fleet_table.KINDS:
        with fleet_table.filled(kind, nodes) as engine:
            pairs = _pairs(engine)
            windows[kind] = {
                name: _measure(pair, nodes, chosen) for name, pair in pairs.items()
            }
            statements[kind] = {
                name: _count(engine, ours) for name, (_, ours) in pairs.items()
            }
            versions[kind] = fleet_table.version(engine)
    return _report(chosen, nodes, windows, statements, versions)


def _pairs(engine: sa.Engine) -> dict[str, tuple[_Call, _Call]]:
    """Return floor and ours of each query. Both check what they are given."""
    store = db_store.DatabaseStore(engine)

    def list_of_host(host: str, name: str) -> Any:
        if not limits.storable(host):
            return []

        def work(connection: sa.Connection) -> list[Any]:
            return rows.nodes(connection.execute(_BY_HOST, {"host": host}))

        found = retry.read(engine, work)
        return sorted(found, key=lambda row: int(row["id"]))

    def one(host: str, name: str) -> Any:
        assert limits.storable(host)
        assert limits.storable(name)

        def work(connection: sa.Connection) -> Any:
            values = {"host": host, "name": name}
            return connection.execute(_BY_IDENTITY, values).mappings().first()

        found = retry.read(engine, work)
        assert found is not None
        return rows.node(found)

    return {
        "compute_nodes_by_host": (
            list_of_host,
            lambda host, name: store.compute_nodes_by_host(host),
        ),
        "get_by_host_and_nodename": (one, store.compute_node_get_by_host_and_nodename),
    }


def _measure(
    pair: tuple[_Call, _Call], nodes: int, chosen: options.Options
) -> dict[str, list[float]]:
    """Return the microseconds of the median call of each window, by side."""
    floor, ours = pair
    sides = {"floor": floor, "again": floor, "ours": ours}
    orders = list(itertools.permutations(sides))
    calls = max(1, int(chosen.seconds * _CALLS))
    rng = random.Random(1)
    found: dict[str, list[float]] = {side: [] for side in sides}
    for window in range(chosen.windows + 1):
        taken: dict[str, list[float]] = {side: [] for side in sides}
        for number in range(calls):
            for side in orders[number % len(orders)]:
                identity = rpc_nodes.identity(rng.randrange(1, nodes + 1))
                began = time.perf_counter()
                answer = sides[side](*identity)
                taken[side].append((time.perf_counter() - began) * 1e6)
                if not answer:
                    raise options.BenchFailed(f"{identity} wasn't found")
        if window:  # the first one warms up
            for side, times in taken.items():
                found[side].append(statistics.median(times))
    return found


def _count(engine: sa.Engine, call: _Call) -> int:
    """Return the statements of a call, after one that looked for Juno's rows."""
    seen: list[str] = []

    def note(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        seen.append(statement)

    call(*rpc_nodes.identity(1))
    sa.event.listen(engine, "before_cursor_execute", note)
    call(*rpc_nodes.identity(1))
    sa.event.remove(engine, "before_cursor_execute", note)
    return sum(statement.lstrip().startswith("SELECT") for statement in seen)


def _report(
    chosen: options.Options,
    nodes: int,
    windows: dict[str, _Cells],
    statements: dict[str, dict[str, int]],
    versions: dict[str, str],
) -> report.Report:
    medians = {
        kind: {
            name: {side: statistics.median(us) for side, us in cell.items()}
            for name, cell in cells.items()
        }
        for kind, cells in windows.items()
    }
    ratios = _ratios(medians, "ours")
    noise = _ratios(medians, "again")
    table = report.Table(
        f"by_host; medians of {chosen.windows} windows, {nodes:,} nodes",
        ["database", "query", "SELECTs", "floor us", "ours us", "ratio", "noise"],
        [
            [
                kind, n, str(statements[kind][n]), c["floor"], c["ours"],
                ratios[kind][n], noise[kind][n],
            ]
            for kind, cells in medians.items()
            for n, c in cells.items()
        ],
    )  # fmt: skip
    return report.Report(
        bench="by_host",
        options=dataclasses.asdict(chosen) | {"nodes": nodes},
        figures={
            "windows_us": windows,
            "medians_us": medians,
            "statements": statements,
            "noise": noise,
        },
        ratios=ratios,
        machine=machine.describe(versions),
        bounds=[
            report.Bound(f"{name} on {kind}, ours/floor", ratio, LIMIT)
            for kind, of_kind in ratios.items()
            for name, ratio in of_kind.items()
        ],
        tables=[table],
        notes=[
            "once a second, one more SELECT looks for rows of Juno's shape",
            "noise: the floor over itself; a ratio can't be told from 1 within it",
        ],
    )


def _ratios(
    medians: dict[str, dict[str, dict[str, float]]], side: str
) -> dict[str, dict[str, float]]:
    return {
        kind: {name: cell[side] / cell["floor"] for name, cell in cells.items()}
        for kind, cells in medians.items()
    }
