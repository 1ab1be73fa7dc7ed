"""Today's schema for a test's database, without the steps that lead to it.

What ``migration.sync`` makes of an empty database is the same each time. It is made
once in a process for each kind of database; further databases get a copy, which is
quicker on MariaDB (where a sync takes half a second) and SQLite. What a sync does is
the subject of tests of its own, and one of them compares the copy with it.
"""

import pathlib
import tempfile
from typing import Any
import uuid

import sqlalchemy as sa

from conductor.db import engine as db_engine
from conductor.db import migration
from conductor.db import models

#: By the kind of database: statements with their values, in order.
_statements: dict[str, list[tuple[str, Any]]] = {}
_sqlite: list[bytes] = []


def make(engine: sa.Engine) -> None:
    """Give an empty database today's shape; any other one is synced.

    :param engine: isn't used for a copy, so that what the engine's own first
        connection does is the test's to see
    """
    if engine.dialect.name == "sqlite":
        _make_sqlite(pathlib.Path(str(engine.url.database)))
    elif engine.dialect.name == "mysql":
        _make_mysql(engine.url)
    else:
        migration.sync(engine)


def make_url(url: str) -> None:
    """Do as make does, for who has no engine."""
    engine = db_engine.make_engine(url)
    try:
        make(engine)
    finally:
        engine.dispose()


def _make_sqlite(path: pathlib.Path) -> None:
    if path.exists():
        _sync(db_engine.sqlite_url(path))
        return
    if not _sqlite:
        with tempfile.TemporaryDirectory() as folder:
            made = pathlib.Path(folder) / "schema.sqlite"
            _sync(db_engine.sqlite_url(made))
            _sqlite.append(made.read_bytes())
    path.write_bytes(_sqlite[0])
    engine = sa.create_engine(db_engine.sqlite_url(path), poolclass=sa.NullPool)
    with engine.begin() as connection:
        _draw(connection)


def _draw(connection: sa.Connection) -> None:
    """Draw what no two databases share."""
    head = models.fleet_head
    connection.execute(head.update().values(nonce=uuid.uuid4().hex))


def _make_mysql(url: sa.URL) -> None:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    known = _statements.get("mysql")
    if known is None or sa.inspect(engine).get_table_names():
        _sync(url.render_as_string(hide_password=False))
        if known is None:
            _statements["mysql"] = _dumped(engine)
        return
    with engine.begin() as connection:
        connection.exec_driver_sql("SET foreign_key_checks = 0")
        for statement, values in known:
            connection.exec_driver_sql(statement, values)
        _draw(connection)


def _dumped(engine: sa.Engine) -> list[tuple[str, Any]]:
    """Return what makes a database's tables, and what a sync leaves in them."""
    found: list[tuple[str, Any]] = []
    with engine.connect() as connection:
        for name in sa.inspect(engine).get_table_names():
            made = connection.exec_driver_sql(f"SHOW CREATE TABLE `{name}`").one()
            found.append((str(made[1]).replace("%", "%%"), ()))
            rows = connection.exec_driver_sql(f"SELECT * FROM `{name}`").all()  # noqa: S608
            if rows:
                marks = ", ".join(["%s"] * len(rows[0]))
                insert = f"INSERT INTO `{name}` VALUES ({marks})"  # noqa: S608
                found.append((insert, [tuple(row) for row in rows]))
    return found


def _sync(url: str) -> None:
    engine = db_engine.make_engine(url)
    try:
        migration.sync(engine)
    finally:
        engine.dispose()
