"""The service level of the process that was granted."""

from alembic import op
import sqlalchemy as sa

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the column; one that an interrupted run left is kept."""
    columns = sa.inspect(op.get_bind()).get_columns("services")
    if any(column["name"] == "version" for column in columns):
        return
    kind = sa.Column("version", sa.Integer, nullable=False, server_default="0")
    op.add_column("services", kind)
