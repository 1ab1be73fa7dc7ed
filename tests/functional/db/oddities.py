"""What real Juno deployments hold besides clean rows, and what is to become of it.

Written by hand from the description of such databases; the expectations follow from
the rule in docs/upgrading.md.
"""

import sqlalchemy as sa

from conductor.db import migration
from tests.functional.db import juno

#: In the form in which SQLAlchemy hands instants to SQLite.
LONG_AGO = "2014-05-01 00:00:00.000000"
LATER = "2016-05-01 00:00:00.000000"
NAME = "5f6b9a0e-6d5c-4e0c-9a64-{0}{0}{0}"


def make(engine: sa.Engine) -> None:
    """Make the database as Nova leaves it, then bring it to today's shape."""
    juno.make(engine)
    with juno.unchecked(engine) as c:
        fill(c)
    migration.sync(engine)


def fill(connection: sa.Connection) -> None:
    """Insert the rows; foreign keys must not be checked."""
    _services(connection)
    _nodes(connection)
    juno.insert(connection, "migrate_version", version=254)


def _services(c: sa.Connection) -> None:
    juno.service(c, 1, "short")
    juno.service(c, 2, "long.example.org", disabled=True)
    juno.service(c, 3, "ironic", disabled=None, disabled_reason="Wartung läuft ✓")
    juno.service(c, 4, "short", deleted=4, deleted_at=LONG_AGO)
    juno.service(c, 5, None)
    juno.service(c, 6, "ancient", deleted=None)
    juno.service(c, 7, "short", binary="nova-conductor", topic="conductor")
    juno.service(c, 8, "removed", deleted=8, deleted_at=LONG_AGO)
    juno.service(c, 9, "rebuilt", deleted=9, deleted_at=LONG_AGO)
    juno.service(c, 10, "Rebuilt")
    juno.service(c, 11, "bare")
    juno.service(c, 12, "twins")
    juno.service(c, 13, "old-name", deleted=13, deleted_at=LONG_AGO)
    juno.service(c, 14, "forgotten", deleted=14)


def _nodes(c: sa.Connection) -> None:
    juno.node(c, 1, 1, "short")
    juno.node(c, 2, 2, "long.example.org", free_ram_mb=-700, free_disk_gb=-1)
    # Several nodes of one bare-metal manager.
    juno.node(c, 3, 3, NAME.format("1111"), stats="{}")
    juno.node(c, 4, 3, NAME.format("2222"), stats="")
    # An orphan beside the live service and node of its host and name.
    juno.node(c, 5, 4, "SHORT", stats="io_workload: 3")
    # Its service has no host.
    juno.node(c, 6, 5, "hostless", stats="[1]")
    # Its service's row is gone.
    juno.node(c, 7, 99, "lost", stats='{"n": 3}')
    # No name.
    juno.node(c, 8, 6, None)
    juno.node(c, 9, 6, "ancient", deleted=None)
    # Orphans without a successor: the host has gone, the host has a new service.
    juno.node(c, 10, 8, "removed")
    juno.node(c, 11, 9, "rebuilt", vcpus_used=3)
    # One host and name twice.
    juno.node(c, 12, 12, "twin")
    juno.node(c, 13, 12, "TWIN")
    # Soft-deleted, of a renamed host and of a live one.
    juno.node(c, 14, 13, "old-name", deleted=14, deleted_at=LATER)
    juno.node(c, 15, 1, "before", deleted=15, deleted_at=LATER)
    # An orphan without a name.
    juno.node(c, 16, 8, None)


#: Ids of what db check names, before and after the migration.
FOUND = {
    "orphans": [5, 7, 10, 11, 16],
    "duplicates": [12, 13],
    "legacy_nodes": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16],
    "legacy_services": [1, 2, 3, 5, 6, 7, 10, 11, 12],
    "services_without_host": [5],
    "nodes_without_name": [8, 16],
    "nodes_without_service": [],
    "services_without_nodes": [10, 11],
    "usage_not_the_sum": [],
    "custom_usage_not_the_sum": [],
}
FOUND_AFTERWARDS = {
    "orphans": [7, 16],
    "duplicates": [],
    "legacy_nodes": [6, 7, 16],
    "legacy_services": [],
    "services_without_host": [5],
    "nodes_without_name": [8, 16],
    "nodes_without_service": [],
    "services_without_nodes": [11],
    "usage_not_the_sum": [],
    "custom_usage_not_the_sum": [],
}
#: What it tells for information, afterwards: what was taken over with usage.
UNCONFIRMED_AFTERWARDS = [1, 2, 3, 4, 8, 9, 11, 12]
#: Stored host of every live node after the migration.
HOSTS = {
    1: "short",
    2: "long.example.org",
    3: "ironic",
    4: "ironic",
    6: None,
    7: None,
    8: "ancient",
    9: "ancient",
    11: "rebuilt",
    12: "twins",
    16: None,
}
#: Stored host of what the migration soft-deletes.
RESOLVED = {5: "short", 10: "removed", 13: "twins"}
STUCK = [6, 7, 16]
TOTALS = (
    "compute_nodes: found 14, migrated 8, resolved 3, stuck 3\n"
    "services: found 9, migrated 9, resolved 0, stuck 0\n"
)
