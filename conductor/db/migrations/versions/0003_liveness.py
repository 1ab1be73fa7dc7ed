"""Tables of the leader's lease, freezes, history and the fleet's stream."""

import secrets
from typing import Any

from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

revision = "0003"
down_revision = "0002"

MYSQL = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb3",
    "mysql_collate": "utf8mb3_general_ci",
}
HISTORY_INDEX = "ix_transitions_service_id"


def instant(name: str) -> sa.Column[Any]:
    """Return a column of an instant with microseconds."""
    kind = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql")
    return sa.Column(name, kind, nullable=False)


def host_name() -> sa.types.TypeEngine[str]:
    """Return the type of a host's name."""
    return sa.String(255).with_variant(sa.String(255, collation="NOCASE"), "sqlite")


def upgrade() -> None:
    """Create the tables; those that an interrupted run left are kept."""
    _create_verdict_tables()
    _index_history()
    _create_stream_tables()


def _create_verdict_tables() -> None:
    op.create_table(
        "leases",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("owner", sa.String(255), nullable=False),
        sa.Column("term", sa.BigInteger, nullable=False),
        instant("renewed_at"),
        instant("expires_at"),
        if_not_exists=True,
        **MYSQL,
    )
    op.create_table(
        "freezes",
        sa.Column("scope", sa.String(255), primary_key=True),
        sa.Column("cause", sa.String(255), nullable=False),
        instant("since"),
        sa.Column("evidence", sa.Text),
        sa.Column("term", sa.BigInteger, nullable=False),
        if_not_exists=True,
        **MYSQL,
    )
    key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "transitions",
        sa.Column("id", key, primary_key=True),
        sa.Column("service_id", sa.Integer, nullable=False),
        sa.Column("host", host_name()),
        sa.Column("binary", sa.String(255)),
        instant("at"),
        sa.Column("previous", sa.String(16)),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("cause", sa.String(255)),
        sa.Column("evidence", sa.Text),
        sa.Column("actor", sa.String(255)),
        sa.Column("incarnation", sa.Integer),
        if_not_exists=True,
        **MYSQL,
    )


def _index_history() -> None:
    """Index the history by service; apart, for the table may stand without it."""
    indexes = sa.inspect(op.get_bind()).get_indexes("transitions")
    if not any(index["name"] == HISTORY_INDEX for index in indexes):
        op.create_index(HISTORY_INDEX, "transitions", ["service_id"])


def _create_stream_tables() -> None:
    head = op.create_table(
        "fleet_head",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("nonce", sa.String(32), nullable=False),
        if_not_exists=True,
        **MYSQL,
    )
    op.create_table(
        "fleet_batches",
        sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("nonce", sa.String(32), nullable=False),
        instant("created_at"),
        if_not_exists=True,
        **MYSQL,
    )
    bind = op.get_bind()
    if not bind.execute(sa.select(head.c.id)).first():
        first = {"id": 1, "version": 0, "nonce": secrets.token_hex(16)}
        bind.execute(head.insert().values(first))
