import datetime

from musterbook.servicegroup import sightings

START = datetime.datetime(2026, 11, 30, 12, tzinfo=datetime.UTC)


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime.datetime:
        return self.now

    def go(self, **how_long: float) -> datetime.datetime:
        self.now += datetime.timedelta(**how_long)
        return self.now


def test_last_is_the_last_read_that_had_the_member() -> None:
    clock = Clock()
    seen = sightings.Sightings(clock)
    assert seen.last("g", "a") is None
    seen.note("g", frozenset({"a", "b"}))
    last = clock.go(seconds=1)
    seen.note("g", frozenset({"a", "b"}))
    clock.go(seconds=1)
    seen.note("g", frozenset({"b"}))
    assert seen.last("g", "a") == last
    assert seen.last("g", "b") == clock.now
    assert seen.last("g", "c") is None
    assert seen.last("other", "b") is None
    back = clock.go(seconds=1)
    seen.note("g", frozenset({"a"}))
    assert seen.last("g", "a") == back


def test_those_who_left_are_forgotten_after_a_day() -> None:
    clock = Clock()
    seen = sightings.Sightings(clock)
    seen.note("g", frozenset({"a"}))
    clock.go(hours=24)
    seen.note("g", frozenset())
    assert seen.last("g", "a") == START
    clock.go(seconds=1)
    seen.note("g", frozenset())
    assert seen.last("g", "a") is None
