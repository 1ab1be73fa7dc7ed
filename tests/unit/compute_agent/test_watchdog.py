"""What the watchdog says, how often, and to whom; with a conductor of the test's."""

from collections.abc import Iterator
import logging
import threading
from typing import Any
from typing import cast

import pytest

from compute_agent import progress
from compute_agent import tenure
from compute_agent import watchdog
from conductor import rpcapi as conductor_rpcapi
from musterbook import context
from musterbook import errors
from tests import util

GONE = errors.ConductorUnavailable(method="stalled", seconds=5, asked=True)


class Conductor:
    """Notes what it is told; fails as long as it is told to."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, str | None]] = []
        self.asked = 0
        self.fault: Exception | None = None
        self.incarnation = 1
        self.refused = 0

    def say(self, reason: str | None) -> None:
        self.asked += 1
        if self.fault is not None:
            raise self.fault
        self.heard.append((self.incarnation, reason))

    def refuse(self) -> None:
        self.refused += 1


@pytest.fixture
def conductor() -> Conductor:
    return Conductor()


@pytest.fixture
def speaker(conductor: Conductor) -> watchdog.Speaker:
    return watchdog.Speaker(
        conductor.say, conductor.refuse, lambda: conductor.incarnation
    )


def test_it_says_each_thing_once(
    speaker: watchdog.Speaker, conductor: Conductor, caplog: pytest.LogCaptureFixture
) -> None:
    for second in range(100):
        speaker.turn(None, second)
    assert conductor.asked == 0
    for second in range(100, 200):
        # Numbers grow; that is no other reason.
        speaker.turn(f"no inventory: not answered for {second} s", second)
    for second in range(200, 300):
        speaker.turn(None, second)
    first = "no inventory: not answered for 100 s"
    assert conductor.heard == [(1, first), (1, None)]
    said = [r.message for r in caplog.records]
    assert said == [
        f"Stalled: {first}; the host is suspect until it goes on",
        "Working again after 100 s",
    ]


def test_another_reason_is_said_but_not_at_once(
    speaker: watchdog.Speaker, conductor: Conductor
) -> None:
    speaker.turn("a hang", 0)
    for second in range(1, 130):
        speaker.turn("a crash" if second < 100 else "a mess", second)
    assert [reason for _, reason in conductor.heard] == ["a hang", "a crash", "a mess"]


def test_it_is_said_until_it_is_heard(
    speaker: watchdog.Speaker, conductor: Conductor
) -> None:
    conductor.fault = GONE
    for second in range(100):
        speaker.turn("a hang", second)
    # With growing pauses: of 10 s, shortened by half at most.
    assert 10 <= conductor.asked <= 30
    conductor.fault = None
    for second in range(100, 111):
        speaker.turn("a hang", second)
    assert conductor.heard == [(1, "a hang")]


def test_the_end_is_said_until_it_is_heard(
    speaker: watchdog.Speaker, conductor: Conductor
) -> None:
    speaker.turn("a hang", 0)
    conductor.fault = GONE
    for second in range(1, 50):
        speaker.turn(None, second)
    conductor.fault = None
    for second in range(50, 61):
        speaker.turn(None, second)
    assert conductor.heard == [(1, "a hang"), (1, None)]


def test_a_late_call_does_not_have_the_last_word(
    speaker: watchdog.Speaker, conductor: Conductor
) -> None:
    """The stall that nobody answered may be written after its end: said again."""
    conductor.fault = GONE
    speaker.turn("a hang", 0)
    conductor.fault = None
    for second in range(1, 200):
        speaker.turn(None, second)
    assert conductor.heard == [(1, None), (1, None)]


def test_a_new_incarnation_starts_without(
    speaker: watchdog.Speaker, conductor: Conductor
) -> None:
    speaker.turn("a hang", 0)
    conductor.incarnation = 2
    speaker.turn("a hang", 1)
    conductor.incarnation = 3
    speaker.turn(None, 2)
    speaker.turn(None, 3)
    assert conductor.heard == [(1, "a hang"), (2, "a hang")]


def test_after_the_database_was_away_it_is_said_again(
    speaker: watchdog.Speaker, conductor: Conductor
) -> None:
    speaker.repeat()
    speaker.turn(None, 0)
    speaker.turn(None, 1)
    assert conductor.heard == [(1, None)]
    conductor.fault = GONE
    speaker.repeat()
    speaker.turn(None, 2)
    conductor.fault = None
    for second in range(3, 10):
        speaker.turn(None, second)
    assert conductor.heard == [(1, None), (1, None)]


@pytest.mark.parametrize(
    "fault",
    [
        errors.Superseded(host="web1", incarnation=1),
        errors.GrantForgotten(host="web1", incarnation=1),
    ],
)
def test_who_is_refused_looks_into_it(
    speaker: watchdog.Speaker, conductor: Conductor, fault: Exception
) -> None:
    conductor.fault = fault
    speaker.turn("a hang", 0)
    assert conductor.refused == 1
    # Granted anew.
    conductor.fault, conductor.incarnation = None, 2
    speaker.turn("a hang", 1)
    assert conductor.heard == [(2, "a hang")]


def test_nothing_that_is_raised_ends_it(
    speaker: watchdog.Speaker, conductor: Conductor, caplog: pytest.LogCaptureFixture
) -> None:
    conductor.fault = ZeroDivisionError()
    speaker.turn("a hang", 0)
    assert "trying again" in caplog.text
    conductor.fault = None
    speaker.turn("a hang", 10)
    assert conductor.heard == [(1, "a hang")]


class Api:
    """Stands for the conductor's rpcapi."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def stalled(
        self, asking: context.RequestContext, reason: str | None, timeout: float
    ) -> None:
        assert asking.grant is not None
        self.heard.append((asking.grant.incarnation, reason))


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    monkeypatch.setattr(watchdog, "TURN", 0.01)
    return Api()


@pytest.fixture
def marks() -> progress.Progress:
    return progress.Progress(0.3)


@pytest.fixture
def dog(api: Api, marks: progress.Progress) -> Iterator[watchdog.Watchdog]:
    made = watchdog.Watchdog(
        cast("conductor_rpcapi.ConductorAPI", api),
        tenure.Tenure(context.Grant(host="web1", incarnation=4, secret="s")),
        marks,
        lambda: None,
        lambda: None,
    )
    yield made
    made.stop()


def test_the_thread_watches_and_ends(
    dog: watchdog.Watchdog,
    api: Api,
    marks: progress.Progress,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    dog.start()
    util.wait_until(lambda: len(api.heard) == 1)
    marks.read()
    util.wait_until(lambda: len(api.heard) >= 2)
    assert api.heard[:2] == [(4, "no audit for 0.3 s"), (4, None)]
    dog.stop()
    assert "watchdog" not in {thread.name for thread in threading.enumerate()}


def test_a_stop_before_the_start_does_no_harm(dog: watchdog.Watchdog) -> None:
    dog.stop()
