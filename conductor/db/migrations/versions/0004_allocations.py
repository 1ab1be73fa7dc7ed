"""Allocations, of which usage is the sum, and the service level (expand).

Only adds. No data is moved: a node whose ``booking`` is 0, be it of Juno's shape or
written by code of the previous revision, is booked when it is next saved, or by
``db online_data_migrations``.
"""

from typing import Any

from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

revision = "0004"
down_revision = "0003"

MYSQL = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb3",
    "mysql_collate": "utf8mb3_general_ci",
}
UUID_KEY = "uniq_allocations0uuid"
NODE_INDEX = "ix_allocations_node_id"


def instant() -> sa.types.TypeEngine[Any]:
    """Return an instant with microseconds."""
    return sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql")


def count(name: str) -> sa.Column[int]:
    """Return a column that starts as 0, in the rows that are there as well."""
    return sa.Column(name, sa.Integer, nullable=False, server_default="0")


def upgrade() -> None:
    """Create the table and add the columns; what an interrupted run did is kept."""
    key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "allocations",
        sa.Column("id", key, primary_key=True),
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("node_id", sa.Integer),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        count("vcpus"),
        count("memory_mb"),
        count("local_gb"),
        sa.Column("custom", sa.Text),
        sa.Column("owner", sa.String(255)),
        sa.Column("replaces", sa.String(36)),
        sa.Column("created_at", instant(), nullable=False),
        sa.Column("confirmed_at", instant()),
        sa.Column("expires_at", instant()),
        sa.Column("finished_at", instant()),
        sa.UniqueConstraint("uuid", name=UUID_KEY),
        if_not_exists=True,
        **MYSQL,
    )
    inspector = sa.inspect(op.get_bind())
    indexes = inspector.get_indexes("allocations")
    if not any(index["name"] == NODE_INDEX for index in indexes):
        op.create_index(NODE_INDEX, "allocations", ["node_id"])
    for table, column in (
        ("compute_nodes", count("booking")),
        ("services", count("version")),
        ("services", sa.Column("version_incarnation", sa.Integer)),
    ):
        present = {found["name"] for found in inspector.get_columns(table)}
        if column.name not in present:
            op.add_column(table, column)
