"""What one call finds out about the database, all others know; on a virtual clock."""

from collections.abc import Iterator
import contextlib
import threading

import pytest

from conductor.db import outage
from musterbook import errors


class Bench:
    """An outage on a clock that moves when somebody waits."""

    def __init__(self, *, gated: bool = True) -> None:
        self.now = 100.0
        self.seen = outage.Outage(gated=gated, clock=lambda: self.now)
        # Waiting costs the clock's time, not the test's.
        self.seen._changed.wait = self.wait  # type: ignore[method-assign, assignment]

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return False

    def answered(self) -> None:
        """Make a call that is answered at once."""
        with self.seen.call():
            self.seen.answered(self.now)

    def refused(self) -> bool:
        """Make a call; return whether it was refused, else leave it unanswered."""
        try:
            with self.seen.call():
                return False
        except errors.DatabaseUnavailable:
            return True

    @contextlib.contextmanager
    def hanging(self, number: int = 1) -> Iterator[None]:
        """Have so many calls that are not answered while in it."""
        with contextlib.ExitStack() as stack:
            for _ in range(number):
                stack.enter_context(self.seen.call())
            yield


@pytest.fixture
def bench() -> Bench:
    return Bench()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_begin_and_end_are_said_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for reason in ("no connection", "no connection", "refused", "no connection"):
        bench.seen.failed(reason)
        bench.now += 1
    bench.answered()
    bench.answered()
    assert lines(caplog) == [
        "The database is lost: no connection; calls fail until it is back",
        "The database is still lost: refused",
        "The database is back after 4 s",
    ]


def test_calls_of_the_first_seconds_wait_for_the_end(bench: Bench) -> None:
    bench.seen.failed("no connection")
    began = bench.now
    assert not bench.refused()  # it waited until it was its turn to try
    assert bench.now - began >= 0.4


def test_later_calls_are_refused_at_once_apart_from_one_that_tries(
    bench: Bench,
) -> None:
    bench.seen.failed("no connection")
    bench.now += outage.PATIENCE + 1
    outcomes = []
    for _ in range(100):
        began = bench.now
        outcomes.append(bench.refused())
        assert bench.now == began
        bench.now += 0.1
    # Every half second one tries.
    assert 15 <= outcomes.count(False) <= 25


def test_those_that_hang_make_the_next_ones_rarer(bench: Bench) -> None:
    bench.seen.failed("no connection")
    bench.now += outage.PATIENCE + 1
    tried = 0
    with contextlib.ExitStack() as stack:
        for _ in range(300):  # 30 s, the limit of a statement
            with contextlib.suppress(errors.DatabaseUnavailable):
                stack.enter_context(bench.seen.call())
                tried += 1
            bench.now += 0.1
    assert 5 <= tried <= 12


def test_silence_is_an_outage(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.answered()
    with bench.hanging():
        bench.now += outage.SILENCE - 0.1
        assert not bench.refused()
        bench.now += 0.2
        assert bench.refused()
        assert lines(caplog) == [
            "The database is lost: it does not answer; calls fail until it is back"
        ]
        # What was asked before the silence was noticed, is an answer as well.
        bench.seen.answered(100.0)
    assert lines(caplog)[1:] == ["The database is back after 0 s"]
    assert not bench.refused()


def test_nobody_who_waits_is_no_silence(bench: Bench) -> None:
    bench.answered()
    bench.now += 1000
    assert not bench.refused()


def test_with_all_places_taken_silence_is_noticed_sooner(bench: Bench) -> None:
    with bench.hanging(outage.CALLS):
        began = bench.now
        assert bench.refused()
        assert outage.SILENCE_WHEN_FULL <= bench.now - began < 3


def test_with_all_places_taken_a_call_waits_for_one() -> None:
    seen = outage.Outage()
    with contextlib.ExitStack() as stack:
        for _ in range(outage.CALLS):
            stack.enter_context(seen.call())
        entered = threading.Event()

        def enter() -> None:
            with seen.call():
                entered.set()

        waiter = threading.Thread(target=enter, name="waiter")
        waiter.start()
        assert not entered.wait(0.2)
    assert entered.wait(30)
    waiter.join(30)


def test_an_answer_from_before_ends_nothing(bench: Bench) -> None:
    asked = bench.now
    bench.now += 1
    bench.seen.failed("no connection")
    bench.now += outage.PATIENCE + 1
    bench.seen.answered(asked)
    bench.refused()  # the one that may try
    assert bench.refused()


def test_a_schema_in_the_making_is_one_outage(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.seen.failed("no connection")
    for _ in range(5):
        bench.seen.misses_tables("a table is missing")
        assert not bench.refused()  # the database answers: nobody need wait
        bench.answered()
        bench.now += 1
    bench.now += 3
    bench.answered()
    assert lines(caplog) == [
        "The database is lost: no connection; calls fail until it is back",
        "The database is still lost: a table is missing",
        "The database is back after 8 s",
    ]


def test_a_file_is_never_refused() -> None:
    bench = Bench(gated=False)
    bench.seen.failed("no connection")
    with bench.hanging(outage.CALLS * 2):
        bench.now += 100
        assert not bench.refused()
