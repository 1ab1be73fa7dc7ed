"""What is allocated of custom resources, and indexes for claims (expand).

Only adds. Code of the previous revision books no claims, and leaves the column alone.
"""

from alembic import op
import sqlalchemy as sa

revision = "0006"
down_revision = "0005"

COLUMN = "custom_used"
INDEXES = {
    "ix_allocations_expiry": ["state", "expires_at"],
    "ix_allocations_finished_at": ["finished_at"],
    "ix_allocations_owner": ["owner"],
    "ix_allocations_replaces": ["replaces"],
}


def upgrade() -> None:
    """Add the column and the indexes; what an interrupted run added is kept."""
    inspector = sa.inspect(op.get_bind())
    present = {found["name"] for found in inspector.get_columns("compute_nodes")}
    if COLUMN not in present:
        op.add_column("compute_nodes", sa.Column(COLUMN, sa.Text))
    indexes = {index["name"] for index in inspector.get_indexes("allocations")}
    for name, columns in INDEXES.items():
        if name not in indexes:
            op.create_index(name, "allocations", columns)
