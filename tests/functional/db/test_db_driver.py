"""Beats of granted agents, on three databases, also in rows as Nova writes them."""

import datetime
from typing import Any

import pytest
import sqlalchemy as sa

from conductor import grounds
from conductor.db import liveness
from conductor.db import models
from conductor.db import store as db_store
from conductor.db import types
from musterbook import errors
from tests import util
from tests.functional.db.test_beats import COMPUTE
from tests.functional.db.test_beats import database_now
from tests.functional.db.test_beats import put
from tests.functional.db.test_beats import register

_T = models.services
TICK = datetime.timedelta(milliseconds=1)  # SQLite's clock has milliseconds


@pytest.fixture
def live(engine: sa.Engine) -> liveness.LivenessStore:
    return liveness.LivenessStore(engine)


def grant(live: liveness.LivenessStore, host: str, number: int = 1) -> None:
    """Grant a host to its next process; the secret tells which one."""
    live.grant(
        host, COMPUTE, "compute", f"p{number}", None, None, f"secret-{number}",
        expected=number - 1 or None,
    )  # fmt: skip


def beat(live: liveness.LivenessStore, host: str, number: int = 1) -> None:
    live.beat(host, COMPUTE, number, f"secret-{number}")


def stored(engine: sa.Engine, host: str) -> dict[str, Any]:
    query = sa.select(_T).where(types.same_name(_T.c.host, host), models.live(_T))
    with engine.connect() as connection:
        return dict(connection.execute(query).mappings().one())


def as_nova_writes(engine: sa.Engine, host: str, **values: Any) -> None:
    """Insert a service with naive instants of UTC, as Nova's code does."""
    row: dict[str, Any] = {
        "host": host, "binary": COMPUTE, "topic": "compute", "report_count": 0,
        "disabled": False, "forced_down": False, "deleted": 0,
        "created_at": datetime.datetime(2020, 1, 1), "updated_at": None,  # noqa: DTZ001
        "deleted_at": None, "last_seen_up": None, **values,
    }  # fmt: skip
    plain = sa.table(
        "services",
        *(
            sa.column(name, sa.DateTime() if name.endswith(("_at", "_up")) else None)
            for name in row
        ),
    )
    with engine.begin() as connection:
        connection.execute(plain.insert().values(row))


def test_a_beat_is_stamped_by_the_database(
    live: liveness.LivenessStore, engine: sa.Engine
) -> None:
    grant(live, "web1")
    first = stored(engine, "web1")
    assert (first["last_seen_up"], first["beat_incarnation"]) == (None, None)
    put(engine, "web1", stream_version=7)
    before = database_now(engine)
    beat(live, "WEB1")
    after = stored(engine, "web1")
    assert before - TICK <= after["last_seen_up"] <= database_now(engine) + TICK
    changed = {name for name in after if after[name] != first[name]}
    # No change of the fleet, nor one that people made.
    assert changed == {
        "report_count", "last_seen_up", "beat_incarnation", "stream_version",
    }  # fmt: skip
    assert (after["report_count"], after["stream_version"]) == (1, 7)
    util.wait_until(lambda: database_now(engine) > after["last_seen_up"] + TICK)
    beat(live, "web1")
    assert stored(engine, "web1")["last_seen_up"] > after["last_seen_up"]
    put(engine, "web1", report_count=2**31 - 1)
    beat(live, "web1")
    assert stored(engine, "web1")["report_count"] == 1


def test_one_statement_for_a_beat(
    live: liveness.LivenessStore, engine: sa.Engine
) -> None:
    """Nova: two."""
    grant(live, "web1")
    beat(live, "web1")
    seen: list[str] = []

    def note(_c: object, _u: object, statement: str, *_: object) -> None:
        seen.append(statement)

    sa.event.listen(engine, "before_cursor_execute", note)
    beat(live, "web1")
    assert [statement.split()[0] for statement in seen] == ["UPDATE"]


def test_only_the_granted_process_beats(
    live: liveness.LivenessStore, engine: sa.Engine
) -> None:
    grant(live, "web1")
    beat(live, "web1")
    grant(live, "web1", 2)
    before = stored(engine, "web1")
    for number, secret in ((1, "secret-1"), (2, "guessed"), (3, "secret-3")):
        refused = errors.Superseded if number == 1 else errors.GrantForgotten
        with pytest.raises(refused):
            live.beat("web1", COMPUTE, number, secret)
    for host in ("web2", "x" * 300):
        with pytest.raises((errors.GrantForgotten, errors.Superseded)):
            live.beat(host, COMPUTE, 1, "secret-1")
    assert stored(engine, "web1") == before
    beat(live, "web1", 2)
    # Its service was deleted: it can't put itself back.
    put(engine, "web1", deleted=_T.c.id)
    with pytest.raises(errors.Superseded):
        beat(live, "web1", 2)


def judged(live: liveness.LivenessStore, lately: float = 40.0) -> Any:
    return grounds.Reader(live).read(lately)


def test_a_new_process_has_not_beaten_yet(
    live: liveness.LivenessStore, engine: sa.Engine
) -> None:
    grant(live, "web1")
    beat(live, "web1")
    found = judged(live)
    assert found.judged["web1"].by_beats
    assert found.beating == {"web1#1"}
    grant(live, "web1", 2)
    found = judged(live)
    assert not found.judged["web1"].by_beats
    assert found.judged["web1"].beat is None
    assert found.beating == frozenset()
    assert live.beats(COMPUTE) == []
    beat(live, "web1", 2)
    (row,) = live.beats(COMPUTE)
    assert (row.host, row.incarnation) == ("web1", 2)
    assert row.age == pytest.approx(0, abs=20)
    assert judged(live).judged["web1"].by_beats
    live.goodbye("web1", COMPUTE, 2, "secret-2")
    assert live.beats(COMPUTE) == []


def test_a_legacy_process_cannot_beat_for_the_granted_one(
    store: db_store.DatabaseStore, live: liveness.LivenessStore, engine: sa.Engine
) -> None:
    """It saves its service, and is no sign of life of who was granted since."""
    service = register(store, "web1")
    store.service_update(service, {"report_count": 5})
    grant(live, "web1")
    store.service_update(service, {"report_count": 6})
    assert not judged(live).judged["web1"].by_beats
    assert live.beats(COMPUTE) == []


def test_rows_as_nova_writes_them_are_taken_over(
    live: liveness.LivenessStore, engine: sa.Engine
) -> None:
    """Naive instants; NULL where Nova has it; updated_at says nothing (A-LIV-4)."""
    now = database_now(engine).replace(tzinfo=None, microsecond=0)

    def ago(seconds: int) -> datetime.datetime:
        return now - datetime.timedelta(seconds=seconds)

    as_nova_writes(
        engine, "beats", report_count=400, last_seen_up=ago(30), updated_at=ago(30)
    )
    as_nova_writes(engine, "edited", last_seen_up=ago(900), updated_at=ago(1))
    as_nova_writes(engine, "never", updated_at=ago(1))
    as_nova_writes(engine, "older", last_seen_up=ago(5), updated_at=ago(9000))
    found = judged(live)
    ages = {h: round(g.beat.age, -1) for h, g in found.judged.items() if g.beat}
    assert set(ages) == {"beats", "edited", "older"}
    assert abs(ages["beats"] - 30) <= 20
    assert abs(ages["edited"] - 900) <= 20
    assert abs(ages["older"] - 5) <= 20
    # Upgraded in place: the agent says hello, and beats into the same row.
    for host in ("beats", "never"):
        grant(live, host)
        assert judged(live).judged[host].beat is None
        beat(live, host)
    found = judged(live)
    for host, count in (("beats", 401), ("never", 1)):
        granted = found.judged[host].beat
        assert granted is not None
        assert granted.age == pytest.approx(0, abs=20)
        row = stored(engine, host)
        assert (row["report_count"], row["incarnation"]) == (count, 1)
        assert abs(row["last_seen_up"] - database_now(engine)) < datetime.timedelta(
            seconds=20
        )
