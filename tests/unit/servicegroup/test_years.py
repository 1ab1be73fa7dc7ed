"""Years of beats on a virtual clock: pauses, losses, outages, clocks that are set.

A beat comes every three seconds, and the leader looks every second, where something
goes on. What a quiet time would decide is known (test_steady.py), so it is skipped as
the leader skips it: no step in it, only the clock.
"""

import datetime
import random

import hypothesis
from hypothesis import strategies as st
import pytest

from musterbook.servicegroup import verdict
from tests.unit.servicegroup import test_beats
from tests.unit.servicegroup.fleet import Fleet
from tests.unit.servicegroup.fleet import POLICY

HOUR = 3600.0
DAY = 24 * HOUR
YEAR = 365 * DAY
HOSTS = 12
LEGACY = ("h10", "h11")
#: Each with its seed: the same years again and again.
SEEDS = (1, 7, 42, 1999, 20260101)


class Years(Fleet):
    """Ten agents that say hello and two legacy ones, through years.

    :ivar wall: the database's clock, which is set now and then; it stamps the beats of
        the legacy ones, and nothing else may depend on it
    """

    def __init__(self, seed: int) -> None:
        super().__init__(HOSTS)
        self.rng = random.Random(seed)
        self.wall = 1e9
        self.began = self.now
        self.dead: set[str] = set()
        #: Who lives and can't reach the group; the broker can be reached by all.
        self.cut: set[str] = set()
        self.queues = True
        self.stamps = dict.fromkeys(LEGACY, self.wall)
        self.beaten = dict.fromkeys(self.hosts, self.now)
        for host in LEGACY:
            self.change(host, incarnation=None)
        self.died: dict[str, float] = {}

    @property
    def years(self) -> float:
        return (self.now - self.began) / YEAR

    def second(self) -> None:
        """Let one second pass: beats, expiry, a look."""
        self.now += 1
        self.wall += 1
        for number, host in enumerate(self.hosts):
            alive = host not in self.dead
            if host in LEGACY:
                if alive and (int(self.now) + number) % 10 == 0:
                    self.stamps[host] = self.wall
            elif alive and host not in self.cut and self.reachable:
                if (int(self.now) + number) % 3 == 0:
                    self.beaten[host] = self.now
                    self.join(host)
            elif self.reachable and self.now - self.beaten[host] > 10:
                self.leave(host)
        self._stamp()
        self.answering = {
            h
            for h in self.hosts
            if self.queues and h not in self.dead and h not in LEGACY
        }
        self.step(0)
        for host in self.hosts:
            self._check(host)

    def _stamp(self) -> None:
        for host in LEGACY:
            stamp = self.stamps[host]
            at = test_beats.EPOCH + datetime.timedelta(seconds=stamp)
            self.change(host, beat=verdict.Beat(at, self.wall - stamp))

    def _check(self, host: str) -> None:
        """Nobody who lives is down; nobody is unless it was dead for long enough."""
        if self.stored(host) is None or self.stored(host)[0] != "down":  # type: ignore[index]
            return
        if host in LEGACY and host in self.dead:
            return
        assert host in self.died, f"{host} is down and lives"
        dead_for = self.now - self.died[host]
        assert dead_for >= POLICY.service_down_time - POLICY.member_timeout

    def seconds(self, count: int) -> None:
        for _ in range(count):
            self.second()

    def quiet(self, seconds: float) -> None:
        """Let time pass in which nothing happens."""
        self.now += seconds
        self.wall += seconds
        for host in self.hosts:
            self.beaten[host] = self.now
        for host in LEGACY:
            self.stamps[host] = self.wall
        self._stamp()
        self.watch.look_again(self.now)
        # Who leads looks at the rows of legacy hosts all the while.
        self.step(0)

    def happen(self) -> None:
        """Let one thing happen, and be over."""
        getattr(self, self.rng.choice(EVENTS))()

    # -- what may happen -------------------------------------------------------------

    def kill(self) -> None:
        host = self.rng.choice([h for h in self.hosts if h not in LEGACY])
        self.dead.add(host)
        self.died[host] = self.now
        self.seconds(60)
        assert self.stored(host) == ("down", "silent")
        incarnation = self.granted[host].incarnation
        assert incarnation is not None
        self.leave(host)
        self.dead.discard(host)
        del self.died[host]
        self.change(host, incarnation=incarnation + 1)
        self.seconds(5)

    def pause(self) -> None:
        """Let a process hang, and come back before it could be called down."""
        host = self.rng.choice([h for h in self.hosts if h not in LEGACY])
        self.dead.add(host)
        self.seconds(self.rng.randrange(1, 30))
        self.dead.discard(host)
        self.seconds(20)

    def lose_members(self) -> None:
        self.cut = set(self.rng.sample(self.hosts[:10], self.rng.randrange(1, 10)))
        self.seconds(self.rng.randrange(5, 400))
        self.cut = set()
        self.seconds(20)

    def outage(self) -> None:
        self.reachable = False
        self.seconds(self.rng.randrange(1, 120))
        self.members.clear()
        self.group_exists = self.rng.random() < 0.5
        self.reachable = True
        self.seconds(30)

    def broker(self) -> None:
        """Take the broker away while the group has lost some.

        For some seconds after it is back it knows no agent's queue.
        """
        self.cut = {"h03"}
        self.seconds(30)
        self.pings_leave = False
        self.seconds(self.rng.randrange(5, 90))
        self.pings_leave = True
        self.queues = False
        self.seconds(6)
        self.queues = True
        self.seconds(20)
        self.cut = set()
        self.seconds(20)

    def set_clock(self) -> None:
        self.wall += self.rng.choice([-HOUR, HOUR])
        self.seconds(30)

    def leader(self) -> None:
        self.new_leader()
        self.seconds(5)

    def freeze_leader(self) -> None:
        asleep = self.rng.randrange(11, 600)
        self.now += asleep
        self.wall += asleep
        self.members -= {self.granted[h].member for h in self.dead}
        self.beaten = dict.fromkeys(self.hosts, self.now)
        self.seconds(20)


EVENTS = (
    "kill", "pause", "lose_members", "outage", "broker", "set_clock", "leader",
    "freeze_leader",
)  # fmt: skip


def live(seed: int, things: int) -> Years:
    """Go through so many things, months apart; all are up at the end."""
    fleet = Years(seed)
    fleet.seconds(15)
    for _ in range(things):
        fleet.happen()
        settle(fleet)
        fleet.quiet(fleet.rng.uniform(HOUR, 60 * DAY))
    return fleet


def settle(fleet: Years) -> None:
    """All are up within the time they are allowed, but for a hold."""
    fleet.seconds(30)
    for host in fleet.hosts:
        state, cause = fleet.stored(host) or ("", "")
        assert state == "up" or cause == "flapping", (host, state, cause)
    assert fleet.last.freezes == {}


@pytest.mark.parametrize("seed", SEEDS)
def test_years(seed: int) -> None:
    fleet = live(seed, 40)
    assert fleet.years > 2


@hypothesis.given(st.integers(0, 2**32))
@hypothesis.example(3)
@hypothesis.example(1066)
@hypothesis.example(86_400)
@hypothesis.settings(max_examples=10, deadline=None)
def test_any_months(seed: int) -> None:
    live(seed, 8)
