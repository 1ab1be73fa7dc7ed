"""Custom resources, labels and the instant of the boot (expand).

Only adds columns that may be NULL: code of the previous revision goes on.
"""

from alembic import op
import sqlalchemy as sa

revision = "0005"
down_revision = "0004"

TABLE = "compute_nodes"


def upgrade() -> None:
    """Add the columns; what an interrupted run added is kept."""
    inspector = sa.inspect(op.get_bind())
    present = {found["name"] for found in inspector.get_columns(TABLE)}
    for column in (
        sa.Column("custom_resources", sa.Text),
        sa.Column("labels", sa.Text),
        sa.Column("booted_at", sa.DateTime),
    ):
        if column.name not in present:
            op.add_column(TABLE, column)
