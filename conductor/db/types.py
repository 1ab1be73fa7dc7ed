"""Column types and SQL expressions that mean the same on every database."""

import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.ext import compiler
from sqlalchemy.sql import functions


class UtcDateTime(sa.TypeDecorator[datetime.datetime]):
    """An instant: naive UTC in the database, aware UTC in Python.

    :param precise: keep microseconds on MySQL too; Juno's columns don't
    """

    impl = sa.DateTime
    cache_ok = True

    def __init__(self, precise: bool = True) -> None:
        super().__init__()
        self.precise = precise

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        """Return the type of this database."""
        if dialect.name == "mysql" and self.precise:
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(sa.DateTime())

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> Any:
        """Return the naive instant to store."""
        if value is not None and value.tzinfo is not None:
            return value.astimezone(datetime.UTC).replace(tzinfo=None)
        return value

    def process_result_value(
        self, value: Any, dialect: sa.Dialect
    ) -> datetime.datetime | None:
        """Return the aware instant that is stored.

        PyMySQL hands out text for dates that don't exist ('0000-00-00'), which
        old rows may hold: None, as for no date.
        """
        if isinstance(value, datetime.datetime):
            return value.replace(tzinfo=datetime.UTC)
        return None


def name_type(length: int = 255) -> sa.types.TypeEngine[str]:
    """Return the type of host and node names: compared without case.

    MySQL does it by the tables' collation, PostgreSQL by ``folded``.
    """
    return sa.String(length).with_variant(
        sa.String(length, collation="NOCASE"), "sqlite"
    )


def medium_text() -> sa.types.TypeEngine[str]:
    """Return the type of texts up to 16 MiB."""
    return sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql")


def big_key() -> sa.types.TypeEngine[int]:
    """Return the type of a growing 64-bit key (SQLite counts INTEGER keys only)."""
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


class now(functions.FunctionElement[datetime.datetime]):  # noqa: N801  # SQL function
    """The database's clock: UTC, at the time the statement runs."""

    type = UtcDateTime()
    inherit_cache = True


@compiler.compiles(now, "mysql")
def _now_mysql(element: now, compiled: Any, **kw: Any) -> str:
    return "UTC_TIMESTAMP(6)"


@compiler.compiles(now, "postgresql")
def _now_postgresql(element: now, compiled: Any, **kw: Any) -> str:
    # now() would be the start of the transaction, before any wait for a lock.
    return "(clock_timestamp() AT TIME ZONE 'UTC')"


@compiler.compiles(now, "sqlite")
def _now_sqlite(element: now, compiled: Any, **kw: Any) -> str:
    # SQLite compares instants as text; SQLAlchemy writes six digits, %f is three.
    return "strftime('%Y-%m-%d %H:%M:%f000', 'now')"


class _LaterMicroseconds(functions.FunctionElement[datetime.datetime]):
    type = UtcDateTime()
    inherit_cache = True


@compiler.compiles(_LaterMicroseconds, "mysql")
def _later_mysql(element: _LaterMicroseconds, compiled: Any, **kw: Any) -> str:
    micros = compiled.process(element.clauses, **kw)
    return f"(UTC_TIMESTAMP(6) + INTERVAL {micros} MICROSECOND)"


@compiler.compiles(_LaterMicroseconds, "postgresql")
def _later_postgresql(element: _LaterMicroseconds, compiled: Any, **kw: Any) -> str:
    micros = compiled.process(element.clauses, **kw)
    return (
        "((clock_timestamp() AT TIME ZONE 'UTC')"
        f" + {micros} * INTERVAL '1 microsecond')"
    )


@compiler.compiles(_LaterMicroseconds, "sqlite")
def _later_sqlite(element: _LaterMicroseconds, compiled: Any, **kw: Any) -> str:
    micros = compiled.process(element.clauses, **kw)
    return (
        "strftime('%Y-%m-%d %H:%M:%f000', 'now',"
        f" printf('%+.6f seconds', {micros} / 1000000.0))"
    )


def later(seconds: float) -> sa.ColumnElement[datetime.datetime]:
    """Return the database's clock plus this many seconds."""
    micros = sa.bindparam(None, int(seconds * 1_000_000), type_=sa.BigInteger())
    return _LaterMicroseconds(micros)


class folded(functions.FunctionElement[str]):  # noqa: N801  # SQL function
    """A name in the form in which names are compared, on either side of ``=``.

    MySQL's and SQLite's columns compare without case by their collation;
    PostgreSQL's don't, so lower() there, which the unique indexes use as well.
    Names are ASCII, where lower() is exact.
    """

    type = sa.String()
    inherit_cache = True


@compiler.compiles(folded)
def _folded(element: folded, compiled: Any, **kw: Any) -> str:
    return str(compiled.process(element.clauses, **kw))


@compiler.compiles(folded, "postgresql")
def _folded_postgresql(element: folded, compiled: Any, **kw: Any) -> str:
    return f"lower({compiled.process(element.clauses, **kw)})"


def same_name(column: Any, value: Any) -> sa.ColumnElement[bool]:
    """Return the condition that two host or node names are the same.

    :param column: a column
    :param value: a text, a bind parameter or another column
    """
    if isinstance(value, str):
        value = sa.bindparam(None, value, type_=sa.String())
    return folded(column) == folded(value)


class exact(functions.FunctionElement[str]):  # noqa: N801  # SQL function
    """A text on either side of ``=`` where case, accents and spaces at the end count.

    MySQL compares by the column's collation otherwise. No index helps: compare the
    plain text as well.
    """

    type = sa.String()
    inherit_cache = True


@compiler.compiles(exact)
def _exact(element: exact, compiled: Any, **kw: Any) -> str:
    return str(compiled.process(element.clauses, **kw))


@compiler.compiles(exact, "mysql")
def _exact_mysql(element: exact, compiled: Any, **kw: Any) -> str:
    text = compiled.process(element.clauses, **kw)
    return f"CAST(CONVERT({text} USING utf8mb4) AS BINARY)"


class as_json(functions.FunctionElement[str]):  # noqa: N801  # SQL function
    """The values of columns as one text, a JSON array.

    What many columns cost is taking each apart: PyMySQL does it in Python. JSON does
    it for all at once, and only for the rows that are looked at. Instants are ISO
    texts in it (naive UTC), flags 0 and 1 or false and true.
    """

    type = sa.Text()
    inherit_cache = True


@compiler.compiles(as_json)
def _as_json(element: as_json, compiled: Any, **kw: Any) -> str:
    return f"json_array({compiled.process(element.clauses, **kw)})"


@compiler.compiles(as_json, "postgresql")
def _as_json_postgresql(element: as_json, compiled: Any, **kw: Any) -> str:
    # As json, psycopg2 would take every one apart.
    return f"json_build_array({compiled.process(element.clauses, **kw)})::text"
