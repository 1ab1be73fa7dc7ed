"""ComputeNodeList.get_all with and without services, and what a join on names costs.

On MariaDB, PostgreSQL and SQLite. The lists in one process, in turn, as objects: what
a caller waits for; ``with_read`` reads each node's service as well, which is when it
becomes an object; the ``_message`` ones make the primitives of a message of the list.
The join alone, on the server: on host (VARCHAR, as we do) beside one on an integer
(as Juno did on service_id), each answering two ids a row.
"""

from collections.abc import Callable
import dataclasses
import gc
import statistics
import time
from typing import Any

import sqlalchemy as sa

from conductor.db import models
from conductor.db import store as db_store
from conductor.db import types
from musterbook import context as muster_context
from objects import compute_node as compute_node_obj
from objects import service as service_obj
from objects import store as store_port
from tests.bench import fleet_table
from tests.bench import machine
from tests.bench import options
from tests.bench import report

_N = models.compute_nodes
_S = models.services
#: What the bound is stated for; --nodes overrides it.
_NODES = 10_000
LIMIT = 1.3
#: Joins are short beside a list: more of them make a figure.
_JOINS = 5
_LIVE = sa.and_(_S.c.deleted == 0, _N.c.deleted == 0)
_BY_HOST = sa.select(_N.c.id, _S.c.id).select_from(
    _N.join(
        _S,
        sa.and_(
            types.same_name(_S.c.host, _N.c.host),
            _S.c.binary == service_obj.COMPUTE_BINARY,
        ),
    )
)
#: service_id itself stays NULL, as in every row of ours.
_OLD_ID = sa.column("juno_service_id", sa.Integer)
_BY_ID = sa.select(_N.c.id, _S.c.id).select_from(_N.join(_S, _S.c.id == _OLD_ID))
_Windows = dict[str, list[float]]


def run(chosen: options.Options) -> report.Report:
    """Measure, on servers of its own, and end all it has started."""
    default = options.Options().nodes
    nodes = _NODES if chosen.nodes == default else chosen.nodes
    windows: dict[str, _Windows] = {}
    versions: dict[str, str] = {}
    for kind in fleet_table.KINDS:
        with fleet_table.filled(kind, nodes) as engine:
            _add_old_id(engine)
            store_port.bind(db_store.DatabaseStore(engine))
            try:
                windows[kind] = _measure(engine, nodes, chosen.windows)
            finally:
                store_port.unbind()
            versions[kind] = fleet_table.version(engine)
    return _report(chosen, nodes, windows, versions)


def _add_old_id(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        column = f"ALTER TABLE compute_nodes ADD COLUMN {_OLD_ID.name} INTEGER"
        connection.execute(sa.text(column))
        connection.execute(
            sa.text(f"UPDATE compute_nodes SET {_OLD_ID.name} = id")  # noqa: S608
        )


def _measure(engine: sa.Engine, nodes: int, windows: int) -> _Windows:
    """Return the milliseconds of each run, by what was done; in turn."""
    done = _work(engine)
    taken: _Windows = {name: [] for name in done}
    for window in range(windows + 1):
        for name, (call, times) in done.items():
            gc.collect()
            began = time.perf_counter()
            found = call()
            took = (time.perf_counter() - began) * 1000 / times
            if found != nodes:
                raise options.BenchFailed(f"{name}: {found} of {nodes} rows came back")
            if window:  # the first one warms up
                taken[name].append(took)
    return taken


def _work(engine: sa.Engine) -> dict[str, tuple[Callable[[], int], int]]:
    """Return what is measured: a function that answers how many rows, how often."""
    context = muster_context.RequestContext()

    def listed(with_service: bool, then: Callable[[Any], int]) -> Callable[[], int]:
        get_all = compute_node_obj.ComputeNodeList.get_all
        return lambda: then(get_all(context, with_service=with_service))

    def joined(query: sa.Select[Any]) -> Callable[[], int]:
        def call() -> int:
            with engine.connect() as connection:
                for _ in range(_JOINS):
                    found = len(connection.execute(query.where(_LIVE)).all())
            return found

        return call

    return {
        "without": (listed(False, _without), 1),
        "with_service": (listed(True, _with), 1),
        "with_read": (listed(True, _read), 1),
        "without_message": (listed(False, _message), 1),
        "with_service_message": (listed(True, _message), 1),
        "integer_join": (joined(_BY_ID), _JOINS),
        "varchar_join": (joined(_BY_HOST), _JOINS),
    }


def _without(found: compute_node_obj.ComputeNodeList) -> int:
    return sum(not node.obj_attr_is_set("service") for node in found)


def _with(found: compute_node_obj.ComputeNodeList) -> int:
    return sum(node.obj_attr_is_set("service") for node in found)


def _read(found: compute_node_obj.ComputeNodeList) -> int:
    return sum(node.service is not None for node in found)


def _message(found: compute_node_obj.ComputeNodeList) -> int:
    return len(found.obj_to_primitive()["versioned_object.data"]["objects"])


def _report(
    chosen: options.Options,
    nodes: int,
    windows: dict[str, _Windows],
    versions: dict[str, str],
) -> report.Report:
    medians = {
        kind: {name: statistics.median(taken) for name, taken in of_kind.items()}
        for kind, of_kind in windows.items()
    }
    ratios = {kind: _ratios(ms) for kind, ms in medians.items()}
    bounds = [
        report.Bound(
            f"get_all of {nodes:,} nodes on {kind}, with_service/without",
            of_kind["with_service"],
            LIMIT,
        )
        for kind, of_kind in ratios.items()
    ]
    kinds = list(medians)
    table = report.Table(
        f"join; medians of {chosen.windows} runs, {nodes:,} nodes",
        ["what (ms)", *kinds],
        [[n, *(medians[k][n] for k in kinds)] for n in medians[kinds[0]]],
    )
    of_ratios = report.Table(
        "ratios", ["what", *kinds],
        [[n, *(ratios[k][n] for k in kinds)] for n in ratios[kinds[0]]],
    )  # fmt: skip
    return report.Report(
        bench="join",
        options=dataclasses.asdict(chosen) | {"nodes": nodes},
        figures={"windows_ms": windows, "medians_ms": medians},
        ratios=ratios,
        machine=machine.describe(versions),
        bounds=bounds,
        tables=[table, of_ratios],
        notes=[
            "with_service: the services are there and not yet objects; "
            "with_read: each was read",
            "varchar_join: the join on host over the one on an integer; "
            "it is one part of a list with services",
        ],
    )


def _ratios(ms: dict[str, float]) -> dict[str, float]:
    return {
        "with_service": ms["with_service"] / ms["without"],
        "with_read": ms["with_read"] / ms["without"],
        "message": ms["with_service_message"] / ms["without_message"],
        "varchar_join": ms["varchar_join"] / ms["integer_join"],
    }
