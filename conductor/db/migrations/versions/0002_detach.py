"""Compute nodes stand on their own; grants, verdicts and stream columns (expand).

Only adds, loosens and drops the foreign key: code of the previous revision keeps
running. No data is moved. MySQL commits each statement, so every step looks
whether an interrupted run has done it already; the others do all or nothing.
"""

import importlib
from typing import Any

from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from musterbook import errors

juno = importlib.import_module("conductor.db.migrations.versions.0001_juno")

revision = "0002"
down_revision = "0001"

NODE_KEY = "uniq_compute_nodes0host0hypervisor_hostname0deleted"
NODE_UUID_KEY = "uniq_compute_nodes0uuid"
SERVICE_UUID_KEY = "uniq_services0uuid"
SERVICE_NAME_KEY = "uniq_services0lower_host0binary0deleted"


def instant() -> sa.types.TypeEngine[Any]:
    """Return an instant with microseconds."""
    return sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql")


def service_columns() -> list[sa.Column[Any]]:
    """Return what services gains."""
    return [
        sa.Column("uuid", sa.String(36)),
        sa.Column("last_seen_up", instant()),
        sa.Column("forced_down", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("incarnation", sa.Integer),
        sa.Column("secret_hash", sa.String(64)),
        sa.Column("process_uuid", sa.String(36)),
        sa.Column("boot_id", sa.String(64)),
        sa.Column("release", sa.String(64)),
        sa.Column("goodbye_at", instant()),
        sa.Column("stalled_reason", sa.String(255)),
        sa.Column("state", sa.String(16)),
        sa.Column("state_incarnation", sa.Integer),
        sa.Column("state_since", instant()),
        sa.Column("state_cause", sa.String(255)),
        sa.Column("state_evidence", sa.Text),
        sa.Column("state_actor", sa.String(255)),
        sa.Column("stream_version", sa.BigInteger),
    ]


def node_columns(host: sa.types.TypeEngine[str]) -> list[sa.Column[Any]]:
    """Return what compute_nodes gains.

    :param host: the type of services.host
    """
    counts = (
        "reserved_vcpus",
        "reserved_memory_mb",
        "reserved_local_gb",
        "generation",
        "inventory_generation",
    )
    return [
        sa.Column("host", host),
        sa.Column("uuid", sa.String(36)),
        *(
            sa.Column(count, sa.Integer, nullable=False, server_default="0")
            for count in counts
        ),
        sa.Column("cpu_allocation_ratio", sa.Double),
        sa.Column("ram_allocation_ratio", sa.Double),
        sa.Column("disk_allocation_ratio", sa.Double),
        sa.Column("boot_id", sa.String(64)),
        sa.Column("stream_version", sa.BigInteger),
    ]


def upgrade() -> None:
    """Bring both tables to today's shape, compute_nodes first.

    SQLite rebuilds a table by dropping it, which its children must survive.
    """
    if op.get_bind().dialect.name == "sqlite":
        _upgrade_sqlite()
    else:
        _upgrade_in_place()


def _upgrade_sqlite() -> None:
    metadata = sa.MetaData()
    # Juno's tables as we know them, the foreign key left out: its name, or that
    # it has none, doesn't matter then. Names get the collation that compares them.
    nodes = sa.Table("compute_nodes", metadata, *juno.compute_nodes())
    with op.batch_alter_table("compute_nodes", copy_from=nodes, recreate="always") as t:
        for column in node_columns(juno.name()):
            t.add_column(column)
        t.alter_column("service_id", nullable=True, existing_type=sa.Integer())
        t.create_unique_constraint(NODE_KEY, ["host", "hypervisor_hostname", "deleted"])
        t.create_unique_constraint(NODE_UUID_KEY, ["uuid"])
    services = sa.Table("services", metadata, *juno.services())
    with op.batch_alter_table("services", copy_from=services, recreate="always") as t:
        for column in service_columns():
            t.add_column(column)
        t.create_unique_constraint(SERVICE_UUID_KEY, ["uuid"])
    _create_indexes()


def _upgrade_in_place() -> None:
    inspector = sa.inspect(op.get_bind())
    _add_missing(inspector, "compute_nodes", node_columns(_type_of_service_host()))
    _add_missing(inspector, "services", service_columns())
    for key in inspector.get_foreign_keys("compute_nodes"):
        if key["constrained_columns"] == ["service_id"]:
            op.drop_constraint(str(key["name"]), "compute_nodes", type_="foreignkey")
    op.alter_column(
        "compute_nodes", "service_id", nullable=True, existing_type=sa.Integer()
    )
    _add_keys(inspector)
    _create_indexes()


def _add_keys(inspector: sa.Inspector) -> None:
    keys = _names_of_keys(inspector, "compute_nodes")
    keys |= _names_of_keys(inspector, "services")
    if NODE_UUID_KEY not in keys:
        op.create_unique_constraint(NODE_UUID_KEY, "compute_nodes", ["uuid"])
    if SERVICE_UUID_KEY not in keys:
        op.create_unique_constraint(SERVICE_UUID_KEY, "services", ["uuid"])
    if op.get_bind().dialect.name != "postgresql":
        if NODE_KEY not in keys:
            op.create_unique_constraint(
                NODE_KEY, "compute_nodes", ["host", "hypervisor_hostname", "deleted"]
            )
        return
    lower_host = sa.text("lower(host)")
    lower_name = sa.text("lower(hypervisor_hostname)")
    op.create_index(
        NODE_KEY, "compute_nodes", [lower_host, lower_name, "deleted"], unique=True
    )
    _refuse_case_twins()
    op.create_index(
        SERVICE_NAME_KEY, "services", [lower_host, "binary", "deleted"], unique=True
    )


def _refuse_case_twins() -> None:
    """Name services that were two only because PostgreSQL tells cases apart."""
    twins = op.get_bind().execute(
        sa.text(
            'SELECT min(host), max(host), "binary" FROM services'
            ' GROUP BY lower(host), "binary", deleted HAVING count(*) > 1'
            " AND min(deleted) IS NOT NULL AND min(host) IS NOT NULL LIMIT 1"
        ).columns(sa.Column("a"), sa.Column("b"), sa.Column("binary"))
    )
    for one, other, binary in twins:
        raise errors.DatabaseShape(
            reason=f"services {binary} of {one} and {other} differ in case only; "
            "rename or delete one of them"
        )


def _create_indexes() -> None:
    """Index the stream's columns, and service_id to find rows of Juno's shape."""
    inspector = sa.inspect(op.get_bind())
    for table, column in (
        ("compute_nodes", "stream_version"),
        ("compute_nodes", "service_id"),
        ("services", "stream_version"),
    ):
        # MySQL keeps the index that it made for the foreign key.
        present = [i["column_names"][0] for i in inspector.get_indexes(table)]
        if column not in present:
            op.create_index(f"ix_{table}_{column}", table, [column])


def _add_missing(
    inspector: sa.Inspector, table: str, columns: list[sa.Column[Any]]
) -> None:
    present = {column["name"] for column in inspector.get_columns(table)}
    for column in columns:
        if column.name not in present:
            op.add_column(table, column)


def _names_of_keys(inspector: sa.Inspector, table: str) -> set[str]:
    return {str(k["name"]) for k in inspector.get_unique_constraints(table)}


def _type_of_service_host() -> sa.types.TypeEngine[str]:
    """Return the type of services.host; on MySQL with its own collation."""
    bind = op.get_bind()
    if bind.dialect.name != "mysql":
        return sa.String(255)
    charset, collation = bind.execute(
        sa.text(
            "SELECT character_set_name, collation_name"
            " FROM information_schema.columns WHERE table_schema = DATABASE()"
            " AND table_name = 'services' AND column_name = 'host'"
        )
    ).one()
    return mysql.VARCHAR(255, charset=charset, collation=collation)
