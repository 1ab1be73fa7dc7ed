"""A Steady decides what a Watch does, and says so only where that is news."""

import hypothesis
from hypothesis import strategies as st
import pytest

from musterbook.servicegroup import ping
from musterbook.servicegroup import roster
from musterbook.servicegroup import steady
from musterbook.servicegroup import verdict
from tests.unit.servicegroup import test_roster_properties as properties
from tests.unit.servicegroup.fleet import Fleet
from tests.unit.servicegroup.fleet import POLICY

HOSTS = 8


class Twin(Fleet):
    """A fleet that is watched by both; what they say is compared at each step."""

    def __init__(self) -> None:
        super().__init__(HOSTS, zones=2)
        self.quick = steady.Steady(POLICY)
        self.skipped = 0
        self._told: tuple[dict[str, verdict.Granted], dict[str, verdict.Granted]] = (
            {},
            {},
        )

    def new_leader(self) -> None:
        super().new_leader()
        self.quick = steady.Steady(POLICY)

    def step(self, seconds: float = 1.0) -> roster.Decision:
        before = dict(self.granted)
        # The same object as the last time if all in it is the same.
        if self._told[0] != before:
            self._told = (before, dict(before))
        replies = ping.Replies(
            dict(self.asked),
            dict(self.answered),
            dict(self.unanswered),
            dict(self.not_asked),
        )
        quick = self.quick.step(
            self.poll(),
            self._told[1],
            replies,
            self.now + seconds,
            self.canary if self.reachable else None,
        )
        full = super().step(seconds)
        self.skipped += quick is steady.NOTHING_NEW
        assert quick.freezes == full.freezes
        assert quick.to_ping == full.to_ping
        assert news(quick, before) == news(full, before)
        return full


def news(
    decision: roster.Decision, granted: dict[str, verdict.Granted]
) -> dict[str, verdict.Verdict]:
    return {
        host: said
        for host, said in decision.verdicts.items()
        if not said.same_as(granted[host].previous)
    }


@hypothesis.given(properties._script)
@hypothesis.settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
def test_whatever_happens(script: list[tuple[tuple[str, str], int]]) -> None:
    fleet = Twin()
    fleet.step()
    for (event, host), seconds in script:
        if event == "release":
            for scope in ("", "z0", "z1"):
                fleet.quick.release(scope)
        properties.apply(fleet, event, host)
        for _ in range(seconds):
            fleet.step()


@hypothesis.given(st.lists(st.sampled_from([1.0, 5.0, 9.9, 10.1, 30.0]), max_size=12))
def test_whatever_the_pauses(pauses: list[float]) -> None:
    fleet = Twin()
    fleet.step()
    fleet.leave("h03")
    fleet.run(60)
    for pause in pauses:
        fleet.step(pause)
    fleet.leave("h01")
    fleet.run(60)


def test_nothing_is_looked_at_while_nothing_changes() -> None:
    fleet = Twin()
    fleet.run(3)
    before = fleet.skipped
    fleet.run(50)
    assert fleet.skipped - before == 50


def test_a_host_that_is_down_costs_a_look_a_minute() -> None:
    fleet = Twin()
    fleet.step()
    fleet.leave("h03")
    fleet.change("h04", goodbye=True)
    fleet.run(300)
    assert fleet.stored("h03") == ("down", "silent")
    before = fleet.skipped
    fleet.run(120)
    # The question, and the answer that doesn't come.
    assert fleet.skipped - before >= 120 - 2 * 2


@pytest.mark.parametrize("what", ["poll", "granted", "policy"])
def test_what_changes_is_looked_at(what: str) -> None:
    fleet = Twin()
    fleet.run(5)
    if what == "poll":
        fleet.leave("h00")
    elif what == "granted":
        fleet.change("h00", stalled="disk")
    else:
        fleet.quick.set_policy(
            verdict.Policy(5.0, 40.0, 5, 0.2, 300.0)  # another member timeout
        )
    skipped = fleet.skipped
    fleet.step()
    assert fleet.skipped == skipped
