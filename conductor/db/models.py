"""Today's tables. Keys and indexes stand in the migrations, which create them.

``doc`` says what a column means and who writes it. ``stream_version`` is NULL on
every row that changed since the fleet's difference stream last looked.
"""

from typing import Any

import sqlalchemy as sa

from conductor.db import types

METADATA = sa.MetaData()


def _common() -> list[sa.Column[Any]]:
    """Return the four columns that Nova gives every table."""
    return [
        sa.Column("created_at", types.UtcDateTime(precise=False)),
        sa.Column("updated_at", types.UtcDateTime(precise=False)),
        sa.Column("deleted_at", types.UtcDateTime(precise=False)),
        sa.Column("deleted", sa.Integer, doc="0 or NULL; the row's id once deleted"),
    ]


def _count(name: str, doc: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, nullable=False, server_default="0", doc=doc)


services = sa.Table(
    "services",
    METADATA,
    *_common(),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("host", types.name_type()),
    sa.Column("binary", sa.String(255)),
    sa.Column("topic", sa.String(255)),
    sa.Column("report_count", sa.Integer, nullable=False, doc="of legacy agents"),
    sa.Column("disabled", sa.Boolean, doc="status, written by operators"),
    sa.Column("disabled_reason", sa.String(255)),
    sa.Column("uuid", sa.String(36), doc="NULL in legacy rows: see rows.legacy_uuid"),
    sa.Column("last_seen_up", types.UtcDateTime(), doc="beat of the db driver"),
    sa.Column(
        "forced_down",
        sa.Boolean,
        nullable=False,
        server_default=sa.false(),
        doc="the operator overrides liveness to down",
    ),
    sa.Column("incarnation", sa.Integer, doc="granted last; NULL: never said hello"),
    sa.Column("secret_hash", sa.String(64), doc="SHA-256 of the grant's secret, hex"),
    sa.Column("process_uuid", sa.String(36), doc="the process that was granted"),
    sa.Column("boot_id", sa.String(64), doc="the boot that process runs in"),
    sa.Column("release", sa.String(64), doc="the release of that process"),
    _count("version", "service level of the process that was granted; 0: legacy"),
    sa.Column("goodbye_at", types.UtcDateTime(), doc="when it said goodbye"),
    sa.Column("stalled_reason", sa.String(255), doc="why its loop stands still"),
    sa.Column("state", sa.String(16), doc="the verdict; written by the leader"),
    sa.Column("state_incarnation", sa.Integer, doc="the incarnation it's about"),
    sa.Column("state_since", types.UtcDateTime()),
    sa.Column("state_cause", sa.String(255)),
    sa.Column("state_evidence", sa.Text),
    sa.Column("state_actor", sa.String(255)),
    sa.Column("stream_version", sa.BigInteger),
)

compute_nodes = sa.Table(
    "compute_nodes",
    METADATA,
    *_common(),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("service_id", sa.Integer, doc="deprecated, never written again"),
    sa.Column("vcpus", sa.Integer, nullable=False),
    sa.Column("memory_mb", sa.Integer, nullable=False),
    sa.Column("local_gb", sa.Integer, nullable=False),
    sa.Column("vcpus_used", sa.Integer, nullable=False),
    sa.Column("memory_mb_used", sa.Integer, nullable=False),
    sa.Column("local_gb_used", sa.Integer, nullable=False),
    sa.Column("hypervisor_type", types.medium_text(), nullable=False),
    sa.Column("hypervisor_version", sa.Integer, nullable=False),
    sa.Column("hypervisor_hostname", types.name_type()),
    sa.Column("free_ram_mb", sa.Integer, doc="memory_mb - memory_mb_used"),
    sa.Column("free_disk_gb", sa.Integer, doc="local_gb - local_gb_used"),
    sa.Column("current_workload", sa.Integer),
    sa.Column("running_vms", sa.Integer),
    sa.Column("cpu_info", types.medium_text(), nullable=False),
    sa.Column("disk_available_least", sa.Integer),
    sa.Column("host_ip", sa.String(39)),
    sa.Column("supported_instances", sa.Text),
    sa.Column("metrics", sa.Text),
    sa.Column("pci_stats", sa.Text),
    sa.Column("extra_resources", sa.Text),
    sa.Column("stats", sa.Text, doc="JSON object of texts; legacy rows hold anything"),
    sa.Column("numa_topology", sa.Text),
    sa.Column("host", types.name_type(), doc="NULL in legacy rows: the service's"),
    sa.Column("uuid", sa.String(36), doc="NULL in legacy rows: see rows.legacy_uuid"),
    _count("reserved_vcpus", "held back for the host, part of vcpus_used"),
    _count("reserved_memory_mb", "held back for the host, part of memory_mb_used"),
    _count("reserved_local_gb", "held back for the host, part of local_gb_used"),
    sa.Column("cpu_allocation_ratio", sa.Double),
    sa.Column("ram_allocation_ratio", sa.Double),
    sa.Column("disk_allocation_ratio", sa.Double),
    sa.Column("boot_id", sa.String(64), doc="the boot the inventory was read in"),
    _count("generation", "rises with every change of the row"),
    _count("inventory_generation", "rises when what an agent reports changes"),
    sa.Column("stream_version", sa.BigInteger),
    _count("booking", "how far usage is booked in allocations: see allocations.py"),
)

allocations = sa.Table(
    "allocations",
    METADATA,
    sa.Column("id", types.big_key(), primary_key=True),
    sa.Column("uuid", sa.String(36), nullable=False, doc="chosen by who asked for it"),
    sa.Column("node_id", sa.Integer, doc="NULL: released before it was booked"),
    sa.Column("kind", sa.String(16), nullable=False, doc="legacy or claim"),
    sa.Column(
        "state",
        sa.String(16),
        nullable=False,
        doc="held or confirmed, both of which count; or released",
    ),
    _count("vcpus", "part of the node's vcpus_used"),
    _count("memory_mb", "part of the node's memory_mb_used"),
    _count("local_gb", "part of the node's local_gb_used"),
    sa.Column("custom", sa.Text, doc="JSON object of further countable resources"),
    sa.Column("owner", sa.String(255)),
    sa.Column("replaces", sa.String(36), doc="a move: the uuid it takes over from"),
    sa.Column("created_at", types.UtcDateTime(), nullable=False),
    sa.Column("confirmed_at", types.UtcDateTime()),
    sa.Column("expires_at", types.UtcDateTime(), doc="of a held one; NULL: never"),
    sa.Column("finished_at", types.UtcDateTime(), doc="when it was released"),
)

leases = sa.Table(
    "leases",
    METADATA,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("owner", sa.String(255), nullable=False, doc="'' once released"),
    sa.Column("term", sa.BigInteger, nullable=False, doc="rises with each new owner"),
    sa.Column("renewed_at", types.UtcDateTime(), nullable=False),
    sa.Column("expires_at", types.UtcDateTime(), nullable=False),
)

freezes = sa.Table(
    "freezes",
    METADATA,
    sa.Column("scope", sa.String(255), primary_key=True, doc="a zone; '': the fleet"),
    sa.Column("cause", sa.String(255), nullable=False),
    sa.Column("since", types.UtcDateTime(), nullable=False),
    sa.Column("evidence", sa.Text),
    sa.Column("term", sa.BigInteger, nullable=False, doc="of the leader that froze"),
)

transitions = sa.Table(
    "transitions",
    METADATA,
    sa.Column("id", types.big_key(), primary_key=True),
    sa.Column("service_id", sa.Integer, nullable=False),
    sa.Column("host", types.name_type()),
    sa.Column("binary", sa.String(255)),
    sa.Column("at", types.UtcDateTime(), nullable=False),
    sa.Column("previous", sa.String(16)),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("cause", sa.String(255)),
    sa.Column("evidence", sa.Text),
    sa.Column("actor", sa.String(255)),
    sa.Column("incarnation", sa.Integer),
)

fleet_head = sa.Table(
    "fleet_head",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, doc="1, the only row"),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("nonce", sa.String(32), nullable=False),
)

fleet_batches = sa.Table(
    "fleet_batches",
    METADATA,
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("nonce", sa.String(32), nullable=False),
    sa.Column("created_at", types.UtcDateTime(), nullable=False),
)


def live(table: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return the condition that a row isn't deleted; NULL means 0 in old rows."""
    deleted = table.c.deleted
    return sa.or_(deleted == 0, deleted.is_(None))
