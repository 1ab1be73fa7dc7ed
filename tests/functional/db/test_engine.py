"""What an operator can get wrong about the database is one line without secrets."""

import builtins
import contextlib
import pathlib
import socket
import threading
import time
from typing import Any
import uuid

from oslo_config import cfg
from oslo_db import exception as oslo_exc
import psycopg2
import pytest
import sqlalchemy as sa
from sqlalchemy import exc as sa_exc

from conductor.db import engine as db_engine
from conductor.db import migration
from conductor.db import retry
from musterbook import errors
from tests import process
from tests import servers


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (None, "not set"),
        ("", "not set"),
        ("  ", "not set"),
        ("s3cret", "not a database URL"),
        ("mysql://u:s3cret@h /d", "space"),
        ("mysql://u:s3cret@h/d\n", "space"),
        ("mysql://u:s3cret@h:99999/d", "port 99999"),
        ("mysql://u:s3cret@h:0/d", "port 0"),
        ("mysql://u:s3cret@h:abc/d", "not a database URL"),
        ("mysql://u:s3cret@h", "names no database"),
        ("oracle://u:s3cret@h/d", "not mysql, postgresql or sqlite"),
        ("mysql+mysqldb://u:s3cret@h/d", "use mysql+pymysql://"),
        ("postgresql+s3cret://u:p@h/d", "use postgresql+psycopg2://"),
        ("mysql://u:s3cret@h/d?bogus=1", "parameters (bogus)"),
        ("mysql://u:s3cret@h/d?charset=nope", "parameters (charset)"),
        ("mysql://u:s3cret@h/d?connect_timeout=abc", "parameters (connect_timeout)"),
        ("mysql://u:s3cret@h/d?read_timeout=-1", "parameters (read_timeout)"),
        ("mysql://u:s3cret@h/d?ssl_ca=/no/such", "parameters (ssl_ca)"),
        (
            "postgresql://u:p@h/d?bogus=1&password=s3cret",
            "parameters (bogus, password)",
        ),
        ("postgresql://u:s3cret@h/d?connect_timeout=x", "parameters (connect_timeout)"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("sqlite:////no/such/directory/x.db", "/no/such/directory does not exist"),
        ("sqlite:////proc", "is not a file"),
    ],
)
def test_urls_that_can_not_be_used(url: str | None, reason: str) -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        db_engine.make_engine(url)
    assert caught.value.option == "[database]connection"
    assert reason in caught.value.reason
    assert "s3cret" not in caught.value.message
    assert "\n" not in caught.value.message


def test_unwritable_directory(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tests may run as root, whom no mode keeps out.
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(errors.ConfigurationError, match="can't be written"):
        db_engine.make_engine(f"sqlite:///{tmp_path}/x.db")


def test_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        # SQLAlchemy's own modules of these names are imported relatively.
        relative = len(args) > 3 and args[3]
        if not relative and name.partition(".")[0] in {"pymysql", "psycopg2"}:
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    for url, extra in (("mysql://h/d", "mysql"), ("postgresql://h/d", "postgresql")):
        with pytest.raises(errors.ConfigurationError, match=rf"musterbook\[{extra}\]"):
            db_engine.make_engine(url)


@pytest.mark.parametrize("scheme", ["mysql+pymysql", "postgresql+psycopg2"])
def test_nobody_listens(scheme: str) -> None:
    engine = db_engine.make_engine(f"{scheme}://u:s3cret@127.0.0.1:1/d")
    with pytest.raises(errors.DatabaseUnavailable) as caught:
        migration.version(engine)
    assert caught.value.message == (
        "the database is not available: there is no connection to it"
    )


def test_database_that_does_not_exist(database_url: str) -> None:
    url = sa.make_url(database_url)
    if url.get_backend_name() == "sqlite":
        pytest.skip("SQLite creates it")
    engine = db_engine.make_engine(
        url.set(database="mb_no_such").render_as_string(hide_password=False)
    )
    with pytest.raises(errors.DatabaseUnavailable, match="does not exist"):
        migration.version(engine)


def test_a_file_that_is_no_database(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.db"
    path.write_text("something else entirely\n" * 100)
    engine = db_engine.make_engine(f"sqlite:///{path}")
    with pytest.raises(errors.DatabaseUnavailable, match="not an SQLite database"):
        migration.sync(engine)
    assert path.read_text().startswith("something")


def test_mariadb_is_mysql() -> None:
    engine = db_engine.make_engine("mariadb://h/d")
    assert engine.dialect.name == "mysql"


def test_sessions_are_as_the_statements_expect(empty: sa.Engine) -> None:
    asked: dict[str, tuple[list[str], list[Any]]] = {
        "sqlite": (
            ["PRAGMA journal_mode", "PRAGMA foreign_keys", "PRAGMA synchronous"],
            ["wal", 1, 2],
        ),
        "mysql": (
            [
                "SELECT @@tx_isolation",
                "SELECT @@innodb_lock_wait_timeout",
                "SELECT @@character_set_client",
                "SELECT LOCATE('STRICT', @@sql_mode) > 0",
            ],
            ["READ-COMMITTED", 5, "utf8mb4", 1],
        ),
        "postgresql": (
            [
                "SHOW transaction_isolation",
                "SHOW lock_timeout",
                "SHOW statement_timeout",
            ],
            ["read committed", "5s", "27s"],
        ),
    }
    questions, answers = asked[empty.dialect.name]
    for question, answer in zip(questions, answers, strict=True):

        def ask(c: sa.Connection, question: str = question) -> Any:
            return c.exec_driver_sql(question).scalar()

        assert retry.read(empty, ask) == answer


def test_options(tmp_path: pathlib.Path) -> None:
    conf = cfg.ConfigOpts()
    for group, opts in db_engine.list_opts():
        conf.register_opts(opts, group=group)
    conf([], default_config_files=[])
    with pytest.raises(errors.ConfigurationError, match="is not set"):
        db_engine.from_conf(conf)
    conf.set_override("connection", f"sqlite:///{tmp_path}/x.db", group="database")
    migration.sync(db_engine.from_conf(conf))
    path = tmp_path / "x.conf"
    path.write_text("[database]\nmax_pool_size = many\n")
    conf([], default_config_files=[str(path)])
    with pytest.raises(errors.ConfigurationError) as caught:
        db_engine.from_conf(conf)
    assert caught.value.option == "[database]max_pool_size"
    assert next(o for o in db_engine.OPTS if o.dest == "connection").secret


def test_busy_connections_are_kept(empty: sa.Engine) -> None:
    """Connecting is dear; as many calls at a time must not do it again and again."""
    if empty.dialect.name == "sqlite":
        pytest.skip("opening a file is cheap")
    opened: list[object] = []
    sa.event.listen(empty, "connect", lambda connection, record: opened.append(1))
    for _ in range(3):
        with contextlib.ExitStack() as held:
            for _ in range(32):
                held.enter_context(empty.connect())
    assert len(opened) == 32


def test_mariadb_connections_share_a_tls_context(mariadb_url: str) -> None:
    """Each would hold the system's certificates, 1 MiB."""
    engine = db_engine.make_engine(mariadb_url)
    with engine.connect() as one, engine.connect() as two:
        drivers: list[Any] = [c.connection.dbapi_connection for c in (one, two)]
        assert drivers[0] is not drivers[1]
        assert drivers[0].ctx is drivers[1].ctx
    engine.dispose()


@pytest.mark.parametrize("seconds", [30, 0])
@pytest.mark.parametrize("scheme", ["mysql+pymysql", "postgresql+psycopg2"])
def test_a_server_that_says_nothing_is_given_up(scheme: str, seconds: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        url = f"{scheme}://u:p@127.0.0.1:{port}/d"
        engine = db_engine.make_engine(url, statement_seconds=seconds)
        began = time.monotonic()
        with pytest.raises((sa_exc.DBAPIError, oslo_exc.DBError)) as caught:
            engine.connect()
        # 5 s, and not the 30 s of a statement.
        assert time.monotonic() - began < 25
    assert retry.classify(caught.value) is retry.Trouble.LOST


def test_connections_of_others_keep_their_limit() -> None:
    """What waits for psycopg2's connections is one for the whole process."""
    db_engine.make_engine("postgresql://u:p@127.0.0.1/d")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        began = time.monotonic()
        with pytest.raises(psycopg2.OperationalError):
            psycopg2.connect(f"host=127.0.0.1 port={port} connect_timeout=2")
        assert time.monotonic() - began < 25


@pytest.mark.parametrize("kind", [servers.MariaDB, servers.PostgreSQL])
def test_a_statement_without_an_answer_ends(
    kind: type[servers.MariaDB], own_server: process.Starter
) -> None:
    server = own_server(kind)
    engine = db_engine.make_engine(server.lease(0), statement_seconds=1)
    ask = sa.text("SELECT 1")
    with engine.connect() as connection:
        connection.execute(ask)
        server.freeze()
        try:
            with pytest.raises((sa_exc.DBAPIError, oslo_exc.DBError)) as caught:
                connection.execute(ask)
        finally:
            server.thaw()
    assert retry.classify(caught.value) is retry.Trouble.LOST
    assert retry.read(engine, lambda c: c.execute(ask).scalar()) == 1
    engine.dispose()


#: What runs in the server apart from who asks, and a statement that takes long; the
#: marker is in its text.
_RUNNING = {
    "mysql": "SELECT count(*) FROM information_schema.processlist"
    " WHERE id <> CONNECTION_ID() AND info LIKE :like",
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE state = 'active'"
    " AND pid <> pg_backend_pid() AND query LIKE :like",
}
_LONG = {
    "mysql": "SELECT SLEEP(3600) /* {} */",
    "postgresql": "SELECT pg_sleep(3600) /* {} */",
}


def test_a_statement_that_takes_too_long_ends_in_the_server(database_url: str) -> None:
    """It would go on without anybody waiting for it, and so would each repetition."""
    engine = db_engine.make_engine(database_url, statement_seconds=2)
    kind = engine.dialect.name
    if kind == "sqlite":
        pytest.skip("there is no server")
    marker = f"long{uuid.uuid4().hex}"
    long, running = sa.text(_LONG[kind].format(marker)), sa.text(_RUNNING[kind])
    for _ in range(2):
        with engine.connect() as connection:
            with pytest.raises((sa_exc.DBAPIError, oslo_exc.DBError)) as caught:
                connection.execute(long)
            assert retry.classify(caught.value) is retry.Trouble.TOO_LONG
            connection.rollback()
            # An answer: the connection can be used on.
            assert connection.execute(sa.text("SELECT 1")).scalar() == 1
    with engine.connect() as connection:
        assert connection.execute(running, {"like": f"%{marker}%"}).scalar() == 0
    engine.dispose()


@pytest.mark.parametrize("seconds", [0, 30])
def test_the_servers_limit_of_a_transaction_that_stands_still(
    seconds: int, database_url: str
) -> None:
    engine = db_engine.make_engine(database_url, statement_seconds=seconds)
    ask = {
        "mysql": "SELECT @@SESSION.idle_transaction_timeout",
        "postgresql": "SELECT setting::int / 1000 FROM pg_settings"
        " WHERE name = 'idle_in_transaction_session_timeout'",
    }.get(engine.dialect.name)
    if ask is None:
        pytest.skip("there is no server")
    with engine.connect() as connection:
        found = connection.execute(sa.text(ask)).scalar_one()
    assert int(found) == (30 if seconds else 0)
    engine.dispose()


@pytest.mark.parametrize("seconds", [0, 30])
def test_the_servers_limit_of_a_statement(seconds: int, database_url: str) -> None:
    """Less than ours; none for db sync, whatever the server's own is."""
    engine = db_engine.make_engine(database_url, statement_seconds=seconds)
    ask = {
        "mysql": "SELECT @@SESSION.max_statement_time",
        "postgresql": "SELECT setting::int / 1000.0 FROM pg_settings"
        " WHERE name = 'statement_timeout'",
    }.get(engine.dialect.name)
    if ask is None:
        pytest.skip("there is no server")
    with engine.connect() as connection:
        assert float(connection.execute(sa.text(ask)).scalar_one()) == seconds * 0.9
    engine.dispose()


def test_who_waits_for_sqlites_lock(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets the lock once it is free, or says in the usual words that it wasn't."""
    monkeypatch.setattr(db_engine, "_SQLITE_BUSY_SECONDS", 1)
    engines = [db_engine.make_engine(sqlite_url) for _ in range(2)]
    with (
        engines[0].begin(),
        engines[1].connect() as other,
        pytest.raises((sa_exc.DBAPIError, oslo_exc.DBError)) as caught,
    ):
        other.begin()
    assert retry.classify(caught.value) is retry.Trouble.BUSY
    monkeypatch.setattr(db_engine, "_SQLITE_BUSY_SECONDS", 60)
    holder = engines[0].connect()
    held = holder.begin()
    threading.Timer(0.2, held.rollback).start()
    with engines[1].begin() as connection:
        waits = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
    assert waits == 60_000
    holder.close()
    for engine in engines:
        engine.dispose()
