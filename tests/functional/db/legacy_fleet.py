"""Many hosts of Juno's shape, and agents of theirs that save meanwhile."""

from collections.abc import Collection
from collections.abc import Iterator
import contextlib
import json
import pathlib
import subprocess
import sys
from typing import Any

import sqlalchemy as sa

from tests.functional.db import juno
from tests.functional.db import sums

ROOT = pathlib.Path(__file__).parents[3]
#: Rows an INSERT; SQLite takes 32,766 values at most.
_CHUNK = 1000
#: What makes a row as wide as a real one.
_TEXT = {"cpu_info": "c" * 1000, "stats": "{}", "numa_topology": "n" * 2000}


def fill(engine: sa.Engine, count: int) -> None:
    """Insert ``host-N`` with the node ``node-N`` under the ids N, from 1 on."""
    service: dict[str, Any] = {
        "binary": "nova-compute", "topic": "compute", "report_count": 7,
        "deleted": 0, "disabled": False,
    }  # fmt: skip
    with engine.begin() as connection:
        for start in range(1, count + 1, _CHUNK):
            numbers = range(start, min(start + _CHUNK, count + 1))
            _insert(
                connection,
                "services",
                [service | {"id": n, "host": f"host-{n}"} for n in numbers],
            )
            _insert(
                connection,
                "compute_nodes",
                [
                    juno.NODE
                    | _TEXT
                    | {"id": n, "service_id": n, "hypervisor_hostname": f"node-{n}"}
                    for n in numbers
                ],
            )


def _insert(connection: sa.Connection, table: str, rows: list[dict[str, Any]]) -> None:
    columns: list[sa.ColumnClause[Any]] = [sa.column(name) for name in rows[0]]
    connection.execute(sa.table(table, *columns).insert(), rows)


@contextlib.contextmanager
def saving(url: str, rate: float, first: int, last: int) -> Iterator[dict[str, Any]]:
    """Let agents save in a process of their own; what they did is there at the end."""
    told: dict[str, Any] = {}
    module = [sys.executable, "-m", "tests.functional.db.saver"]
    with subprocess.Popen(
        [*module, url, str(rate), str(first), str(last)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "saving\n"
            yield told
            answer, _ = running.communicate(timeout=60)
            told.update(json.loads(answer))
        finally:
            running.kill()


def rows(engine: sa.Engine) -> dict[int, Any]:
    """Return the live nodes by id."""
    names = ("id", "host", "service_id", "uuid", "running_vms", "hypervisor_hostname")
    table = sa.table("compute_nodes", *(sa.column(n) for n in (*names, "deleted")))
    query = sa.select(*(table.c[name] for name in names)).where(table.c.deleted == 0)
    with engine.connect() as connection:
        return {row.id: row for row in connection.execute(query)}


def check_migrated(engine: sa.Engine, count: int, but: Collection[int] = ()) -> None:
    """Assert that all but some are what a save would have made of them."""
    found = rows(engine)
    assert len(found) == count
    for number, row in found.items():
        if number in but:
            assert (row.host, row.uuid) == (None, None)
            continue
        assert (row.host, row.service_id) == (f"host-{number}", None)
        assert row.hypervisor_hostname == f"node-{number}"
        assert row.uuid is not None
    assert len({row.uuid for row in found.values() if row.uuid}) == count - len(but)
    assert sums.held(engine) == count - len(but)


def check_saves(engine: sa.Engine, told: dict[str, Any]) -> None:
    """Assert that no save failed, and that each row holds its agent's last one."""
    assert told["failures"] == []
    assert len(told["latencies"]) > 10
    found = rows(engine)
    stored = {n: found[int(n)].running_vms for n in told["last"]}
    assert stored == told["last"]
