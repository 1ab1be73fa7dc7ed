"""docs/upgrading.md, typed block after block into a database of Juno's shape."""

from collections.abc import Iterator
import os
import pathlib
import re
import subprocess
import sys

import pytest
import sqlalchemy as sa

from conductor.db import engine as db_engine
from conductor.db import models
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


def test_the_upgrade_guide(
    engine: sa.Engine, mariadb_url: str, tmp_path: pathlib.Path
) -> None:
    setting, *typed = blocks()
    shell = Typist(tmp_path, mariadb_url, setting)
    version, sync, check, dry, part, rest, delete, again, *typed = typed
    *purging, last, after, levels = typed
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
    shell.type(delete)
    assert shell.type(again).splitlines()[-1].startswith("done")
    migrated = {n: host for n, host in oddities.HOSTS.items() if host is not None}
    assert hosts(engine) == migrated
    for block in purging:
        told = shell.type(block)
        assert "compute_nodes: purged 2, kept 0\nservices: purged 3, kept 0" in told
    assert hosts(engine) == migrated
    told = shell.type(last)
    kinds = re.findall(r"^(\w+): \d", told, re.M)
    assert kinds == [
        "services_without_host", "nodes_without_name", "services_without_nodes"
    ]  # fmt: skip
    assert shell.type(after).count("database: ") == 2
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
