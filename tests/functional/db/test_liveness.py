"""Grants, lease, verdicts and the fleet on three databases."""

from concurrent import futures
import dataclasses
import datetime
from typing import Any

import pytest
import sqlalchemy as sa

from conductor.db import engine as db_engine
from conductor.db import liveness
from conductor.db import migration
from conductor.db import models
from conductor.db import retry
from conductor.db import store as db_store
from musterbook import errors
from tests import util
from tests.functional.db import juno

COMPUTE = "nova-compute"


@pytest.fixture
def live(engine: sa.Engine) -> liveness.LivenessStore:
    return liveness.LivenessStore(engine)


def hello(
    live: liveness.LivenessStore,
    who: str,
    expected: int | None,
    host: str = "Node1",
    secret: str | None = None,
) -> int:
    return live.grant(
        host, COMPUTE, "compute", who, "boot", "0.1.0", secret or f"s-{who}", expected
    )


def history(engine: sa.Engine) -> list[tuple[Any, ...]]:
    t = models.transitions.c
    query = sa.select(t.host, t.previous, t.state, t.cause, t.actor).order_by(t.id)
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(query)]


# -- grants ------------------------------------------------------------------------


def test_first_hello_creates_a_suspect_service(
    live: liveness.LivenessStore, engine: sa.Engine, store: db_store.DatabaseStore
) -> None:
    assert live.known("node1", COMPUTE) is None
    assert hello(live, "p1", None) == 1
    known = live.known("NODE1", COMPUTE)
    assert known is not None
    assert known.is_of("p1", "s-p1")
    assert not known.is_of("p1", "guess")
    assert not known.is_of("p2", "s-p1")
    assert dataclasses.replace(known, secret_hash=None) == liveness.KnownService(
        host="Node1", incarnation=1, process_uuid="p1", said_goodbye=False
    )
    row = store.service_get_by_host_and_binary("node1", COMPUTE)
    assert (row["state"], row["state_cause"]) == ("suspect", "not-yet-joined")
    assert (row["state_actor"], row["topic"]) == ("hello", "compute")
    assert row["state_since"].tzinfo is not None
    assert len(row["uuid"]) == 36
    assert history(engine) == [("Node1", None, "suspect", "not-yet-joined", "hello")]


def test_repeated_hello_gets_the_same_answer(live: liveness.LivenessStore) -> None:
    assert hello(live, "p1", None) == 1
    assert hello(live, "p1", None) == 1
    assert hello(live, "p1", 1) == 1
    # Somebody else under the same process uuid isn't the same process.
    with pytest.raises(liveness.GrantConflict):
        hello(live, "p1", None, secret="guess")


def test_next_hello_supersedes(live: liveness.LivenessStore) -> None:
    hello(live, "p1", None)
    live.verify("NODE1", COMPUTE, 1, "s-p1")
    with pytest.raises(liveness.GrantConflict):
        hello(live, "p2", None)
    with pytest.raises(liveness.GrantConflict):
        hello(live, "p2", 7)
    assert hello(live, "p2", 1, host="nODE1") == 2
    live.verify("node1", COMPUTE, 2, "s-p2")
    with pytest.raises(errors.Superseded) as caught:
        live.verify("node1", COMPUTE, 1, "s-p1")
    assert caught.value.incarnation == 1
    # What this database can't have granted.
    for incarnation, secret in ((2, "s-p1"), (1, "s-p2"), (3, "s-p2"), (3, "s-p3")):
        with pytest.raises(errors.GrantForgotten) as forgotten:
            live.verify("node1", COMPUTE, incarnation, secret)
        assert forgotten.value.incarnation == incarnation
    with pytest.raises(errors.Superseded):
        live.goodbye("node1", COMPUTE, 1, "s-p1")
    with pytest.raises(errors.Superseded):
        live.stalled("node1", COMPUTE, 1, "s-p1", "why")


def test_secret_is_not_stored(live: liveness.LivenessStore, engine: sa.Engine) -> None:
    hello(live, "p1", None, secret="open sesame")
    with engine.connect() as connection:
        row = connection.execute(sa.select(models.services)).one()
    assert "open sesame" not in str(row)


def test_deleted_service_has_no_grant(
    live: liveness.LivenessStore, store: db_store.DatabaseStore
) -> None:
    hello(live, "p1", None)
    old = store.service_get_by_host_and_binary("node1", COMPUTE)
    store.service_destroy(old["id"])
    with pytest.raises(errors.Superseded):
        live.verify("node1", COMPUTE, 1, "s-p1")
    assert live.known("node1", COMPUTE) is None
    with pytest.raises(liveness.GrantConflict):
        hello(live, "p2", 1)
    assert hello(live, "p2", None) == 2
    assert store.service_get_by_host_and_binary("node1", COMPUTE)["id"] != old["id"]


def test_a_database_that_was_emptied_has_forgotten(
    live: liveness.LivenessStore, engine: sa.Engine
) -> None:
    hello(live, "p1", None)
    with engine.begin() as connection:
        connection.execute(models.services.delete())
    for call in (live.verify, live.goodbye):
        with pytest.raises(errors.GrantForgotten) as caught:
            call("node1", COMPUTE, 1, "s-p1")
        assert (caught.value.host, caught.value.incarnation) == ("node1", 1)
    assert renew(live, "p1", None, had=1) == 2
    live.verify("node1", COMPUTE, 2, "s-p1")
    # An answer that was lost is given again.
    assert renew(live, "p1", 2, had=1) == 2
    assert history(engine)[-1] == ("Node1", None, "unknown", "grant-forgotten", "hello")


def renew(
    live: liveness.LivenessStore, who: str, expected: int | None, had: int
) -> int:
    return live.grant(
        "Node1", COMPUTE, "compute", who, None, None, f"s-{who}", expected, had
    )


def test_a_database_that_was_set_back_has_forgotten(
    live: liveness.LivenessStore, engine: sa.Engine
) -> None:
    hello(live, "p1", None)
    with engine.begin() as connection:
        before = connection.execute(sa.select(models.services)).mappings().one()
    hello(live, "p2", 1)
    hello(live, "p3", 2)
    with engine.begin() as connection:
        connection.execute(models.services.update().values(dict(before)))
    with pytest.raises(errors.GrantForgotten):
        live.verify("node1", COMPUTE, 3, "s-p3")
    assert renew(live, "p3", 1, had=3) == 4
    assert history(engine)[-1] == (
        "Node1", "suspect", "unknown", "grant-forgotten", "hello",
    )  # fmt: skip
    # Back to the first time line, in which the same process has another number.
    with engine.begin() as connection:
        connection.execute(models.services.update().values(incarnation=3))
    with pytest.raises(errors.GrantForgotten):
        live.verify("node1", COMPUTE, 4, "s-p3")
    assert renew(live, "p3", 3, had=4) == 3


def test_what_was_deleted_was_not_forgotten(
    live: liveness.LivenessStore, store: db_store.DatabaseStore
) -> None:
    hello(live, "p1", None)
    hello(live, "p2", 1)
    service = store.service_get_by_host_and_binary("node1", COMPUTE)
    store.service_destroy(service["id"])
    # Whoever registers anew isn't taken for the deleted one, which may be in the group.
    assert hello(live, "p3", None) == 3
    with pytest.raises(errors.Superseded):
        live.verify("node1", COMPUTE, 2, "s-p2")


@pytest.mark.parametrize("known", [False, True])
def test_of_eight_hellos_one_is_granted(
    live: liveness.LivenessStore, database_url: str, known: bool
) -> None:
    expected = hello(live, "old", None) if known else None
    engines = [db_engine.make_engine(database_url) for _ in range(4)]
    stores = [liveness.LivenessStore(engine) for engine in engines]
    with futures.ThreadPoolExecutor(8) as pool:
        runs = [pool.submit(hello, stores[i % 4], f"p{i}", expected) for i in range(8)]
        outcomes = [run.exception() or run.result() for run in runs]
    for engine in engines:
        engine.dispose()
    granted = [i for i, o in enumerate(outcomes) if isinstance(o, int)]
    assert len(granted) == 1, outcomes
    assert sum(isinstance(o, liveness.GrantConflict) for o in outcomes) == 7
    assert outcomes[granted[0]] == (2 if known else 1)
    found = live.known("node1", COMPUTE)
    assert found is not None
    assert found.process_uuid == f"p{granted[0]}"
    assert len(live.granted(COMPUTE)) == 1


def test_goodbye_and_stall(live: liveness.LivenessStore, engine: sa.Engine) -> None:
    hello(live, "p1", None)
    live.stalled("node1", COMPUTE, 1, "s-p1", "disk " + "\U0001f4a5" * 300)
    (row,) = live.granted(COMPUTE)
    assert row.stalled is not None
    assert row.stalled.startswith("disk ??")
    assert len(row.stalled) == 255
    live.stalled("node1", COMPUTE, 1, "s-p1", None)
    live.goodbye("node1", COMPUTE, 1, "s-p1")
    (row,) = live.granted(COMPUTE)
    assert (row.said_goodbye, row.stalled) == (True, None)
    with engine.connect() as connection:
        first = connection.execute(sa.select(models.services.c.goodbye_at)).scalar()
    live.goodbye("node1", COMPUTE, 1, "s-p1")
    with engine.connect() as connection:
        again = connection.execute(sa.select(models.services.c.goodbye_at)).scalar()
    assert again == first
    hello(live, "p2", 1)
    (row,) = live.granted(COMPUTE)
    assert (row.said_goodbye, row.incarnation) == (False, 2)
    # The verdict is the leader's; a hello doesn't touch it.
    assert (row.state, row.state_incarnation) == ("suspect", 1)


def test_values_that_do_not_fit(live: liveness.LivenessStore) -> None:
    with pytest.raises(errors.InvalidInput):
        hello(live, "p" * 37, None)
    with pytest.raises(errors.InvalidInput):
        hello(live, "p1", None, host="h" * 256)
    with pytest.raises(errors.Superseded):
        live.verify("\0", COMPUTE, 1, "x")


# -- lease -------------------------------------------------------------------------


def test_lease_changes_hands_only_when_it_ran_out(
    live: liveness.LivenessStore,
) -> None:
    assert live.acquire("leader", "a", 60) == 1
    assert live.acquire("leader", "b", 60) is None
    assert live.acquire("leader", "a", 0.3) == 1
    assert util.wait_until(lambda: live.acquire("leader", "b", 60)) == 2
    assert live.acquire("leader", "a", 60) is None
    live.release("leader", "a", 1)
    live.release("leader", "b", 1)
    assert live.acquire("leader", "a", 60) is None
    live.release("leader", "b", 2)
    assert live.acquire("leader", "a", 60) == 3
    assert live.acquire("other", "b", 60) == 1


def test_who_is_frozen_in_a_transaction_keeps_the_lease_from_nobody(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db_engine, "_IDLE_SECONDS", 1)
    engine = db_engine.make_engine(database_url)
    if engine.dialect.name == "sqlite":
        pytest.skip("there is no server")
    migration.sync(engine)
    live = liveness.LivenessStore(engine)
    assert live.acquire("leader", "a", 0.2) == 1
    attempts = []

    def freeze(connection: sa.Connection) -> int:
        attempts.append(connection)
        lease = sa.select(models.leases.c.term).with_for_update()
        found = connection.execute(lease).scalar_one()
        if len(attempts) == 1:
            # Not even its locks outlast the limit.
            other = liveness.LivenessStore(engine)
            assert util.wait_until(lambda: other.acquire("leader", "b", 60)) == 2
            connection.execute(lease)
        return int(found)

    # Its connection is lost; what it was about is done again, from what is stored.
    assert retry.run(engine, freeze) == 2
    assert len(attempts) == 2
    engine.dispose()


def test_late_renewal_keeps_the_term(live: liveness.LivenessStore) -> None:
    assert live.acquire("leader", "a", 0.01) == 1
    util.wait_until(lambda: not live.outlook("leader").lease_fresh)
    assert live.acquire("leader", "a", 60) == 1


def test_of_eight_candidates_one_leads(
    live: liveness.LivenessStore,
) -> None:
    for term in (1, 2):
        with futures.ThreadPoolExecutor(8) as pool:
            runs = [
                pool.submit(live.acquire, "leader", f"c{term}{i}", 60) for i in range(8)
            ]
            won = [i for i, run in enumerate(runs) if run.result() is not None]
        assert len(won) == 1
        assert runs[won[0]].result() == term
        live.release("leader", f"c{term}{won[0]}", term)


def test_outlook(live: liveness.LivenessStore) -> None:
    assert live.outlook("leader") == liveness.Outlook(False, None, [])
    live.acquire("leader", "a", 60)
    found = live.outlook("leader")
    assert found.lease_fresh
    assert found.lease_age is not None
    assert 0 <= found.lease_age < 30
    live.release("leader", "a", 1)
    assert not live.outlook("leader").lease_fresh


# -- verdicts ----------------------------------------------------------------------


def transition(
    row: liveness.GrantedRow, state: str, **more: Any
) -> liveness.Transition:
    values: dict[str, Any] = {
        "service_id": row.service_id,
        "host": row.host,
        "previous": row.state,
        "previous_cause": row.state_cause,
        "previous_incarnation": row.state_incarnation,
        "state": state,
        "cause": "joined",
        "evidence": "member Node1#1",
        "actor": "leader a",
        "incarnation": row.incarnation,
    }
    return liveness.Transition(**values | more)


def test_transitions_are_written_with_their_history(
    live: liveness.LivenessStore, engine: sa.Engine
) -> None:
    hello(live, "p1", None)
    term = live.acquire("leader", "a", 60)
    assert term == 1
    (row,) = live.granted(COMPUTE)
    assert live.write("leader", "a", 1, [transition(row, "up")], None)
    (after,) = live.granted(COMPUTE)
    assert (after.state, after.state_cause) == ("up", "joined")
    assert (after.state_incarnation, after.state_evidence) == (1, "member Node1#1")
    assert history(engine)[1:] == [("Node1", "suspect", "up", "joined", "leader a")]
    # Decided from what is no longer stored: neither state nor history change.
    stale = [
        transition(row, "down"),
        transition(after, "down", incarnation=2),
        transition(after, "down", service_id=row.service_id + 1),
    ]
    assert live.write("leader", "a", 1, stale, None)
    assert live.granted(COMPUTE) == [after]
    assert len(history(engine)) == 2


def test_a_transition_that_is_written_twice_is_stored_once(
    live: liveness.LivenessStore, engine: sa.Engine
) -> None:
    hello(live, "p1", None)
    live.acquire("leader", "a", 60)
    (row,) = live.granted(COMPUTE)
    # To the same state for another cause; the answer to the commit was lost.
    change = [transition(row, "suspect", cause="vanished")]
    assert live.write("leader", "a", 1, change, None)
    (once,) = live.granted(COMPUTE)
    assert live.write("leader", "a", 1, change, None)
    assert live.granted(COMPUTE) == [once]
    assert len(history(engine)) == 2
    # Of a new incarnation, which ends up in the state and cause of the one before.
    hello(live, "p2", 1)
    (row,) = live.granted(COMPUTE)
    change = [transition(row, "suspect", cause="vanished")]
    assert live.write("leader", "a", 1, change, None)
    assert live.write("leader", "a", 1, change, None)
    assert len(history(engine)) == 3


def test_an_operator_ends_a_hold_for_flapping(
    live: liveness.LivenessStore, engine: sa.Engine
) -> None:
    hello(live, "p1", None)
    live.acquire("leader", "a", 60)
    (row,) = live.granted(COMPUTE)
    live.reset_flapping("node1", COMPUTE, "me")
    assert live.granted(COMPUTE) == [row]  # it wasn't held
    held = [transition(row, "suspect", cause="flapping")]
    assert live.write("leader", "a", 1, held, None)
    (held_row,) = live.granted(COMPUTE)
    for _ in range(2):
        live.reset_flapping("NODE1", COMPUTE, "me")
        (row,) = live.granted(COMPUTE)
        assert (row.state, row.state_cause) == ("suspect", "flapping-reset")
        assert history(engine)[2:] == [
            ("Node1", "suspect", "suspect", "flapping-reset", "me")
        ]
    # What the leader decides from what it read before is too late.
    assert live.write("leader", "a", 1, [transition(held_row, "up")], None)
    assert live.granted(COMPUTE) == [row]
    with pytest.raises(errors.ServiceNotFound) as caught:
        live.reset_flapping("node2", COMPUTE, "me")
    assert "node2" in caught.value.message


def test_the_recent_history_is_that_of_those_who_changed(
    live: liveness.LivenessStore, engine: sa.Engine
) -> None:
    hello(live, "p1", None)
    hello(live, "p1", None, host="Node2")
    live.acquire("leader", "a", 60)
    one = live.granted(COMPUTE)[0]
    assert live.write("leader", "a", 1, [transition(one, "up")], None)
    assert [
        (past.host, past.state, past.cause) for past in live.recent(COMPUTE, 600)
    ] == [
        ("Node1", "suspect", "not-yet-joined"),
        ("Node2", "suspect", "not-yet-joined"),
        ("Node1", "up", "joined"),
    ]
    assert all(0 <= past.age < 60 for past in live.recent(COMPUTE, 600))
    assert live.recent("nova-conductor", 600) == []
    with engine.begin() as connection:
        long_ago = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
        history_of, services = models.transitions, models.services
        joined = history_of.update().where(history_of.c.cause == "not-yet-joined")
        connection.execute(joined.values(at=long_ago))
        quiet = services.update().where(services.c.host == "Node2")
        connection.execute(quiet.values(state_since=long_ago))
    assert [(past.host, past.state) for past in live.recent(COMPUTE, 600)] == [
        ("Node1", "up")
    ]


def test_who_lost_the_lease_writes_nothing(
    live: liveness.LivenessStore, engine: sa.Engine
) -> None:
    hello(live, "p1", None)
    live.acquire("leader", "a", 60)
    (row,) = live.granted(COMPUTE)
    change = [transition(row, "up")]
    freeze = {"": ("backend", None)}
    assert not live.write("leader", "b", 1, change, freeze)
    assert not live.write("leader", "a", 2, change, freeze)
    assert not live.write("nobody", "a", 1, change, freeze)
    live.acquire("leader", "a", 0.01)
    util.wait_until(lambda: not live.outlook("leader").lease_fresh)
    assert not live.write("leader", "a", 1, change, freeze)
    assert live.granted(COMPUTE) == [row]
    assert live.outlook("leader").freezes == []
    assert len(history(engine)) == 1


def test_many_transitions_at_once(
    live: liveness.LivenessStore, engine: sa.Engine
) -> None:
    with engine.begin() as connection:
        connection.execute(
            models.services.insert(),
            [
                {"host": f"n{i}", "binary": COMPUTE, "topic": "compute"}
                | {"report_count": 0, "deleted": 0, "incarnation": 1}
                for i in range(1100)
            ],
        )
    live.acquire("leader", "a", 60)
    rows = live.granted(COMPUTE)
    assert live.write("leader", "a", 1, [transition(r, "up") for r in rows], None)
    assert {r.state for r in live.granted(COMPUTE)} == {"up"}
    assert len(history(engine)) == 1100


def test_freezes_are_replaced_as_a_set(
    live: liveness.LivenessStore, engine: sa.Engine
) -> None:
    live.acquire("leader", "a", 60)
    assert live.write(
        "leader", "a", 1, [], {"": ("backend", "e"), "z1": ("mass", None)}
    )
    first = live.outlook("leader").freezes
    assert [(f[0], f[1], f[3]) for f in first] == [
        ("", "backend", "e"),
        ("z1", "mass", None),
    ]
    assert live.write(
        "leader", "a", 1, [], {"z1": ("mass", "7 of 9"), "z2": ("x", None)}
    )
    second = live.outlook("leader").freezes
    assert [f[0] for f in second] == ["z1", "z2"]
    assert second[0][2] == first[1][2]
    assert second[0][3] == "7 of 9"
    seen: list[str] = []

    def note(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        seen.append(statement.split()[0])

    sa.event.listen(engine, "before_cursor_execute", note)
    assert live.write("leader", "a", 1, [], None)
    assert seen == []
    assert live.write(
        "leader", "a", 1, [], {"z1": ("mass", "7 of 9"), "z2": ("x", None)}
    )
    sa.event.remove(engine, "before_cursor_execute", note)
    assert {"INSERT", "UPDATE", "DELETE"}.isdisjoint(seen)


# -- fleet -------------------------------------------------------------------------


def test_fleet(
    live: liveness.LivenessStore, store: db_store.DatabaseStore, engine: sa.Engine
) -> None:
    hello(live, "p1", None)
    node = {"vcpus": 4, "memory_mb": 100, "local_gb": 10}
    for host in ("NODE1", "alone"):
        store.compute_node_create(node | {"host": host, "hypervisor_hostname": "hv"})
    with engine.begin() as connection:
        juno.service(connection, 50, "old")
        juno.service(connection, 51, "dead", deleted=51)
        juno.node(connection, 60, 50, "hv-old")
        juno.node(connection, 61, 51, "hv-orphan")
        # A very old live row beside the one that said hello.
        juno.service(connection, 52, "node1", deleted=None, topic="t")
    found = live.fleet()
    rows = [dict(zip(found.names, row, strict=True)) for row in found.rows]
    assert [(r["host"], r["state"], r["disabled"]) for r in rows] == [
        ("NODE1", "suspect", False),
        ("alone", None, None),
        ("old", None, False),
    ]
    assert rows[0]["incarnation"] == 1
    assert rows[2]["uuid"] == store.compute_node_get(id=60)["uuid"]
    assert rows[2]["service_uuid"] == store.service_get(id=50)["uuid"]
    assert rows[1]["service_uuid"] is None
    assert [(r["said_goodbye"], r["state_incarnation"]) for r in rows] == [
        (False, 1),
        (None, None),
        (False, None),
    ]
    live.goodbye("node1", COMPUTE, 1, "s-p1")
    words = ["said_goodbye", "incarnation", "state_incarnation"]
    assert live.fleet(words).rows[0] == (True, 1, 1)
    hello(live, "p2", 1)
    assert live.fleet(words).rows[0] == (False, 2, 1)
    few = live.fleet(["host", "free_ram_mb"])
    assert few.rows == [("NODE1", 100), ("alone", 100), ("old", 11392)]
    with pytest.raises(errors.InvalidInput):
        live.fleet(["secret_hash"])
