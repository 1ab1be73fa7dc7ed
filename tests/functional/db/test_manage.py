"""musterbook-manage as an operator calls it."""

import pathlib
import subprocess
import sys

import pytest
import sqlalchemy as sa

from conductor.db import migration


def manage(
    tmp_path: pathlib.Path, url: str, *command: str
) -> "subprocess.CompletedProcess[str]":
    path = tmp_path / "manage.conf"
    path.write_text(f"[database]\nconnection = {url}\n")
    return subprocess.run(
        [sys.executable, "-m", "conductor.manage", "--config-file", path, *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_sync_and_version(
    database_url: str, empty: sa.Engine, tmp_path: pathlib.Path
) -> None:
    for command, said in (
        ("version", "database: none, code: 0003\n"),
        ("sync", "database: 0003, was: none\n"),
        ("sync", "database: 0003, was: 0003\n"),
        ("version", "database: 0003, code: 0003\n"),
    ):
        done = manage(tmp_path, database_url, "db", command)
        assert (done.returncode, done.stdout, done.stderr) == (0, said, "")
    migration.check_current(empty)


def test_newer_database(
    database_url: str, engine: sa.Engine, tmp_path: pathlib.Path
) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE musterbook_version SET version_num = '9'"))
    done = manage(tmp_path, database_url, "db", "sync")
    assert (done.returncode, done.stdout) == (1, "")
    assert "newer than this code" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("mysql://root:s3cret@127.0.0.1:1/x", 1),
        ("postgresql://root:s3cret@127.0.0.1:1/x", 1),
        ("mysql://root:s3cret@127.0.0.1:99999/x", 2),
        ("s3cret", 2),
        ("mysql://u:s3cret$s3cret@h/d", 2),
        ("mysql://u:a$S3CRET@h/d", 2),
        ("", 2),
    ],
)
def test_errors_are_one_line(tmp_path: pathlib.Path, url: str, code: int) -> None:
    done = manage(tmp_path, url, "db", "sync")
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("musterbook-manage: ")
    assert done.stderr.count("\n") == 1
    assert "s3cret" not in done.stderr.lower()
    assert ("$$" in done.stderr) == ("$" in url)


def test_help_tells_the_exit_codes(tmp_path: pathlib.Path) -> None:
    done = manage(tmp_path, "", "--help")
    assert done.returncode == 0
    assert "Exit codes: 0 done" in done.stdout
    assert manage(tmp_path, "", "db", "nope").returncode == 2
