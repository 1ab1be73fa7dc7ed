"""Hosts that come and go, on a virtual clock."""

import hypothesis
from hypothesis import strategies as st
import pytest

from musterbook.servicegroup import flapping
from musterbook.servicegroup import verdict
from tests.unit.servicegroup.fleet import Fleet

UP = ("up", "in-group")
FLAPPING = ("suspect", "flapping")
VANISHED = ("suspect", "vanished")


@pytest.fixture
def fleet() -> Fleet:
    made = Fleet(3)
    made.step()
    return made


def flap(fleet: Fleet, host: str = "h01", away: int = 5, after: int = 5) -> None:
    """Let a host expire and come back."""
    fleet.leave(host)
    fleet.run(away)
    fleet.join(host)
    fleet.run(after)


def held_for(fleet: Fleet, host: str = "h01") -> int:
    """Return how many seconds from its return on a host is held, now that it is."""
    since = fleet.when(host, "suspect")
    while fleet.stored(host) == FLAPPING:
        fleet.step()
    return int(fleet.now - since)


def test_twice_is_nothing(fleet: Fleet) -> None:
    flap(fleet)
    flap(fleet)
    assert fleet.states("h01") == [UP, VANISHED, UP, VANISHED, UP]


def test_the_third_time_it_is_held_and_longer_each_time(fleet: Fleet) -> None:
    flap(fleet)
    flap(fleet)
    held = []
    for _ in range(5):
        flap(fleet, after=1)
        assert fleet.stored("h01") == FLAPPING
        held.append(held_for(fleet))
        assert fleet.stored("h01") == UP
    # 60 s, doubled; the early returns have left the 15 minutes by the end.
    assert held == [60, 120, 240, 300, 300]
    assert fleet.stored("h00") == UP
    assert "down" not in {s for _, _, s, _ in fleet.history}


def test_evidence_says_how_often_and_for_how_long(fleet: Fleet) -> None:
    for _ in range(3):
        flap(fleet)
    previous = fleet.granted["h01"].previous
    assert previous is not None
    assert previous.evidence == (
        "h01#1 is in the group, and left it and came back 3 times within 15 min: "
        "held suspect for 60 s from its return on"
    )


def test_three_times_in_more_than_15_minutes_is_nothing(fleet: Fleet) -> None:
    flap(fleet)
    fleet.run(600)
    flap(fleet)
    fleet.run(300)
    flap(fleet)
    assert fleet.stored("h01") == UP


def test_who_leaves_while_held_is_judged_as_anybody(fleet: Fleet) -> None:
    for _ in range(3):
        flap(fleet)
    fleet.leave("h01")
    fleet.run(60)
    assert fleet.states("h01")[-3:] == [FLAPPING, VANISHED, ("down", "silent")]
    fleet.join("h01")
    fleet.step()
    # Of its death it came back, too: the fourth time.
    assert fleet.stored("h01") == FLAPPING
    assert held_for(fleet) == 120


@pytest.mark.parametrize("crash", [True, False], ids=["killed", "stopped"])
def test_restarts(fleet: Fleet, crash: bool) -> None:
    """Whoever says goodbye may be restarted as often as one likes."""
    for number in range(2, 8):
        if not crash:
            fleet.change("h01", goodbye=True)
            fleet.step()
        fleet.leave("h01")
        fleet.run(3)
        fleet.change("h01", incarnation=number, goodbye=False)
        fleet.run(2)
        fleet.join("h01")
        fleet.run(5)
    assert (FLAPPING in fleet.states("h01")) == crash


def test_who_is_forced_down_meanwhile_is_excused(fleet: Fleet) -> None:
    for _ in range(5):
        fleet.leave("h01")
        fleet.run(3)
        fleet.change("h01", forced_down=True)
        fleet.step()
        fleet.join("h01")
        fleet.step()
        fleet.change("h01", forced_down=False)
        fleet.run(3)
    assert fleet.stored("h01") == UP


def test_a_backend_that_comes_and_goes_is_no_flapping(fleet: Fleet) -> None:
    for _ in range(8):
        fleet.reachable = False
        fleet.run(15)
        members, fleet.members = fleet.members, set()
        fleet.reachable = True
        fleet.run(2)
        fleet.members = members
        fleet.run(5)
        fleet.group_exists = False
        fleet.run(3)
        fleet.group_exists = True
        fleet.run(5)
    assert {s for _, _, s, _ in fleet.history} == {"up"}


def test_whom_only_the_group_has_lost_does_not_flap(fleet: Fleet) -> None:
    """A backend that loses its data again and again; the hosts answer all the while."""
    fleet.answering.update(fleet.hosts)
    for _ in range(5):
        flap(fleet, away=4, after=60)
    assert FLAPPING not in fleet.states("h01")
    assert ("suspect", "not-yet-back") in fleet.states("h01")
    before = list(fleet.history)
    fleet.new_leader()
    fleet.run(5)
    assert fleet.history == before


def test_who_was_deaf_at_first_and_answers_when_it_thaws_does(fleet: Fleet) -> None:
    for _ in range(3):
        fleet.leave("h01")
        fleet.run(6)
        fleet.answering.add("h01")
        fleet.run(6)
        fleet.join("h01")
        fleet.run(2)
        fleet.answering.discard("h01")
    assert fleet.stored("h01") == FLAPPING


def test_a_stall_says_more_than_flapping(fleet: Fleet) -> None:
    for _ in range(3):
        flap(fleet)
    fleet.change("h01", stalled="the disk hangs")
    fleet.step()
    assert fleet.stored("h01") == ("suspect", "stalled")
    fleet.change("h01", stalled=None)
    fleet.step()
    assert fleet.stored("h01") == FLAPPING


def test_an_operator_ends_it_and_counting_begins_anew(fleet: Fleet) -> None:
    for _ in range(3):
        flap(fleet)
    fleet.reset("h01")
    fleet.step()
    assert fleet.states("h01")[-3:] == [FLAPPING, ("suspect", "flapping-reset"), UP]
    flap(fleet)
    flap(fleet)
    assert fleet.stored("h01") == UP
    flap(fleet)
    assert fleet.stored("h01") == FLAPPING
    fleet.reset("h01")
    # Whoever leads next has the operator's word, too.
    fleet.new_leader()
    fleet.step()
    assert fleet.stored("h01") == UP
    flap(fleet)
    assert fleet.stored("h01") == UP


def test_a_new_leader_holds_on(fleet: Fleet) -> None:
    for _ in range(2):
        flap(fleet)
        fleet.new_leader()
        fleet.step()
    flap(fleet, after=1)
    assert fleet.stored("h01") == FLAPPING
    before = list(fleet.history)
    for _ in range(5):
        fleet.run(5)
        fleet.new_leader()
        fleet.step()
    assert fleet.history == before
    assert held_for(fleet) == 60


def test_a_new_leader_counts_the_return_that_nobody_saw(fleet: Fleet) -> None:
    flap(fleet)
    flap(fleet)
    fleet.leave("h01")
    fleet.run(5)
    fleet.join("h01")
    fleet.new_leader()
    fleet.step()
    assert fleet.stored("h01") == FLAPPING


def test_a_deleted_service_leaves_nothing(fleet: Fleet) -> None:
    for _ in range(3):
        flap(fleet)
    del fleet.granted["h01"]
    fleet.step()
    assert not list(fleet.watch._flaps.hosts())


def test_a_quiet_fleet_costs_nothing(fleet: Fleet) -> None:
    for _ in range(4):
        flap(fleet)
    fleet.run(int(flapping.WINDOW) + 1)
    assert not list(fleet.watch._flaps.hosts())


_step = st.tuples(
    st.sampled_from(["leave", "join", "goodbye", "restart", "force", "lift", "reset"]),
    st.sampled_from([1, 2, 30, 70, 400]),
)


def expected(fleet: Fleet, host: str) -> tuple[int, float] | None:
    """Return the returns that count, and until when they hold, from the history."""
    returns: list[float] = []
    held = None
    missed = False
    for when, name, state, cause in fleet.history:
        if name != host:
            continue
        if (state, cause) in {VANISHED, ("down", "silent")}:
            missed = True
        elif cause in {"goodbye", "forced-down"}:
            missed = False
        elif cause == "flapping-reset":
            returns, held, missed = [], None, False
        elif missed and cause in {"in-group", "flapping"}:
            missed = False
            returns.append(when)
            count = sum(when - earlier < 15 * 60 for earlier in returns)
            if count >= 3:
                held = count, when + min(300, 60 * 2 ** (count - 3))
    return held if held is not None and fleet.now < held[1] else None


@hypothesis.given(st.lists(_step, max_size=40))
@hypothesis.settings(max_examples=150, deadline=None)
def test_whatever_happens_it_is_as_the_history_says(
    script: list[tuple[str, int]],
) -> None:
    """And so a leader that knows nothing but the history decides the same."""
    fleet = Fleet(2)
    fleet.step()
    for event, seconds in script:
        match event:
            case "leave":
                fleet.leave("h01")
            case "join":
                fleet.join("h01")
            case "goodbye":
                fleet.change("h01", goodbye=True)
            case "restart":
                fleet.leave("h01")
                number = (fleet.granted["h01"].incarnation or 0) + 1
                fleet.change("h01", incarnation=number, goodbye=False)
            case "force" | "lift":
                fleet.change("h01", forced_down=event == "force")
            case "reset":
                fleet.reset("h01")
        fleet.run(seconds)
        held = expected(fleet, "h01")
        assert held is None or held[1] - fleet.now <= flapping.MOST_HOLD
        found = fleet.watch._flaps.hold("h01", fleet.now)
        assert (found and (found.returns, found.until)) == held
        g = fleet.granted["h01"]
        present = g.member in fleet.members and not (g.goodbye or g.forced_down)
        assert (fleet.stored("h01") == FLAPPING) == (present and held is not None)
        if held is not None and present:
            fleet.new_leader()
            fleet.step()
            assert fleet.stored("h01") == (FLAPPING if fleet.now < held[1] else UP)
    assert fleet.stored("h00") == UP


@pytest.mark.parametrize(
    ("returns", "seconds"),
    [(0, 0), (2, 0), (3, 60), (4, 120), (5, 240), (6, 300), (60, 300), (2000, 300)],
)
def test_how_long(returns: int, seconds: float) -> None:
    assert flapping.hold_seconds(returns) == seconds


def test_only_what_was_seen_to_leave_has_expired() -> None:
    expired = {
        (state, cause)
        for state in verdict.State
        for cause in verdict.Cause
        if verdict.has_expired(state, cause)
    }
    assert expired == {VANISHED, ("down", "silent")}
