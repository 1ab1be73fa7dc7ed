"""musterbook-manage db purge: soft-deleted rows go, nothing else does."""

import datetime
import pathlib

import pytest
import sqlalchemy as sa

from conductor.db import liveness
from conductor.db import models
from conductor.db import purge
from conductor.db import store as db_store
from musterbook import errors
from tests.functional.db import claiming
from tests.functional.db import command
from tests.functional.db import juno
from tests.functional.db import oddities

PURGE = ("db", "purge")


def ids(engine: sa.Engine) -> dict[str, list[int]]:
    return {table: list(found) for table, found in rows(engine).items()}


def rows(engine: sa.Engine) -> dict[str, dict[int, int | None]]:
    """Return, by table, each id with what stands in ``deleted``."""
    found = {}
    with engine.connect() as connection:
        for table in (models.compute_nodes, models.services):
            query = sa.select(table.c.id, table.c.deleted).order_by(table.c.id)
            found[table.name] = {r.id: r.deleted for r in connection.execute(query)}
    return found


def live(engine: sa.Engine) -> dict[str, list[int]]:
    return {
        table: [row for row, deleted in found.items() if not deleted]
        for table, found in rows(engine).items()
    }


def test_before_the_migration(
    empty: sa.Engine, database_url: str, tmp_path: pathlib.Path
) -> None:
    """Services stay that live nodes of Juno's shape need."""
    oddities.make(empty)
    before, alive = ids(empty), live(empty)
    dry = command.manage(tmp_path, database_url, *PURGE, "--dry-run")
    assert ids(empty) == before
    done = command.manage(tmp_path, database_url, *PURGE)
    assert (dry.returncode, done.returncode, done.stderr) == (2, 2, "")
    assert f"dry run: nothing is removed\n{done.stdout}" == dry.stdout
    assert "compute_nodes: purged 2, kept 0\n" in done.stdout
    assert "services: purged 2, kept 3\n" in done.stdout
    kept = [t for t in done.stdout.splitlines() if t.startswith("kept: ")]
    assert [line.split(":")[1].strip() for line in kept] == [
        "service 4 (short)", "service 8 (removed)", "service 9 (rebuilt)"
    ]  # fmt: skip
    left = ids(empty)
    assert set(before["compute_nodes"]) - set(left["compute_nodes"]) == {14, 15}
    assert set(before["services"]) - set(left["services"]) == {13, 14}
    assert live(empty) == alive


def test_after_the_migration(
    empty: sa.Engine, database_url: str, tmp_path: pathlib.Path
) -> None:
    oddities.make(empty)
    command.inside(tmp_path, database_url, "db", "online_data_migrations")
    alive = live(empty)
    done = command.inside(tmp_path, database_url, *PURGE)
    assert done.returncode == 2
    assert "compute_nodes: purged 5, kept 0\n" in done.stdout
    assert "services: purged 4, kept 1\n" in done.stdout
    assert "kept: service 8 (removed): a live compute node refers" in done.stdout
    assert live(empty) == alive
    assert ids(empty)["compute_nodes"] == alive["compute_nodes"]
    assert ids(empty)["services"] == sorted([*alive["services"], 8])
    check = command.inside(tmp_path, database_url, "db", "check", "--json")
    assert command.found_ids(check) == oddities.FOUND_AFTERWARDS


def test_dates(empty: sa.Engine, database_url: str, tmp_path: pathlib.Path) -> None:
    """Services went in 2014, nodes in 2016, one service says nothing of when."""
    oddities.make(empty)
    command.inside(tmp_path, database_url, "db", "online_data_migrations")
    for date, nodes, services in (
        ("2014-05-01", 0, 0),
        # 13 has to wait for the node that only it tells the host of.
        ("2014-05-01T00:00:01", 0, 2),
        ("2016-05-01T02:00:00+02:00", 0, 0),
        ("2016-05-02", 2, 1),
    ):
        dry = command.inside(
            tmp_path, database_url, *PURGE, "--dry-run", "--before", date
        )
        done = command.inside(tmp_path, database_url, *PURGE, "--before", date)
        assert done.stdout in dry.stdout
        assert f"compute_nodes: purged {nodes}, kept 0\n" in done.stdout
        assert f"services: purged {services}, kept " in done.stdout
    # What the migration has just deleted, and what says no date.
    assert ids(empty)["compute_nodes"] == [*range(1, 14), 16]
    assert 14 in ids(empty)["services"]
    day = datetime.timedelta(days=1)
    list(purge.purge(empty, before=datetime.datetime.now(datetime.UTC) + day))
    assert ids(empty)["compute_nodes"] == live(empty)["compute_nodes"]
    assert 14 in ids(empty)["services"]


def test_days(
    store: db_store.DatabaseStore,
    engine: sa.Engine,
    database_url: str,
    tmp_path: pathlib.Path,
) -> None:
    now = datetime.datetime.now(datetime.UTC)
    t = models.compute_nodes
    for name, days in (("old", 11), ("new", 9)):
        made = store.compute_node_create({"host": name, "hypervisor_hostname": name})
        store.compute_node_destroy(made["id"], None)
        then = now - datetime.timedelta(days=days)
        with engine.begin() as c:
            c.execute(t.update().where(t.c.id == made["id"]).values(deleted_at=then))
    done = command.inside(tmp_path, database_url, *PURGE, "--days", "10")
    assert (done.returncode, done.stderr) == (0, "")
    assert "compute_nodes: purged 1, kept 0\n" in done.stdout
    with engine.connect() as connection:
        assert connection.execute(sa.select(t.c.host)).scalars().all() == ["new"]


def test_in_parts(engine: sa.Engine, database_url: str, tmp_path: pathlib.Path) -> None:
    with engine.begin() as c:
        for number in range(1, 16):
            juno.service(c, number, f"h{number}", deleted=number)
            juno.node(c, number, number, f"n{number}", deleted=number)
        juno.service(c, 16, "h1")
        juno.node(c, 16, 16, "n1")
    codes, purged = [], [0, 0]
    for _ in range(4):
        dry = command.inside(
            tmp_path, database_url, *PURGE, "--max-count=10", "--dry-run"
        )
        done = command.inside(tmp_path, database_url, *PURGE, "--max-count=10")
        assert (done.returncode, done.stdout) == (
            dry.returncode,
            dry.stdout.partition("\n")[2],
        )
        codes.append(done.returncode)
        counts = [
            int(line.split()[2].rstrip(","))
            for line in done.stdout.splitlines()
            if ": purged " in line
        ]
        purged = [a + b for a, b in zip(purged, counts, strict=True)]
    assert codes == [1, 1, 0, 0]
    assert purged == [15, 15]
    assert ids(engine) == {"compute_nodes": [16], "services": [16]}


def test_more_than_a_batch(engine: sa.Engine) -> None:
    with engine.begin() as c:
        for number in range(1, 1202):
            juno.service(c, number, f"h{number}", deleted=number)
    batches = [batch.purged for batch in purge.purge(engine)]
    assert batches == [500, 500, 201]
    assert list(purge.purge(engine)) == []


def test_what_another_table_refers_to(
    empty: sa.Engine, database_url: str, tmp_path: pathlib.Path
) -> None:
    """Nova's pci_devices has a foreign key to compute_nodes."""
    oddities.make(empty)
    with empty.begin() as c:
        juno.insert(c, "pci_devices", compute_node_id=14)
    done = command.inside(tmp_path, database_url, *PURGE)
    assert (done.returncode, done.stderr) == (2, "")
    assert "compute_nodes: purged 1, kept 1\n" in done.stdout
    assert "kept: compute node 14 (old-name): a table that is not" in done.stdout
    # Its service stays as well, and that isn't more to do.
    assert "services: purged 1, kept 3\n" in done.stdout
    assert "stuck: 4 rows had to stay, named above" in done.stdout


@pytest.mark.parametrize("revive", [True, False])
def test_a_row_that_came_back_meanwhile(engine: sa.Engine, revive: bool) -> None:
    """It was soft-deleted when it was looked for, and isn't when it's its turn."""
    store = db_store.DatabaseStore(engine)
    identity = {"host": "h", "hypervisor_hostname": "n"}
    first = store.compute_node_create(identity)
    store.compute_node_destroy(first["id"], None)
    look = purge._ids(models.compute_nodes, sa.not_(models.live(models.compute_nodes)),
                      0, 10)  # fmt: skip
    found = purge._scalars(engine, look)
    assert found == [first["id"]]
    if revive:
        store.compute_node_create(identity)
    condition = purge._purgeable(models.compute_nodes, None)
    batch = purge._remove(engine, models.compute_nodes, condition, found)
    assert batch.purged == int(not revive)
    again = store.compute_nodes()
    assert [node["uuid"] for node in again] == [first["uuid"]] * revive


def test_claims_of_a_purged_node_are_over_and_known(
    engine: sa.Engine, database_url: str, tmp_path: pathlib.Path
) -> None:
    fleet = claiming.Fleet(engine, "h1", "h2")
    over, live, other = fleet.ask("h1"), fleet.ask("h1"), fleet.ask("h2")
    fleet.claim(over, live, other)
    fleet.store.release(over["uuid"])
    fleet.store.confirm(live["uuid"])
    node = fleet.nodes.compute_node_get(uuid=fleet.uuids["h1"])
    fleet.nodes.compute_node_destroy(node["id"], "h1", force=True)
    dry = command.inside(tmp_path, database_url, *PURGE, "--dry-run")
    done = command.inside(tmp_path, database_url, *PURGE)
    assert (done.returncode, done.stderr) == (0, "")
    for answer in (dry, done):
        told = [t for t in answer.stdout.splitlines() if t.startswith("released: ")]
        assert told == [f"released: claim {live['uuid']}, whose compute node is purged"]
    # A message that comes late books nothing, on a node that is there either.
    for asked in (over, live):
        asked["candidates"] = [fleet.uuids["h1"], fleet.uuids["h2"]]
        assert fleet.claim(asked)[0]["outcome"] == "gone"
        with pytest.raises(errors.ClaimGone):
            fleet.store.confirm(asked["uuid"])
        fleet.store.release(asked["uuid"])
    assert fleet.used("h2") == (1, 0, 0)
    listed = fleet.store.claims(finished=True)
    assert {(c["uuid"], c["node"], c["state"]) for c in listed} == {
        (over["uuid"], None, "released"),
        (live["uuid"], None, "released"),
        (other["uuid"], fleet.uuids["h2"], "held"),
    }
    fleet.check()
    assert fleet.term is not None
    lease = (liveness.LEASE, claiming.LEADER, fleet.term)
    assert fleet.store.forget(*lease, seconds=3600) == 0
    assert fleet.store.forget(*lease, seconds=-60) == 2


def test_zero_dates_are_no_dates(
    engine: sa.Engine, database_url: str, tmp_path: pathlib.Path
) -> None:
    """They say no more than NULL about when a row was deleted."""
    if engine.dialect.name != "mysql":
        pytest.skip("no other database takes such dates")
    with engine.begin() as c:
        for number in (1, 2, 3):
            juno.service(c, number, f"h{number}", deleted=number)
            juno.node(c, number, number, f"n{number}", deleted=number)
        c.execute(sa.text("SET sql_mode = ''"))
        for table in ("compute_nodes", "services"):
            c.execute(sa.text(f"UPDATE {table} SET deleted_at = 0"))  # noqa: S608
            dates = "created_at = 0, updated_at = 0"
            c.execute(sa.text(f"UPDATE {table} SET {dates} WHERE id = 1"))  # noqa: S608
            dates = "created_at = '2014-10-16', updated_at = 0"
            c.execute(sa.text(f"UPDATE {table} SET {dates} WHERE id = 2"))  # noqa: S608
            dates = "updated_at = UTC_TIMESTAMP"
            c.execute(sa.text(f"UPDATE {table} SET {dates} WHERE id = 3"))  # noqa: S608
    engine.dispose()  # the session's mode
    done = command.inside(tmp_path, database_url, *PURGE, "--days", "7")
    assert (done.returncode, done.stderr) == (0, "")
    assert ids(engine) == {"compute_nodes": [1, 3], "services": [1, 3]}
    done = command.inside(tmp_path, database_url, *PURGE)
    assert (done.returncode, done.stderr) == (0, "")
    assert ids(engine) == {"compute_nodes": [], "services": []}
