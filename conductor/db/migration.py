"""Bringing a database to today's shape, and refusing one that isn't.

The revision stands in ``musterbook_version``, a name that Nova's own migrations
(migrate_version, alembic_version) don't use.
"""

from collections.abc import Iterator
import contextlib
import functools
import hashlib
import pathlib
import time
from typing import Any

from oslo_db import exception as oslo_exc
import sqlalchemy as sa
from sqlalchemy import exc as sa_exc

from conductor.db import models
from conductor.db import retry
from musterbook import errors

VERSION_TABLE = "musterbook_version"
#: As alembic makes it.
_VERSIONS = sa.table(VERSION_TABLE, sa.column("version_num", sa.String(32)))
_MIGRATIONS = pathlib.Path(__file__).with_name("migrations")
_JUNO = "0001"
_PG_LOCK = 0x6D757374_6572626B  # "musterbk"
_LOCK_SECONDS = 600
_SYNC_HINT = "run musterbook-manage db sync"

#: Columns of the two tables in Juno's shape.
_COMMON = {"created_at", "updated_at", "deleted_at", "deleted", "id"}
_JUNO_COLUMNS = {
    "services": _COMMON
    | {"host", "binary", "topic", "report_count", "disabled", "disabled_reason"},
    "compute_nodes": _COMMON
    | {
        "service_id", "vcpus", "memory_mb", "local_gb", "vcpus_used",
        "memory_mb_used", "local_gb_used", "hypervisor_type", "hypervisor_version",
        "hypervisor_hostname", "free_ram_mb", "free_disk_gb", "current_workload",
        "running_vms", "cpu_info", "disk_available_least", "host_ip",
        "supported_instances", "metrics", "pci_stats", "extra_resources", "stats",
        "numa_topology",
    },
}  # fmt: skip

#: What later revisions create, with the columns that it then has. An interrupted run
#: of MySQL's may have left it; another one's table of that name isn't to be used.
_CREATED = {
    "0003": {
        "leases": {"name", "owner", "term", "renewed_at", "expires_at"},
        "freezes": {"scope", "cause", "since", "evidence", "term"},
        "transitions": {
            "id", "service_id", "host", "binary", "at", "previous", "state", "cause",
            "evidence", "actor", "incarnation",
        },
        "fleet_head": {"id", "version", "nonce"},
        "fleet_batches": {"version", "nonce", "created_at"},
    },
    "0004": {
        "allocations": {
            "id", "uuid", "node_id", "kind", "state", "vcpus", "memory_mb", "local_gb",
            "custom", "owner", "replaces", "created_at", "confirmed_at", "expires_at",
            "finished_at",
        },
    },
}  # fmt: skip


def head() -> str:
    """Return the revision that this code works with."""
    return _known()[-1]


def version(engine: sa.Engine) -> str | None:
    """Return the database's revision; None: it has no mark of ours."""
    return retry.read(engine, _revision)


def check_current(engine: sa.Engine) -> None:
    """Return if the database has exactly the shape this code works with.

    :raises DatabaseBehind: a sync would bring it there
    :raises DatabaseShape: it is newer than this code, or somebody else's
    """
    retry.read(engine, check_connected)


def sync(engine: sa.Engine, revision: str = "head") -> None:
    """Bring the database to today's shape; does nothing if it has it.

    Two at once do it one after the other; an interrupted run is continued by the
    next. A database with Juno's two tables and no mark of ours is taken over.

    :param engine: with statement_seconds=0 if there is much in it
    :param revision: stop there (tests)
    :raises DatabaseShape: newer than this code, or not a database of ours, or with
        another one's table of a name that we need; nothing is changed
    :raises DatabaseBusy: another sync ran for longer than ten minutes
    """
    retry.run(engine, lambda connection: None)  # names what keeps us from connecting
    try:
        with _alone(engine) as connection:
            _upgrade(connection, revision)
    except (sa_exc.SQLAlchemyError, oslo_exc.DBError) as exc:
        raise retry.named(retry.classify(exc), exc) from exc


def _upgrade(connection: sa.Connection, revision: str) -> None:
    # Here, as a conductor never does it: 11 MiB in each of its processes.
    from alembic import command

    _check_shape(connection)
    _check_names(connection)
    settings = _settings()
    settings.attributes["connection"] = connection
    settings.attributes["version_table"] = VERSION_TABLE
    settings.attributes["metadata"] = models.METADATA
    inspector = sa.inspect(connection)
    if not inspector.has_table(VERSION_TABLE) and inspector.has_table("services"):
        command.stamp(settings, _JUNO)
    command.upgrade(settings, revision)


def _settings() -> Any:
    from alembic import config as alembic_config

    settings = alembic_config.Config()
    # The path goes through ConfigParser, where % is special; the URL never does.
    path = str(_MIGRATIONS).replace("%", "%%")
    settings.set_main_option("script_location", path)
    settings.set_main_option("path_separator", "os")
    return settings


@functools.cache
def _known() -> tuple[str, ...]:
    """Return the revisions that there are, by the names of their files, in order."""
    files = (_MIGRATIONS / "versions").glob("[0-9]*_*.py")
    return tuple(sorted(path.name.partition("_")[0] for path in files))


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.execute(sa.select(_VERSIONS.c.version_num)).scalars().all()
    if len(found) > 1:
        raise errors.DatabaseShape(
            reason=f"{VERSION_TABLE} holds several revisions "
            f"({', '.join(sorted(found))})"
        )
    return found[0] if found else None


def check_connected(connection: sa.Connection) -> None:
    """Check as check_current does, on a connection, without any retry."""
    _check_shape(connection)
    found, wanted = _revision(connection), head()
    if found is None:
        tables = sa.inspect(connection).has_table("services")
        what = "of Juno's shape" if tables else "empty"
        raise errors.DatabaseBehind(reason=f"it is {what}; {_SYNC_HINT}")
    if found != wanted:
        raise errors.DatabaseBehind(
            reason=f"it is at revision {found}, this code needs {wanted}; {_SYNC_HINT}"
        )


def _check_shape(connection: sa.Connection) -> None:
    """Refuse databases that are newer than the code or somebody else's."""
    inspector = sa.inspect(connection)
    if inspector.has_table(VERSION_TABLE):
        found = _revision(connection)
        if found is not None and found not in _known():
            raise errors.DatabaseShape(
                reason=f"it is at revision {found}, newer than this code, which knows "
                f"up to {head()}; upgrade this installation"
            )
        return
    present = [table for table in _JUNO_COLUMNS if inspector.has_table(table)]
    if len(present) == 1:
        raise errors.DatabaseShape(
            reason=f"it has a table {present[0]} without its companion, "
            "so it is neither ours nor of Juno's shape"
        )
    for table in present:
        columns = {column["name"] for column in inspector.get_columns(table)}
        odd = columns ^ _JUNO_COLUMNS[table]
        if odd:
            raise errors.DatabaseShape(
                reason=f"table {table} is not of Juno's shape "
                f"(differs in {', '.join(sorted(odd))})"
            )


def _check_names(connection: sa.Connection) -> None:
    """Refuse tables of names that are yet to be taken, unless they are as ours."""
    inspector = sa.inspect(connection)
    present = set(inspector.get_table_names())
    found = _revision(connection) or ""
    for revision, tables in _CREATED.items():
        for table in tables.keys() & present if revision > found else ():
            columns = {column["name"] for column in inspector.get_columns(table)}
            # An interrupted run may have added what later revisions add.
            ours = {column.name for column in models.METADATA.tables[table].c}
            odd = (tables[table] - columns) | (columns - ours - tables[table])
            if odd:
                raise errors.DatabaseShape(
                    reason=f"it has a table {table} that is not ours (differs in "
                    f"{', '.join(sorted(odd))}); rename it, or give us a database of "
                    "our own"
                )


# -- one at a time -----------------------------------------------------------------


@contextlib.contextmanager
def _alone(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Yield a connection while no other sync runs on this database."""
    if engine.dialect.name == "sqlite":
        with _alone_on_sqlite(engine) as connection:
            yield connection
        return
    with engine.connect() as connection:
        if engine.dialect.name == "mysql":
            # Server-wide and at most 64 characters.
            name = str(engine.url.database).encode()
            # A change of the schema ends the transaction; the next one begins itself.
            connection.exec_driver_sql("SET autocommit = 0")
            take = sa.text("SELECT GET_LOCK(:key, 0)")
            _wait_for(connection, take, hashlib.sha256(name).hexdigest()[:32])
        else:
            take = sa.text("SELECT pg_try_advisory_lock(CAST(:key AS bigint))")
            _wait_for(connection, take, str(_PG_LOCK))
            connection.execute(sa.text("SET statement_timeout = 0"))
        connection.commit()
        try:
            yield connection
            connection.commit()
        finally:
            # The lock ends with the session, and what the session was set to isn't
            # for the pool's next user.
            connection.invalidate()


def _wait_for(connection: sa.Connection, statement: sa.TextClause, key: str) -> None:
    deadline = time.monotonic() + _LOCK_SECONDS
    while not connection.execute(statement, {"key": key}).scalar():
        connection.rollback()
        if time.monotonic() > deadline:
            raise errors.DatabaseBusy(reason="another db sync is still running")
        time.sleep(0.1)


@contextlib.contextmanager
def _alone_on_sqlite(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Yield the writer's transaction; everything in it happens or nothing.

    Foreign keys are off: rebuilding a table drops it, and tables of Nova's that
    we never touch may refer to it. They can only be switched outside.
    """
    with engine.connect() as connection:
        driver = connection.connection.dbapi_connection
        assert driver is not None
        driver.execute("PRAGMA foreign_keys = OFF")
        try:
            with connection.begin():
                yield connection
        finally:
            driver.execute("PRAGMA foreign_keys = ON")
