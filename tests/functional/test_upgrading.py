"""docs/upgrading.md, typed block after block into a database of Juno's shape."""

from collections.abc import Iterator
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest
import sqlalchemy as sa

from conductor.db import engine as db_engine
from conductor.db import models
from conductor.db import rows
from conductor.db import store as db_store
from tests import process
from tests.functional import lab
from tests.functional.db import command
from tests.functional.db import juno
from tests.functional.db import oddities

pytestmark = pytest.mark.docs
GUIDE = lab.ROOT / "docs/upgrading.md"
BLOCK = re.compile(
    r"(?P<skip><!-- not run by the tests: .*? -->\n)?```bash\n(?P<text>.*?)```\n", re.S
)


def blocks() -> list[str]:
    """Return the guide's commands in order, apart from those marked as not run."""
    found = BLOCK.finditer(GUIDE.read_text())
    return [match["text"] for match in found if not match["skip"]]


class Typist:
    """Types blocks, each into a shell that has the first one's variables."""

    def __init__(self, folder: pathlib.Path, url: str, setting: str) -> None:
        self._path = folder / "programs"
        self._path.mkdir()
        self._setting = re.sub(r"/etc/\S+", command.config(folder, url), setting)
        at = sa.make_url(url)
        client = (
            f"{process.find_program('mariadb')} --no-defaults --protocol=TCP"
            f" --host={at.host} --port={at.port} --user={at.username} {at.database}"
        )
        for name, line in {
            "musterbook-manage": f'exec {sys.executable} -m conductor.manage "$@"',
            # The guide names a database that is another's here.
            "mysql": f'shift; exec {client} "$@"',
        }.items():
            (self._path / name).write_text(f"#!/bin/bash\n{line}\n")
            (self._path / name).chmod(0o755)

    def type(self, block: str) -> str:
        """Run a block, which has to succeed; return what it printed."""
        done = subprocess.run(
            ["bash", "-c", f"set -e\n{self._setting}{block}"],
            cwd=lab.ROOT,
            env={**os.environ, "PATH": f"{self._path}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=120,
        )
        print(block, done.stdout)
        assert done.returncode == 0, f"{block}\n{done.stdout}"
        return done.stdout


@pytest.fixture
def engine(mariadb_url: str) -> Iterator[sa.Engine]:
    made = db_engine.make_engine(mariadb_url)
    yield made
    made.dispose()


def hosts(engine: sa.Engine) -> dict[int, str | None]:
    t = models.compute_nodes
    query = sa.select(t.c.id, t.c.host).where(models.live(t))
    with engine.connect() as connection:
        return {row.id: row.host for row in connection.execute(query)}


def nodes(engine: sa.Engine) -> dict[int, dict[str, Any]]:
    """Return all rows of nodes as they are stored, by id."""
    with engine.connect() as connection:
        found = connection.execute(sa.select(models.compute_nodes)).mappings()
        return {row["id"]: dict(row) for row in found}


def test_the_upgrade_guide(
    engine: sa.Engine, mariadb_url: str, tmp_path: pathlib.Path
) -> None:
    setting, *typed = blocks()
    shell = Typist(tmp_path, mariadb_url, setting)
    version, sync, check, dry, part, rest, keep, delete, again, *typed = typed
    *purging, last, newer, levels = typed
    juno.make(engine)
    with juno.unchecked(engine) as connection:
        oddities.fill(connection)
    assert shell.type(version).startswith("database: none, ")
    assert "was: none" in shell.type(sync)
    assert set(hosts(engine).values()) == {None}
    found = sum(map(len, oddities.FOUND.values()))
    assert shell.type(check).endswith(f"{found} findings\n")
    assert oddities.TOTALS in shell.type(dry)
    assert set(hosts(engine).values()) == {None}
    assert "more to do" in shell.type(part)
    assert "stuck: 3 rows, named above; see docs/upgrading.md" in shell.type(rest)
    assert hosts(engine) == oddities.HOSTS
    before = nodes(engine)
    with engine.begin() as connection:
        # As in very old rows, which are live as well.
        t = models.compute_nodes
        connection.execute(t.update().where(t.c.id.in_([7, 16])).values(deleted=None))
    shell.type(keep)
    shell.type(delete)
    migrated = {n: host for n, host in oddities.HOSTS.items() if host is not None}
    migrated[7] = "node-17"
    assert hosts(engine) == migrated
    after = nodes(engine)
    assert {n for n, row in after.items() if row != before[n]} == {6, 7, 16}
    for n in (6, 7, 16):
        assert after[n]["generation"] == before[n]["generation"] + 1
        assert after[n]["stream_version"] is None
    assert [after[n]["deleted"] for n in (6, 7, 16)] == [6, 0, 16]
    assert shell.type(again).splitlines()[-1].startswith("done")
    assert hosts(engine) == migrated
    # Found as its agent looks for it, booked, and by the uuid that it had.
    kept = db_store.DatabaseStore(engine).compute_node_get_by_host_and_nodename(
        "node-17", "lost"
    )
    had = rows.legacy_uuid("compute_nodes", 7, before[7]["created_at"])
    assert (kept["id"], kept["uuid"]) == (7, had)
    assert nodes(engine)[7]["uuid"] == had
    assert nodes(engine)[7]["booking"] != 0
    for block in purging:
        told = shell.type(block)
        assert "compute_nodes: purged 2, kept 0\nservices: purged 3, kept 0" in told
    assert hosts(engine) == migrated
    told = shell.type(last)
    kinds = re.findall(r"^(\w+): \d", told, re.M)
    assert kinds == [
        "services_without_host", "nodes_without_name", "nodes_without_service",
        "services_without_nodes",
    ]  # fmt: skip
    assert shell.type(newer).count("database: ") == 2
    told = shell.type(levels)
    assert re.search(r'"service_level": \d+, "lowest_level": null,', told)
    assert '"holding_back": [' in told


def test_the_exit_codes_are_those_of_the_help(tmp_path: pathlib.Path) -> None:
    table = GUIDE.read_text().partition("## Exit codes")[2]
    codes = re.findall(r"^\| (\d+) \|", table, re.M)
    assert codes == ["0", "1", "2", "3", "130"]
    for name in ("check", "online_data_migrations", "purge"):
        told = command.manage(tmp_path, "", "db", name, "--help").stdout
        assert re.findall(r"[:;] (\d) ", " ".join(told.split())) == codes[:4]
