"""What get_fleet answers: the stored verdict under what is known now."""

import datetime
from typing import Any

import pytest

from conductor import fleet
from conductor.db import liveness
from musterbook import errors

SINCE = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
NAMES = (
    "host", "state", "state_cause", "state_since", "state_evidence", "forced_down",
    "said_goodbye", "incarnation", "state_incarnation",
)  # fmt: skip
FRESH = liveness.Outlook(lease_fresh=True, lease_age=1.5, freezes=[])
STALE = liveness.Outlook(lease_fresh=False, lease_age=40.0, freezes=[])
NEVER = liveness.Outlook(lease_fresh=False, lease_age=None, freezes=[])
FROZEN = liveness.Outlook(
    lease_fresh=True,
    lease_age=1.0,
    freezes=[("", "group-unreachable", SINCE, "no answer")],
)


def ask(
    outlook: liveness.Outlook, *rows: tuple[Any, ...], columns: Any = None
) -> dict[str, Any]:
    return fleet.answer(liveness.Fleet(NAMES, list(rows)), outlook, columns)


def row(
    state: str | None,
    cause: str | None,
    forced: bool = False,
    goodbye: bool = False,
    incarnation: int | None = 1,
    judged: int | None = 1,
) -> tuple[Any, ...]:
    """Return what is stored of a host; judged is the incarnation of the verdict."""
    since = None if state is None else SINCE
    return (
        "web1", state, cause, since, "seen", forced, goodbye, incarnation, judged,
    )  # fmt: skip


def told(answer: dict[str, Any]) -> list[tuple[Any, ...]]:
    c = answer["columns"]
    return list(zip(c["state"], c["state_cause"], strict=True))


def test_a_fresh_verdict_is_told_as_stored() -> None:
    answer = ask(FRESH, row("up", "in-group"), row("suspect", "vanished"))
    assert answer["columns"]["state"] == ["up", "suspect"]
    assert answer["columns"]["last_state"] == ["up", "suspect"]
    assert answer["columns"]["state_cause"] == ["in-group", "vanished"]
    assert answer["columns"]["state_since"] == [SINCE.isoformat()] * 2
    assert answer["lease_age"] == 1.5


@pytest.mark.parametrize("outlook", [STALE, NEVER])
def test_without_a_leader_nothing_is_known(outlook: liveness.Outlook) -> None:
    answer = ask(outlook, row("up", "in-group"), row("down", "silent"))
    assert answer["columns"]["state"] == ["unknown", "unknown"]
    assert answer["columns"]["state_cause"] == ["no-leader", "no-leader"]
    assert answer["columns"]["last_state"] == ["up", "down"]
    assert answer["lease_age"] == outlook.lease_age


def test_a_freeze_is_told_with_its_cause_and_time() -> None:
    answer = ask(FROZEN, row("up", "in-group"))
    assert answer["columns"]["state"] == ["unknown"]
    assert answer["columns"]["state_cause"] == ["group-unreachable"]
    assert answer["columns"]["state_since"] == [SINCE.isoformat()]
    assert answer["columns"]["last_state"] == ["up"]


@pytest.mark.parametrize("outlook", [STALE, FROZEN])
def test_what_was_said_holds_without_anybody_looking(
    outlook: liveness.Outlook,
) -> None:
    answer = ask(
        outlook,
        row("down", "goodbye", goodbye=True),
        row("up", "in-group", forced=True),
        row("up", "in-group", goodbye=True),
        row("down", "forced-down", forced=True),
        row(None, None, forced=True, incarnation=None, judged=None),
    )
    assert told(answer) == [
        ("down", "goodbye"),
        ("down", "forced-down"),
        ("down", "goodbye"),
        ("down", "forced-down"),
        ("down", "forced-down"),
    ]
    # Of what the leader hasn't written, nobody knows since when it is so.
    known = SINCE.isoformat()
    assert answer["columns"]["state_since"] == [known, None, None, known, None]
    assert answer["columns"]["state_evidence"] == [
        "seen",
        "forced down by an operator",
        "web1#1 said goodbye",
        "seen",
        "forced down by an operator",
    ]


@pytest.mark.parametrize(
    ("outlook", "cause"), [(STALE, "no-leader"), (FROZEN, "group-unreachable")]
)
def test_what_was_said_of_something_else_does_not_hold(
    outlook: liveness.Outlook, cause: str
) -> None:
    answer = ask(
        outlook,
        row("down", "goodbye", incarnation=2),  # said by the process before
        row("down", "forced-down"),  # lifted since
        row("down", "goodbye", judged=None),
    )
    assert told(answer) == [("unknown", cause)] * 3


def test_a_new_incarnation_is_suspect_until_somebody_looks() -> None:
    answer = ask(
        FRESH,
        row("down", "goodbye", incarnation=2),
        row("up", "in-group", incarnation=2),
        row(None, None, judged=None),  # a row of Nova's, granted for the first time
    )
    assert told(answer) == [("suspect", "not-yet-joined")] * 3
    assert answer["columns"]["last_state"] == ["down", "up", None]
    assert answer["columns"]["state_since"] == [None] * 3
    assert answer["columns"]["state_evidence"][0] == (
        "web1#2 was granted, nobody has looked for it yet"
    )


def test_forced_down_holds_before_the_leader_has_written_it() -> None:
    answer = ask(FRESH, row("up", "in-group", forced=True))
    assert answer["columns"]["state"] == ["down"]


def test_a_host_that_never_said_hello_is_unknown() -> None:
    answer = ask(FRESH, row(None, None, incarnation=None, judged=None))
    assert answer["columns"]["state"] == ["unknown"]
    assert answer["columns"]["state_cause"] == ["never-granted"]


def test_columns_are_those_asked_for_and_unknown_ones_are_left_out() -> None:
    answer = ask(FRESH, row("up", "in-group"), columns=["state", "colour"])
    assert answer["columns"] == {"state": ["up"]}


def test_an_empty_fleet() -> None:
    answer = ask(FRESH)
    assert answer["columns"]["host"] == []


LOST = ("nova", "mass-loss", SINCE, "5 of 5 hosts")


@pytest.mark.parametrize(
    ("lease_age", "freezes", "frozen_for", "said"),
    [
        (None, [], None, "no leader has ever looked"),
        (31.0, [], None, "no leader has looked for 31 s, 30 s are allowed"),
        (1.0, [LOST], 31.0, "frozen for 31 s (mass-loss), and 30 s are allowed"),
    ],
)
def test_a_caller_that_states_an_age_is_told_when_it_is_older(
    lease_age: float | None, freezes: list[object], frozen_for: float, said: str
) -> None:
    outlook = liveness.Outlook(True, lease_age, freezes)  # type: ignore[arg-type]
    with pytest.raises(errors.LivenessUnknown) as caught:
        fleet.check_age(outlook, frozen_for, 30.0)
    assert said in caught.value.message
    assert caught.value.http_status == 503


def test_a_caller_that_states_an_age_is_answered_within_it() -> None:
    fleet.check_age(liveness.Outlook(True, 29.0, [LOST]), 30.0, 30.0)
    fleet.check_age(liveness.Outlook(True, 29.0, []), None, 30.0)
