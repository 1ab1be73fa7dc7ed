"""The db driver by itself, and in the loop that beats."""

from collections.abc import Mapping
import datetime
import random

import pytest

from musterbook import errors
from musterbook.servicegroup import db_driver
from musterbook.servicegroup import pulse

NOW = datetime.datetime(2026, 11, 30, 12, tzinfo=datetime.UTC)
LOST = errors.ConductorUnavailable(method="beat", seconds=2.0, asked=True)


class Conductor:
    """Notes beats on a virtual clock; may be slow or away.

    :ivar limits: the seconds that each beat was given
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.takes = 0.0
        self.error: errors.MusterbookError | None = None
        self.began: list[float] = []
        self.stamps: list[float] = []
        self.limits: list[float] = []
        self.seen: dict[str, db_driver.Seen] = {}
        self.times = db_driver.Times(9.0, 40.0, 2.0)

    def beat(self, seconds: float) -> None:
        self.began.append(self.now)
        self.limits.append(seconds)
        self.now += min(self.takes, seconds)
        if self.takes > seconds:
            raise LOST
        if self.error is not None:
            raise self.error
        self.stamps.append(self.now)

    def read(self, seconds: float) -> Mapping[str, db_driver.Seen]:
        if self.error is not None:
            raise self.error
        return self.seen

    def driver(self) -> db_driver.DbDriver:
        ways = db_driver.Ways(self.beat, self.read)
        return db_driver.DbDriver(ways, "a#1", lambda: self.times)


@pytest.fixture
def conductor() -> Conductor:
    return Conductor()


def test_joining_is_beating_and_leaving_is_silence(conductor: Conductor) -> None:
    driver = conductor.driver()
    driver.start()
    driver.join("compute")
    driver.beat()
    driver.leave("compute")
    driver.stop()
    assert len(conductor.stamps) == 2
    assert conductor.limits == [2.0, 2.0]
    assert (driver.member, driver.member_timeout) == ("a#1", 9.0)


def test_members_are_those_whose_beat_counts(conductor: Conductor) -> None:
    ages = {"a#1": 0.0, "b#3": 40.0, "c#1": 41.0, "d#2": -41.0, "e#1": -40.0}
    conductor.seen = {
        member: db_driver.Seen(NOW - datetime.timedelta(seconds=age), age)
        for member, age in ages.items()
    }
    driver = conductor.driver()
    assert driver.get_all("compute") == {"a#1", "b#3", "e#1"}
    assert driver.is_up("compute", "b#3")
    assert not driver.is_up("compute", "c#1")
    assert not driver.is_up("compute", "b#2")
    assert driver.get_updated_time("compute", "c#1") == NOW - datetime.timedelta(
        seconds=41
    )
    assert driver.get_updated_time("compute", "x#1") is None


@pytest.mark.parametrize(
    "error",
    [
        LOST,
        errors.DatabaseUnavailable(reason="gone"),
        errors.Superseded(host="a", incarnation=1),
        errors.VersionPinned(what="beat", needs="1.2", speaks="1.0"),
    ],
)
def test_every_error_is_one_of_a_group(
    conductor: Conductor, error: errors.MusterbookError
) -> None:
    conductor.error = error
    driver = conductor.driver()
    for call in (driver.beat, lambda: driver.join("g"), lambda: driver.get_all("g")):
        with pytest.raises(errors.GroupUnavailable) as caught:
            call()
        assert error.message in caught.value.message
    conductor.error = errors.GroupUnavailable(backend="b", reason="r")
    with pytest.raises(errors.GroupUnavailable, match="b is not available: r"):
        driver.beat()


class Loop:
    """Turns of the pulse on the conductor's clock."""

    def __init__(self, conductor: Conductor, interval: float = 3.0) -> None:
        self._conductor = conductor
        self.pulse = pulse.Pulse(
            conductor.driver,
            "compute",
            interval,
            rng=random.Random(1),
            clock=lambda: conductor.now,
            wait=self._wait,
        )

    def _wait(self, seconds: float) -> bool:
        self._conductor.now += seconds
        return False

    def run(self, seconds: float) -> None:
        end = self._conductor.now + seconds
        while self._conductor.now < end:
            pause = self.pulse.turn()
            self._conductor.now += pause


def test_a_beat_comes_every_interval(conductor: Conductor) -> None:
    Loop(conductor).run(300)
    assert len(conductor.stamps) == 100


def test_beats_do_not_pile_up_behind_a_slow_conductor(conductor: Conductor) -> None:
    """Lesson 3: a lost answer costs the short limit, and no second beat is begun."""
    loop = Loop(conductor)
    loop.run(10)
    conductor.takes = 60.0
    conductor.began.clear()
    loop.run(300)
    gaps = [b - a for a, b in zip(conductor.began, conductor.began[1:], strict=False)]
    assert 300 / 4 < len(conductor.began) <= 300 / 2
    assert min(gaps) >= 2.0  # the former's limit
    conductor.takes = 0.1
    before = len(conductor.stamps)
    loop.run(4)
    assert len(conductor.stamps) > before
    assert loop.pulse.status().error is None


def test_the_loop_survives_anything_and_says_so(conductor: Conductor) -> None:
    """Lesson 2: no error ends the beats."""
    loop = Loop(conductor)
    loop.run(10)
    conductor.error = errors.DatabaseUnavailable(reason="gone")
    loop.run(600)
    status = loop.pulse.status()
    assert status.error is not None
    assert "gone" in status.error
    conductor.error = None
    loop.run(4)
    assert loop.pulse.status().joined
    assert loop.pulse.status().error is None
