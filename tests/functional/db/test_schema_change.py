"""db sync killed at any point, and Nova 2014.2 at work on what it leaves behind."""

import os
import signal
from typing import Any

import pytest
import sqlalchemy as sa

from conductor.db import engine as db_engine
from conductor.db import migration
from conductor.db import store as db_store
from tests.functional.db import juno
from tests.functional.db import test_migration


def dies(url: str, after: int) -> bool:
    """Run a sync that is killed after a changing statement; tell if it got there."""
    child = os.fork()
    if not child:
        try:
            _sync_and_die(url, after)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in {0, -signal.SIGKILL}
    return code != 0


def _sync_and_die(url: str, after: int) -> None:
    engine = db_engine.make_engine(url)
    seen: list[str] = []

    @sa.event.listens_for(engine, "after_cursor_execute")
    def _count(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.split()[0].upper() in _CHANGING:
            seen.append(statement)
            if len(seen) == after:
                os.kill(os.getpid(), signal.SIGKILL)

    migration.sync(engine)


_CHANGING = {"ALTER", "CREATE", "INSERT", "UPDATE", "DROP"}


@pytest.mark.parametrize("step", [15, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_any_point(empty: sa.Engine, database_url: str, step: int) -> None:
    """Killed after some statements, run again and killed after more, to the end."""
    juno.make(empty)
    test_migration.fill(empty)
    before = test_migration.content(empty)
    empty.dispose()
    after, kills = 1, 0
    while dies(database_url, after):
        kills += 1
        # MySQL keeps what was done: the next run goes on from there.
        after = step if empty.dialect.name == "mysql" else after + step
        assert test_migration.content(empty) == before
        assert kills < 200
    assert kills > 1
    migration.check_current(empty)
    assert test_migration.content(empty) == before
    with empty.begin() as connection:
        for other in ("pci_devices", "migrate_version"):  # Nova's own
            connection.execute(sa.text(f"DROP TABLE {other}"))
    test_migration.test_models_say_what_the_migrations_made(empty)


def _execute(connection: sa.Connection, text: str, **values: Any) -> Any:
    return connection.execute(sa.text(text), values)


# What nova.db.sqlalchemy of 2014.2 sends for these calls, column by column, as its
# models list them: INSERT of what was set, UPDATE by id, SELECT of its own columns.
_NODE_COLUMNS = (
    "created_at, updated_at, deleted_at, deleted, id, service_id, vcpus, memory_mb, "
    "local_gb, vcpus_used, memory_mb_used, local_gb_used, hypervisor_type, "
    "hypervisor_version, hypervisor_hostname, free_ram_mb, free_disk_gb, "
    "current_workload, running_vms, cpu_info, disk_available_least, host_ip, "
    "supported_instances, metrics, pci_stats, extra_resources, stats, numa_topology"
)
_CREATE_SERVICE = (
    "INSERT INTO services (created_at, deleted, host, {binary}, topic, report_count,"
    " disabled) VALUES ('2014-10-16 08:00:00', 0, :host, 'nova-compute', 'compute',"
    " 0, {false})"
)
_CREATE_NODE = (
    "INSERT INTO compute_nodes (created_at, deleted, service_id, vcpus, memory_mb,"
    " local_gb, vcpus_used, memory_mb_used, local_gb_used, hypervisor_type,"
    " hypervisor_version, hypervisor_hostname, cpu_info, stats) VALUES"
    " ('2014-10-16 08:00:00', 0, :service, 8, 16000, 500, 0, 512, 0, 'QEMU', 2001002,"
    " :name, '{{}}', '{{}}')"
)
_UPDATE_NODE = (
    "UPDATE compute_nodes SET updated_at = '2014-10-16 08:01:00', vcpus_used = 2,"
    " memory_mb_used = 4608, free_ram_mb = 11392, running_vms = 2, stats = :stats"
    " WHERE compute_nodes.id = :id"
)
_UPDATE_SERVICE = (
    "UPDATE services SET updated_at = '2014-10-16 08:01:00', report_count = 1"
    " WHERE services.id = :id"
)
_READ_NODES = (
    f"SELECT {', '.join('compute_nodes.' + c for c in _NODE_COLUMNS.split(', '))},"  # noqa: S608
    " services.host FROM compute_nodes LEFT OUTER JOIN services ON"
    " services.id = compute_nodes.service_id AND services.deleted = 0"
    " WHERE compute_nodes.deleted = 0 AND compute_nodes.service_id = :service"
)
_DELETE_NODE = (
    "UPDATE compute_nodes SET deleted_at = '2014-10-16 09:00:00', deleted = id,"
    " updated_at = updated_at WHERE compute_nodes.id = :id AND"
    " compute_nodes.deleted = 0"
)


def test_nova_2014_2_works_on_todays_shape(
    engine: sa.Engine, store: db_store.DatabaseStore
) -> None:
    words = {
        "binary": '"binary"' if engine.dialect.name == "postgresql" else "`binary`",
        "false": "false" if engine.dialect.name == "postgresql" else "0",
    }
    with engine.begin() as c:
        for host in ("web1", "web2"):
            _execute(c, _CREATE_SERVICE.format(**words), host=host)
        ids = {host: i for host, i in _execute(c, "SELECT host, id FROM services")}  # noqa: C416
        # Several of one service, and one name under two hosts.
        for host, name in (("web1", "a"), ("web1", "b"), ("web2", "a")):
            _execute(c, _CREATE_NODE.format(), service=ids[host], name=name)
        rows = _execute(c, _READ_NODES, service=ids["web1"]).mappings().all()
        assert {row["hypervisor_hostname"] for row in rows} == {"a", "b"}
        assert {row["host"] for row in rows} == {"web1"}
        first, second = sorted(row["id"] for row in rows)
        assert _execute(c, _UPDATE_NODE, id=first, stats='{"x": 1}').rowcount == 1
        assert _execute(c, _UPDATE_SERVICE, id=ids["web1"]).rowcount == 1
        assert _execute(c, _DELETE_NODE, id=second).rowcount == 1
        [left] = _execute(c, _READ_NODES, service=ids["web1"]).mappings()
        assert (left["id"], left["running_vms"], left["free_ram_mb"]) == (
            first, 2, 11392,
        )  # fmt: skip
        # Nova creates it again: as a new row.
        _execute(c, _CREATE_NODE.format(), service=ids["web1"], name="b")
    # Ours sees what Nova wrote, under the host of its service.
    seen = sorted((n["host"], n["hypervisor_hostname"]) for n in store.compute_nodes())
    assert seen == [("web1", "a"), ("web1", "b"), ("web2", "a")]
    assert store.compute_node_get(id=first)["stats"] == {"x": "1"}
    # What Nova reads of a row that an agent of ours creates meanwhile is harmless.
    store.compute_node_create({"host": "web3", "hypervisor_hostname": "c"})
    with engine.connect() as c:
        assert len(_execute(c, _READ_NODES, service=ids["web2"]).all()) == 1


@pytest.mark.parametrize("other", ["instances", "musterbook"])
def test_adoption_touches_nothing_else(empty: sa.Engine, other: str) -> None:
    """Not even tables whose names are like ours."""
    juno.make(empty)
    test_migration.fill(empty)
    with empty.begin() as c:
        c.execute(sa.text(f"CREATE TABLE {other} (id INTEGER PRIMARY KEY, x TEXT)"))
        c.execute(sa.text(f"CREATE INDEX ix_{other} ON {other} (id)"))
        c.execute(sa.text(f"INSERT INTO {other} VALUES (1, 'kept')"))  # noqa: S608
    ours = {"services", "compute_nodes", migration.VERSION_TABLE}

    def others(engine: sa.Engine) -> dict[str, Any]:
        inspector = sa.inspect(engine)
        return {
            name: (
                [(c["name"], str(c["type"])) for c in inspector.get_columns(name)],
                inspector.get_indexes(name),
                inspector.get_foreign_keys(name),
            )
            for name in ("pci_devices", "migrate_version", other)
        }

    before = others(empty)
    tables = set(sa.inspect(empty).get_table_names()) - ours
    migration.sync(empty)
    assert others(empty) == before
    assert tables <= set(sa.inspect(empty).get_table_names())
    with empty.connect() as c:
        found = c.execute(sa.text(f"SELECT id, x FROM {other}")).all()  # noqa: S608
    assert [tuple(row) for row in found] == [(1, "kept")]
