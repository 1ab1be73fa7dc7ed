"""Who keeps the lease: a leader that looks, and nobody who can't."""

from collections.abc import Iterator
import datetime
import pathlib
from typing import Any

import pytest
import sqlalchemy as sa

from conductor import grounds
from conductor import leader
from conductor import pings
from conductor.db import liveness
from conductor.db import models
from musterbook import errors
from tests import util
from tests.unit.conductor import test_leader as leading


class Records:
    """The real records, of which some calls fail on demand."""

    def __init__(self, store: liveness.LivenessStore) -> None:
        self._store = store
        self.failing: dict[str, Exception] = {}
        self.refused = 0  # writes to come that find the lease lost

    def __getattr__(self, name: str) -> Any:
        if name in self.failing:
            raise self.failing[name]
        return getattr(self._store, name)

    def write(self, *args: Any) -> bool:
        if "write" in self.failing:
            raise self.failing["write"]
        if self.refused:
            self.refused -= 1
            return False
        return self._store.write(*args)


@pytest.fixture
def world(tmp_path: pathlib.Path) -> Iterator[leading.World]:
    made = leading.World(tmp_path)
    yield made
    for standing in made.leaders:
        standing.stop()
    made.engine.dispose()


def lead(world: leading.World, records: Any, owner: str) -> leader.Leader:
    pinger = pings.Pinger(world.ask, lambda *item: None, workers=2)
    made = leader.Leader(
        records, lambda: world.group, pinger, leading.POLICY, leading.TIMING, owner
    )
    world.leaders.append(made)
    made.start()
    return made


def owner(world: leading.World) -> str | None:
    mark, _ = world.store.lease_mark(liveness.LEASE)
    return None if mark is None else mark.owner


@pytest.mark.parametrize(
    ("failing", "failure"),
    [
        (("granted", "unsettled"), errors.DatabaseBusy(reason="locked")),
        (("write",), errors.DatabaseUnavailable(reason="full")),
        (("granted", "unsettled"), ValueError("a defect")),
    ],
)
def test_a_leader_that_cannot_look_leaves_it_to_one_who_can(
    world: leading.World, failing: tuple[str, ...], failure: Exception
) -> None:
    records = Records(world.store)
    world.group.members.add(world.hello("web1"))
    lead(world, records, "one")
    world.wait("web1", "up", "in-group")
    lead(world, world.store, "two")
    records.failing = dict.fromkeys(failing, failure)
    world.group.members.clear()
    world.wait("web1", "down", "silent")
    assert owner(world) == "two"


def test_the_age_is_that_of_the_last_look(world: leading.World) -> None:
    records = Records(world.store)
    lead(world, records, "one")
    util.wait_until(lambda: world.store.outlook(liveness.LEASE).lease_fresh)
    records.failing = dict.fromkeys(("granted", "unsettled"), ValueError("a defect"))
    lasts = leading.TIMING.lease_interval * leader.LEASE_INTERVALS

    def age() -> float:
        return world.store.outlook(liveness.LEASE).lease_age or 0.0

    util.wait_until(lambda: age() > 4 * lasts)
    records.failing = {}
    util.wait_until(lambda: age() < lasts)
    assert owner(world) == "one"


def test_a_verdict_that_was_refused_is_decided_again(
    world: leading.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grounds, "FULL_EVERY", 3600.0)  # else it heals after 30 s
    records = Records(world.store)
    member = world.hello("web1")
    lead(world, records, "one")
    world.wait("web1", "suspect", "not-yet-joined")
    records.refused = 1
    world.group.members.add(member)
    world.wait("web1", "up", "in-group")
    assert records.refused == 0


def set_clock(world: leading.World, hours: float) -> None:
    """Let the stored times be as if the database's clock was set back by so much."""
    with world.engine.begin() as connection:
        found = connection.execute(sa.select(models.leases)).mappings().one()
        moved = {
            name: found[name] + datetime.timedelta(hours=hours)
            for name in ("renewed_at", "expires_at")
        }
        connection.execute(sa.update(models.leases).values(moved))


def test_a_clock_that_was_set_back_keeps_no_dead_leader(world: leading.World) -> None:
    assert world.store.acquire(liveness.LEASE, "dead", 60) == 1
    set_clock(world, 1)
    assert not world.store.outlook(liveness.LEASE).lease_fresh
    world.group.members.add(world.hello("web1"))
    lead(world, world.store, "two")
    world.wait("web1", "up", "in-group")
    assert owner(world) == "two"
    # Renewed once that look is over.
    util.wait_until(lambda: world.store.outlook(liveness.LEASE).lease_fresh)


def test_a_leader_that_renews_is_not_overdue(world: leading.World) -> None:
    lead(world, world.store, "one")
    util.wait_until(lambda: owner(world) == "one")
    made = lead(world, world.store, "two")
    polls = world.group.polls
    util.wait_until(lambda: world.group.polls > polls + 100)  # three leases
    assert owner(world) == "one"
    assert made is not None
