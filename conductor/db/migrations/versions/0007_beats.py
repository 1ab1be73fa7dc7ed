"""Whose beat the stamp is: agents with servicegroup_driver db (expand).

Only adds. In the rows that are there the column is NULL: what was stamped so far were
legacy agents' beats, or nobody's.
"""

from alembic import op
import sqlalchemy as sa

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the column, unless an interrupted run did."""
    found = sa.inspect(op.get_bind()).get_columns("services")
    if "beat_incarnation" not in {column["name"] for column in found}:
        op.add_column("services", sa.Column("beat_incarnation", sa.Integer))
