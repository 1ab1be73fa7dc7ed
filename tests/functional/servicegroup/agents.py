"""Members that beat as agents do, and a reader that judges them as the leader does."""

from collections.abc import Iterator
import contextlib
import random
import time

from musterbook import errors
from musterbook.servicegroup import beat
from musterbook.servicegroup import factory
from musterbook.servicegroup import ping
from musterbook.servicegroup import roster
from musterbook.servicegroup import tooz_driver
from musterbook.servicegroup import url as group_url
from musterbook.servicegroup import verdict
from tests import util

GROUP = "compute"


class Agents:
    """Members with a driver each; nobody answers pings, and no loss freezes anything.

    Whoever is missing counts as asked at once, in vain: so a host that the group has
    lost for service_down_time is down, and nothing but the group can save it.

    :param url: of the group, with its member timeout
    :param count: of members
    :param service_down_time: seconds
    """

    def __init__(self, url: str, count: int, service_down_time: float) -> None:
        self._url = group_url.parse(url)
        timeout = self._url.member_timeout
        self.interval = factory.beat_interval(3.0, timeout)
        #: Within which all must be back after a fault.
        self.allowed = timeout + 2 * self.interval
        self._granted = {
            host: verdict.Granted(host, 1, False, None, False, None)
            for host in (f"node-{number}" for number in range(count))
        }
        self.names = {granted.member for granted in self._granted.values()}
        self.reader = tooz_driver.ToozDriver(self._url, "reader")
        self._watch = roster.Watch(
            verdict.Policy(timeout, service_down_time, 5, 1.0, 300.0)
        )
        self.downs: set[str] = set()
        self.beats = [self._beat(name) for name in sorted(self.names)]
        for running in self.beats:
            running.start()

    def _beat(self, name: str) -> beat.Beat:
        return beat.Beat(
            lambda: tooz_driver.ToozDriver(self._url, name),
            GROUP,
            self.interval,
            rng=random.Random(name),
        )

    def step(self) -> bool:
        """Read the group once, judge; return whether all are seen and up."""
        poll: frozenset[str] | errors.GroupError
        try:
            poll = self.reader.get_all(GROUP)
        except errors.GroupError as exc:
            poll = exc
        now = time.monotonic()
        decision = self._watch.step(poll, self._granted, self._replies(now), now)
        states = {host: found.state for host, found in decision.verdicts.items()}
        self.downs |= {h for h, s in states.items() if s is verdict.State.DOWN}
        return poll == frozenset(self.names) and all(
            states.get(host) is verdict.State.UP for host in self._granted
        )

    def _replies(self, now: float) -> ping.Replies:
        """Return that all are asked just now, and nobody answers."""
        asked = dict.fromkeys(self._granted, now)
        return ping.Replies(asked=asked, answered={}, unanswered=asked)

    def watch(self, seconds: float) -> None:
        """Read and judge for some time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.step()
            time.sleep(0.1)

    def wait_all_up(self) -> float:
        """Return the seconds that it took."""
        began = time.monotonic()
        util.wait_until(self.step, 60.0, what="all up")
        return time.monotonic() - began

    def stop(self) -> None:
        """Let all leave."""
        for running in self.beats:
            assert running.stop()
        self.reader.stop()


@contextlib.contextmanager
def running(
    url: str, count: int = 5, service_down_time: float = 40.0
) -> Iterator[Agents]:
    """Give agents that are all up; none may ever be down."""
    made = Agents(url, count, service_down_time)
    try:
        made.wait_all_up()
        yield made
        assert made.downs == set(), f"called down: {sorted(made.downs)}"
    finally:
        made.stop()
