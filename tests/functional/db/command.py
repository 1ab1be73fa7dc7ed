"""musterbook-manage as an operator calls it."""

import contextlib
import io
import json
import pathlib
import subprocess
import sys
from typing import Any

import sqlalchemy as sa

from conductor import manage as conductor_manage


def config(folder: pathlib.Path, url: str) -> str:
    """Write a configuration that names the database, and return its path."""
    path = folder / "manage.conf"
    path.write_text(f"[database]\nconnection = {url}\n")
    return str(path)


def manage(
    folder: pathlib.Path, url: str, *command: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        arguments(folder, url, *command),
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )


def inside(
    folder: pathlib.Path, url: str, *command: str
) -> "subprocess.CompletedProcess[str]":
    """Run it in this process: for tests that need it many times."""
    argv = arguments(folder, url, *command)[3:]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = conductor_manage.main(argv)
    return subprocess.CompletedProcess(argv, code, out.getvalue(), err.getvalue())


def arguments(folder: pathlib.Path, url: str, *command: str) -> list[str]:
    """Return the command line."""
    path = config(folder, url)
    return [sys.executable, "-m", "conductor.manage", "--config-file", path, *command]


def content(engine: sa.Engine) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of three tables, to see whether anything was written."""
    found = {}
    with engine.connect() as connection:
        for table in ("services", "compute_nodes", "allocations"):
            query = sa.select(sa.text("*")).select_from(sa.table(table))
            query = query.order_by(sa.column("id"))
            found[table] = [tuple(row) for row in connection.execute(query)]
    return found


def found_ids(check: "subprocess.CompletedProcess[str]") -> dict[str, list[int]]:
    """Return the ids that db check --json named, by kind."""
    assert check.returncode == 1, check.stderr
    found = json.loads(check.stdout)["findings"]
    return {kind: [row["id"] for row in rows] for kind, rows in found.items()}
