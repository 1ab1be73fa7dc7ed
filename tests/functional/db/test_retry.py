"""Deadlocks and lost connections are tried again, then named."""

from concurrent import futures
import contextlib
import os
import threading
from typing import Any

from oslo_db import exception as oslo_exc
import pytest
import sqlalchemy as sa

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
