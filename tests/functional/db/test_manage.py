"""musterbook-manage as an operator calls it."""

import pathlib
import subprocess
import sys

import pytest
import sqlalchemy as sa

from conductor.commands import check
from conductor.db import migration
from tests.functional.db import command as command_line


def test_sync_and_version(
    database_url: str, empty: sa.Engine, tmp_path: pathlib.Path
) -> None:
    if empty.dialect.name == "sqlite":
        # A mistyped path isn't made a database.
        done = command_line.manage(tmp_path, database_url, "db", "version")
        assert (done.returncode, done.stdout) == (1, "")
        assert f"there is no file {empty.url.database}" in done.stderr
        assert done.stderr.count("\n") == 1
        assert not pathlib.Path(str(empty.url.database)).exists()
    with empty.connect():
        pass  # of SQLite, the file is there now
    for command, said in (
        ("version", "database: none, code: 0007\n"),
        ("sync", "database: 0007, was: none\n"),
        ("sync", "database: 0007, was: 0007\n"),
        ("version", "database: 0007, code: 0007\n"),
    ):
        done = command_line.manage(tmp_path, database_url, "db", command)
        assert (done.returncode, done.stdout, done.stderr) == (0, said, "")
    migration.check_current(empty)


def test_newer_database(
    database_url: str, engine: sa.Engine, tmp_path: pathlib.Path
) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE musterbook_version SET version_num = '9'"))
    done = command_line.manage(tmp_path, database_url, "db", "sync")
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
    done = command_line.manage(tmp_path, url, "db", "sync")
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("musterbook-manage: ")
    assert done.stderr.count("\n") == 1
    assert "s3cret" not in done.stderr.lower()
    assert ("$$" in done.stderr) == ("$" in url)


def test_an_output_that_can_not_be_written(
    sqlite_url: str, tmp_path: pathlib.Path
) -> None:
    """No code that a script would take for findings, or for more to do."""
    assert command_line.manage(tmp_path, sqlite_url, "db", "sync").returncode == 0
    check = command_line.arguments(tmp_path, sqlite_url, "db", "check", "--json")
    for redirected in (">/dev/full", ">&-"):
        done = subprocess.run(
            ["/bin/sh", "-c", f'"$@" {redirected}', "sh", *check],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 3
        assert done.stderr.startswith("musterbook-manage: the output can't be written")
        assert done.stderr.count("\n") == 1


def test_an_unexpected_error_is_one_line(
    sqlite_url: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise TypeError("of a row\nthat nobody expected")

    monkeypatch.setattr(check, "run", fail)
    done = command_line.inside(tmp_path, sqlite_url, "db", "check")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("musterbook-manage: unexpected TypeError: of a row")
    assert done.stderr.count("\n") == 1


def test_help_tells_the_exit_codes(tmp_path: pathlib.Path) -> None:
    done = command_line.manage(tmp_path, "", "--help")
    assert done.returncode == 0
    assert "Exit codes: 0 done" in done.stdout
    assert command_line.manage(tmp_path, "", "db", "nope").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["db", "nope"], "ACTION"),
        (["db"], "ACTION"),
        (["nope"], "category"),
        (["db", "sync", "--no-such"], "--no-such"),
        (["db", "check", "extra"], "extra"),
        (["db", "check", "--json=yes"], "--json"),
        (["db", "online_data_migrations", "--max-count", "0"], "--max-count"),
        (["db", "online_data_migrations", "--max-count", "-1"], "--max-count"),
        (["db", "online_data_migrations", "--max-count", "x\ny"], "--max-count"),
        (["db", "online_data_migrations", "--max-count"], "--max-count"),
        (["db", "purge", "--max-count", "9999999999"], "--max-count"),
        (["db", "purge", "--days", "0"], "--days"),
        (["db", "purge", "--days", "²"], "--days"),
        (["db", "purge", "--days", "3", "--before", "2020-01-01"], "--before"),
        (["db", "purge", "--before", "yesterday"], "--before"),
        (["db", "purge", "--before", "2020-02-30"], "--before"),
        (["db", "purge", "--before", ""], "--before"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    tmp_path: pathlib.Path, sqlite_url: str, arguments: list[str], named: str
) -> None:
    done = command_line.manage(tmp_path, sqlite_url, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("musterbook-manage")
    assert done.stderr.count("\n") == 1
    assert named in done.stderr


@pytest.mark.parametrize("command", ["check", "online_data_migrations", "purge"])
@pytest.mark.parametrize(
    ("url", "code"),
    [("mysql://root:s3cret@127.0.0.1:1/x", 3), ("s3cret", 2)],
)
def test_commands_on_no_database(
    tmp_path: pathlib.Path, url: str, code: int, command: str
) -> None:
    done = command_line.manage(tmp_path, url, "db", command)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.count("\n") == 1
    assert "s3cret" not in done.stderr


@pytest.mark.parametrize("command", ["check", "online_data_migrations", "purge"])
def test_commands_on_a_database_without_todays_shape(
    tmp_path: pathlib.Path, database_url: str, empty: sa.Engine, command: str
) -> None:
    migration.sync(empty, "0002")
    done = command_line.manage(tmp_path, database_url, "db", command)
    assert (done.returncode, done.stdout) == (3, "")
    assert "db sync" in done.stderr


@pytest.mark.parametrize("command", ["check", "online_data_migrations", "purge"])
def test_help_of_a_command_tells_its_exit_codes(
    tmp_path: pathlib.Path, command: str
) -> None:
    done = command_line.manage(tmp_path, "", "db", command, "--help")
    assert done.returncode == 0
    told = " ".join(done.stdout.split())
    for part in ("Exit codes: 0 ", "; 1 ", "; 2 ", "; 3 the database can't be reached"):
        assert part in told


@pytest.mark.parametrize(
    "action",
    [["check"], ["check", "--json"], ["online_data_migrations"], ["purge"]],
    ids=" ".join,
)
def test_no_command_makes_a_file(tmp_path: pathlib.Path, action: list[str]) -> None:
    path = tmp_path / "mistyped.sqlite"
    done = command_line.inside(tmp_path, f"sqlite:///{path}", "db", *action)
    assert (done.returncode, done.stdout) == (3, "")
    assert str(path) in done.stderr
    assert done.stderr.count("\n") == 1
    assert not path.exists()


def test_a_flag_in_a_file_that_is_none(sqlite_url: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "flag.conf"
    path.write_text(
        f"[DEFAULT]\ndebug = maybe\n[database]\nconnection = {sqlite_url}\n"
    )
    call = [sys.executable, "-m", "conductor.manage", "--config-file", str(path)]
    done = subprocess.run(
        [*call, "db", "sync"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "musterbook-manage: option debug: Invalid Boolean value: maybe\n"
    )
