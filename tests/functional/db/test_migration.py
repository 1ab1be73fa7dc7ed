"""From Juno's shape to today's, and what is refused."""

from concurrent import futures
import pathlib
from typing import Any

from alembic import autogenerate
from alembic import script as alembic_script
from alembic.runtime import migration as alembic_migration
import pytest
import sqlalchemy as sa

from conductor.db import engine as db_engine
from conductor.db import migration
from conductor.db import models
from conductor.db import store as db_store
from musterbook import context as muster_context
from musterbook import errors
from objects import compute_node
from objects import service as service_obj
from objects import store as store_port
from tests.functional.db import juno


def fill(engine: sa.Engine) -> None:
    """Insert every oddity of reference/legacy-schema.md."""
    with juno.unchecked(engine) as c:
        juno.service(c, 1, "short")
        juno.service(c, 2, "long.example.org", disabled=True)
        juno.service(c, 3, "ironic", disabled=None, disabled_reason="Wartung läuft ✓")
        juno.service(c, 4, "short", deleted=4)
        juno.service(c, 5, None)
        juno.service(c, 6, "ancient", deleted=None)
        juno.service(c, 7, "short", binary="nova-conductor", topic="conductor")
        juno.node(c, 1, 1, "short")
        juno.node(c, 2, 2, "long.example.org", free_ram_mb=-700, free_disk_gb=-1)
        juno.node(c, 3, 3, "5f6b9a0e-6d5c-4e0c-9a64-111111111111", stats="{}")
        juno.node(c, 4, 3, "5f6b9a0e-6d5c-4e0c-9a64-222222222222", stats="")
        juno.node(c, 5, 4, "short", stats="io_workload: 3")
        juno.node(c, 6, 99, "gone", stats='{"n": 3, "d": {"x": null}, "s": "t"}')
        juno.node(c, 7, 5, "hostless", stats="[1]")
        juno.node(c, 8, 2, None)
        juno.node(c, 9, 1, "old-name", deleted=9)
        juno.node(c, 10, 6, "ancient", deleted=None)
        juno.insert(c, "pci_devices", compute_node_id=1)
        juno.insert(c, "migrate_version", version=254)


def content(engine: sa.Engine) -> dict[str, list[tuple[Any, ...]]]:
    found = {}
    with engine.connect() as connection:
        for name, columns in (
            ("services", migration._JUNO_COLUMNS["services"]),
            ("compute_nodes", migration._JUNO_COLUMNS["compute_nodes"]),
            ("pci_devices", {"compute_node_id"}),
            ("migrate_version", {"version"}),
        ):
            table = sa.table(name, *(sa.column(c) for c in sorted(columns)))
            rows = connection.execute(sa.select(*table.c).order_by(*table.c[:1]))
            found[name] = sorted((tuple(r) for r in rows), key=repr)
    return found


def keys(engine: sa.Engine, table: str) -> list[Any]:
    return sa.inspect(engine).get_foreign_keys(table)


def test_every_oddity_survives(empty: sa.Engine) -> None:
    juno.make(empty)
    fill(empty)
    before = content(empty)
    migration.sync(empty)
    assert content(empty) == before
    migration.check_current(empty)
    assert keys(empty, "compute_nodes") == []
    assert [k["referred_table"] for k in keys(empty, "pci_devices")] == [
        "compute_nodes"
    ]
    with empty.connect() as connection:
        hosts = connection.execute(sa.select(models.compute_nodes.c.host)).scalars()
        assert set(hosts) == {None}
    migration.sync(empty)
    assert content(empty) == before


def test_objects_read_every_oddity(empty: sa.Engine) -> None:
    juno.make(empty)
    fill(empty)
    migration.sync(empty)
    store_port.bind(db_store.DatabaseStore(empty))
    context = muster_context.RequestContext()
    try:
        nodes = compute_node.ComputeNodeList.get_all(context, with_service=True)
        services = service_obj.ServiceList.get_all(context)
    finally:
        store_port.unbind()
    assert {n.id: n.host for n in nodes} == {
        1: "short",
        2: "long.example.org",
        3: "ironic",
        4: "ironic",
        5: None,  # its service is deleted: an orphan beside node 1
        6: None,  # its service is gone
        7: None,  # its service has no host
        8: "long.example.org",
        10: "ancient",
    }
    assert {n.id: n.stats for n in nodes if n.stats is not None} == {
        3: {},
        6: {"n": "3", "d": '{"x": null}', "s": "t"},
    }
    assert {n.id: n.service and n.service.id for n in nodes} == {
        1: 1,
        2: 2,
        3: 3,
        4: 3,
        5: None,
        6: None,
        7: 5,
        8: 2,
        10: 6,
    }
    assert [s.id for s in services] == [1, 2, 3, 5, 6, 7]
    assert services[2].disabled_reason == "Wartung läuft ✓"
    assert not services[2].disabled


@pytest.mark.parametrize("key_name", ["compute_nodes_ibfk_1", "fk_x", None])
def test_foreign_key_goes_whatever_its_name(
    empty: sa.Engine, key_name: str | None
) -> None:
    juno.make(empty, key_name)  # type: ignore[arg-type]  # None: named by the database
    migration.sync(empty)
    assert keys(empty, "compute_nodes") == []


def test_previous_code_runs_on_the_new_schema(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        juno.service(connection, 1, "h")
        juno.node(connection, 1, 1, "hv")
    row = db_store.DatabaseStore(engine).compute_node_get(id=1)
    assert (row["host"], row["reserved_memory_mb"]) == ("h", 0)


def test_models_say_what_the_migrations_made(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        context = alembic_migration.MigrationContext.configure(
            connection,
            opts={
                "compare_type": True,
                "compare_server_default": False,
                # Keys and indexes stand in the migrations alone.
                "include_object": lambda o, name, kind, *rest: (
                    kind in {"table", "column"} and name != migration.VERSION_TABLE
                ),
            },
        )
        assert autogenerate.compare_metadata(context, models.METADATA) == []


def test_host_has_the_collation_of_services_host(empty: sa.Engine) -> None:
    if empty.dialect.name != "mysql":
        pytest.skip("collations of columns are MySQL's")
    juno.make(empty)
    migration.sync(empty)
    query = sa.text(
        "SELECT table_name, column_type, collation_name"
        " FROM information_schema.columns"
        " WHERE table_schema = DATABASE() AND column_name = 'host'"
        " AND table_name IN ('services', 'compute_nodes')"
    )
    with empty.connect() as connection:
        kinds = {tuple(row[1:]) for row in connection.execute(query)}
    assert kinds == {("varchar(255)", juno.COLLATION)}


def test_four_syncs_at_once(database_url: str) -> None:
    engines = [db_engine.make_engine(database_url) for _ in range(4)]
    with futures.ThreadPoolExecutor(4) as pool:
        for run in [pool.submit(migration.sync, engine) for engine in engines]:
            run.result()
    migration.check_current(engines[0])
    with engines[0].connect() as connection:
        heads = connection.execute(sa.select(models.fleet_head)).all()
    assert [(head.id, head.version) for head in heads] == [(1, 0)]
    for engine in engines:
        engine.dispose()


@pytest.mark.parametrize("revision", ["0001", "0002", "0003", "0004"])
def test_interrupted_sync_is_continued(empty: sa.Engine, revision: str) -> None:
    """MySQL keeps the statements before the interruption; play them back."""
    if empty.dialect.name != "mysql":
        pytest.skip("elsewhere a migration happens wholly or not at all")
    migration.sync(empty)
    with empty.begin() as c:
        c.execute(
            sa.text("UPDATE musterbook_version SET version_num = :r"), {"r": revision}
        )
        undo = {
            "0001": ["ALTER TABLE services DROP COLUMN stream_version"],
            "0002": ["DROP TABLE fleet_batches"],
            "0003": [
                "ALTER TABLE services DROP COLUMN version",
                "ALTER TABLE services DROP COLUMN version_incarnation",
                "ALTER TABLE allocations DROP INDEX ix_allocations_node_id",
            ],
            "0004": ["ALTER TABLE services DROP COLUMN beat_incarnation"],
        }
        for statement in undo[revision]:
            c.execute(sa.text(statement))
    migration.sync(empty)
    migration.check_current(empty)
    test_models_say_what_the_migrations_made(empty)
    indexes = sa.inspect(empty).get_indexes("allocations")
    assert "ix_allocations_node_id" in {index["name"] for index in indexes}


def test_what_is_not_current_is_refused(empty: sa.Engine) -> None:
    def refusal() -> str:
        with pytest.raises(errors.DatabaseShape) as caught:
            migration.check_current(empty)
        return caught.value.reason

    assert migration.version(empty) is None
    assert refusal() == "it is empty; run musterbook-manage db sync"
    migration.sync(empty, "0001")
    assert migration.version(empty) == "0001"
    assert refusal() == (
        "it is at revision 0001, this code needs 0007; run musterbook-manage db sync"
    )
    migration.sync(empty)
    with empty.begin() as connection:
        connection.execute(sa.text("UPDATE musterbook_version SET version_num = '9'"))
    assert "revision 9, newer than this code, which knows up to 0007" in refusal()
    with pytest.raises(errors.DatabaseShape, match="newer than this code"):
        migration.sync(empty)


def test_juno_without_our_mark(empty: sa.Engine) -> None:
    juno.make(empty)
    with pytest.raises(errors.DatabaseShape, match="Juno's shape; run"):
        migration.check_current(empty)


def test_other_shapes_are_refused_by_name(empty: sa.Engine) -> None:
    juno.make(empty)
    with empty.begin() as c:
        c.execute(sa.text("ALTER TABLE services ADD COLUMN version INTEGER"))
    with pytest.raises(
        errors.DatabaseShape, match=r"table services .*\(differs in ver"
    ):
        migration.sync(empty)
    with empty.begin() as c:
        c.execute(sa.text("DROP TABLE pci_devices"))
        c.execute(sa.text("DROP TABLE compute_nodes"))
    with pytest.raises(errors.DatabaseShape, match="services without its companion"):
        migration.sync(empty)
    assert not sa.inspect(empty).has_table(migration.VERSION_TABLE)


@pytest.mark.parametrize(
    ("before", "name"),
    [(None, "leases"), (None, "allocations"), ("0003", "allocations")],
)
def test_anothers_table_of_a_name_we_need_is_refused_before_anything_is_done(
    empty: sa.Engine, before: str | None, name: str
) -> None:
    juno.make(empty)
    if before is not None:
        migration.sync(empty, before)
    with empty.begin() as c:
        c.execute(sa.text(f"CREATE TABLE {name} (id INTEGER, consumer_id INTEGER)"))
    tables = set(sa.inspect(empty).get_table_names())
    for _ in range(2):
        with pytest.raises(
            errors.DatabaseShape,
            match=rf"table {name} that is not ours \(differs in .*consumer_id.*rename",
        ):
            migration.sync(empty)
    assert set(sa.inspect(empty).get_table_names()) == tables
    assert migration.version(empty) == before
    with empty.begin() as c:
        c.execute(sa.text(f"DROP TABLE {name}"))
    migration.sync(empty)
    made = sa.inspect(empty)
    for tables_of in migration._CREATED.values():
        for table, columns in tables_of.items():
            # Later revisions may have added some.
            assert columns <= {column["name"] for column in made.get_columns(table)}


def test_services_that_differ_in_case_only(empty: sa.Engine) -> None:
    if empty.dialect.name != "postgresql":
        pytest.skip("the others never let them in")
    juno.make(empty)
    with empty.begin() as connection:
        juno.service(connection, 1, "host")
        juno.service(connection, 2, "Host")
    with pytest.raises(errors.DatabaseShape, match="differ in case only"):
        migration.sync(empty)


def test_percent_signs(database_url: str, tmp_path: pathlib.Path) -> None:
    url = sa.make_url(database_url)
    if url.get_backend_name() == "sqlite":
        (tmp_path / "a%b").mkdir()
        url = url.set(database=str(tmp_path / "a%b" / "x%s.db"))
    elif url.get_backend_name() == "postgresql":
        url = url.set(password="p%40 w%s".replace(" ", "%"))
    engine = db_engine.make_engine(url.render_as_string(hide_password=False))
    migration.sync(engine)
    migration.check_current(engine)
    engine.dispose()


def test_revisions_are_those_that_alembic_finds() -> None:
    scripts = alembic_script.ScriptDirectory.from_config(migration._settings())
    found = [script.revision for script in scripts.walk_revisions()]
    assert list(migration._known()) == found[::-1]
    assert scripts.get_heads() == [migration.head()]


def test_no_way_back_refills_service_id(empty: sa.Engine) -> None:
    """Back is a backup: a downgrade would have to guess whose each node was."""
    from alembic import command

    juno.make(empty)
    with empty.begin() as connection:
        juno.service(connection, 1, "h")
        juno.node(connection, 1, 1, "hv")
    migration.sync(empty)
    db_store.DatabaseStore(empty).compute_node_update(1, {"vcpus": 9}, None)
    before = content(empty)
    settings = migration._settings()
    scripts = alembic_script.ScriptDirectory.from_config(settings)
    for script in scripts.walk_revisions():
        assert not hasattr(script.module, "downgrade")
    for target in ("0001", "base", "-1"):
        with empty.connect() as connection:
            settings.attributes["connection"] = connection
            settings.attributes["version_table"] = migration.VERSION_TABLE
            settings.attributes["metadata"] = models.METADATA
            with pytest.raises(AttributeError, match="downgrade"):
                command.downgrade(settings, target)
    assert content(empty) == before
    query = sa.select(models.compute_nodes.c.host, models.compute_nodes.c.service_id)
    with empty.connect() as connection:
        assert connection.execute(query).all() == [("h", None)]
    migration.check_current(empty)
