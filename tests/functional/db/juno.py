"""Rows as real Juno deployments hold them, written without our models."""

from typing import Any

import sqlalchemy as sa

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
