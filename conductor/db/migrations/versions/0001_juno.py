"""The shape of Nova 2014.2 (Juno): the two tables that are taken over.

A database that Nova itself made starts from here without running this.
"""

from typing import Any

from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None

MYSQL = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb3",
    "mysql_collate": "utf8mb3_general_ci",
}


def name() -> sa.types.TypeEngine[str]:
    """Return the type of a name; SQLite compares it as MySQL's collation does."""
    return sa.String(255).with_variant(sa.String(255, collation="NOCASE"), "sqlite")


def medium_text() -> sa.types.TypeEngine[str]:
    """Return MEDIUMTEXT where there is one."""
    return sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql")


def common() -> list[sa.Column[Any]]:
    """Return the columns of every table of Nova's."""
    return [
        sa.Column("created_at", sa.DateTime),
        sa.Column("updated_at", sa.DateTime),
        sa.Column("deleted_at", sa.DateTime),
        sa.Column("deleted", sa.Integer),
    ]


def services() -> list[sa.schema.SchemaItem]:
    """Return columns and keys of services."""
    return [
        *common(),
        sa.Column("id", sa.Integer, primary_key=True, nullable=False),
        sa.Column("host", name()),
        sa.Column("binary", sa.String(255)),
        sa.Column("topic", sa.String(255)),
        sa.Column("report_count", sa.Integer, nullable=False),
        sa.Column("disabled", sa.Boolean),
        sa.Column("disabled_reason", sa.String(255)),
        sa.UniqueConstraint(
            "host", "topic", "deleted", name="uniq_services0host0topic0deleted"
        ),
        sa.UniqueConstraint(
            "host", "binary", "deleted", name="uniq_services0host0binary0deleted"
        ),
    ]


def compute_nodes() -> list[sa.schema.SchemaItem]:
    """Return the columns of compute_nodes, without its foreign key."""
    return [
        *common(),
        sa.Column("id", sa.Integer, primary_key=True, nullable=False),
        sa.Column("service_id", sa.Integer, nullable=False),
        sa.Column("vcpus", sa.Integer, nullable=False),
        sa.Column("memory_mb", sa.Integer, nullable=False),
        sa.Column("local_gb", sa.Integer, nullable=False),
        sa.Column("vcpus_used", sa.Integer, nullable=False),
        sa.Column("memory_mb_used", sa.Integer, nullable=False),
        sa.Column("local_gb_used", sa.Integer, nullable=False),
        sa.Column("hypervisor_type", medium_text(), nullable=False),
        sa.Column("hypervisor_version", sa.Integer, nullable=False),
        sa.Column("hypervisor_hostname", name()),
        sa.Column("free_ram_mb", sa.Integer),
        sa.Column("free_disk_gb", sa.Integer),
        sa.Column("current_workload", sa.Integer),
        sa.Column("running_vms", sa.Integer),
        sa.Column("cpu_info", medium_text(), nullable=False),
        sa.Column("disk_available_least", sa.Integer),
        sa.Column("host_ip", sa.String(39)),
        sa.Column("supported_instances", sa.Text),
        sa.Column("metrics", sa.Text),
        sa.Column("pci_stats", sa.Text),
        sa.Column("extra_resources", sa.Text),
        sa.Column("stats", sa.Text),
        sa.Column("numa_topology", sa.Text),
    ]


def upgrade() -> None:
    """Create both tables; those that an interrupted run left are kept."""
    op.create_table("services", *services(), if_not_exists=True, **MYSQL)
    op.create_table(
        "compute_nodes",
        *compute_nodes(),
        sa.ForeignKeyConstraint(
            ["service_id"], ["services.id"], name="fk_compute_nodes_service_id"
        ),
        if_not_exists=True,
        **MYSQL,
    )
