"""Today's tables. Keys and indexes stand in the migrations, which create them.

``doc`` says what a column means, in which unit, and who writes it; docs/columns.md is
made of them by ``python -m tests.columns``. ``stream_version`` is NULL on every row
that changed since the fleet's difference stream last looked.
"""

from typing import Any

import sqlalchemy as sa

from conductor.db import types

METADATA = sa.MetaData()


def _common() -> list[sa.Column[Any]]:
    """Return the four columns that Nova gives every table."""
    return [
        _instant("created_at", "when the row was made; written by the conductor"),
        _instant("updated_at", "when a caller last changed the row; the conductor"),
        _instant("deleted_at", "when the row was soft-deleted; the conductor"),
        sa.Column(
            "deleted",
            sa.Integer,
            doc="0; the row's own id once soft-deleted; NULL in very old rows means 0",
        ),
    ]


def _instant(name: str, doc: str) -> sa.Column[Any]:
    return sa.Column(name, types.UtcDateTime(precise=False), doc=doc)


def _count(name: str, doc: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, nullable=False, server_default="0", doc=doc)


services = sa.Table(
    "services",
    METADATA,
    *_common(),
    sa.Column("id", sa.Integer, primary_key=True, doc="given by the database"),
    sa.Column(
        "host",
        types.name_type(),
        doc="the name that the agent or daemon serves under, as given at its first "
        "hello; compared without case",
    ),
    sa.Column(
        "binary",
        sa.String(255),
        doc="what runs there, by Nova's names: nova-compute for agents, "
        "nova-conductor; written at hello",
    ),
    sa.Column(
        "topic",
        sa.String(255),
        doc="where it listens for RPC: compute for agents; written at hello",
    ),
    sa.Column(
        "report_count",
        sa.Integer,
        nullable=False,
        doc="how often an agent with servicegroup_driver db, or one of Juno's time, "
        "beat; for people",
    ),
    sa.Column(
        "disabled",
        sa.Boolean,
        doc="1: schedulers pass the host over; a status, not a state; written by "
        "operators; NULL means 0",
    ),
    sa.Column(
        "disabled_reason",
        sa.String(255),
        doc="why it is disabled; written by operators",
    ),
    sa.Column(
        "uuid",
        sa.String(36),
        doc="what names it from outside; NULL in rows of Juno's shape, which derive it "
        "of id and created_at; written by the conductor, once",
    ),
    sa.Column(
        "last_seen_up",
        types.UtcDateTime(),
        doc="last beat of an agent with servicegroup_driver db, by the database's "
        "clock; written by the conductor",
    ),
    sa.Column(
        "beat_incarnation",
        sa.Integer,
        doc="the incarnation whose beat last_seen_up is; NULL: a legacy agent's, or "
        "none was noted; the conductor, at each beat",
    ),
    sa.Column(
        "forced_down",
        sa.Boolean,
        nullable=False,
        server_default=sa.false(),
        doc="1: down, whatever else is known; written by operators",
    ),
    sa.Column(
        "incarnation",
        sa.Integer,
        doc="number of the last granted start of an agent; NULL: never said hello; "
        "written by the conductor at hello",
    ),
    sa.Column(
        "secret_hash",
        sa.String(64),
        doc="SHA-256, in hex, of the secret that the granted agent's calls carry; the "
        "conductor, at hello; never sent to anybody",
    ),
    sa.Column(
        "process_uuid",
        sa.String(36),
        doc="uuid of the process that was granted; the conductor, at hello",
    ),
    sa.Column(
        "boot_id",
        sa.String(64),
        doc="boot of the machine in which that process runs; the conductor, at hello",
    ),
    sa.Column(
        "release",
        sa.String(64),
        doc="release that the process runs; the conductor, at hello",
    ),
    _count(
        "version",
        "service level of that process; 0: a legacy agent, or it didn't say; the "
        "conductor, at hello",
    ),
    sa.Column(
        "version_incarnation",
        sa.Integer,
        doc="the incarnation that the service level is of: a conductor of before "
        "revision 0004 grants without writing either; the conductor, at hello",
    ),
    sa.Column(
        "goodbye_at",
        types.UtcDateTime(),
        doc="when it said that it stops, by the database's clock; NULL from the next "
        "hello on; the conductor",
    ),
    sa.Column(
        "stalled_reason",
        sa.String(255),
        doc="why its working loop makes no progress, in its words; NULL: it does; the "
        "conductor",
    ),
    sa.Column(
        "state",
        sa.String(16),
        doc="the verdict: up, suspect, down or unknown; written by the leader",
    ),
    sa.Column(
        "state_incarnation",
        sa.Integer,
        doc="the incarnation that the verdict is about; the leader",
    ),
    sa.Column(
        "state_since",
        types.UtcDateTime(),
        doc="since when the verdict stands, by the database's clock; the leader",
    ),
    sa.Column(
        "state_cause",
        sa.String(255),
        doc="what led to the verdict, one of a fixed set of words; the leader",
    ),
    sa.Column("state_evidence", sa.Text, doc="what was seen, for people; the leader"),
    sa.Column(
        "state_actor",
        sa.String(255),
        doc="who decided: a leader by its name; the leader",
    ),
    sa.Column(
        "stream_version",
        sa.BigInteger,
        doc="batch of the difference stream; NULL: changed since; the conductor",
    ),
    info={
        "doc": "Binaries on hosts, one row each. Agents read and write none of it: "
        "the conductor does at hello."
    },
)

compute_nodes = sa.Table(
    "compute_nodes",
    METADATA,
    *_common(),
    sa.Column(
        "id",
        sa.Integer,
        primary_key=True,
        doc="given by the database; a node that is recreated may get another",
    ),
    sa.Column(
        "service_id",
        sa.Integer,
        doc="deprecated: the service of a row of Juno's shape; NULL in all others, "
        "never written again",
    ),
    sa.Column(
        "vcpus",
        sa.Integer,
        nullable=False,
        doc="CPUs that the node has; written by the agent",
    ),
    sa.Column(
        "memory_mb",
        sa.Integer,
        nullable=False,
        doc="memory that the node has, MiB; written by the agent",
    ),
    sa.Column(
        "local_gb",
        sa.Integer,
        nullable=False,
        doc="disk that the node has for instances, GiB; written by the agent",
    ),
    sa.Column(
        "vcpus_used",
        sa.Integer,
        nullable=False,
        doc="CPUs taken: reserved_vcpus and the sum of the allocations; written by the "
        "conductor",
    ),
    sa.Column(
        "memory_mb_used",
        sa.Integer,
        nullable=False,
        doc="memory taken, MiB: reserved_memory_mb and allocations; as vcpus_used",
    ),
    sa.Column(
        "local_gb_used",
        sa.Integer,
        nullable=False,
        doc="disk taken, GiB: reserved_local_gb and allocations; as vcpus_used",
    ),
    sa.Column(
        "hypervisor_type",
        types.medium_text(),
        nullable=False,
        doc="what runs instances, such as QEMU; written by the agent",
    ),
    sa.Column(
        "hypervisor_version",
        sa.Integer,
        nullable=False,
        doc="its version as one number: major * 1000000 + minor * 1000 + patch; "
        "written by the agent",
    ),
    sa.Column(
        "hypervisor_hostname",
        types.name_type(),
        doc="the node's name; with host it identifies the node; compared without case; "
        "written by the agent",
    ),
    sa.Column(
        "free_ram_mb",
        sa.Integer,
        doc="memory_mb - memory_mb_used, MiB, may be below 0; written by the conductor "
        "along with them",
    ),
    sa.Column(
        "free_disk_gb",
        sa.Integer,
        doc="local_gb - local_gb_used, GiB, may be below 0; the conductor, along with "
        "them",
    ),
    sa.Column(
        "current_workload",
        sa.Integer,
        doc="instances that are being built, moved or torn down; written by agents of "
        "Juno's time only",
    ),
    sa.Column(
        "running_vms",
        sa.Integer,
        doc="instances that run there; written by agents of Juno's time only",
    ),
    sa.Column(
        "cpu_info",
        types.medium_text(),
        nullable=False,
        doc="JSON of the CPU: arch, vendor, model, features; '' is nothing known; "
        "written by the agent",
    ),
    sa.Column(
        "disk_available_least",
        sa.Integer,
        doc="GiB that can be given out at the very least; NULL: not known; written by "
        "the agent",
    ),
    sa.Column(
        "host_ip",
        sa.String(39),
        doc="address at which other hosts reach the node's host; written by the agent",
    ),
    sa.Column(
        "supported_instances",
        sa.Text,
        doc="JSON list of [architecture, hypervisor, mode]; written by the agent",
    ),
    sa.Column(
        "metrics", sa.Text, doc="JSON list of measured values; written by the agent"
    ),
    sa.Column(
        "pci_stats", sa.Text, doc="JSON of pools of PCI devices; written by the agent"
    ),
    sa.Column(
        "extra_resources",
        sa.Text,
        doc="JSON of resources of plug-ins of Juno's time; kept, not read",
    ),
    sa.Column(
        "stats",
        sa.Text,
        doc="JSON object of texts, free of form; what is none reads as NULL (rows of "
        "Juno's time hold anything); written by the agent",
    ),
    sa.Column(
        "numa_topology", sa.Text, doc="JSON of the NUMA cells; written by the agent"
    ),
    sa.Column(
        "host",
        types.name_type(),
        doc="the host whose agent manages the node; NULL in rows of Juno's shape, "
        "whose service has it; written at creation, and when such a row is first "
        "saved or migrated",
    ),
    sa.Column(
        "uuid",
        sa.String(36),
        doc="what names it from outside; NULL in rows of Juno's shape, which derive it "
        "of id and created_at; written by the conductor, once",
    ),
    _count(
        "reserved_vcpus",
        "CPUs held back for the host itself, part of vcpus_used; written by the agent",
    ),
    _count(
        "reserved_memory_mb",
        "memory held back for the host itself, MiB, part of memory_mb_used; the agent",
    ),
    _count(
        "reserved_local_gb",
        "disk held back for the host itself, GiB, part of local_gb_used; the agent",
    ),
    sa.Column(
        "cpu_allocation_ratio",
        sa.Double,
        doc="how many times the CPUs may be given out; NULL: the default; written by "
        "the agent",
    ),
    sa.Column(
        "ram_allocation_ratio",
        sa.Double,
        doc="how many times the memory may be given out; NULL: the default; written by "
        "the agent",
    ),
    sa.Column(
        "disk_allocation_ratio",
        sa.Double,
        doc="how many times the disk may be given out; NULL: the default; written by "
        "the agent",
    ),
    sa.Column(
        "boot_id",
        sa.String(64),
        doc="boot of the machine in which the inventory was read; the agent",
    ),
    _instant(
        "booted_at",
        "when that boot was, by the machine's own clock, from which its uptime "
        "follows; NULL: not known; written by the agent along with boot_id",
    ),
    sa.Column(
        "custom_resources",
        sa.Text,
        doc="JSON object of further countable resources that the node has, name to "
        "amount, such as CUSTOM_GPU; NULL: none; written by the agent",
    ),
    sa.Column(
        "labels",
        sa.Text,
        doc="JSON object of texts that tell nodes apart, such as rack; NULL: none; "
        "written by the agent",
    ),
    _count(
        "generation", "rises with every change of the row; written by the conductor"
    ),
    _count(
        "inventory_generation",
        "rises when what an agent reports changes; a save based on another one is "
        "refused; the conductor",
    ),
    sa.Column(
        "stream_version",
        sa.BigInteger,
        doc="batch of the difference stream; NULL: changed since; the conductor",
    ),
    _count(
        "booking",
        "how far usage is booked in allocations: 0 not, 1 and no agent has reported "
        "since, 2 and no agent has confirmed it, 3 confirmed; the conductor",
    ),
    sa.Column(
        "custom_used",
        sa.Text,
        doc="JSON object of what is allocated of custom resources, name to amount; "
        "NULL: nothing; the conductor, along with the allocations",
    ),
    info={
        "doc": "What a host can run, and how much of it is taken; (host, "
        "hypervisor_hostname) identifies a live row."
    },
)

allocations = sa.Table(
    "allocations",
    METADATA,
    sa.Column("id", types.big_key(), primary_key=True, doc="given by the database"),
    sa.Column(
        "uuid",
        sa.String(36),
        nullable=False,
        doc="what names it, chosen by who asked for it; that of a legacy one is "
        "derived of its node's",
    ),
    sa.Column(
        "node_id",
        sa.Integer,
        doc="the compute node's id; NULL: released before it was "
        "booked, or the node was purged",
    ),
    sa.Column("kind", sa.String(16), nullable=False, doc="legacy or claim"),
    sa.Column(
        "state",
        sa.String(16),
        nullable=False,
        doc="held or confirmed, both of which count; or released or expired",
    ),
    _count("vcpus", "CPUs, part of the node's vcpus_used"),
    _count("memory_mb", "memory, MiB, part of the node's memory_mb_used"),
    _count("local_gb", "disk, GiB, part of the node's local_gb_used"),
    sa.Column("custom", sa.Text, doc="JSON object of further countable resources"),
    sa.Column("owner", sa.String(255), doc="whose it is, in the asker's words"),
    sa.Column(
        "replaces", sa.String(36), doc="of a move: the uuid that it takes over from"
    ),
    sa.Column(
        "created_at",
        types.UtcDateTime(),
        nullable=False,
        doc="when it was booked, for people",
    ),
    sa.Column("confirmed_at", types.UtcDateTime(), doc="when it was confirmed"),
    sa.Column(
        "expires_at",
        types.UtcDateTime(),
        doc="until when a held one must be confirmed; NULL: it needn't",
    ),
    sa.Column(
        "finished_at", types.UtcDateTime(), doc="when it was released, or expired"
    ),
    sa.Column(
        "attempt",
        sa.String(36),
        doc="of a held claim: the one call of an agent to which it was answered, which "
        "may take it back unasked; NULL: it was answered to somebody else (too)",
    ),
    info={
        "doc": "What is taken of compute nodes, of which usage is the sum. Written by "
        "the conductor alone."
    },
)

leases = sa.Table(
    "leases",
    METADATA,
    sa.Column("name", sa.String(64), primary_key=True, doc="what is leased: leader"),
    sa.Column(
        "owner",
        sa.String(255),
        nullable=False,
        doc="who holds it, by name and process; '' once released; written by "
        "conductors",
    ),
    sa.Column(
        "term",
        sa.BigInteger,
        nullable=False,
        doc="rises with each new owner; what a leader writes names its term, and is "
        "refused under a later one",
    ),
    sa.Column(
        "renewed_at",
        types.UtcDateTime(),
        nullable=False,
        doc="when its holder last looked at the fleet, by the database's clock",
    ),
    sa.Column(
        "expires_at",
        types.UtcDateTime(),
        nullable=False,
        doc="until when it is held; after that anybody may take it",
    ),
    info={"doc": "Who leads, among conductors."},
)

freezes = sa.Table(
    "freezes",
    METADATA,
    sa.Column(
        "scope",
        sa.String(255),
        primary_key=True,
        doc="what is frozen: a zone; '': the whole fleet; written by the leader, as "
        "all columns here",
    ),
    sa.Column(
        "cause",
        sa.String(255),
        nullable=False,
        doc="why verdicts aren't believed: one of a fixed set of words",
    ),
    sa.Column(
        "since",
        types.UtcDateTime(),
        nullable=False,
        doc="since when, by the database's clock",
    ),
    sa.Column("evidence", sa.Text, doc="what was seen, for people"),
    sa.Column(
        "term",
        sa.BigInteger,
        nullable=False,
        doc="term of the leader that froze; 0: an operator has said that it is to end",
    ),
    info={"doc": "Where verdicts are not believed at present, and why."},
)

transitions = sa.Table(
    "transitions",
    METADATA,
    sa.Column(
        "id",
        types.big_key(),
        primary_key=True,
        doc="rises with time; written by the leader, as all columns here",
    ),
    sa.Column(
        "service_id",
        sa.Integer,
        nullable=False,
        doc="services.id of the one whose verdict changed",
    ),
    sa.Column(
        "host", types.name_type(), doc="its host then: the service may be gone by now"
    ),
    sa.Column("binary", sa.String(255), doc="its binary"),
    sa.Column(
        "at", types.UtcDateTime(), nullable=False, doc="when, by the database's clock"
    ),
    sa.Column("previous", sa.String(16), doc="state before; NULL: there was none"),
    sa.Column(
        "state",
        sa.String(16),
        nullable=False,
        doc="state after: up, suspect, down or unknown",
    ),
    sa.Column(
        "cause", sa.String(255), doc="what led to it: one of a fixed set of words"
    ),
    sa.Column("evidence", sa.Text, doc="what was seen, for people"),
    sa.Column("actor", sa.String(255), doc="who decided: a leader by its name"),
    sa.Column("incarnation", sa.Integer, doc="the incarnation that it is about"),
    info={"doc": "History of the verdicts: a row for each change."},
)

fleet_head = sa.Table(
    "fleet_head",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, doc="1, the only row"),
    sa.Column(
        "version",
        sa.BigInteger,
        nullable=False,
        doc="the last batch; written by the conductor that stamps changes",
    ),
    sa.Column(
        "nonce",
        sa.String(32),
        nullable=False,
        doc="random, new with each batch: tells this database's history from another's",
    ),
    info={"doc": "Where the fleet's difference stream stands; one row."},
)

fleet_batches = sa.Table(
    "fleet_batches",
    METADATA,
    sa.Column(
        "version",
        sa.BigInteger,
        primary_key=True,
        autoincrement=False,
        doc="number of the batch; the conductor that stamps changes",
    ),
    sa.Column(
        "nonce", sa.String(32), nullable=False, doc="the one that fleet_head had then"
    ),
    sa.Column(
        "created_at",
        types.UtcDateTime(),
        nullable=False,
        doc="when the batch was made, by the database's clock",
    ),
    info={
        "doc": "Batches of the difference stream: which tokens of readers are known."
    },
)


def live(table: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return the condition that a row isn't deleted; NULL means 0 in old rows."""
    deleted = table.c.deleted
    return sa.or_(deleted == 0, deleted.is_(None))
