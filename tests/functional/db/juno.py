"""Rows as real Juno deployments hold them, written without our models."""

from collections.abc import Iterator
import contextlib
import importlib
from typing import Any

import sqlalchemy as sa

shape = importlib.import_module("conductor.db.migrations.versions.0001_juno")
COLLATION = "utf8mb3_unicode_ci"

NODE: dict[str, Any] = {
    "deleted": 0,
    "vcpus": 8,
    "memory_mb": 16000,
    "local_gb": 500,
    "vcpus_used": 2,
    "memory_mb_used": 4608,
    "local_gb_used": 40,
    "hypervisor_type": "QEMU",
    "hypervisor_version": 2001002,
    "free_ram_mb": 11392,
    "free_disk_gb": 460,
    "cpu_info": "",
    "stats": None,
}


def make(engine: sa.Engine, key_name: str = "strange-FK_7") -> None:
    """Create what Nova 2014.2 leaves behind, its other tables included."""
    metadata = sa.MetaData()
    mysql = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb3"}
    kw: dict[str, Any] = mysql | {"mysql_collate": COLLATION}
    sa.Table("services", metadata, *shape.services(), **kw)
    key = sa.ForeignKeyConstraint(["service_id"], ["services.id"], name=key_name)
    sa.Table("compute_nodes", metadata, *shape.compute_nodes(), key, **kw)
    parent = sa.ForeignKey("compute_nodes.id")
    column = sa.Column("compute_node_id", sa.Integer, parent)
    sa.Table("pci_devices", metadata, column, **kw)
    version = sa.Column("version", sa.Integer)
    sa.Table("migrate_version", metadata, version, **kw)
    metadata.create_all(engine)


@contextlib.contextmanager
def unchecked(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Yield a transaction in which foreign keys aren't checked."""
    off, on = {
        "sqlite": ("PRAGMA foreign_keys = OFF", "PRAGMA foreign_keys = ON"),
        "mysql": ("SET foreign_key_checks = 0", "SET foreign_key_checks = 1"),
        "postgresql": (
            "SET session_replication_role = replica",
            "SET session_replication_role = DEFAULT",
        ),
    }[engine.dialect.name]
    with engine.connect() as connection:
        driver = connection.connection.dbapi_connection
        assert driver is not None
        driver.cursor().execute(off)
        with connection.begin():
            yield connection
        driver.cursor().execute(on)


def insert(connection: sa.Connection, table: str, **values: Any) -> None:
    columns: list[sa.ColumnClause[Any]] = [sa.column(name) for name in values]
    connection.execute(sa.table(table, *columns).insert().values(values))


def service(
    connection: sa.Connection, row_id: int, host: str | None, **more: Any
) -> None:
    values = {
        "id": row_id,
        "host": host,
        "binary": "nova-compute",
        "topic": "compute",
        "report_count": 7,
        "deleted": 0,
        "disabled": False,
        **more,
    }
    insert(connection, "services", **values)


def node(
    connection: sa.Connection,
    row_id: int,
    service_id: int,
    name: str | None,
    **more: Any,
) -> None:
    values = NODE | {
        "id": row_id,
        "service_id": service_id,
        "hypervisor_hostname": name,
        **more,
    }
    insert(connection, "compute_nodes", **values)
