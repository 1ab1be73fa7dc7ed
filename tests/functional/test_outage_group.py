"""The group backend goes away in every way it can, under running daemons."""

from collections.abc import Callable
from collections.abc import Iterator
import pathlib
import time

import pytest

from tests import process
from tests import servers
from tests import util
from tests.functional import lab as labs
from tests.functional import outages

pytestmark = pytest.mark.timeout(600)
HOSTS = [f"web{number}" for number in range(1, 4)]
FAILED = "Group compute: beat failed"
AGAIN = "Joined again: group compute"
FROZEN = "Verdicts of the whole fleet are frozen: group-unreachable"
THAWED = "Verdicts are no longer frozen"
LEADS = "Leading with term"


@pytest.fixture
def redis(own_server: process.Starter) -> servers.Redis:
    return own_server(servers.Redis)


@pytest.fixture
def times(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tests that are slow anyhow have the times of cases.md."""
    if request.node.get_closest_marker("slow"):
        for name, value in labs.CASES.items():
            monkeypatch.setattr(labs, name, value)


@pytest.fixture
def lab(
    times: None,
    redis: servers.Redis,
    tmp_path: pathlib.Path,
    rabbit_url: str,
    mariadb_url: str,
) -> Iterator[labs.Lab]:
    made = labs.Lab(tmp_path, rabbit_url, redis.lease(0), mariadb_url)
    # Longer than one look at a group that says nothing: the leader stays the leader.
    made.lease_interval = 2.0
    with labs.opened(made):
        made.sync()
        for name in ("c1", "c2"):
            made.start_conductor(name)
        for host in HOSTS:
            made.start_agent(host)
        made.wait_serving("c1", "c2")
        outages.wait_well(made, dict.fromkeys(HOSTS, labs.NODE["memory_mb"]))
        yield made


class Course:
    """One outage after the other, with what must hold of each."""

    def __init__(self, lab: labs.Lab) -> None:
        self.lab = lab
        self.daemons = [p for p in lab.processes if p.err.stem != "manage"]
        self.conductors = [p for p in self.daemons if p.err.stem in {"c1", "c2"}]
        self.agents = [p for p in self.daemons if p not in self.conductors]
        self.failures = 0

    def _told(self, text: str) -> int:
        return sum(one.errors().count(text) for one in self.conductors)

    def go(
        self,
        begin: Callable[[], None],
        end: Callable[[], None],
        seconds: float,
        *,
        noticed: bool = True,
    ) -> float:
        """Let one happen, for some seconds; return how long it took to mend.

        :param noticed: by the beats, as an error
        """
        self.failures += noticed
        frozen, thawed = self._told(FROZEN), self._told(THAWED)
        terms = self._told(LEADS)
        joined = {agent: agent.errors().count(AGAIN) for agent in self.agents}
        # Whose beat comes first makes an emptied group anew: a leader that looks then
        # sees the group, without the others.
        with outages.watched(self.lab, suspect=not noticed) as watch:
            began = time.monotonic()
            begin()
            if noticed:
                outages.wait_said(self.agents, FAILED, self.failures)
                util.wait_until(
                    lambda: (
                        outages.fleet(self.lab).get("web1", {}).get("state")
                        == "unknown"
                    ),
                    outages.BUSY,
                )
            # An outage is as long as it is: this is its length, not a wait for it.
            time.sleep(max(0.0, began + seconds - time.monotonic()))
            end()
            if not noticed:
                for agent, times in joined.items():
                    outages.wait_said([agent], AGAIN, times + 1)
            took = outages.wait_well(
                self.lab, dict.fromkeys(HOSTS, labs.NODE["memory_mb"])
            )
        assert watch.unanswered == 0
        outages.check_alive(self.daemons)
        outages.check_said(self.agents, FAILED, self.failures)
        if noticed:
            # The one that leads says it, once. On a machine that is so busy that the
            # lease runs out, the next one does so too, if it came before the end.
            util.wait_until(
                lambda: self._told(THAWED) > thawed or self._told(LEADS) > terms,
                outages.BUSY,
            )
            others = self._told(LEADS) - terms
            assert 1 <= self._told(FROZEN) - frozen <= 1 + others
            assert 1 <= self._told(THAWED) - thawed + others <= 1 + 2 * others
        return took


def test_stopped_frozen_emptied(lab: labs.Lab, redis: servers.Redis) -> None:
    course = Course(lab)
    # Longer than the member timeout: who beats again then is out for good, to tooz.
    longer = labs.MEMBER_TIMEOUT * 2.0
    print("stopped", course.go(redis.stop, redis.start, longer))
    print("killed", course.go(redis.kill, redis.start, 0.0))
    print("frozen", course.go(redis.freeze, redis.thaw, longer))

    def empty() -> None:
        assert redis.ask("FLUSHALL") == ["+OK"]

    print("emptied", course.go(empty, lambda: None, 0.0, noticed=False))
    for agent in course.agents:
        assert agent.errors().count(AGAIN) >= 4
    # Nobody was called anything but up since it first joined, until the group was
    # emptied; see Course.go.
    for host in HOSTS:
        first, second, *others = lab.transitions(host)
        assert (first, second) == (("suspect", "not-yet-joined"), ("up", "in-group"))
        # It answers, so the leader may find out that only the group has lost it.
        back = ("suspect", "not-yet-back")
        others = [step for step in others if step != back]
        assert others in ([], [("suspect", "vanished"), ("up", "in-group")])


@pytest.mark.slow
def test_away_for_long(lab: labs.Lab, redis: servers.Redis) -> None:
    course = Course(lab)
    took = {
        "frozen": course.go(redis.freeze, redis.thaw, 25.0),
        "stopped": course.go(redis.stop, redis.start, 25.0),
        "killed": course.go(redis.kill, redis.start, 0.0),
    }
    print(took)
    assert all(seconds < outages.WELL for seconds in took.values()), took
