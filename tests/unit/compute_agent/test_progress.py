"""When a loop stands still, on a clock that the test turns."""

from typing import Any

from oslo_config import cfg
import pytest

from compute_agent import progress
from musterbook import conf as conf_module
from musterbook import errors


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def marks(clock: Clock) -> progress.Progress:
    return progress.Progress(25.0, clock)


def test_a_source_that_does_not_answer(marks: progress.Progress, clock: Clock) -> None:
    marks.read()
    clock.now += 10
    marks.reading()
    clock.now += 14.9
    assert marks.standstill() is None
    clock.now += 0.1
    reason = marks.standstill()
    assert reason == "no inventory for 25 s: the source does not answer"
    # Given up by the reader, it is a failure, which is no progress either.
    marks.unreadable("inventory source x: has not answered for 40 s")
    assert marks.standstill() == (
        "no inventory for 25 s: inventory source x: has not answered for 40 s"
    )
    marks.reading()
    marks.read()
    assert marks.standstill() is None


def test_a_source_that_fails_again_and_again(
    marks: progress.Progress, clock: Clock
) -> None:
    marks.read()
    for _ in range(5):
        assert marks.standstill() is None
        clock.now += 5
        marks.reading()
        marks.unreadable("it broke")
    assert marks.standstill() == "no inventory for 25 s: it broke"


def test_no_audit_at_all(marks: progress.Progress, clock: Clock) -> None:
    clock.now += 25
    assert marks.standstill() == "no audit for 25 s"
    marks.begin()
    assert marks.standstill() is None


def test_a_conductor_that_is_away_is_no_standstill(
    marks: progress.Progress, clock: Clock
) -> None:
    """Each of many nodes takes as long as its calls may, and fails."""
    for number in range(20):
        marks.saving(f"n{number}")
        clock.now += progress.CALLS_SECONDS
        assert marks.standstill() is None
        marks.saved()
    # A loop that doesn't come back from them is one.
    marks.saving("n20")
    clock.now += progress.CALLS_SECONDS + 25
    assert marks.standstill() == "no end of saving node n20 for 25 s"


def test_threads_that_are_all_stuck(marks: progress.Progress, clock: Clock) -> None:
    full_since = clock.now
    for _ in range(5):
        assert marks.standstill(full_since) is None
        clock.now += 5
        marks.read()
    assert marks.standstill(full_since) == (
        "no call finished for 25 s: all threads that serve are busy"
    )
    assert marks.standstill(None) is None


def test_time_in_which_the_process_was_frozen_does_not_count(
    marks: progress.Progress, clock: Clock
) -> None:
    clock.now += 20
    clock.now += 100
    marks.excuse(100)
    assert marks.standstill() is None
    clock.now += 5
    assert marks.standstill() is not None
    # Nor does it make a mark of the future.
    marks.excuse(1e6)
    clock.now += 25
    assert marks.standstill() is not None


def test_it_can_be_switched_off_and_changed(
    marks: progress.Progress, clock: Clock
) -> None:
    clock.now += 50
    marks.set_seconds(0)
    assert marks.standstill(clock.now - 50) is None
    marks.set_seconds(51)
    assert marks.standstill() is None
    marks.set_seconds(50)
    assert marks.standstill() == "no audit for 50 s"


def conf(**values: float) -> Any:
    made = cfg.ConfigOpts()
    made.register_opts([cfg.FloatOpt(name) for name in values])
    made([], default_config_files=[])
    for name, value in values.items():
        made.set_override(name, value)
    return made


@pytest.mark.parametrize(
    ("configured", "stalled_after", "interval"),
    [(60, 25, 12.5), (10, 25, 10), (60, 0, 60), (600, 1200, 600), (1, 1, 0.5)],
)
def test_audits_come_at_least_twice_in_the_time(
    configured: float, stalled_after: float, interval: float
) -> None:
    made = conf(update_resources_interval=configured, stalled_after=stalled_after)
    assert progress.audit_interval(made) == interval
    said = progress.shortened(made)
    assert (said is not None) == (interval != configured)
    for told in [] if said is None else (configured, stalled_after, interval):
        assert f"{told:g} s" in str(said)


def test_the_defaults_agree() -> None:
    made = conf_module.load([], "test", config_files=[])
    progress.check(made)
    assert progress.shortened(made) is None
    slowest = made.update_resources_interval * 1.05 + made.inventory.timeout
    assert slowest < made.stalled_after
    # A-LIV-2: 30 s, of which the watchdog, the conductor and a reader have the rest.
    assert made.stalled_after <= 26


@pytest.mark.parametrize(
    ("timeout", "stalled_after", "fits"),
    [(12.5, 25, True), (12.6, 25, False), (30, 25, False), (30, 0, True)],
)
def test_a_reading_that_would_be_called_stalled_is_not_allowed(
    timeout: float, stalled_after: float, fits: bool
) -> None:
    made = conf_module.load([], "test", config_files=[])
    made.set_override("timeout", timeout, "inventory")
    made.set_override("stalled_after", stalled_after)
    if fits:
        progress.check(made)
        return
    with pytest.raises(errors.ConfigurationError) as caught:
        progress.check(made)
    for word in ("[inventory]timeout", f"{timeout:g} s", "stalled_after, 25 s"):
        assert word in caught.value.message


def loaded(stalled_after: float) -> Any:
    made = conf_module.load([], "test", config_files=[])
    made.set_override("stalled_after", stalled_after)
    made.set_override("timeout", 0.5, "inventory")
    return made


@pytest.mark.parametrize("value", [0.1, 0.99])
def test_a_time_that_is_too_short_is_refused(value: float) -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        progress.check(loaded(value))
    assert "stalled_after" in caught.value.message


@pytest.mark.parametrize("value", [0, 1, 25])
def test_others_are_not(value: float) -> None:
    progress.check(loaded(value))


def test_a_release_may_wait_for_a_conductor_but_not_for_ever(
    marks: progress.Progress, clock: Clock
) -> None:
    marks.read()
    clock.now += 20
    marks.releasing()
    clock.now += 25 + progress.CALLS_SECONDS - 1
    assert marks.standstill() is None
    clock.now += 1
    assert marks.standstill() == "no end of releasing a claim for 25 s"
    marks.released()
    clock.now += 24
    assert marks.standstill() is None
    clock.now += 1
    assert marks.standstill() == "no audit for 25 s"
