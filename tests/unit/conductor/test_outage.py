"""What one call finds out about the database, all others know; on a virtual clock."""

from collections.abc import Iterator
import contextlib
import pathlib
import threading

import pytest

from conductor.db import engine as db_engine
from conductor.db import outage
from musterbook import errors
from tests import util


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
        # What was asked before the silence says nothing of now.
        bench.seen.answered(100.0)
        assert bench.refused()
    bench.now += 1
    bench.answered()
    assert lines(caplog)[1:] == ["The database is back after 1 s"]
    assert not bench.refused()


@pytest.mark.parametrize("begin", ["silence", "no connection"])
def test_a_slow_database_is_one_outage(
    begin: str, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Two calls each second for a minute, all answered 30 s late; then at once."""
    if begin != "silence":
        bench.seen.failed(begin)
    late: list[tuple[float, contextlib.ExitStack]] = []
    for _ in range(120):
        with (
            contextlib.ExitStack() as stack,
            contextlib.suppress(errors.DatabaseUnavailable),
        ):
            stack.enter_context(bench.seen.call())
            late.append((bench.now, stack.pop_all()))
        bench.now += 0.5
        while late and late[0][0] + 30.0 <= bench.now:
            asked, stack = late.pop(0)
            with stack:
                bench.seen.answered(asked)
    said = lines(caplog)
    assert len(said) == 1
    assert said[0].startswith("The database is lost")
    for _, stack in late:
        stack.close()
    bench.now += 1
    bench.answered()
    assert [line[:20] for line in lines(caplog)[1:]] == ["The database is back"]


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


def test_who_waits_goes_before_who_comes() -> None:
    """A place that became free is not for who happens to ask just then."""
    seen = outage.Outage()
    order: list[str] = []
    places = [contextlib.ExitStack() for _ in range(outage.CALLS)]
    for place in places:
        place.enter_context(seen.call())
    done = threading.Event()

    def wait() -> None:
        with seen.call():
            order.append("who waits")
            done.wait(30)

    waiter = threading.Thread(target=wait, name="waiter")
    waiter.start()
    util.wait_until(lambda: len(seen._waiting) == 1)
    threading.Timer(0.3, done.set).start()
    places[0].close()
    with seen.call():
        order.append("who comes")
    waiter.join(30)
    for place in places[1:]:
        place.close()
    assert order == ["who waits", "who comes"]


def test_each_free_place_is_taken_at_once() -> None:
    seen = outage.Outage()
    with contextlib.ExitStack() as held:
        for _ in range(outage.CALLS):
            held.enter_context(seen.call())
        all_in = threading.Barrier(outage.WAITERS + 1)

        def enter() -> None:
            with seen.call():
                all_in.wait(30)

        waiters = [
            threading.Thread(target=enter, name="waiter") for _ in range(outage.WAITERS)
        ]
        for thread in waiters:
            thread.start()
        util.wait_until(lambda: len(seen._waiting) == outage.WAITERS)
    all_in.wait(30)
    for thread in waiters:
        thread.join(30)


class Crowd:
    """Threads that call while a slow database keeps all places; the clock is ours.

    :ivar outcomes: what became of each that waits no more
    """

    def __init__(self) -> None:
        self.now = 100.0
        self.seen = outage.Outage(clock=lambda: self.now)
        self.outcomes: list[str] = []
        self._threads: list[threading.Thread] = []

    def come(self, number: int) -> None:
        """Let so many more call, one after the other."""
        for _ in range(number):
            known = len(self.seen._waiting) + len(self.outcomes)
            thread = threading.Thread(target=self._call, name="caller")
            self._threads.append(thread)
            thread.start()
            util.wait_until(
                lambda known=known: (  # type: ignore[misc]
                    len(self.seen._waiting) + len(self.outcomes) > known
                )
            )

    def pass_time(self, seconds: float, refused: int) -> None:
        """Let time go by; wait until so many in all were refused."""
        self.now += seconds
        self.seen.answered(self.now - 30.0)  # it answers, late
        util.wait_until(lambda: len(self.outcomes) >= refused)

    def end(self) -> None:
        for thread in self._threads:
            thread.join(30)

    def _call(self) -> None:
        try:
            with self.seen.call():
                self.outcomes.append("in")
        except errors.DatabaseBusy:
            self.outcomes.append("busy")


def test_a_slow_database_takes_no_more_than_places_and_a_few_who_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It answers, if late, so nothing is lost; and 64 threads must not be all taken."""
    crowd = Crowd()
    with contextlib.ExitStack() as stack:
        for _ in range(outage.CALLS):
            stack.enter_context(crowd.seen.call())
        crowd.come(24)  # a burst may wait
        assert crowd.outcomes == []
        crowd.pass_time(outage.BURST, refused=24 - outage.WAITERS)
        assert crowd.outcomes == ["busy"] * (24 - outage.WAITERS)
        crowd.come(10)  # and nobody more while it is one no longer
        assert crowd.outcomes == ["busy"] * (34 - outage.WAITERS)
        crowd.pass_time(outage.PATIENCE, refused=34)
        assert crowd.outcomes == ["busy"] * 34
    crowd.end()
    crowd.now += 9
    with crowd.seen.call():
        assert len(lines(caplog)) == 1
    crowd.now += 2
    with crowd.seen.call():
        pass
    assert lines(caplog) == [
        "The database is slow: 40 calls are at work in it, further ones fail",
        "The database keeps up again; 34 calls failed in 3 s",
    ]


def test_what_is_urgent_waits_for_no_place(bench: Bench) -> None:
    with bench.hanging(outage.CALLS):
        began = bench.now
        with bench.seen.call(urgent=True):
            bench.seen.answered(bench.now)
        assert bench.now == began


def test_an_urgent_engine_shares_what_is_known(tmp_path: pathlib.Path) -> None:
    engine = db_engine.make_engine(f"sqlite:///{tmp_path}/x.sqlite")
    urgent = db_engine.urgent(engine)
    assert db_engine.is_urgent(urgent)
    assert not db_engine.is_urgent(engine)
    assert outage.of(urgent) is outage.of(engine)
    assert urgent.pool is engine.pool
    other = db_engine.make_engine(f"sqlite:///{tmp_path}/x.sqlite")
    assert outage.of(other) is not outage.of(engine)


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


def test_a_failure_that_comes_late_begins_no_outage(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Connections that were begun while the server was frozen fail after its thaw."""
    bench.now += 1
    begun = bench.now
    bench.seen.failed("no connection", begun)
    bench.now += 5
    bench.answered()
    bench.seen.failed("no connection", begun)
    assert len(lines(caplog)) == 2
    bench.now += 1
    bench.seen.failed("no connection", bench.now)
    assert len(lines(caplog)) == 3
