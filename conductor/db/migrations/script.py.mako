"""${message}.

Revision: ${up_revision}
"""

from alembic import op
import sqlalchemy as sa

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    """Say what changes."""
    ${upgrades if upgrades else "raise NotImplementedError"}
