"""Databases of many detached nodes, for the benches of lists and look-ups."""

from collections.abc import Iterator
import contextlib
import datetime
import json
import shutil
from typing import Any
import uuid as uuidlib

import sqlalchemy as sa

from conductor.db import engine as db_engine
from conductor.db import migration
from conductor.db import models
from musterbook import context as muster_context
from objects import service as service_obj
from tests import process
from tests import servers
from tests.bench import rpc_nodes

KINDS = ("mariadb", "postgresql", "sqlite")
_N = models.compute_nodes
_S = models.services
_CHUNK = 500
_STARTED = datetime.datetime(2026, 11, 30, 8, 15, tzinfo=datetime.UTC)


@contextlib.contextmanager
def filled(kind: str, count: int) -> Iterator[sa.Engine]:
    """Yield an engine on a database of a kind with so many hosts, one node each."""
    with _url(kind) as url:
        engine = db_engine.make_engine(url)
        migration.sync(engine)
        _fill(engine, count)
        _analyze(engine)
        yield engine
        engine.dispose()


def version(engine: sa.Engine) -> str:
    """Return what the database says it is."""
    ask = "sqlite_version()" if engine.dialect.name == "sqlite" else "VERSION()"
    with engine.connect() as connection:
        return str(connection.scalar(sa.text(f"SELECT {ask}")))


@contextlib.contextmanager
def _url(kind: str) -> Iterator[str]:
    """Yield the URL of an empty database, synced to disk where there's a choice."""
    folder = process.make_folder()
    try:
        if kind == "sqlite":
            folder.mkdir(exist_ok=True)
            yield f"sqlite:///{folder / 'bench.sqlite'}"
            return
        server = (
            servers.MariaDB(folder, durable=True)
            if kind == "mariadb"
            else servers.PostgreSQL(folder)
        )
        try:
            server.start()
            yield server.lease(0)
        finally:
            server.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fill(engine: sa.Engine, count: int) -> None:
    context = muster_context.RequestContext()
    for start in range(1, count + 1, _CHUNK):
        numbers = range(start, min(start + _CHUNK, count + 1))
        with engine.begin() as connection:
            connection.execute(_S.insert(), [_service(n) for n in numbers])
            connection.execute(_N.insert(), [_node(context, n) for n in numbers])


def _service(number: int) -> dict[str, Any]:
    """Return the row of an agent that was granted and is up: few columns are NULL."""
    return {
        "id": number, "host": rpc_nodes.identity(number)[0], "uuid": _uuid(),
        "binary": service_obj.COMPUTE_BINARY, "topic": service_obj.COMPUTE_TOPIC,
        "report_count": 0, "disabled": False, "forced_down": False, "deleted": 0,
        "created_at": _STARTED, "updated_at": _STARTED, "incarnation": 4,
        "secret_hash": "f" * 64, "process_uuid": _uuid(), "boot_id": _uuid(),
        "release": "1.0.0", "state": "up", "state_incarnation": 4,
        "state_since": _STARTED, "state_cause": "is in the group",
        "state_evidence": json.dumps({"member": "host#4", "seen": 1}),
        "state_actor": "leader conductor-1",
    }  # fmt: skip


def _node(context: muster_context.RequestContext, number: int) -> dict[str, Any]:
    values = rpc_nodes.new(context, number).obj_get_changes()
    used = {"vcpus_used": 4, "memory_mb_used": 8192, "local_gb_used": 100}
    own = {
        "id": number, "uuid": _uuid(), "deleted": 0, "created_at": _STARTED,
        "updated_at": _STARTED, "stats": json.dumps(values["stats"]),
    }  # fmt: skip
    return {**values, **used, **own}


def _uuid() -> str:
    return str(uuidlib.uuid4())


def _analyze(engine: sa.Engine) -> None:
    """Bring the planner's statistics up to date, as the servers do in time."""
    tables = " TABLE services, compute_nodes" if engine.dialect.name == "mysql" else ""
    with engine.begin() as connection:
        connection.execute(sa.text(f"ANALYZE{tables}"))
