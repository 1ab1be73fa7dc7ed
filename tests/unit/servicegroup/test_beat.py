from collections.abc import Callable
from collections.abc import Iterator
import random
import threading
import time

import pytest

from musterbook.servicegroup import beat
from tests import util
from tests.unit.servicegroup import fakes


@pytest.fixture
def driver() -> fakes.FakeDriver:
    return fakes.FakeDriver()


@pytest.fixture
def make(driver: fakes.FakeDriver) -> Iterator[Callable[[float], beat.Beat]]:
    beats: list[beat.Beat] = []

    def build(interval: float) -> beat.Beat:
        made = beat.Beat(lambda: driver, "compute", interval, rng=random.Random(1))
        beats.append(made)
        made.start()
        return made

    yield build
    driver.free.set()
    for made in beats:
        assert made.stop()


def test_joins_beats_and_leaves(
    driver: fakes.FakeDriver, make: Callable[[float], beat.Beat]
) -> None:
    running = make(0.01)
    assert running.wait_joined(10)
    util.wait_until(lambda: driver.calls.count("beat") >= 3)
    assert running.stop()
    assert driver.calls[-2:] == ["leave", "stop"]
    assert not running.joined.is_set()
    assert "beat-compute" not in {t.name for t in threading.enumerate()}


def test_stop_does_not_wait_for_the_interval(
    make: Callable[[float], beat.Beat],
) -> None:
    running = make(3600)
    assert running.wait_joined(10)
    began = time.monotonic()
    assert running.stop()
    assert time.monotonic() - began < 5


def test_rejoin_does_not_wait_for_the_interval(
    driver: fakes.FakeDriver, make: Callable[[float], beat.Beat]
) -> None:
    running = make(8.0)  # the jitter is at most a quarter of it
    assert running.wait_joined(10)
    driver.members.clear()
    running.rejoin()
    util.wait_until(lambda: driver.calls.count("join") == 2)


def test_first_join_that_fails_does_not_fail_start(
    driver: fakes.FakeDriver, make: Callable[[float], beat.Beat]
) -> None:
    driver.fail["join"] = [fakes.unavailable()]
    running = make(0.01)
    assert running.wait_joined(10)
    assert driver.calls.count("join") == 2


def test_blocked_driver_delays_stop_to_its_limit_only(
    driver: fakes.FakeDriver, make: Callable[[float], beat.Beat]
) -> None:
    running = make(0.01)
    assert running.wait_joined(10)
    driver.free.clear()
    assert driver.blocked.wait(10)
    began = time.monotonic()
    assert not running.stop(0.2)
    assert time.monotonic() - began < 5
    driver.free.set()
    assert running.stop()


def test_stop_before_start() -> None:
    unused = beat.Beat(fakes.FakeDriver, "compute", 1, rng=random.Random(1))
    assert unused.stop()


def test_status_ages_on_the_monotonic_clock(
    driver: fakes.FakeDriver,
) -> None:
    now = [50.0]
    running = beat.Beat(
        lambda: driver, "compute", 3600, rng=random.Random(1), clock=lambda: now[0]
    )
    assert running.status().age is None
    running.start()
    util.wait_until(lambda: running.status().joined)
    now[0] += 7
    assert running.status().age == 7
    assert running.stop()


def test_a_new_interval_does_not_wait_for_the_old_one(
    driver: fakes.FakeDriver, make: Callable[[float], beat.Beat]
) -> None:
    running = make(3600)
    assert running.wait_joined(10)
    running.set_interval(0.01)
    util.wait_until(lambda: driver.calls.count("beat") > 3)
    running.set_interval(3600)
    time.sleep(0.05)  # the beat that is under way
    beats = driver.calls.count("beat")
    time.sleep(0.1)  # several of the shorter interval
    assert driver.calls.count("beat") <= beats + 1
    # It was a member all the time.
    assert driver.calls.count("join") == 1
