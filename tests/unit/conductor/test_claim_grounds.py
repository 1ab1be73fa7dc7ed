"""Which hosts may be claimed: what the fleet's answer calls up, and nothing else."""

import datetime
from typing import Any

import hypothesis
from hypothesis import strategies as st
import pytest

from conductor import fleet
from conductor.db import claim_grounds
from conductor.db import liveness

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def ground(**fields: Any) -> claim_grounds.Ground:
    values: dict[str, Any] = {
        "disabled": False,
        "disabled_reason": None,
        "forced_down": False,
        "incarnation": 3,
        "said_goodbye": False,
        "stalled_reason": None,
        "state": "up",
        "state_cause": "in-group",
        "state_incarnation": 3,
        "now": NOW,
        "unknown": None,
    }
    return claim_grounds.Ground(**values | fields)


def told(found: claim_grounds.Ground) -> str:
    """Return the state that a scheduler is told of such a host."""
    names = ("host", *found._fields, "state_since", "state_evidence")
    row = ("web1", *found, NOW, None)
    freezes: list[tuple[str, str, datetime.datetime, str | None]] = []
    if found.unknown is not None:
        freezes.append(("", "group-lost", NOW, None))
    outlook = liveness.Outlook(lease_fresh=True, lease_age=1.0, freezes=freezes)
    rows = liveness.Fleet(tuple(names), [row])
    return str(fleet.answer(rows, outlook, ["state"])["columns"]["state"][0])


@hypothesis.given(
    st.booleans(),
    st.none() | st.integers(1, 2),
    st.booleans(),
    st.none() | st.sampled_from(["up", "down", "suspect", "unknown"]),
    st.none() | st.integers(1, 2),
    st.booleans(),
)
def test_it_may_be_claimed_if_it_is_called_up(
    forced_down: bool,
    incarnation: int | None,
    said_goodbye: bool,
    state: str | None,
    state_incarnation: int | None,
    frozen: bool,
) -> None:
    # Only agents that said hello say goodbye.
    hypothesis.assume(not said_goodbye or incarnation is not None)
    found = ground(
        forced_down=forced_down,
        incarnation=incarnation,
        said_goodbye=said_goodbye,
        state=state,
        state_incarnation=state_incarnation,
        unknown=(1.0, "frozen") if frozen else None,
    )
    assert (claim_grounds.hindrances(found, 0.0) == []) == (told(found) == "up")
    # And while nobody can tell, by the last verdict for a while.
    before = found._replace(unknown=None)
    assert (claim_grounds.hindrances(found, 2.0) == []) == (told(before) == "up")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"disabled": True, "disabled_reason": "disk"}, [("disabled", "disk")]),
        ({"stalled_reason": "no inventory"}, [("stalled", "no inventory")]),
        (
            {"disabled": True, "state": "down", "state_cause": "silent"},
            [("disabled", "disabled"), ("down", "silent")],
        ),
        ({"unknown": (61.0, "no leader looks")}, [("unknown", "for 61 s")]),
        ({"unknown": (float("inf"), "no leader yet")}, [("unknown", "no leader")]),
    ],
)
def test_all_that_is_in_the_way(
    fields: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    found = claim_grounds.hindrances(ground(**fields), 60.0)
    assert [word for word, _ in found] == [word for word, _ in expected]
    for (_, text), (_, part) in zip(found, expected, strict=True):
        assert part in text


def test_without_a_service() -> None:
    assert claim_grounds.by_host({}, "web1", 60.0)[0][0] == "no-service"
    assert claim_grounds.by_host({"web1": ground()}, "WEB1", 60.0) == []
