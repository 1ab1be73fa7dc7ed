"""A wheel gives each job its turns, one at a time."""

from collections.abc import Iterator
import threading
import time

import pytest

from compute_agent.hollow import wheel
from tests import util


@pytest.fixture
def turns() -> Iterator[wheel.Wheel]:
    made = wheel.Wheel("test", 3)
    yield made
    made.stop()


def test_a_job_comes_again_after_what_it_says(turns: wheel.Wheel) -> None:
    came: list[float] = []

    def turn() -> float | None:
        came.append(time.monotonic())
        return 0.05 if len(came) < 3 else None

    turns.add(turn)
    util.wait_until(lambda: len(came) == 3, 10, "three turns")
    assert came[1] - came[0] >= 0.05


def test_a_kick_brings_it_now_and_never_beside_itself(turns: wheel.Wheel) -> None:
    inside, most, count = 0, 0, 0
    lock = threading.Lock()
    go_on = threading.Event()

    def turn() -> float:
        nonlocal inside, most, count
        with lock:
            inside, count = inside + 1, count + 1
            most = max(most, inside)
        assert go_on.wait(10)
        with lock:
            inside -= 1
        return 1000.0

    job = turns.add(turn)
    util.wait_until(lambda: inside == 1, 10, "the first turn")
    job.kick()
    go_on.set()
    util.wait_until(lambda: count == 2, 10, "the turn after the kick")
    job.kick()
    util.wait_until(lambda: count >= 3, 10, "the turn that was due much later")
    assert most == 1


def test_an_end_waits_for_the_turn_in_hand(turns: wheel.Wheel) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def turn() -> float:
        entered.set()
        assert go_on.wait(10)
        return 0.0

    job = turns.add(turn)
    assert entered.wait(10)
    assert not job.end(0.05)
    go_on.set()
    assert job.end(10)
    entered.clear()
    job.kick()
    assert not entered.wait(0.1)


def test_one_that_fails_comes_again(
    turns: wheel.Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheel, "_AGAIN", 0.01)
    came: list[int] = []

    def turn() -> float | None:
        came.append(1)
        if len(came) < 3:
            raise RuntimeError("a bug")
        return None

    turns.add(turn)
    util.wait_until(lambda: len(came) == 3, 10, "the turn after two failures")
