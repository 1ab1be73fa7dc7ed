"""The rule by which claims get nodes, against a slow and plain reckoning."""

import fractions
from typing import Any

import hypothesis
from hypothesis import strategies as st
import pytest

from conductor.db import claim_reasons
from conductor.db import claim_rules
from conductor.db import limits

NODE: dict[str, Any] = {
    "uuid": "n",
    "vcpus": 8,
    "vcpus_used": 1,
    "reserved_vcpus": 1,
    "cpu_allocation_ratio": 2.0,
    "memory_mb": 1000,
    "memory_mb_used": 0,
    "reserved_memory_mb": 0,
    "ram_allocation_ratio": None,
    "local_gb": 10,
    "local_gb_used": 0,
    "reserved_local_gb": 0,
    "disk_allocation_ratio": 1.5,
    "custom_resources": '{"CUSTOM_FPGA": 3}',
    "custom_used": '{"CUSTOM_FPGA": 1, "CUSTOM_GONE": 2}',
}


def test_room_of_a_node() -> None:
    room = claim_rules.room_of(NODE)
    assert room.capacity == {
        "vcpus": 14,
        "memory_mb": 1000,
        "local_gb": 15,
        "CUSTOM_FPGA": 3,
    }
    assert room.free == {
        "vcpus": 14,
        "memory_mb": 1000,
        "local_gb": 15,
        "CUSTOM_FPGA": 2,
    }


@pytest.mark.parametrize(
    ("used", "free"), [(0, 14), (-3, 14), (1, 14), (2, 13), (15, 0), (16, -1)]
)
def test_less_than_reserved_in_use_is_no_more_room(used: int, free: int) -> None:
    """14 are offered, besides the one that is reserved."""
    room = claim_rules.room_of({**NODE, "vcpus_used": used})
    assert (room.capacity["vcpus"], room.free["vcpus"]) == (14, free)


@pytest.mark.parametrize(
    ("total", "reserved", "ratio", "expected"),
    [
        (8, 0, 1.0, 8),
        (8, 0, 16.0, 128),
        (8, 1, 4.0, 28),
        (3, 0, 1.5, 4),  # 4.5, and half a CPU isn't given out
        (1, 0, 0.5, 0),
        (100, 0, 1.15, 115),  # in binary it is 114.99999999999999
        (10, 0, 0.3, 3),  # and this 3.0000000000000000
        (8, 0, 0.0, 0),
        (8, 0, -1.0, 0),
        (8, 0, None, 8),
        (8, 9, 4.0, 0),
        (0, 0, 4.0, 0),
        (-5, 0, 4.0, 0),
        (8, -1, 1.0, 8),
        (2**31 - 1, 0, 1000.0, limits.LARGEST),
        (2**31 - 1, 7, 1000.0, limits.LARGEST - 7),
    ],
)
def test_capacity(
    total: int, reserved: int, ratio: float | None, expected: int
) -> None:
    assert claim_rules.capacity(total, reserved, ratio) == expected


@hypothesis.given(
    st.integers(0, 10**6), st.integers(0, 10**6), st.decimals(0, 100, places=2)
)
def test_capacity_is_never_more_than_what_is_written(
    total: int, reserved: int, ratio: Any
) -> None:
    found = claim_rules.capacity(total, reserved, float(ratio))
    exact = max(0, total - reserved) * fractions.Fraction(str(ratio))
    assert found == min(exact // 1, limits.LARGEST - reserved)


def room(name: str, vcpus: int, memory: int, *hindrances: Any) -> claim_rules.Room:
    has = {"vcpus": vcpus, "memory_mb": memory}
    return claim_rules.Room(name, has, dict(has), dict(has), hindrances)


AMOUNTS = st.dictionaries(
    st.sampled_from(["vcpus", "memory_mb"]), st.integers(1, 9), min_size=1
)
REQUESTS = st.lists(
    st.tuples(AMOUNTS, st.lists(st.sampled_from("abcx"), min_size=1, unique=True)),
    max_size=12,
)


@hypothesis.given(
    REQUESTS, st.lists(st.integers(0, 20), min_size=6, max_size=6), st.booleans()
)
def test_nobody_gets_more_than_there_is(
    asked: list[tuple[dict[str, int], list[str]]], sizes: list[int], atomic: bool
) -> None:
    rooms = {
        name: room(name, *sizes[2 * n : 2 * n + 2]) for n, name in enumerate("abc")
    }
    requests = [
        claim_rules.Request(str(n), resources, tuple(candidates), None, 1.0)
        for n, (resources, candidates) in enumerate(asked)
    ]
    choices = claim_rules.choose(requests, rooms, atomic=atomic)
    assert [choice.request for choice in choices] == requests
    after = {name: dict(r.free) for name, r in rooms.items()}
    why = claim_reasons.explain(choices, rooms, 10**6)
    left = {name: dict(r.capacity) for name, r in rooms.items()}
    whole = all(choice.node is not None for choice in choices)
    for choice in choices:
        if choice.node is None:
            reasons, left_out = why[choice.request.uuid]
            told = {reason["node"] for reason in reasons}
            assert told == set(choice.request.candidates) or (atomic and not told)
            assert left_out == 0
            continue
        assert choice.request.uuid not in why
        assert whole or not atomic
        candidates = choice.request.candidates
        assert choice.node in candidates
        wanted = choice.request.resources or {}
        # None before it had room.
        for name in candidates[: candidates.index(choice.node)]:
            assert name == "x" or any(left[name][r] < n for r, n in wanted.items())
        for resource, amount in wanted.items():
            left[choice.node][resource] -= amount
            assert left[choice.node][resource] >= 0
    assert after == left


def test_all_reasons_with_their_numbers() -> None:
    rooms = {"a": room("a", 8, 4, ("disabled", "its host is disabled"))}
    rooms["a"].take({"vcpus": 6})
    request = claim_rules.Request(
        "1", {"vcpus": 3, "memory_mb": 5, "CUSTOM_X": 1}, ("a", "b"), None, 1.0
    )
    choices = claim_rules.choose([request], rooms)
    assert claim_reasons.explain(choices, rooms, 10**6)["1"].reasons == [
        {"node": "a", "reason": "disabled", "message": "its host is disabled"},
        {
            "node": "a",
            "reason": "no-room",
            "message": "vcpus: 3 requested, 2 free of 8",
            "resource": "vcpus",
            "requested": 3,
            "free": 2,
            "capacity": 8,
        },
        {
            "node": "a",
            "reason": "larger-than-node",
            "message": "memory_mb: 5 requested, the node has 4 in all",
            "resource": "memory_mb",
            "requested": 5,
            "free": 4,
            "capacity": 4,
        },
        {
            "node": "a",
            "reason": "no-such-resource",
            "message": "there is no CUSTOM_X: 1 requested",
            "resource": "CUSTOM_X",
            "requested": 1,
            "free": 0,
            "capacity": 0,
        },
        {
            "node": "b",
            "reason": "no-such-node",
            "message": "there is no node of this uuid",
        },
    ]


@pytest.mark.parametrize("text", [None, "", "{", "[1]", '{"A": "1", "B": true}'])
def test_what_is_no_amount_counts_nothing(text: str | None) -> None:
    assert claim_rules.counts(text) == {}
