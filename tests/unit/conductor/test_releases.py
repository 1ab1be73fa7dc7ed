"""An operator ends a freeze: any conductor takes the word, the leader follows it."""

from collections.abc import Iterator
import pathlib

import pytest

from musterbook import errors
from tests import util
from tests.unit.conductor import test_leader
from tests.unit.servicegroup import fakes

HOSTS = [f"h{number}" for number in range(6)]


@pytest.fixture
def world(tmp_path: pathlib.Path) -> Iterator[test_leader.World]:
    made = test_leader.World(tmp_path)
    yield made
    for leading in made.leaders:
        leading.stop()
    made.engine.dispose()


def freezes(world: test_leader.World) -> list[tuple[str, str]]:
    found = world.store.outlook("liveness").freezes
    return [(scope, cause) for scope, cause, *_ in found]


def lose_all(world: test_leader.World) -> None:
    members = {world.hello(host) for host in HOSTS}
    world.group.members |= members
    world.lead()
    for host in HOSTS:
        world.wait(host, "up", "in-group")
    world.group.members.clear()
    util.wait_until(lambda: freezes(world) == [("nova", "mass-loss")])


def test_a_mass_loss_ends_on_an_operators_word(world: test_leader.World) -> None:
    lose_all(world)
    assert world.store.released() == []
    assert world.store.release_freeze("another", "me") == ([], [])
    assert world.store.release_freeze(None, "me") == (["nova"], [])
    util.wait_until(lambda: freezes(world) == [])
    for host in HOSTS:
        world.wait(host, "down", "silent")


def test_a_leader_that_comes_after_the_word_follows_it(
    world: test_leader.World,
) -> None:
    lose_all(world)
    world.leaders[0].stop()
    assert world.store.release_freeze("nova", "me") == (["nova"], [])
    evidence = world.store.outlook("liveness").freezes[0][3]
    assert evidence == "ended by me; the leader looks at it next"
    assert world.store.released() == ["nova"]
    world.lead()
    for host in HOSTS:
        world.wait(host, "down", "silent")
    util.wait_until(lambda: freezes(world) == [])


def test_what_nobody_can_see_stays_frozen(world: test_leader.World) -> None:
    world.group.members.add(world.hello("h1"))
    world.lead()
    world.wait("h1", "up", "in-group")
    world.group.fail = fakes.unavailable()
    util.wait_until(lambda: freezes(world) == [("", "group-unreachable")])
    assert world.store.release_freeze(None, "me") == ([], [""])
    assert world.store.released() == []
    age = world.store.frozen_for()
    assert age is not None
    assert 0 <= age < 60
    world.group.fail = None
    util.wait_until(lambda: world.store.frozen_for() is None)


def test_a_group_that_vanished_ends_on_an_operators_word(
    world: test_leader.World,
) -> None:
    world.group.members.add(world.hello("h1"))
    world.lead()
    world.wait("h1", "up", "in-group")
    world.group.fail = errors.GroupVanished(backend="x", group="compute")
    util.wait_until(lambda: freezes(world) == [("", "group-vanished")])
    assert world.store.release_freeze("", "me") == ([""], [])
    world.wait("h1", "down", "silent")
