"""What the leader reads is what is stored, by few rows as by all."""

import datetime
import pathlib
import random
from typing import Any

import pytest
import sqlalchemy as sa

from conductor import grounds
from conductor.db import engine as db_engine
from conductor.db import liveness
from conductor.db import models
from tests import schema

_S = models.services
UP: dict[str, Any] = {
    "state": "up", "state_cause": "in-group", "state_incarnation": 1, "incarnation": 1,
    "goodbye_at": None, "stalled_reason": None, "forced_down": False, "deleted": 0,
}  # fmt: skip


class Table:
    """A table of services, a reader of it, and how often all of it was read."""

    def __init__(self, url: str) -> None:
        self.engine = db_engine.make_engine(url)
        schema.make(self.engine)
        self.store = liveness.LivenessStore(self.engine)
        self.full = 0
        granted = self.store.granted

        def counting(binary: str, lately: float = 0.0) -> list[liveness.GrantedRow]:
            self.full += 1
            return granted(binary, lately)

        self.store.granted = counting  # type: ignore[method-assign]
        self.reader = grounds.Reader(self.store)
        for number in range(1, 6):
            self.insert(number)

    def insert(self, number: int, **values: Any) -> None:
        own = {
            "id": number, "host": f"h{number}", "binary": "nova-compute",
            "uuid": f"u{number}", "report_count": 0, "disabled": False,
        }  # fmt: skip
        with self.engine.begin() as connection:
            connection.execute(_S.insert().values(own | UP | values))

    def change(self, number: int, **values: Any) -> None:
        with self.engine.begin() as connection:
            connection.execute(_S.update().where(_S.c.id == number).values(values))

    def check(self) -> grounds.Grounds:
        """Read, and compare with all that is stored but for the evidence."""
        found = self.reader.read(0.0)
        everything = {
            r.host: r
            for r in liveness.LivenessStore(self.engine).granted("nova-compute")
        }
        assert {h: facts(r) for h, r in found.rows.items()} == {
            h: facts(r) for h, r in everything.items()
        }
        assert found.incarnations == {
            h: r.incarnation or grounds.LEGACY for h, r in everything.items()
        }
        assert {h: g.host for h, g in found.judged.items()} == {
            h: h for h in everything
        }
        return found


#: Of a host whose agent beats and never said hello.
LEGACY = {
    "incarnation": None, "state": "up", "state_cause": "db-beat",
    "state_incarnation": None, "last_seen_up": sa.func.now(),
}  # fmt: skip


def test_a_legacy_host_is_read_each_time(table: Table) -> None:
    table.insert(9, **LEGACY)
    first = table.check()
    assert first.incarnations["h9"] == grounds.LEGACY
    beat = first.judged["h9"].beat
    assert beat is not None
    table.change(9, last_seen_up=datetime.datetime(2020, 1, 1))  # noqa: DTZ001  # as stored
    later = table.check().judged["h9"].beat
    assert later is not None
    assert later.at < beat.at
    table.change(9, incarnation=1)
    assert table.check().incarnations["h9"] == 1
    table.change(9, deleted=9)
    assert "h9" not in table.check().rows


def facts(row: liveness.GrantedRow) -> tuple[Any, ...]:
    return (
        row.service_id, row.incarnation, row.said_goodbye, row.stalled,
        row.forced_down, row.state, row.state_cause, row.state_incarnation, row.beat_at,
    )  # fmt: skip


@pytest.fixture
def table(tmp_path: pathlib.Path) -> Table:
    return Table(f"sqlite:///{tmp_path}/g.sqlite")


def test_the_same_object_while_nothing_changes(table: Table) -> None:
    first = table.check()
    assert table.check() is first
    assert table.check() is first
    assert table.full == 1


@pytest.mark.parametrize(
    "values",
    [
        {"goodbye_at": sa.func.now()},
        {"stalled_reason": "disk"},
        {"forced_down": True},
        {"state": "down", "state_cause": "silent"},
        {"state_cause": "not-yet-back"},
        {"state_incarnation": None},
        {"state": None, "state_cause": None},
    ],
)
def test_a_change_is_seen_and_taken_back_without_reading_all(
    table: Table, values: dict[str, Any]
) -> None:
    first = table.check()
    table.change(3, **values)
    second = table.check()
    assert second is not first
    assert table.check() is second
    table.change(3, **{name: UP[name] for name in values})
    assert table.check() is not second
    assert table.full == 1


@pytest.mark.parametrize(
    "act",
    [
        lambda t: t.change(3, deleted=3),
        lambda t: t.insert(9),
        lambda t: (t.change(3, deleted=3), t.insert(9)),
        lambda t: t.change(3, incarnation=2),
        lambda t: t.change(3, incarnation=2, state_incarnation=2),
        lambda t: t.change(3, incarnation=None),
        lambda t: t.insert(9, **LEGACY),
        # A granted row may have a twin.
        lambda t: t.insert(9, **LEGACY, host="H3", deleted=None),
    ],
)
def test_what_changes_among_the_settled_is_seen(table: Table, act: Any) -> None:
    table.check()
    act(table)
    table.check()


def test_any_changes_in_any_order(table: Table) -> None:
    change_at_random(table, 150)


def change_at_random(table: Table, times: int) -> None:
    """Change rows in ways that nobody may, and look after each time."""
    rng = random.Random(7)  # a test's choice
    changes: list[dict[str, Any]] = [
        {"incarnation": 2}, {"incarnation": 2, "state_incarnation": 2}, UP,
        {"goodbye_at": sa.func.now()}, {"stalled_reason": "x"}, {"forced_down": True},
        {"state": "suspect", "state_cause": "vanished"}, {"deleted": 77}, UP, UP,
        {"state": "up", "state_cause": "in-group", "goodbye_at": None},
    ]  # fmt: skip
    for _ in range(times):
        for _ in range(rng.randint(0, 3)):
            table.change(rng.randint(1, 5), **rng.choice(changes))
        table.check()


def test_all_is_read_from_time_to_time(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.check()
    monkeypatch.setattr(grounds, "FULL_EVERY", 0.0)
    table.check()
    assert table.full == 2
