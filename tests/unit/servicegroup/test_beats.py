"""Hosts of legacy agents, which beat in the database: when they are called what."""

import datetime

import hypothesis
from hypothesis import strategies as st
import pytest

from musterbook.servicegroup import verdict
from tests.unit.servicegroup.fleet import Fleet
from tests.unit.servicegroup.fleet import POLICY

UP = ("up", "db-beat")
SUSPECT = ("suspect", "no-db-beat")
DOWN = ("down", "no-db-beat")
EPOCH = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
INTERVAL = 10


class LegacyFleet(Fleet):
    """Hosts that beat every ten seconds, each at its own second, unless silent.

    :ivar clock: the database's, which may be set
    """

    def __init__(self, hosts: int) -> None:
        super().__init__(hosts)
        self.clock = 5000.0
        self.silent: set[str] = set()
        self.legacy = set(self.hosts)
        self.stamps = dict.fromkeys(self.hosts, self.clock)
        self.members.clear()
        for host in self.hosts:
            self.change(host, incarnation=None)

    def beat(self) -> None:
        for number, host in enumerate(sorted(self.legacy)):
            if host not in self.silent and (int(self.now) - number) % INTERVAL == 0:
                self.stamps[host] = self.clock
            at = EPOCH + datetime.timedelta(seconds=self.stamps[host])
            age = self.clock - self.stamps[host]
            self.change(host, beat=verdict.Beat(at, age))

    def run(self, seconds: int) -> object:  # type: ignore[override]  # of no matter
        for _ in range(seconds):
            self.clock += 1
            self.now += 1
            self.beat()
            self.step(0)
        return self.last

    def miss(self, seconds: int) -> None:
        """Let time pass in which the leader can't look and no beat is noted."""
        self.clock += seconds
        self.now += seconds


@pytest.fixture
def three() -> LegacyFleet:
    fleet = LegacyFleet(3)
    fleet.run(20)
    return fleet


def test_who_beats_is_up(three: LegacyFleet) -> None:
    three.run(200)
    assert [three.states(host) for host in three.hosts] == [[UP]] * 3
    assert "by the database's clock" in three.last.verdicts["h01"].evidence
    assert three.last.freezes == {}


def test_who_ends_to_beat_is_down_by_the_db_rule(three: LegacyFleet) -> None:
    three.silent.add("h01")
    three.run(70)
    last = three.stamps["h01"] - 5000 + 1000  # on the observer's clock
    assert three.states("h01") == [UP, DOWN]
    assert three.when("h01", "down") == last + POLICY.service_down_time + 1
    assert three.stored("h00") == three.stored("h02") == UP


def test_a_beat_brings_it_back(three: LegacyFleet) -> None:
    three.silent.add("h01")
    three.run(70)
    three.silent.clear()
    three.run(INTERVAL)
    assert three.stored("h01") == UP


def test_who_never_beat_is_unknown() -> None:
    fleet = LegacyFleet(1)
    fleet.step()
    assert fleet.stored("h00") == ("unknown", "never-granted")


def test_nobody_is_down_unasked(three: LegacyFleet) -> None:
    """The broker is lost: no beat arrives, and nobody can be asked either."""
    three.pings_leave = False
    three.silent.update(three.hosts)
    three.run(200)
    assert {three.stored(host) for host in three.hosts} == {SUSPECT}
    three.pings_leave = True
    three.run(int(POLICY.service_down_time) - 5)
    assert {three.stored(host) for host in three.hosts} == {SUSPECT}
    three.run(10)
    assert {three.stored(host) for host in three.hosts} == {DOWN}


def test_who_answers_with_an_error_lives(three: LegacyFleet) -> None:
    """Its queue is served, by a process that knows no ping of ours."""
    three.silent.add("h01")
    for _ in range(200):
        three.run(1)
        if "h01" in three.asked:
            three.not_asked["h01"] = three.now
            three.unanswered.pop("h01", None)
    assert three.stored("h01") == SUSPECT


def test_after_an_outage_of_the_database_each_gets_its_time(
    three: LegacyFleet,
) -> None:
    three.miss(1000)
    three.silent.add("h01")
    three.run(INTERVAL + 1)
    assert three.stored("h00") == three.stored("h02") == UP
    three.run(int(POLICY.service_down_time) - INTERVAL - 2)
    assert three.stored("h01") == SUSPECT
    three.run(3)
    assert three.stored("h01") == DOWN
    assert DOWN not in three.states("h00")


def test_a_new_leader_gives_a_full_time_but_moves_nobody_who_is_down(
    three: LegacyFleet,
) -> None:
    three.silent.update({"h01", "h02"})
    three.run(30)
    three.new_leader()
    three.run(int(POLICY.service_down_time) - 5)
    assert three.stored("h01") == SUSPECT
    three.run(20)
    before = list(three.history)
    assert three.stored("h01") == DOWN
    three.new_leader()
    three.run(20)
    assert three.history == before


@pytest.mark.parametrize("jump", [-3600, -45, 45, 3600])
def test_a_database_clock_that_is_set_takes_nobody_down(
    three: LegacyFleet, jump: int
) -> None:
    three.clock += jump
    three.run(3 * INTERVAL)
    assert {three.stored(host) for host in three.hosts} == {UP}
    assert not {DOWN} & set(three.states("h00"))


def test_a_stamp_of_the_future_is_not_up_for_ever(three: LegacyFleet) -> None:
    three.silent.add("h01")
    three.stamps["h01"] = three.clock + 10_000
    three.run(60)
    assert three.stored("h01") == DOWN


def test_forced_down_wins_and_its_end_is_judged_anew(three: LegacyFleet) -> None:
    three.change("h01", forced_down=True)
    three.run(5)
    assert three.stored("h01") == ("down", "forced-down")
    three.change("h01", forced_down=False)
    three.run(1)
    assert three.stored("h01") == UP


def test_hello_ends_the_rule_of_beats(three: LegacyFleet) -> None:
    """The legacy agent goes on beating beside the one that was granted."""
    three.legacy.discard("h01")
    three.change("h01", incarnation=1, beat=None)
    three.run(2)
    assert three.stored("h01") == ("suspect", "not-yet-joined")
    three.join("h01")
    three.run(1)
    assert three.stored("h01") == ("up", "in-group")
    three.leave("h01")
    three.run(60)
    assert three.stored("h01") == ("down", "silent")


def test_an_outage_of_the_group_freezes_them_too(three: LegacyFleet) -> None:
    three.change("h00", incarnation=1, beat=None)
    three.legacy.discard("h00")
    three.join("h00")
    three.run(2)
    three.reachable = False
    three.silent.add("h01")
    three.run(100)
    assert three.stored("h01") == UP
    assert "" in three.last.freezes
    three.reachable = True
    three.run(5)
    assert "down" not in {s for _, h, s, _ in three.history if h == "h02"}


def test_a_mass_loss_is_held() -> None:
    fleet = LegacyFleet(20)
    fleet.run(20)
    fleet.silent.update(fleet.hosts[:8])
    fleet.run(200)
    assert {fleet.stored(host) for host in fleet.hosts} == {UP}
    assert [f.cause for f in fleet.last.freezes.values()] == ["mass-loss"]
    fleet.silent.clear()
    fleet.run(40)
    assert fleet.last.freezes == {}
    assert {s for _, _, s, _ in fleet.history} == {"up"}


def test_a_mass_loss_is_believed_in_the_end() -> None:
    fleet = LegacyFleet(20)
    fleet.run(20)
    fleet.silent.update(fleet.hosts[:8])
    fleet.run(400)
    assert {fleet.stored(host) for host in fleet.hosts[:8]} == {DOWN}
    assert {fleet.stored(host) for host in fleet.hosts[8:]} == {UP}
    assert fleet.last.freezes == {}


def test_who_says_hello_or_is_deleted_ends_a_mass_loss() -> None:
    fleet = LegacyFleet(8)
    fleet.run(20)
    fleet.silent.update(fleet.hosts[:6])
    fleet.run(60)
    assert fleet.last.freezes
    for host in fleet.hosts[:3]:
        fleet.legacy.discard(host)
        fleet.change(host, incarnation=1, beat=None)
        fleet.join(host)
    for host in fleet.hosts[3:6]:
        fleet.legacy.discard(host)
        del fleet.granted[host]
    fleet.run(20)
    assert fleet.last.freezes == {}
    assert fleet.stored("h00") == ("up", "in-group")


_event = st.tuples(
    st.sampled_from(
        ["silent", "beats", "force", "lift", "hello", "leader", "missed", "broker"]
    ),
    st.integers(0, 5).map(lambda i: f"h{i:02}"),
)


def apply(fleet: LegacyFleet, event: str, host: str) -> None:
    match event:
        case "silent":
            fleet.silent.add(host)
        case "beats":
            fleet.silent.discard(host)
        case "force" | "lift":
            fleet.change(host, forced_down=event == "force")
        case "hello":
            fleet.legacy.discard(host)
            fleet.change(host, incarnation=1, beat=None)
            fleet.join(host)
        case "leader":
            fleet.new_leader()
        case "missed":
            fleet.miss(500)
        case "broker":
            fleet.pings_leave = not fleet.pings_leave


@hypothesis.given(st.lists(st.tuples(_event, st.sampled_from([0, 1, 12, 45]))))
@hypothesis.settings(max_examples=60)
def test_who_beats_is_never_down(script: list[tuple[tuple[str, str], int]]) -> None:
    """Whatever happens to leader, database, broker and the other hosts."""
    fleet = LegacyFleet(7)
    fleet.run(INTERVAL)
    for (event, host), seconds in script:
        apply(fleet, event, host)
        fleet.run(seconds)
    assert "down" not in {s for _, h, s, _ in fleet.history if h == "h06"}


def test_the_dead_are_down_in_the_end() -> None:
    fleet = LegacyFleet(7)
    fleet.run(INTERVAL)
    fleet.silent.add("h03")
    for _ in range(5):
        fleet.miss(500)
        fleet.run(20)
    fleet.run(60)
    assert fleet.stored("h03") == DOWN


@pytest.mark.parametrize(
    ("age", "said"),
    [
        (7, "h00 was registered 7 s ago, by the database's clock, and has not beaten"),
        (900, "h00 never beat, and was registered 900 s ago by the database's clock"),
    ],
)
def test_a_registration_is_not_told_as_a_beat(age: float, said: str) -> None:
    granted = verdict.Granted(
        host="h00", incarnation=None, goodbye=False, stalled=None, forced_down=False,
        previous=None, beat=verdict.Beat(EPOCH, age, registered_only=True),
    )  # fmt: skip
    told = verdict.judge_beat(granted, 0.0, verdict.Heard(), 1.0, POLICY)
    assert told.evidence.startswith(said)
