"""ComputeNodeList.get_all with and without services, and what a join on names costs.

Both lists in one process on a MariaDB, in turn, as objects: what a caller waits for.
The join alone, on the server: on host (VARCHAR, as we do) beside service_id (integer,
as Juno did), each answering two ids a row.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
import gc
import json
import shutil
import statistics
import time
from typing import Any
import uuid as uuidlib

import sqlalchemy as sa

from conductor.db import engine as db_engine
from conductor.db import migration
from conductor.db import models
from conductor.db import store as db_store
from musterbook import context as muster_context
from objects import compute_node as compute_node_obj
from objects import service as service_obj
from objects import store as store_port
from tests import process
from tests import servers
from tests.bench import machine
from tests.bench import options
from tests.bench import report
from tests.bench import rpc_nodes

_N = models.compute_nodes
_S = models.services
#: What the bound is stated for; --nodes overrides it.
_NODES = 10_000
LIMIT = 1.3
#: Joins are short beside a list: more of them make a figure.
_JOINS = 5
_CHUNK = 500
_LIVE = sa.and_(_S.c.deleted == 0, _N.c.deleted == 0)
_BY_HOST = sa.select(_N.c.id, _S.c.id).select_from(
    _N.join(
        _S,
        sa.and_(_S.c.host == _N.c.host, _S.c.binary == service_obj.COMPUTE_BINARY),
    )
)
_BY_ID = sa.select(_N.c.id, _S.c.id).select_from(
    _N.join(_S, _S.c.id == _N.c.service_id)
)


def run(chosen: options.Options) -> report.Report:
    """Measure, on servers of its own, and end all it has started."""
    default = options.Options().nodes
    nodes = _NODES if chosen.nodes == default else chosen.nodes
    with _database() as engine:
        _fill(engine, nodes)
        store_port.bind(db_store.DatabaseStore(engine))
        try:
            windows = _measure(engine, nodes, chosen.windows)
        finally:
            store_port.unbind()
        with engine.connect() as connection:
            version = str(connection.scalar(sa.text("SELECT VERSION()")))
    return _report(chosen, nodes, windows, version)


@contextlib.contextmanager
def _database() -> Iterator[sa.Engine]:
    """Yield an engine on an empty database of today's shape."""
    folder = process.make_folder()
    server = servers.MariaDB(folder, durable=True)
    try:
        server.start()
        engine = db_engine.make_engine(server.lease(0))
        migration.sync(engine)
        yield engine
        engine.dispose()
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)


def _fill(engine: sa.Engine, count: int) -> None:
    """Insert so many hosts with a service and a node each."""
    context = muster_context.RequestContext()
    service = {
        "binary": service_obj.COMPUTE_BINARY, "topic": "compute", "report_count": 0,
        "disabled": False, "forced_down": False, "deleted": 0,
    }  # fmt: skip
    for start in range(1, count + 1, _CHUNK):
        numbers = range(start, min(start + _CHUNK, count + 1))
        hosts = [
            service | {"id": n, "host": rpc_nodes.identity(n)[0], "uuid": _uuid()}
            for n in numbers
        ]
        with engine.begin() as connection:
            connection.execute(_S.insert(), hosts)
            connection.execute(_N.insert(), [_node(context, n) for n in numbers])
    with engine.begin() as connection:
        connection.execute(sa.text("ANALYZE TABLE services, compute_nodes"))


def _node(context: muster_context.RequestContext, number: int) -> dict[str, Any]:
    values = rpc_nodes.new(context, number).obj_get_changes()
    used = {"vcpus_used": 4, "memory_mb_used": 8192, "local_gb_used": 100}
    own = {
        "id": number, "service_id": number, "uuid": _uuid(), "deleted": 0,
        "stats": json.dumps(values["stats"]),
    }  # fmt: skip
    return {**values, **used, **own}


def _uuid() -> str:
    return str(uuidlib.uuid4())


def _measure(engine: sa.Engine, nodes: int, windows: int) -> dict[str, list[float]]:
    """Return the milliseconds of each run, by what was done; in turn."""
    context = muster_context.RequestContext()

    def listed(with_service: bool) -> Callable[[], int]:
        def call() -> int:
            found = compute_node_obj.ComputeNodeList.get_all(
                context, with_service=with_service
            )
            return sum(
                node.obj_attr_is_set("service") == with_service for node in found
            )

        return call

    def joined(query: sa.Select[Any]) -> Callable[[], int]:
        def call() -> int:
            with engine.connect() as connection:
                for _ in range(_JOINS):
                    found = len(connection.execute(query.where(_LIVE)).all())
            return found

        return call

    done: dict[str, tuple[Callable[[], int], int]] = {
        "without": (listed(False), 1),
        "with_service": (listed(True), 1),
        "integer_join": (joined(_BY_ID), _JOINS),
        "varchar_join": (joined(_BY_HOST), _JOINS),
    }
    taken: dict[str, list[float]] = {name: [] for name in done}
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


def _report(
    chosen: options.Options,
    nodes: int,
    windows: dict[str, list[float]],
    version: str,
) -> report.Report:
    medians = {name: statistics.median(taken) for name, taken in windows.items()}
    lists = medians["with_service"] / medians["without"]
    joins = medians["varchar_join"] / medians["integer_join"]
    what = f"get_all of {nodes:,} nodes, with_service/without"
    rows: list[list[str | float]] = [
        [name, ms, ms / nodes * 1000] for name, ms in medians.items()
    ]
    table = report.Table(
        f"join; medians of {chosen.windows} runs, {nodes:,} nodes",
        ["what", "ms", "us a row"],
        rows,
    )
    return report.Report(
        bench="join",
        options=dataclasses.asdict(chosen) | {"nodes": nodes},
        figures={"windows_ms": windows, "medians_ms": medians},
        ratios={"with_service": lists, "varchar_join": joins},
        machine=machine.describe({"mariadb": version}),
        bounds=[report.Bound(what, lists, LIMIT)],
        tables=[table],
        notes=[
            f"the join on host takes {joins:.2f} times the one on service_id; "
            "it is one part of a list with services"
        ],
    )
