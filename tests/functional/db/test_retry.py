"""Deadlocks and lost connections are tried again, then named."""

from collections.abc import Callable
from collections.abc import Iterator
from concurrent import futures
import contextlib
import os
import threading
from typing import Any
import uuid

from oslo_db import exception as oslo_exc
import pytest
import sqlalchemy as sa
from sqlalchemy import event

from conductor.db import engine as db_engine
from conductor.db import liveness
from conductor.db import models
from conductor.db import retry
from conductor.db import store as db_store
from conductor.db import types
from musterbook import errors

_OWN_ID = {"mysql": "SELECT CONNECTION_ID()", "postgresql": "SELECT pg_backend_pid()"}


def _kill(engine: sa.Engine, connection_id: int) -> None:
    with engine.connect() as other:
        if engine.dialect.name == "mysql":
            other.execute(sa.text(f"KILL {int(connection_id)}"))
        else:
            query = sa.text("SELECT pg_terminate_backend(:id, 5000)")
            other.execute(query, {"id": connection_id})


def test_deadlock_is_run_again(
    engine: sa.Engine, store: db_store.DatabaseStore
) -> None:
    ids = [
        store.compute_node_create({"host": "h", "hypervisor_hostname": name})["id"]
        for name in ("a", "b")
    ]
    both = threading.Barrier(2)
    attempts = []

    def add(order: list[int]) -> None:
        mine: list[int] = []

        def work(connection: sa.Connection) -> None:
            mine.append(1)
            attempts.append(1)
            for at, node_id in enumerate(order):
                t = models.compute_nodes
                change = t.update().where(t.c.id == node_id)
                connection.execute(change.values(vcpus=t.c.vcpus + 1))
                # SQLite lets one writer in at a time: no deadlock to provoke.
                if at == 0 and len(mine) == 1 and engine.dialect.name != "sqlite":
                    both.wait(30)

        retry.run(engine, work)

    with futures.ThreadPoolExecutor(2) as pool:
        for run in [pool.submit(add, ids), pool.submit(add, ids[::-1])]:
            run.result()
    assert [n["vcpus"] for n in store.compute_nodes()] == [2, 2]
    assert len(attempts) == (2 if engine.dialect.name == "sqlite" else 3)


def test_connection_lost_in_a_transaction(engine: sa.Engine) -> None:
    if engine.dialect.name == "sqlite":
        pytest.skip("there is no server to lose")
    seen: list[int] = []

    def work(connection: sa.Connection) -> int:
        own_id = connection.execute(sa.text(_OWN_ID[engine.dialect.name])).scalar_one()
        seen.append(own_id)
        if len(seen) == 1:
            _kill(engine, own_id)
        return int(connection.execute(sa.text("SELECT 7")).scalar_one())

    assert retry.run(engine, work) == 7
    assert len(set(seen)) == 2


def _lose_idle_connections(engine: sa.Engine, count: int) -> None:
    """Leave the pool with connections that the server has ended."""
    if engine.dialect.name == "sqlite":
        pytest.skip("there is no server to lose")
    own_id = sa.text(_OWN_ID[engine.dialect.name])
    with contextlib.ExitStack() as held:
        open_ones = [held.enter_context(engine.connect()) for _ in range(count)]
        ids = [one.execute(own_id).scalar_one() for one in open_ones]
    killer = sa.create_engine(engine.url, poolclass=sa.NullPool)
    for connection_id in ids:
        _kill(killer, connection_id)


def test_idle_connection_lost_before_a_read(engine: sa.Engine) -> None:
    _lose_idle_connections(engine, 5)
    assert retry.read(engine, lambda c: c.execute(sa.text("SELECT 7")).scalar()) == 7


def test_idle_connection_lost_before_a_transaction(
    engine: sa.Engine,
) -> None:
    _lose_idle_connections(engine, 5)
    runs: list[int] = []
    t = models.leases

    def work(connection: sa.Connection) -> None:
        for name in ("a", "b"):
            values = {"name": name, "owner": "", "term": 1}
            at = {"renewed_at": types.now(), "expires_at": types.now()}
            connection.execute(t.insert().values({**values, **at}))
        runs.append(1)

    retry.run(engine, work)
    # Nothing was done on the dead connection, so it was done once.
    assert runs == [1]
    with engine.connect() as connection:
        assert connection.execute(sa.select(t.c.name)).scalars().all() == ["a", "b"]


def test_idle_connection_lost_before_a_save(
    engine: sa.Engine, store: db_store.DatabaseStore
) -> None:
    made = store.compute_node_create({"host": "h", "hypervisor_hostname": "n"})
    _lose_idle_connections(engine, 5)
    store.compute_node_update(made["id"], {"vcpus": 3}, 0)
    stored = store.compute_node_get(id=made["id"])
    assert (stored["vcpus"], stored["generation"]) == (3, 1)


def test_a_failed_transaction_leaves_nothing(engine: sa.Engine) -> None:
    """Sessions of MySQL commit by themselves what isn't in a transaction."""
    t = models.leases

    def insert(connection: sa.Connection) -> None:
        values = {"name": "a", "owner": "", "term": 1}
        at = {"renewed_at": types.now(), "expires_at": types.now()}
        connection.execute(t.insert().values({**values, **at}))

    def fail(connection: sa.Connection) -> None:
        insert(connection)
        raise RuntimeError

    def names(connection: sa.Connection) -> list[str]:
        return list(connection.execute(sa.select(t.c.name)).scalars())

    with pytest.raises(RuntimeError):
        retry.run(engine, fail)
    assert retry.read(engine, names) == []
    with engine.connect() as connection:
        insert(connection)
        connection.rollback()
        insert(connection)
    assert retry.read(engine, names) == []
    retry.single(engine, insert)
    assert retry.read(engine, names) == ["a"]


def test_conflicts_without_end(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "_LONGEST_PAUSE", 0.001)
    attempts = []

    def work(connection: sa.Connection) -> None:
        attempts.append(1)
        raise oslo_exc.DBDeadlock

    with pytest.raises(errors.DatabaseBusy):
        retry.run(engine, work)
    assert len(attempts) == 8


def test_lock_held_by_somebody_else(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "_BUDGET", 0.0)
    live = liveness.LivenessStore(engine)
    live.acquire("leader", "a", 60)
    with engine.begin() as other:
        other.execute(models.leases.update().values(owner="x"))
        with pytest.raises(errors.DatabaseBusy) as caught:
            live.acquire("leader", "a", 60)
    assert "leases" not in str(caught.value)


def _lose_the_answer(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]
) -> None:
    """Let the server go right after the next commit, and something happen then."""
    commit = engine.dialect.do_commit
    own_id = _OWN_ID[engine.dialect.name]
    killer = sa.create_engine(engine.url, poolclass=sa.NullPool)

    def lose(connection: Any) -> None:
        commit(connection)
        monkeypatch.undo()
        cursor = connection.cursor()
        cursor.execute(own_id)
        _kill(killer, cursor.fetchone()[0])
        then()
        cursor.execute("SELECT 1")  # what the driver says then

    monkeypatch.setattr(engine.dialect, "do_commit", lose)


def test_a_lost_commit_is_never_said_not_to_be_made(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine.dialect.name == "sqlite":
        pytest.skip("there is no server to lose")
    monkeypatch.setattr(retry, "_ATTEMPTS", 2)
    second = pytest.MonkeyPatch()
    liveness.LivenessStore(engine).acquire("leader", "a", 60)
    change = models.leases.update().values(owner="x")
    wait = {
        "mysql": "SET SESSION innodb_lock_wait_timeout = 1",
        "postgresql": "SET lock_timeout = '1s'",
    }[engine.dialect.name]
    attempts = []

    def work(connection: sa.Connection) -> None:
        attempts.append(1)
        connection.execute(sa.text(wait))
        connection.execute(change)

    with engine.connect() as other:
        locked = sa.select(models.leases.c.owner).with_for_update()
        _lose_the_answer(engine, second, lambda: other.execute(locked))
        with pytest.raises(errors.DatabaseUnavailable, match="its answer was lost"):
            retry.run(engine, work)
        assert len(attempts) == 2
        # It was made: that it wasn't would have been a lie.
        assert other.execute(locked).scalars().all() == ["x"]


def test_killed_on_the_way_back_to_the_pool(engine: sa.Engine) -> None:
    """What is done is done: no error of the driver's comes of it, no place is lost."""
    if engine.dialect.name != "postgresql":
        pytest.skip("its drivers change nothing there")
    killer = sa.create_engine(engine.url, poolclass=sa.NullPool)
    killed = []

    def kill(connection: Any, record: Any, state: Any) -> None:
        killed.append(connection.info.backend_pid)
        _kill(killer, killed[-1])

    t = models.leases
    at = {"renewed_at": types.now(), "expires_at": types.now()}
    values = {"name": "a", "owner": "", "term": 1, **at}
    for _ in range(3):  # a connection's first uses may differ
        retry.read(engine, lambda c: c.execute(sa.select(t.c.name)).all())
    event.listen(engine, "reset", kill)
    retry.single(engine, lambda c: c.execute(t.insert().values(values)))
    event.remove(engine, "reset", kill)
    assert len(killed) == 1
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]  # QueuePool's
    event.listen(engine, "reset", kill)
    names = retry.read(engine, lambda c: c.execute(sa.select(t.c.name)).scalars().all())
    event.remove(engine, "reset", kill)
    assert names == ["a"]
    assert len(killed) == 2
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]


def test_errors_hold_no_sql(engine: sa.Engine) -> None:
    def run(statement: str, **values: Any) -> errors.MusterbookError:
        with pytest.raises(errors.MusterbookError) as caught:
            retry.run(engine, lambda c: c.execute(sa.text(statement), values))
        return caught.value

    missing = run("SELECT secretcolumn FROM nosuchtable")
    assert isinstance(missing, errors.DatabaseShape)
    wrong = run("SELECTT :a", a="secretvalue")
    assert isinstance(wrong, errors.DatabaseUnavailable)
    assert "unexpected error" in wrong.message
    for exc in (missing, wrong):
        assert "SELECT" not in exc.message
        assert "secret" not in exc.message


def test_errors_of_ours_roll_back_and_pass(engine: sa.Engine) -> None:
    def work(connection: sa.Connection) -> None:
        values = {"scope": "z", "cause": "c", "since": types.now(), "term": 1}
        connection.execute(models.freezes.insert().values(values))
        raise errors.MarkerNotFound(marker=1)

    with pytest.raises(errors.MarkerNotFound):
        retry.run(engine, work)
    assert (
        retry.read(engine, lambda c: c.execute(sa.select(models.freezes)).all()) == []
    )


# What eventlet (imported by libraries, in no use) and Python 3.12 say of any fork.
@pytest.mark.filterwarnings(r"ignore:Using fork\(\) is a bad idea:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_fork_gets_connections_of_its_own(engine: sa.Engine) -> None:
    live = liveness.LivenessStore(engine)
    assert live.acquire("parent", "a", 60) == 1
    child = os.fork()
    if child == 0:
        code = 1
        try:
            won = live.acquire("child", "b", 60)
            code = 0 if won == 1 else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert live.acquire("parent", "a", 60) == 1
    assert live.acquire("child", "c", 60) is None


@contextlib.contextmanager
def _lesser_user(engine: sa.Engine) -> Iterator[sa.Engine]:
    """Give an engine of a user who may do anything but UPDATE leases."""
    name = f"u{uuid.uuid4().hex[:12]}"
    url = engine.url
    if engine.dialect.name == "mysql":
        everywhere = "IDENTIFIED BY 's3cret'"
        make = [f"CREATE USER {name} {everywhere}"] + [
            f"GRANT SELECT, INSERT, DELETE ON {url.database}.{table} TO {name}"
            for table in models.METADATA.tables
        ]
        drop = [f"DROP USER {name}"]
    else:
        make = [
            f"CREATE USER {name} PASSWORD 's3cret'",
            f"GRANT SELECT, INSERT, DELETE ON ALL TABLES IN SCHEMA public TO {name}",
            f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {name}",
        ]
        drop = [f"DROP OWNED BY {name}", f"DROP USER {name}"]
    theirs = url.set(username=name, password="s3cret")
    with engine.begin() as connection:
        for statement in make:
            connection.execute(sa.text(statement))
    made = db_engine.make_engine(theirs.render_as_string(hide_password=False))
    try:
        yield made
    finally:
        made.dispose()
        with engine.begin() as connection:
            for statement in drop:
                connection.execute(sa.text(statement))


def test_a_missing_right_is_named_and_no_outage(
    engine: sa.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    if engine.dialect.name == "sqlite":
        pytest.skip("it has no users")
    with _lesser_user(engine) as theirs:
        store = liveness.LivenessStore(theirs)
        assert store.acquire("a", "me", 60) == 1
        caplog.clear()
        for _ in range(2):
            with pytest.raises(errors.DatabaseUnavailable) as caught:
                store.acquire("a", "me", 60)  # renews, so an UPDATE
            assert "its user may not UPDATE" in caught.value.message
            assert "leases" in caught.value.message
            assert "s3cret" not in caught.value.message
            # Who needs no such right goes on.
            assert store.outlook("a").lease_fresh
    ours = [r for r in caplog.records if r.name.startswith("conductor.")]
    said = [record.getMessage() for record in ours]
    assert len(said) == 1
    assert "its user may not UPDATE" in said[0]
    assert "lost" not in said[0]
