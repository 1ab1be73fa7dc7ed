"""musterbook-manage db online_data_migrations."""

from collections.abc import Callable
from collections.abc import Iterator
from concurrent import futures
import contextlib
import json
import pathlib
import signal
import subprocess
import threading
import time
from typing import Any

import pytest
import sqlalchemy as sa

from conductor.db import models
from conductor.db import online
from conductor.db import store as db_store
from musterbook import errors
from tests import util
from tests.functional.db import command
from tests.functional.db import juno
from tests.functional.db import legacy_fleet
from tests.functional.db import oddities
from tests.functional.db import sums

ACTION = ("db", "online_data_migrations")


def hosts(engine: sa.Engine, *, live: bool) -> dict[int, str | None]:
    t = models.compute_nodes
    condition = models.live(t) if live else t.c.deleted > 0
    with engine.connect() as connection:
        found = connection.execute(sa.select(t.c.id, t.c.host).where(condition))
        return {row.id: row.host for row in found}


def test_every_oddity(
    empty: sa.Engine, database_url: str, tmp_path: pathlib.Path
) -> None:
    oddities.make(empty)
    before = command.content(empty)
    predicted = command.manage(tmp_path, database_url, *ACTION, "--dry-run")
    assert (predicted.returncode, predicted.stderr) == (2, "")
    assert oddities.TOTALS in predicted.stdout
    assert command.content(empty) == before
    done = command.manage(tmp_path, database_url, *ACTION)
    assert (done.returncode, done.stderr) == (2, "")
    assert f"dry run: nothing is written\n{done.stdout}" == predicted.stdout
    assert hosts(empty, live=True) == oddities.HOSTS
    gone = hosts(empty, live=False)
    assert {n: gone[n] for n in oddities.RESOLVED} == oddities.RESOLVED
    assert gone.keys() - oddities.RESOLVED.keys() == {14, 15}
    named = [line for line in done.stdout.splitlines() if "compute node " in line]
    assert [line.split(" (")[0] for line in named] == [
        "resolved, soft-deleted: compute node 5",
        "stuck: compute node 6",
        "stuck: compute node 7",
        "resolved, soft-deleted: compute node 10",
        "migrated: compute node 11",
        "resolved, soft-deleted: compute node 13",
        "stuck: compute node 16",
    ]
    check = command.manage(tmp_path, database_url, "db", "check", "--json")
    assert command.found_ids(check) == oddities.FOUND_AFTERWARDS
    unconfirmed = json.loads(check.stdout)["information"]["unconfirmed_usage"]
    assert [row["id"] for row in unconfirmed] == oddities.UNCONFIRMED_AFTERWARDS
    sums.check(empty)


def test_nothing_but_the_shape_is_changed(empty: sa.Engine) -> None:
    oddities.make(empty)
    ours = {"host", "uuid", "service_id", "generation", "stream_version", "deleted"}
    ours |= {"booking"}
    t, s = models.compute_nodes, models.services
    kept = [
        sa.select(*(c for c in t.c if c.name not in ours)).order_by(t.c.id),
        sa.select(*(c for c in s.c if c.name not in ours - {"host"})).order_by(s.c.id),
    ]
    kept[0] = kept[0].where(t.c.id.not_in(oddities.RESOLVED))

    def content() -> list[Any]:
        with empty.connect() as connection:
            return [connection.execute(query).all() for query in kept]

    before = content()
    list(online.migrate(empty))
    assert content() == before


def test_again_does_nothing(
    engine: sa.Engine, database_url: str, tmp_path: pathlib.Path
) -> None:
    legacy_fleet.fill(engine, 5)
    first = command.inside(tmp_path, database_url, *ACTION)
    assert first.returncode == 0
    assert "compute_nodes: found 5, migrated 5, resolved 0, stuck 0\n" in first.stdout
    before = command.content(engine)
    again = command.inside(tmp_path, database_url, *ACTION)
    assert (again.returncode, again.stderr) == (0, "")
    assert "compute_nodes: found 0, migrated 0, resolved 0, stuck 0\n" in again.stdout
    assert again.stdout.splitlines()[-1].startswith("done")
    assert command.content(engine) == before


def test_it_is_what_a_save_makes(engine: sa.Engine) -> None:
    legacy_fleet.fill(engine, 2)
    store = db_store.DatabaseStore(engine)
    store.compute_node_update(1, {"running_vms": 1}, None)
    uuid = store.compute_node_get(id=2)["uuid"]
    list(online.migrate(engine))
    saved, migrated = (store.compute_node_get(id=number) for number in (1, 2))
    differ = {name for name in saved if saved[name] != migrated[name]}
    assert differ == {
        "id", "uuid", "host", "hypervisor_hostname", "running_vms", "updated_at"
    }  # fmt: skip
    assert migrated["uuid"] == uuid
    assert migrated["updated_at"] is None
    with engine.connect() as connection:
        query = sa.select(models.services.c.uuid).order_by(models.services.c.id)
        uuids = connection.execute(query).scalars().all()
    assert uuids == [store.service_get(id=number)["uuid"] for number in (1, 2)]


def test_batches_end_and_say_how(
    engine: sa.Engine, database_url: str, tmp_path: pathlib.Path
) -> None:
    """A-DB-3: 1000 rows of which one can't be migrated, three agents saving."""
    legacy_fleet.fill(engine, 1000)
    with engine.begin() as c:
        c.execute(sa.text("UPDATE compute_nodes SET service_id = 9999 WHERE id = 50"))
        c.execute(sa.text("UPDATE services SET uuid = id"))
    migrated = 0
    codes: list[int] = []
    with legacy_fleet.saving(database_url, 30, 998, 1000) as told:
        while not codes or codes[-1] == 1:
            done = command.inside(tmp_path, database_url, *ACTION, "--max-count", "100")
            codes.append(done.returncode)
            (line,) = [t for t in done.stdout.splitlines() if "compute_nodes: fou" in t]
            words = line.replace(",", "").split()
            found, moved, resolved, stuck = (int(n) for n in words[2::2])
            assert found == moved + resolved + stuck
            assert (resolved, stuck) == (0, 1)
            assert moved <= 100
            migrated += moved
    assert codes == [1] * (len(codes) - 1) + [2]
    # The three whose agents saved first weren't there to be migrated any more.
    assert 996 <= migrated <= 999
    assert "stuck: compute node 50 (host -, name node-50, service 9999)" in done.stdout
    assert "its service 9999 is gone" in done.stdout
    legacy_fleet.check_migrated(engine, 1000, {50})
    legacy_fleet.check_saves(engine, told)


def test_stuck_rows_do_not_use_the_count_up(
    engine: sa.Engine, database_url: str, tmp_path: pathlib.Path
) -> None:
    legacy_fleet.fill(engine, 30)
    with engine.begin() as c:
        c.execute(sa.text("UPDATE compute_nodes SET service_id = 99 WHERE id < 21"))
    # 10 nodes and 30 services are to be migrated.
    for expected in (1, 1, 1, 2, 2):
        before = command.inside(
            tmp_path, database_url, *ACTION, "--max-count=10", "--dry-run"
        )
        done = command.inside(tmp_path, database_url, *ACTION, "--max-count=10")
        assert (before.returncode, done.returncode) == (expected, expected)
        assert before.stdout.splitlines()[1:] == done.stdout.splitlines()


def test_the_bookmark_may_go(engine: sa.Engine) -> None:
    """A-DB-3, its kin: the last migrated row is deleted between two batches."""
    legacy_fleet.fill(engine, 250)
    batches = online.migrate(engine)
    assert next(batches).migrated == 100
    with engine.begin() as c:
        c.execute(sa.text("DELETE FROM compute_nodes WHERE id BETWEEN 90 AND 110"))
    assert sum(b.migrated for b in batches if b.table == "compute_nodes") == 140
    assert online.count(engine) == {"compute_nodes": 0, "services": 0}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_interrupted_and_run_again(
    engine: sa.Engine,
    database_url: str,
    tmp_path: pathlib.Path,
    number: signal.Signals,
) -> None:
    """In the middle of a batch: none of it is kept, and all that came before."""
    legacy_fleet.fill(engine, 1000)

    def left() -> int:
        return online.count(engine)["compute_nodes"]

    with stopper(engine, 450) as stops:
        running = subprocess.Popen(
            command.arguments(tmp_path, database_url, *ACTION),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        util.wait_until(stops, 90)
        running.send_signal(number)
        _, said = running.communicate(timeout=60)
    assert running.returncode == (130 if number == signal.SIGINT else -number)
    assert said == ""
    util.wait_until(lambda: left() == 600, 30, "the end of the batch's transaction")
    done = command.inside(tmp_path, database_url, *ACTION)
    assert done.returncode == 0
    assert "compute_nodes: found 600, migrated 600, " in done.stdout
    legacy_fleet.check_migrated(engine, 1000)


@contextlib.contextmanager
def stopper(engine: sa.Engine, number: int) -> Iterator[Callable[[], bool]]:
    """Make a migration stop at a row; yield what tells whether it waits there."""
    if engine.dialect.name == "sqlite":
        # Nobody is waited for by row there: keep the batch busy instead.
        trigger = (
            "CREATE TRIGGER stop BEFORE UPDATE ON compute_nodes WHEN old.id = {} BEGIN"
            " SELECT count(*) FROM services a, services b, services c; END"
        )
        with engine.begin() as connection:
            connection.execute(sa.text(trigger.format(number)))
        yield lambda: online.count(engine)["compute_nodes"] == 600
        with engine.begin() as connection:
            connection.execute(sa.text("DROP TRIGGER stop"))
        return
    t = models.compute_nodes
    with engine.connect() as other, other.begin():
        other.execute(sa.select(t.c.id).where(t.c.id == number).with_for_update())
        yield lambda: waits(engine)


def test_2000_rows_while_agents_save(
    engine: sa.Engine, database_url: str, tmp_path: pathlib.Path
) -> None:
    legacy_fleet.fill(engine, 2000)
    with legacy_fleet.saving(database_url, 50, 1, 2000) as told:
        done = command.manage(tmp_path, database_url, *ACTION)
    assert (done.returncode, done.stderr) == (0, "")
    legacy_fleet.check_migrated(engine, 2000)
    legacy_fleet.check_saves(engine, told)


def test_creators_meanwhile(engine: sa.Engine) -> None:
    """Agents that create while their host's row is migrated: never two of a kind."""
    legacy_fleet.fill(engine, 300)
    store = db_store.DatabaseStore(engine)
    started = threading.Barrier(5)

    def create(part: int) -> list[int]:
        started.wait(30)
        made = []
        for number in range(1 + part, 301, 4):
            values = {"host": f"HOST-{number}", "hypervisor_hostname": f"node-{number}"}
            try:
                made.append(store.compute_node_create(values)["id"])
            except errors.ComputeNodeExists:
                continue
        return made

    with futures.ThreadPoolExecutor(4) as pool:
        creates = [pool.submit(create, part) for part in range(4)]
        started.wait(30)
        batches = list(online.migrate(engine))
        assert [run.result() for run in creates] == [[], [], [], []]
    nodes = [batch for batch in batches if batch.table == "compute_nodes"]
    assert sum(batch.migrated for batch in nodes) == 300
    legacy_fleet.check_migrated(engine, 300)


def test_an_orphan_whose_host_comes_back_meanwhile(engine: sa.Engine) -> None:
    """It is adopted by the migration or by the creation: one row, and no failure."""
    with engine.begin() as c:
        for number in range(1, 201):
            juno.service(c, number, f"host-{number}", deleted=number)
            juno.node(c, number, number, f"node-{number}")
            juno.service(c, 1000 + number, f"host-{number}")
    store = db_store.DatabaseStore(engine)

    def create() -> int:
        made = 0
        for number in range(200, 0, -1):
            values = {"host": f"host-{number}", "hypervisor_hostname": f"node-{number}"}
            try:
                store.compute_node_create(values)
                made += 1
            except errors.ComputeNodeExists:
                continue
        return made

    with futures.ThreadPoolExecutor(1) as pool:
        creating = pool.submit(create)
        batches = list(online.migrate(engine))
        made = creating.result()
    nodes = [batch for batch in batches if batch.table == "compute_nodes"]
    assert sum(batch.migrated for batch in nodes) == 200 - made
    assert sum(batch.resolved for batch in nodes) == 0
    assert [row["id"] for row in store.compute_nodes()] == list(range(1, 201))
    names = [row["hypervisor_hostname"] for row in store.compute_nodes()]
    assert sorted(names) == sorted(f"node-{n}" for n in range(1, 201))


_WAITING = {
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx JOIN"
    " information_schema.processlist ON trx_mysql_thread_id = id"
    " WHERE trx_state = 'LOCK WAIT' AND db = DATABASE()",
    "postgresql": "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock'",
}


def waits(engine: sa.Engine) -> bool:
    """Return whether somebody waits for a lock in this database."""
    if engine.dialect.name == "mysql":
        # InnoDB fills innodb_trx anew only if nobody has read it for 0.1 s.
        time.sleep(0.2)
    with engine.connect() as connection:
        query = sa.text(_WAITING[engine.dialect.name])
        return bool(connection.execute(query).scalar())


def test_a_deadlock_is_run_again(engine: sa.Engine) -> None:
    """A-DB-1: somebody takes the locks in the opposite order."""
    if engine.dialect.name == "sqlite":
        pytest.skip("SQLite lets one writer in at a time")
    legacy_fleet.fill(engine, 100)

    def lock(connection: sa.Connection, table: sa.Table, row: int) -> None:
        query = sa.select(table.c.id).where(table.c.id == row).with_for_update()
        connection.execute(query).all()

    with futures.ThreadPoolExecutor(1) as pool, engine.connect() as other:
        transaction = other.begin()
        lock(other, models.compute_nodes, 70)
        running = pool.submit(lambda: list(online.migrate(engine)))
        util.wait_until(lambda: waits(engine), 30, "the migration waits for the row")
        try:
            lock(other, models.services, 70)
        except Exception:  # noqa: BLE001  # the database chose this one to lose
            transaction.rollback()
        else:
            transaction.commit()
        batches = running.result(60)
    assert sum(b.migrated for b in batches if b.table == "compute_nodes") == 100
    legacy_fleet.check_migrated(engine, 100)


def test_a_row_that_is_always_locked(
    engine: sa.Engine, database_url: str, tmp_path: pathlib.Path
) -> None:
    """More to do, and said so: neither done nor stuck."""
    if engine.dialect.name != "postgresql":
        pytest.skip("the longest wait is the same code everywhere, and takes long")
    legacy_fleet.fill(engine, 150)
    t = models.compute_nodes
    with engine.begin() as other:
        other.execute(sa.select(t.c.id).where(t.c.id == 120).with_for_update())
        done = command.inside(tmp_path, database_url, *ACTION)
    assert done.returncode == 1
    assert "compute_nodes: found 100, migrated 100, resolved 0, stuck 0" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("more to do, run it again: ")
    assert command.inside(tmp_path, database_url, *ACTION).returncode == 0
    legacy_fleet.check_migrated(engine, 150)


def test_names_that_only_the_database_takes_for_the_same(
    engine: sa.Engine, database_url: str, tmp_path: pathlib.Path
) -> None:
    """MySQL's collation equates accents too; what it refuses is named."""
    if engine.dialect.name != "mysql":
        pytest.skip("the others compare as names.fold does")
    legacy_fleet.fill(engine, 20)
    with engine.begin() as c:
        c.execute(sa.text("UPDATE services SET host = 'e' WHERE id = 7"))
        c.execute(sa.text("UPDATE compute_nodes SET service_id = 7 WHERE id = 9"))
        for number, name in ((7, "é"), (9, "e")):
            c.execute(
                sa.text(
                    "UPDATE compute_nodes SET hypervisor_hostname = :n WHERE id=:i"
                ),
                {"n": name, "i": number},
            )
    done = command.inside(tmp_path, database_url, *ACTION)
    assert done.returncode == 2
    assert "compute_nodes: found 20, migrated 19, resolved 0, stuck 1" in done.stdout
    assert "stuck: compute node 9 (host e, name e, service 7)" in done.stdout
