"""The leader's canary: wanted, seen, missed, brought back, and gone at the end."""

from collections.abc import Iterator
import threading

import pytest

from conductor import canary
from musterbook import errors
from musterbook.servicegroup import driver as group_driver
from musterbook.servicegroup import traits
from tests import util
from tests.unit.servicegroup import fakes


class Backend:
    """Keeps members of groups, until it doesn't."""

    def __init__(self) -> None:
        self.groups: dict[str, set[str]] = {}
        self.fail: errors.GroupError | None = None
        self.open = 0
        self.joins = threading.Semaphore(0)


class Driver(group_driver.GroupDriver):
    traits = traits.TRAITS["memcached"]
    member = ""
    member_timeout = 1.0

    def __init__(self, backend: Backend, member: str) -> None:
        self._backend = backend
        self._name = member

    def start(self) -> None:
        if self._backend.fail is not None:
            raise self._backend.fail
        self._backend.open += 1

    def stop(self) -> None:
        self._backend.open -= 1

    def join(self, group: str) -> None:
        self._backend.groups.setdefault(group, set()).add(self._name)
        self._backend.joins.release()

    def leave(self, group: str) -> None:
        self._backend.groups.get(group, set()).discard(self._name)

    def beat(self) -> None: ...

    def is_visible(self, group: str) -> bool:
        return self._name in self._backend.groups.get(group, ())

    def get_all(self, group: str) -> frozenset[str]:
        if self._backend.fail is not None:
            raise self._backend.fail
        if group not in self._backend.groups:
            raise fakes.vanished()
        return frozenset(self._backend.groups[group])


@pytest.fixture
def backend() -> Backend:
    return Backend()


@pytest.fixture
def bird(backend: Backend) -> Iterator[canary.Canary]:
    made = canary.Canary(lambda name: Driver(backend, name), "u1", 0.05)
    yield made
    made.stop()


NOBODY = frozenset[str]()


def test_nothing_is_connected_before_it_is_wanted(
    backend: Backend, bird: canary.Canary
) -> None:
    bird.want(False)
    assert bird.look(NOBODY) is None
    assert backend.open == 0


def test_it_is_seen_in_a_group_of_its_own(
    backend: Backend, bird: canary.Canary
) -> None:
    bird.want(True)
    util.wait_until(lambda: bird.look(NOBODY))
    assert backend.groups == {canary.GROUP: {"canary-u1"}}
    bird.want(False)  # it stays: the next loss may come soon
    assert bird.look(fakes.vanished())
    bird.stop()
    assert backend.groups == {canary.GROUP: set()}
    assert backend.open == 0


def test_a_backend_that_has_lost_it_is_told_by_it(
    backend: Backend, bird: canary.Canary
) -> None:
    bird.want(True)
    util.wait_until(lambda: bird.look(NOBODY))
    backend.groups.clear()
    assert bird.look(NOBODY) is False
    # And it comes back.
    util.wait_until(lambda: bird.look(NOBODY))


def test_a_backend_that_does_not_answer_tells_nothing(
    backend: Backend, bird: canary.Canary
) -> None:
    bird.want(True)
    util.wait_until(lambda: bird.look(NOBODY))
    assert bird.look(fakes.unavailable()) is None
    backend.fail = fakes.unavailable()
    assert bird.look(NOBODY) is None
