"""What is allocated of custom resources, and what claims need besides (expand).

Only adds. Code of the previous revision books no claims, and leaves the columns alone.
"""

from alembic import op
import sqlalchemy as sa

revision = "0006"
down_revision = "0005"

INDEXES = {
    "ix_allocations_expiry": ["state", "expires_at"],
    "ix_allocations_finished_at": ["finished_at"],
    "ix_allocations_owner": ["owner"],
    "ix_allocations_replaces": ["replaces"],
}


def upgrade() -> None:
    """Add columns and indexes; what an interrupted run added is kept."""
    inspector = sa.inspect(op.get_bind())
    added: dict[str, sa.Column[str]] = {
        "compute_nodes": sa.Column("custom_used", sa.Text),
        "allocations": sa.Column("attempt", sa.String(36)),
    }
    for table, column in added.items():
        present = {found["name"] for found in inspector.get_columns(table)}
        if column.name not in present:
            op.add_column(table, column)
    indexes = {index["name"] for index in inspector.get_indexes("allocations")}
    for name, columns in INDEXES.items():
        if name not in indexes:
            op.create_index(name, "allocations", columns)
