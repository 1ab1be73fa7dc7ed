"""Hosts of granted agents that beat through a conductor: when they are called what."""

import itertools

import hypothesis
from hypothesis import strategies as st
import pytest

from musterbook.servicegroup import machine
from musterbook.servicegroup import roster
from musterbook.servicegroup import verdict
from tests.unit.servicegroup import test_beats
from tests.unit.servicegroup.fleet import POLICY

UP = ("up", "db-beat")
SUSPECT = ("suspect", "no-db-beat")
DOWN = ("down", "no-db-beat")
DOWN_TIME = int(POLICY.service_down_time)


class DbFleet(test_beats.LegacyFleet):
    """Granted hosts that beat through a conductor; some may be of the group."""

    def __init__(self, hosts: int) -> None:
        super().__init__(hosts)
        self.fresh: set[str] = set()  # processes that have yet to beat
        for host in self.hosts:
            self.change(host, incarnation=1)

    def to_group(self, host: str) -> None:
        """Start it anew with the tooz driver."""
        self.legacy.discard(host)
        self.restart(host)
        self.join(host)

    def restart(self, host: str) -> None:
        """Grant it to another process, which hasn't beaten yet."""
        old = self.granted[host].incarnation or 0
        self.change(host, incarnation=old + 1, beat=None, goodbye=False, stalled=None)
        self.fresh.add(host)

    def beat(self) -> None:
        before = dict(self.stamps)
        super().beat()
        for host in sorted(self.fresh):
            if self.stamps[host] == before[host]:
                self.change(host, beat=None)
            else:
                self.fresh.discard(host)


@pytest.fixture
def three() -> DbFleet:
    fleet = DbFleet(3)
    fleet.run(20)
    return fleet


def test_who_beats_is_up(three: DbFleet) -> None:
    three.run(200)
    assert [three.states(host) for host in three.hosts] == [[UP]] * 3
    said = three.last.verdicts["h01"]
    assert said.incarnation == 1
    assert said.evidence.startswith("h01#1 beat ")


def test_who_dies_is_down_after_service_down_time(three: DbFleet) -> None:
    three.silent.add("h01")
    three.run(DOWN_TIME + 15)
    last = three.stamps["h01"] - 5000 + 1000  # on the observer's clock
    assert three.states("h01") == [UP, DOWN]
    assert three.when("h01", "down") == last + DOWN_TIME + 1
    assert three.stored("h00") == three.stored("h02") == UP
    three.silent.clear()
    three.run(test_beats.INTERVAL)
    assert three.stored("h01") == UP


def test_who_answers_is_not_down(three: DbFleet) -> None:
    """Its beats are lost on the way, or can't be written."""
    three.silent.add("h01")
    three.answering.add("h01")
    three.run(600)
    assert three.states("h01") == [UP, SUSPECT]
    assert "the host lives" in three.last.verdicts["h01"].evidence
    three.answering.clear()
    three.run(DOWN_TIME + 15)
    assert three.stored("h01") == DOWN
    # One that is down, and then answers, isn't dead.
    three.answering.add("h01")
    three.run(65)
    assert three.stored("h01") == SUSPECT


def test_a_goodbye_is_down_at_the_next_look(three: DbFleet) -> None:
    three.change("h01", goodbye=True)
    three.run(1)
    assert three.stored("h01") == ("down", "goodbye")
    three.run(100)
    assert three.states("h01") == [UP, ("down", "goodbye")]
    assert "h01" not in three.asked


def test_stalled_is_suspect_and_never_down_for_it(three: DbFleet) -> None:
    three.change("h01", stalled="no audit")
    three.run(300)
    assert three.states("h01") == [UP, ("suspect", "stalled")]
    assert (
        three.last.verdicts["h01"].evidence == "h01#1 beats, and is stalled: no audit"
    )
    three.change("h01", stalled=None)
    three.run(1)
    assert three.stored("h01") == UP


def test_beats_of_another_incarnation_are_nobodys(three: DbFleet) -> None:
    """The former process goes on; what it says isn't stored, and so isn't told."""
    three.legacy.discard("h01")
    three.restart("h01")
    three.run(2)
    assert three.stored("h01") == ("suspect", "not-yet-joined")
    three.run(DOWN_TIME + 5)
    assert three.stored("h01") == ("down", "silent")
    three.legacy.add("h01")
    three.run(test_beats.INTERVAL)
    assert three.stored("h01") == UP


@pytest.mark.parametrize("seconds", [5, 30, 60, 1000])
def test_an_outage_of_the_database_takes_nobody_down(
    three: DbFleet, seconds: int
) -> None:
    for _ in range(3):
        three.miss(seconds)
        three.run(1)
        assert "down" not in {s for _, _, s, _ in three.history}
        three.run(test_beats.INTERVAL)
        assert {three.stored(host) for host in three.hosts} == {UP}
        three.run(60)


def test_who_died_in_an_outage_is_down_after_it(three: DbFleet) -> None:
    three.miss(1000)
    three.silent.add("h01")
    three.run(DOWN_TIME - 1)
    assert three.stored("h01") == SUSPECT
    three.run(3)
    assert three.stored("h01") == DOWN


def test_a_large_fleet_is_frozen_after_an_outage_and_then_up() -> None:
    fleet = DbFleet(20)
    fleet.run(20)
    fleet.miss(120)
    fleet.run(1)
    assert [f.cause for f in fleet.last.freezes.values()] == ["mass-loss"]
    fleet.run(40)
    assert fleet.last.freezes == {}
    assert {s for _, _, s, _ in fleet.history} == {"up"}


def test_a_lost_rack_is_believed_when_others_answer() -> None:
    fleet = DbFleet(20)
    fleet.run(20)
    fleet.silent.update(fleet.hosts[:8])
    fleet.answering.update(fleet.hosts[8:])
    fleet.run(int(POLICY.mass_loss_hold) + DOWN_TIME)
    assert {fleet.stored(host) for host in fleet.hosts[:8]} == {DOWN}
    # With nobody who answers, the pings themselves may be what is broken.
    fleet = DbFleet(20)
    fleet.run(20)
    fleet.silent.update(fleet.hosts[:8])
    fleet.run(int(POLICY.mass_loss_hold) + DOWN_TIME)
    assert [f.cause for f in fleet.last.freezes.values()] == ["mass-loss"]


def test_drivers_may_be_mixed(three: DbFleet) -> None:
    three.to_group("h00")
    three.run(2)
    assert three.stored("h00") == ("up", "in-group")
    three.change("h02", incarnation=None)  # a legacy one
    three.run(20)
    assert three.stored("h02") == UP
    three.leave("h00")
    three.silent.update({"h01", "h02"})
    three.run(DOWN_TIME + 20)
    assert three.stored("h00") == ("down", "silent")
    assert three.stored("h01") == three.stored("h02") == DOWN
    # And back to beats.
    three.legacy.add("h00")
    three.restart("h00")
    three.run(20)
    assert three.stored("h00") == UP


def test_a_watch_is_not_quiet_while_beats_are_to_be_watched(three: DbFleet) -> None:
    assert three.watch.quiet_until(three.granted, {}) is None


_event = st.tuples(
    st.sampled_from(
        [
            *("silent", "beats", "force", "lift", "leader", "missed", "broker"),
            *("stall", "unstall", "goodbye", "restart", "group", "answers", "deaf"),
        ]
    ),
    st.integers(0, 5).map(lambda i: f"h{i:02}"),
)


def apply(fleet: DbFleet, event: str, host: str) -> None:
    match event:
        case "stall":
            fleet.change(host, stalled="audit")
        case "unstall":
            fleet.change(host, stalled=None)
        case "goodbye":
            fleet.change(host, goodbye=True)
        case "restart":
            fleet.leave(host)
            fleet.legacy.add(host)
            fleet.restart(host)
        case "group":
            fleet.leave(host)
            fleet.to_group(host)
        case "answers":
            fleet.answering.add(host)
        case "deaf":
            fleet.answering.discard(host)
        case _:
            test_beats.apply(fleet, event, host)


@hypothesis.given(st.lists(st.tuples(_event, st.sampled_from([0, 1, 12, 45]))))
@hypothesis.settings(max_examples=60, deadline=None)
def test_whatever_happens_to_others(
    script: list[tuple[tuple[str, str], int]],
) -> None:
    """Who beats is never down, and all steps are the state machine's."""
    fleet = DbFleet(7)
    fleet.run(test_beats.INTERVAL)
    for (event, host), seconds in script:
        apply(fleet, event, host)
        fleet.run(seconds)
    assert "down" not in {s for _, h, s, _ in fleet.history if h == "h06"}
    known = {(s.state.value, s.cause.value) for s in machine.STANDINGS}
    for host in fleet.hosts:
        steps = fleet.states(host)
        assert set(steps) <= known
        causes = [verdict.Cause(cause) for _, cause in steps]
        for before, after in itertools.pairwise(causes):
            assert before is after or machine.may_follow(before, after)


def test_what_mostly_follows_does() -> None:
    """Each step that the diagram has of such hosts is shown."""
    fleet = DbFleet(1)
    host = "h00"
    for event, seconds in (
        *(("restart", 12), ("stall", 2), ("unstall", 2), ("stall", 2)),
        *(
            ("silent", 45),
            ("unstall", 0),
            ("answers", 60),
            ("deaf", 60),
            ("answers", 65),
        ),
        *(("deaf", 60), ("beats", 12), ("force", 2), ("lift", 12), ("goodbye", 2)),
        *(("restart", 12), ("restart", 12), ("silent", 60)),
        *(("restart", 2), ("beats", 12), ("answers", 0), ("silent", 60)),
        *(("beats", 12), ("stall", 2)),
    ):
        apply(fleet, event, host)
        fleet.run(seconds)
    seen = set(itertools.pairwise(fleet.states(host)))
    for standing in machine.STANDINGS:
        if standing.cause not in {verdict.Cause.DB_BEAT, verdict.Cause.NO_DB_BEAT}:
            continue
        here = (standing.state.value, standing.cause.value)
        for cause in standing.usually:
            assert any(
                before == here and after[1] == cause for before, after in seen
            ), (here, cause)


def test_a_watch_made_anew_knows_them(three: DbFleet) -> None:
    """What is replayed of the history has nothing of the group in it."""
    three.silent.add("h01")
    three.run(100)
    watch = roster.Watch(POLICY)
    watch.recall(three.past())
    three.watch = watch
    before = list(three.history)
    three.run(20)
    assert three.history == before
