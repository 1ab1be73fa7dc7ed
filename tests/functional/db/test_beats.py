"""Beats of the db driver, and the lowest level that runs, on three databases."""

import datetime
import json
import pathlib
from typing import Any

import pytest
import sqlalchemy as sa

from conductor.db import liveness
from conductor.db import models
from conductor.db import store as db_store
from conductor.db import types
from musterbook import levels
from tests import util
from tests.functional.db import command
from tests.functional.db import juno

COMPUTE = "nova-compute"
_T = models.services


@pytest.fixture
def live(engine: sa.Engine) -> liveness.LivenessStore:
    return liveness.LivenessStore(engine)


def register(store: db_store.DatabaseStore, host: str, **more: Any) -> int:
    values = {"host": host, "binary": COMPUTE, "topic": "compute", "report_count": 0}
    return int(store.service_create(values | more)["id"])


def put(engine: sa.Engine, host: str, **values: Any) -> None:
    """Write what no store would."""
    with engine.begin() as connection:
        connection.execute(_T.update().where(_T.c.host == host).values(values))


def stamp(store: db_store.DatabaseStore, service_id: int) -> datetime.datetime | None:
    found: datetime.datetime | None = store.service_get(id=service_id)["last_seen_up"]
    return found


def database_now(engine: sa.Engine) -> datetime.datetime:
    with engine.connect() as connection:
        found = connection.execute(sa.select(types.now())).scalar()
    assert found is not None
    return found


# -- what is a beat ----------------------------------------------------------------


def test_a_count_that_rises_is_stamped_by_the_database(
    store: db_store.DatabaseStore, engine: sa.Engine
) -> None:
    service = register(store, "web1")
    assert stamp(store, service) is None
    before = database_now(engine)
    store.service_update(service, {"report_count": 1})
    first = stamp(store, service)
    assert first is not None
    # SQLite's clock has milliseconds.
    tick = datetime.timedelta(milliseconds=1)
    assert before - tick <= first <= database_now(engine) + tick
    util.wait_until(lambda: database_now(engine) > first + tick)
    store.service_update(service, {"report_count": 2, "disabled": True})
    second = stamp(store, service)
    assert second is not None
    assert second > first


NO_BEATS: list[dict[str, Any]] = [
    {"disabled": True},
    {"disabled": True, "disabled_reason": "work"},
    {"forced_down": True},
    {"report_count": 5},  # the beat before, its answer having been lost
    {"report_count": 4, "disabled": False},
    {"report_count": 0},
    {"last_seen_up": datetime.datetime(2036, 1, 1, tzinfo=datetime.UTC)},
]


def test_nothing_else_is_a_beat(store: db_store.DatabaseStore) -> None:
    """A-LIV-4: an operator who edits a dead host doesn't make it live."""
    service = register(store, "web1")
    for values in NO_BEATS:
        store.service_update(service, {"report_count": 0})
        store.service_update(service, {"report_count": 5})
        before = stamp(store, service)
        store.service_update(service, values)
        assert stamp(store, service) == before, values


def test_a_beat_is_no_change_of_the_fleet(
    store: db_store.DatabaseStore, engine: sa.Engine
) -> None:
    def version() -> int | None:
        with engine.connect() as connection:
            return connection.execute(sa.select(_T.c.stream_version)).scalar()

    service = register(store, "web1")
    put(engine, "web1", stream_version=7)
    store.service_update(service, {"report_count": 1})
    assert version() == 7
    store.service_update(service, {"report_count": 2, "disabled": True})
    assert version() is None


# -- what the leader reads ---------------------------------------------------------


def test_legacy_hosts_are_read_with_the_age_of_their_beat(
    store: db_store.DatabaseStore, live: liveness.LivenessStore, engine: sa.Engine
) -> None:
    for host in ("new", "beats", "old", "future", "judged"):
        register(store, host)
    now = database_now(engine)

    def ago(seconds: int) -> datetime.datetime:
        return now - datetime.timedelta(seconds=seconds)

    put(engine, "beats", last_seen_up=ago(30), created_at=ago(9000))
    put(engine, "old", created_at=ago(9000))
    put(engine, "future", last_seen_up=ago(-500))
    put(engine, "judged", created_at=ago(9000), state="down", state_cause="no-db-beat")
    register(store, "other", binary="nova-conductor", topic="conductor")
    found = {row.host: row for row in live.granted(COMPUTE, lately=40.0)}
    # "old" was taken over from Juno, and nobody has seen it.
    assert found.keys() == {"new", "beats", "future", "judged"}
    unbeaten = {host for host, row in found.items() if row.registered_only}
    assert unbeaten == {"new", "judged"}
    ages = {host: row.beat_age for host, row in found.items()}
    for host, seconds in {"beats": 30, "future": -500, "judged": 9000}.items():
        assert ages[host] == pytest.approx(seconds, abs=20)
    assert all(row.incarnation is None for row in found.values())
    assert [row.host for row in live.granted(COMPUTE)] == ["beats", "future", "judged"]


def test_a_very_old_row_does_not_stand_in_the_granted_ones_way(
    live: liveness.LivenessStore, engine: sa.Engine
) -> None:
    live.grant("web1", COMPUTE, "compute", "p1", None, None, "secret", None)
    with engine.begin() as connection:
        juno.service(connection, 99, "WEB1", deleted=None)
        old = _T.update().where(_T.c.id == 99)
        connection.execute(old.values(last_seen_up=types.now(), forced_down=False))
    (row,) = live.granted(COMPUTE)
    assert (row.host, row.incarnation, row.beat_at) == ("web1", 1, None)


def test_no_statement_more_than_without_legacy_hosts(
    store: db_store.DatabaseStore, live: liveness.LivenessStore, engine: sa.Engine
) -> None:
    live.grant("web1", COMPUTE, "compute", "p1", None, None, "secret", None)
    seen: list[str] = []

    def note(_c: object, _u: object, statement: str, *_: object) -> None:
        seen.append(statement)

    sa.event.listen(engine, "before_cursor_execute", note)
    live.granted(COMPUTE, lately=40.0)
    assert [s.split()[0] for s in seen if s != "BEGIN"] == ["SELECT"]
    seen.clear()
    service = store.service_get_by_host_and_binary("web1", COMPUTE)["id"]
    seen.clear()
    store.service_update(service, {"report_count": 1})
    assert [s.split()[0] for s in seen if not s.startswith("BEGIN")] == ["UPDATE"]


def test_a_transition_of_a_legacy_host_is_written(
    store: db_store.DatabaseStore, live: liveness.LivenessStore, engine: sa.Engine
) -> None:
    register(store, "web1")
    term = live.acquire("liveness", "me", 60)
    assert term is not None

    def tell(before: str | None, state: str, cause: str) -> bool:
        (row,) = live.granted(COMPUTE, lately=3600)
        wanted = liveness.Transition(
            row.service_id, "web1", before, row.state_cause, None, state, cause,
            "seen", "leader", None,
        )  # fmt: skip
        return live.write("liveness", "me", term, [wanted], None)

    assert tell(None, "up", "db-beat")
    assert tell("up", "down", "no-db-beat")
    # It said hello since: this was decided about another.
    live.grant("web1", COMPUTE, "compute", "p1", None, None, "secret", None, version=1)
    late = liveness.Transition(
        1, "web1", "down", "no-db-beat", None, "up", "db-beat", "e", "leader", None
    )
    live.write("liveness", "me", term, [late], None)
    with engine.connect() as connection:
        query = sa.select(models.transitions.c.state, models.transitions.c.cause)
        found = connection.execute(query.order_by(models.transitions.c.id)).all()
    assert [tuple(row) for row in found] == [
        ("up", "db-beat"), ("down", "no-db-beat"),
    ]  # fmt: skip


# -- the lowest level that runs: lessons 33 to 36 ----------------------------------


def grant(live: liveness.LivenessStore, host: str, version: int) -> None:
    live.grant(
        host, COMPUTE, "compute", f"p-{host}", None, None, "secret", None,
        version=version,
    )  # fmt: skip


def test_the_lowest_level_is_that_of_who_runs(
    store: db_store.DatabaseStore, live: liveness.LivenessStore, engine: sa.Engine
) -> None:
    assert live.lowest_level(COMPUTE) is None  # nobody runs, which isn't 0
    grant(live, "web3", 3)
    assert live.lowest_level(COMPUTE) == 3
    assert live.lowest_level("nova-conductor") is None
    # Taken over, and never seen: it holds nobody back.
    with engine.begin() as connection:
        juno.service(connection, 90, "juno")
    assert live.lowest_level(COMPUTE) == 3
    for host, what in (
        ("gone", {"goodbye_at": types.now()}),
        ("dead", {"state": "down", "state_incarnation": 1}),
        ("forced", {"forced_down": True}),
        ("deleted", {"deleted": _T.c.id}),
    ):
        grant(live, host, 1)
        assert live.lowest_level(COMPUTE) == 1
        put(engine, host, **what)
        assert live.lowest_level(COMPUTE) == 3
    # Back after its goodbye, and nobody has looked for it yet.
    live.grant("dead", COMPUTE, "compute", "back", None, None, "s", 1, version=2)
    assert live.lowest_level(COMPUTE) == 2
    put(engine, "dead", state_incarnation=2)
    for state in ("up", "suspect", "unknown"):
        put(engine, "web3", state=state)
        assert live.lowest_level(COMPUTE) == 3
    legacy = register(store, "legacy")
    assert live.lowest_level(COMPUTE) == 3
    put(engine, "legacy", state="up")  # by its registration, it is yet to beat
    assert live.lowest_level(COMPUTE) == 0
    put(engine, "legacy", state=None)
    store.service_update(legacy, {"report_count": 1})
    assert live.lowest_level(COMPUTE) == 0
    assert list(live.holding_back(COMPUTE, 4)) == [("web3", 3), ("legacy", 0)]
    # Upgraded: the level is that of the process that was granted last.
    grant(live, "legacy", 4)
    assert live.lowest_level(COMPUTE) == 3
    live.grant("web3", COMPUTE, "compute", "p2", None, None, "s", 1, version=4)
    assert live.lowest_level(COMPUTE) == 4


def test_a_level_is_that_of_the_process_that_told_it(
    live: liveness.LivenessStore, engine: sa.Engine
) -> None:
    grant(live, "web1", 3)
    grant(live, "web2", 4)
    # A conductor of revision 0003 grants the host to another process.
    put(engine, "web1", incarnation=2, process_uuid="old", secret_hash="h")
    assert live.lowest_level(COMPUTE) == 0
    assert list(live.holding_back(COMPUTE, 4)) == [("web1", 0)]
    live.grant("web1", COMPUTE, "compute", "p3", None, None, "s", 2, version=4)
    assert live.lowest_level(COMPUTE) == 4


def test_the_level_is_nobodys_to_write(store: db_store.DatabaseStore) -> None:
    service = register(store, "web1", version=7)
    store.service_update(service, {"version": 9, "disabled": True})
    assert store.service_get(id=service)["version"] == 0


def test_db_check_names_who_holds_back(
    store: db_store.DatabaseStore,
    live: liveness.LivenessStore,
    database_url: str,
    tmp_path: pathlib.Path,
) -> None:
    ours = levels.SERVICE_LEVEL
    for host in ("web1", "web2"):
        store.compute_node_create({"host": host, "hypervisor_hostname": host})

    def told() -> tuple[Any, ...]:
        done = command.inside(tmp_path, database_url, "db", "check", "--json")
        assert done.returncode == 0, done.stdout
        answer = json.loads(done.stdout)
        return (
            answer["service_level"], answer["lowest_level"], answer["holding_back"],
        )  # fmt: skip

    grant(live, "web1", ours)
    grant(live, "web2", ours)
    assert told() == (ours, ours, [])
    done = command.inside(tmp_path, database_url, "db", "check")
    assert done.stdout == "nothing found\n"
    live.grant("web2", COMPUTE, "compute", "older", None, None, "s", 1)
    assert told() == (ours, 0, [{"host": "web2", "level": 0}])
    lines = command.inside(tmp_path, database_url, "db", "check").stdout.splitlines()
    assert lines[0].startswith("older agents: 1 ")
    assert ["web2", "0"] in [line.split() for line in lines]
    assert lines[-1] == "nothing found"
