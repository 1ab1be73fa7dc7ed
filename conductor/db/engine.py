"""Building the engine: from an operator's URL to connections that never hang.

oslo.db brings the guard against connections inherited by fork and its exception
filters. What the operator got wrong is a ConfigurationError that never shows the
URL, which holds the password.
"""

from collections.abc import Sequence
import copy
import os
import pathlib
import random
import sqlite3
import time
from typing import Any
from urllib import parse

from oslo_config import cfg
from oslo_db import options as oslo_options
from oslo_db.sqlalchemy import engines as oslo_engines
from oslo_db.sqlalchemy import exc_filters
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy import exc as sa_exc
from sqlalchemy import pool as sa_pool

from conductor.db import mysql as db_mysql
from conductor.db import postgresql as db_postgresql
from musterbook import errors

OPTION = "[database]connection"
#: Those of oslo.db's options that are honoured here; the others would do nothing.
_HONOURED = {
    "connection",
    "connection_recycle_time",
    "max_overflow",
    "max_pool_size",
    "mysql_sql_mode",
    "mysql_wsrep_sync_wait",
    "pool_timeout",
    "sqlite_synchronous",
}
#: Connections that stay open, and those that are opened beyond and closed after use;
#: together as many as oslo.messaging's server has threads. oslo.db's 5 and 50 make
#: every call beyond the fifth at a time connect anew.
_POOL = {"max_pool_size": 32, "max_overflow": 32}


def _with_our_default(opt: cfg.Opt) -> cfg.Opt:
    # A copy: the original is everybody's.
    ours = copy.copy(opt)
    ours.default = _POOL.get(opt.dest, opt.default)
    return ours


OPTS: Sequence[cfg.Opt] = [
    _with_our_default(opt)
    for opt in oslo_options.database_opts
    if opt.dest in _HONOURED
]
#: The driver and the extra of ours that installs it, by database. MariaDB is MySQL
#: here: SQLAlchemy's name of its own would pass oslo.db's exception filters by.
_DRIVERS = {
    "mysql": ("mysql+pymysql", "mysql"),
    "mariadb": ("mysql+pymysql", "mysql"),
    "postgresql": ("postgresql+psycopg2", "postgresql"),
    "sqlite": ("sqlite+pysqlite", ""),
}
_CONNECT_SECONDS = 5
_LOCK_SECONDS = 5
#: Seconds between two statements of a transaction; the server ends one that takes
#: longer (not MySQL, not SQLite). A process that is frozen in one would keep its locks,
#: and so the leader's lease from everybody else, for as long as it stays frozen.
_IDLE_SECONDS = 30
#: Of the limit of a statement: what the server has. It ends the statement before we
#: stop waiting for it, which would leave it running, one more with each repetition.
_SERVER_SHARE = 0.9
_SQLITE_BUSY_SECONDS = 10
#: Between two questions for SQLite's lock, in seconds.
_SQLITE_FIRST_PAUSE = 0.001
_SQLITE_LONGEST_PAUSE = 0.016
#: Execution options of a connection that will only read, and of one on which each
#: statement is a transaction of its own.
_READ_ONLY = "musterbook_read_only"
_SINGLE = "musterbook_single"
#: Of an engine whose work must not wait behind the calls of others.
_URGENT = "musterbook_urgent"


def list_opts() -> list[tuple[str | None, Sequence[cfg.Opt]]]:
    """Return the options to register, by group."""
    return [("database", OPTS)]


def register_options(conf: cfg.ConfigOpts) -> None:
    """Register the options of [database]; doing it twice is harmless."""
    for group, opts in list_opts():
        conf.register_opts(opts, group=group)


def from_conf(
    conf: cfg.ConfigOpts, statement_seconds: int = 30, *, by_hand: bool = False
) -> sa.Engine:
    """Return the engine of the configuration; it isn't connected yet.

    :param conf: has the options of list_opts registered
    :param statement_seconds: see make_engine
    :param by_hand: see make_engine
    :raises ConfigurationError: naming the option
    :raises DatabaseUnavailable: as make_engine
    """
    values = {}
    for opt in OPTS:
        try:
            values[opt.dest] = conf.database[opt.dest]
        except (cfg.Error, ValueError):
            raise errors.ConfigurationError(
                option=f"[database]{opt.dest}",
                reason="is not a valid value (a $ is written $$)",
            ) from None
    url = values.pop("connection")
    return make_engine(
        url, statement_seconds=statement_seconds, by_hand=by_hand, **values
    )


def check(conf: cfg.ConfigOpts) -> None:
    """Refuse options of [database] that can't be used; connects to nothing.

    :raises ConfigurationError: as from_conf
    """
    from_conf(conf).dispose()


def sqlite_url(path: pathlib.Path) -> str:
    """Return the URL of a file, whatever characters its name has."""
    # SQLAlchemy 2.1 decodes the name, and encodes less of it than _parse() asks for.
    return f"sqlite:///{parse.quote(str(path))}"


def make_engine(
    url: str | None,
    *,
    statement_seconds: int = 30,
    by_hand: bool = False,
    **options: Any,
) -> sa.Engine:
    """Return an engine for a database URL; it isn't connected yet.

    :param url: SQLAlchemy's form, ``mysql+pymysql://user:password@host/name``
    :param statement_seconds: a statement that takes longer fails, here and in the
        server (of MySQL only if it reads); 0 waits for ever (migrations)
    :param by_hand: of a command that looks after a database. Of SQLite: the file has
        to be there, and what isn't UTF-8 in it reads as U+FFFD, so that one row doesn't
        keep all others from being read (it takes longer)
    :param options: values of oslo.db's options by name
    :raises ConfigurationError: never with the URL or a part of it that is secret
    :raises DatabaseUnavailable: by_hand, and there is no such file
    """
    parsed = _parse(url)
    _check_driver(parsed)
    if parsed.get_backend_name() == "sqlite":
        _check_file(parsed)
        if by_hand and not pathlib.Path(str(parsed.database)).exists():
            raise errors.DatabaseUnavailable(
                reason=f"there is no file {parsed.database}; "
                "musterbook-manage db sync makes it"
            )
        synchronous = options.get("sqlite_synchronous", True)
        engine = _sqlite_engine(parsed, synchronous, by_hand)
    else:
        _check_parameters(parsed)
        engine = _server_engine(parsed, statement_seconds, options)
    # The values of a failed statement don't belong into logs.
    engine.hide_parameters = True
    return engine


def _refused(reason: str) -> errors.ConfigurationError:
    return errors.ConfigurationError(option=OPTION, reason=reason)


def _parse(url: str | None) -> sa.URL:
    """Return the URL with the driver spelled out."""
    if not isinstance(url, str) or not url.strip():
        raise _refused(
            "is not set; for instance mysql+pymysql://user:password@host/musterbook"
        )
    if any(c.isspace() or not c.isprintable() for c in url):
        raise _refused("has a space or a control character in it (write %20)")
    try:
        parsed = sa.make_url(url)
        port = parsed.port
    except (sa_exc.ArgumentError, ValueError):
        raise _refused(
            "is not a database URL (database+driver://user:password@host/name)"
        ) from None
    if port is not None and not 0 < port < 65536:
        raise _refused(f"port {port} is not between 1 and 65535")
    name, _, driver = parsed.drivername.partition("+")
    if name not in _DRIVERS:
        raise _refused("names a database that is not mysql, postgresql or sqlite")
    full, _ = _DRIVERS[name]
    if driver and driver != full.partition("+")[2]:
        raise _refused(f"names a driver that is not supported; use {full}://")
    if name != "sqlite" and not parsed.database:
        raise _refused("names no database (the part after the host and a slash)")
    return parsed.set(drivername=full)


def _check_driver(url: sa.URL) -> None:
    try:
        url.get_dialect().import_dbapi()
    except ImportError:
        extra = _DRIVERS[url.get_backend_name()][1]
        raise _refused(
            f"its driver is not installed: pip install 'musterbook[{extra}]'"
        ) from None


def _check_parameters(url: sa.URL) -> None:
    """Let the driver look at the parameters in the URL; it doesn't connect."""
    if not url.query:
        return
    dialect = url.get_dialect()()
    driver: Any = url.get_dialect().import_dbapi()
    dialect.dbapi = driver
    try:
        _, arguments = dialect.create_connect_args(url)
        if url.get_backend_name() == "mysql":
            driver.connections.Connection(**arguments, defer_connect=True)
        else:
            driver.extensions.make_dsn(**arguments)
            int(arguments.get("connect_timeout", 0))
    except Exception as exc:  # noqa: BLE001 - whatever the driver makes of them
        names = ", ".join(sorted(url.query))
        reason = f"has parameters ({names}) that can't be used"
        if "password" not in url.query:
            reason += f": {errors.one_line(str(exc))[:120]}"
        raise _refused(reason) from None


def _check_file(url: sa.URL) -> None:
    if url.database in {None, "", ":memory:"} or url.query:
        raise _refused("SQLite needs a file, and takes no parameters")
    path = pathlib.Path(str(url.database))
    folder = path.absolute().parent
    if not folder.is_dir():
        raise _refused(f"the directory {folder} does not exist")
    # SQLite writes its journal beside the file.
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _refused(f"the directory {folder} can't be written")
    if path.exists() and not (path.is_file() and os.access(path, os.R_OK | os.W_OK)):
        raise _refused(f"{path} is not a file that can be written")


def reader(engine: sa.Engine) -> sa.Connection:
    """Return a connection that only reads; on servers nothing begins and ends it."""
    return _unbegun(engine, _READ_ONLY)


def single(engine: sa.Engine) -> sa.Connection:
    """Return a connection on which each statement is a transaction of its own."""
    return _unbegun(engine, _SINGLE)


def urgent(engine: sa.Engine) -> sa.Engine:
    """Return an engine on the same pool whose work goes before that of the others."""
    return engine.execution_options(**{_URGENT: True})


def is_urgent(engine: sa.Engine) -> bool:
    """Tell whether an engine was returned by urgent()."""
    return bool(engine.get_execution_options().get(_URGENT))


def _unbegun(engine: sa.Engine, mark: str) -> sa.Connection:
    connection = engine.connect().execution_options(**{mark: True})
    if engine.dialect.name == "postgresql":
        db_postgresql.begin_nothing(connection)
    return connection


# -- MySQL, MariaDB and PostgreSQL -------------------------------------------------


def _server_engine(url: sa.URL, seconds: int, options: dict[str, Any]) -> sa.Engine:
    mysql = url.get_backend_name() == "mysql"
    wanted = _mysql_parameters(seconds) if mysql else _postgresql_parameters(seconds)
    missing = {k: v for k, v in wanted.items() if k not in url.query}
    engine: sa.Engine = oslo_engines.create_engine(
        url.update_query_dict(missing),
        mysql_sql_mode=options.get("mysql_sql_mode", "TRADITIONAL"),
        mysql_wsrep_sync_wait=options.get("mysql_wsrep_sync_wait"),
        connection_recycle_time=options.get("connection_recycle_time", 3600),
        max_pool_size=options.get("max_pool_size", _POOL["max_pool_size"]),
        max_overflow=options.get("max_overflow", _POOL["max_overflow"]),
        pool_timeout=options.get("pool_timeout"),
        # Its test of the connection would block for max_retries * retry_interval;
        # retry.run and its callers decide how long to wait.
        max_retries=0,
        # Yields to green threads, which we never have.
        thread_checkin=False,
        _engine_target=_without_ping,
    )
    statements = _mysql_session(seconds) if mysql else _postgresql_session(seconds)
    if mysql:
        db_mysql.connect_by_ours(engine)
        _begin_by_statement(engine)
    else:
        db_postgresql.bound_waiting(engine, seconds)
        db_postgresql.begin_again(engine)

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, record: Any) -> None:
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        cursor.close()
        connection.commit()

    return engine


def _without_ping(url: sa.URL, **arguments: Any) -> tuple[sa.Engine, sa.Engine]:
    """Return an engine, twice, that doesn't ask before each use if a connection lives.

    oslo.db 18 leaves no choice. What fails on a dead connection is run again on a new
    one by retry, which alone uses the engine.
    """
    engine = sa.create_engine(url, **{**arguments, "pool_pre_ping": False})
    return engine, engine


def _begin_by_statement(engine: sa.Engine) -> None:
    """Send a BEGIN where a transaction is meant; see conductor.db.mysql."""

    @event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        options = connection.get_execution_options()
        if not (_SINGLE in options or _READ_ONLY in options):
            connection.exec_driver_sql("BEGIN")


def _mysql_session(seconds: int) -> tuple[str, ...]:
    milliseconds = round(seconds * _SERVER_SHARE * 1000)
    return (
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        f"SET SESSION innodb_lock_wait_timeout = {_LOCK_SECONDS}"
        ", lock_wait_timeout = 60"
        # Comments that are read by MariaDB from 10.1 on, and by MySQL from 5.7.8 on;
        # MariaDB skips those of MySQL 5.7 and later.
        f" /*M!100100 , max_statement_time = {milliseconds / 1000} */"
        f" /*!50708 , max_execution_time = {milliseconds} */"
        f" /*M!100300 , idle_transaction_timeout = {_idle(seconds)} */",
    )


def _mysql_parameters(seconds: int) -> dict[str, str]:
    parameters = {"charset": "utf8mb4", "connect_timeout": str(_CONNECT_SECONDS)}
    if seconds:
        parameters |= {"read_timeout": str(seconds), "write_timeout": str(seconds)}
    return parameters


def _postgresql_parameters(seconds: int) -> dict[str, str]:
    parameters = {
        "application_name": "musterbook",
        "connect_timeout": str(_CONNECT_SECONDS),
        # A peer that is gone without a word is noticed by these.
        "keepalives_idle": "10",
        "keepalives_interval": "5",
        "keepalives_count": "3",
    }
    if seconds:
        parameters["tcp_user_timeout"] = str(seconds * 1000)
    return parameters


def _postgresql_session(seconds: int) -> tuple[str, ...]:
    return (
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED",
        f"SET statement_timeout = '{round(seconds * _SERVER_SHARE * 1000)}ms'",
        f"SET lock_timeout = '{_LOCK_SECONDS}s'",
        f"SET idle_in_transaction_session_timeout = '{_idle(seconds)}s'",
    )


def _idle(seconds: int) -> int:
    """Return the limit of a transaction that stands still; 0, none, in a migration."""
    return _IDLE_SECONDS if seconds else 0


# -- SQLite ------------------------------------------------------------------------


def _sqlite_engine(url: sa.URL, synchronous: bool, lenient: bool) -> sa.Engine:
    """Return an engine whose transactions are SQLite's own.

    Not built by oslo.db: its pool opens the file for every transaction (and the
    last connection to close a write-ahead log empties it, with an fsync), and its
    BEGIN is a deferred one, which can't wait for another writer once it has read.
    """
    engine = sa.create_engine(
        url,
        poolclass=sa_pool.QueuePool,
        pool_size=5,
        max_overflow=50,
        connect_args={"timeout": _SQLITE_BUSY_SECONDS, "check_same_thread": False},
    )
    exc_filters.register_engine(engine)

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, record: Any) -> None:
        record.info["pid"] = os.getpid()
        # The driver's own BEGIN and COMMIT, which it forgets around DDL, are off.
        connection.isolation_level = None
        if lenient:
            connection.text_factory = lambda text: text.decode(errors="replace")
        if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA foreign_keys = ON")
        mode = "FULL" if synchronous else "OFF"
        connection.execute(f"PRAGMA synchronous = {mode}")

    @event.listens_for(engine, "checkout")
    def _refuse_inherited(connection: Any, record: Any, proxy: Any) -> None:
        # A connection that crossed a fork must not even be closed here.
        if record.info["pid"] != os.getpid():
            record.dbapi_connection = proxy.dbapi_connection = None
            raise sa_exc.DisconnectionError("the connection is another process's")

    @event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        options = connection.get_execution_options()
        if _READ_ONLY in options:
            connection.exec_driver_sql("BEGIN")
        elif _SINGLE not in options:
            _begin_writing(connection)

    return engine


def _begin_writing(connection: sa.Connection) -> None:
    """Begin a transaction that has the lock for writing, of which there is one.

    SQLite's own waiting asks for it ever more seldom, every 0.1 s in the end: who has
    waited for long loses against who came just now, again and again.
    """
    driver: Any = connection.connection.dbapi_connection
    until = time.monotonic() + _SQLITE_BUSY_SECONDS
    pause = _SQLITE_FIRST_PAUSE
    driver.execute("PRAGMA busy_timeout = 0")
    try:
        while True:
            try:
                driver.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as exc:
                busy = exc.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not busy or time.monotonic() > until:
                    break
            else:
                return
            time.sleep(random.uniform(0.5, 1.0) * pause)  # noqa: S311  # no secret
            pause = min(pause * 2, _SQLITE_LONGEST_PAUSE)
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # raises it as SQLAlchemy does
    finally:
        driver.execute(f"PRAGMA busy_timeout = {_SQLITE_BUSY_SECONDS * 1000}")
