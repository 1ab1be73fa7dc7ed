"""The state machine as it is written down, against what comes of the verdict."""

import itertools
from typing import Any

import hypothesis
from hypothesis import strategies as st

from musterbook.servicegroup import machine
from musterbook.servicegroup import verdict
from tests.unit.servicegroup import test_beats
from tests.unit.servicegroup import walk

#: Lives that together show all but the rarest steps; found by trying 4,000 of them.
SEEDS = (
    388, 3685, 2357, 119, 423, 1190, 135, 49, 333, 482, 1209, 2036, 2410, 126, 159,
    208, 308, 436, 839, 1156, 1302, 2088, 2749, 3450,
)  # fmt: skip
#: Steps that take an outage at the right moment: the events, and hosts of the fleet.
_LOST = [
    *[("unreachable", 1), ("all-leave", 0), ("reachable", 0), ("join", 1)],
    *[("unreachable", 1), ("leave", 0), ("reachable", 20)],
]
RARE: tuple[tuple[int, list[tuple[str, int]]], ...] = (
    (2, [("leave", 2), *_LOST]),
    (2, [("restart", 2), *_LOST]),
    (2, [("restart", 2), *_LOST[:4], ("leave", 20)]),
    (2, [("flap", 0), ("lose-group", 0), ("reset", 45), ("release", 1)]),
    (8, [("goodbye", 1), ("restart", 0), ("all-leave", 320)]),
)
#: Causes of freezes, which are no verdicts.
_FROZEN = {cause for cause, *_ in machine.FREEZES}


def test_each_cause_is_in_it() -> None:
    standings = [(standing.cause, standing.state) for standing in machine.STANDINGS]
    assert {cause for cause, _ in standings} == set(verdict.Cause) - _FROZEN
    assert len(set(standings)) == len(standings)


def test_what_usually_follows_may_follow() -> None:
    for standing in machine.STANDINGS:
        for cause in standing.usually:
            same = cause is standing.cause  # with another state
            assert same or machine.may_follow(standing.cause, cause)


@hypothesis.given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(set(walk.EVENTS))), st.sampled_from(walk.SECONDS)
        ),
        max_size=walk.LENGTH,
    )
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_nothing_happens_that_is_not_in_it(script: list[tuple[str, int]]) -> None:
    for before, after in walk.live(script):
        assert before is None or machine.may_follow(before, after)


def test_all_that_is_in_it_happens() -> None:
    seen: set[Any] = set()
    for seed in SEEDS:
        seen |= walk.live(walk.script(seed))
    for hosts, script in RARE:
        seen |= walk.live(script, hosts)
    # Of agents that say hello; no host that was granted loses its grant.
    causes = [s.cause for s in machine.STANDINGS if s.cause not in machine.LEGACY]
    possible = {
        (before, after)
        for before in causes
        for after in causes
        if machine.may_follow(before, after)
    }
    assert possible - seen == set()
    assert {step for step in seen if step[0] is not None} - possible == set()


def test_a_legacy_host_goes_by_it() -> None:
    fleet = test_beats.LegacyFleet(3)
    fleet.run(20)
    fleet.silent.add("h01")
    fleet.run(80)
    fleet.change("h01", forced_down=True)
    fleet.run(5)
    fleet.change("h01", forced_down=False)
    fleet.run(5)
    fleet.silent.clear()
    fleet.run(30)
    steps = fleet.states("h01")
    assert len(steps) > 4
    known = {(s.state.value, s.cause.value) for s in machine.STANDINGS}
    assert set(steps) <= known
    for before, after in itertools.pairwise(steps):
        causes = verdict.Cause(before[1]), verdict.Cause(after[1])
        assert causes[0] is causes[1] or machine.may_follow(*causes)


def test_a_state_is_that_of_its_cause() -> None:
    states: dict[str, set[str]] = {}
    for seed in SEEDS[:5]:
        for state, cause in walk.history(walk.script(seed)):
            states.setdefault(cause, set()).add(state)
    known = {(s.cause.value, s.state.value) for s in machine.STANDINGS}
    assert states
    for cause, found in states.items():
        assert {(cause, state) for state in found} <= known
