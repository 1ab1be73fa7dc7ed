"""What a request for a claim may hold: each edge, and what is said of it."""

import math
from typing import Any
import uuid as uuidlib

import pytest

from conductor import claim_requests
from musterbook import errors

UUID = "3c2f9d53-7f0c-4c4e-8f5b-6d1f2a3b4c5d"
NODE = "7d9f9f2e-5a4a-4d15-8f9f-5a0b3bb0a001"


def asked(**fields: Any) -> dict[str, Any]:
    return {
        "uuid": UUID,
        "resources": {"vcpus": 1},
        "candidates": [NODE],
        **fields,
    }


def refused(value: Any) -> errors.InvalidInput:
    with pytest.raises(errors.InvalidInput) as caught:
        claim_requests.parse(value, 600.0)
    return caught.value


NO_AMOUNTS: list[Any] = [
    -1, -(2**31), 2**31, 10**30, 1.0, 1.5, math.nan, math.inf, True, False, "1", None,
    [1], {"a": 1}, b"1",
]  # fmt: skip


@pytest.mark.parametrize("amount", NO_AMOUNTS)
@pytest.mark.parametrize("name", ["vcpus", "memory_mb", "local_gb", "CUSTOM_FPGA"])
def test_what_is_no_amount(name: str, amount: Any) -> None:
    exc = refused([asked(resources={"vcpus": 1, name: amount})])
    assert exc.field.startswith("requests[0].resources")
    assert name in exc.message
    assert "\n" not in exc.message


def test_amounts_that_can_be() -> None:
    (found,) = claim_requests.parse(
        [asked(resources={"vcpus": 0, "memory_mb": 2**31 - 1, "CUSTOM_FPGA": 2})], 600.0
    )
    assert found.resources == {"memory_mb": 2**31 - 1, "CUSTOM_FPGA": 2}
    assert (found.owner, found.seconds, found.replaces) == (None, 600.0, None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("resources", None),
        ("resources", {}),
        ("resources", {"vcpus": 0}),
        ("resources", {"cpus": 1}),
        ("resources", {"vcpus": 1, 7: 1}),
        ("resources", {"vcpus": 1, "custom_fpga": 1}),
        ("resources", [["vcpus", 1]]),
        ("uuid", None),
        ("uuid", "x"),
        ("uuid", UUID.replace("-", "")),
        ("candidates", None),
        ("candidates", []),
        ("candidates", NODE),
        ("candidates", ["x"]),
        ("candidates", [str(uuidlib.uuid4()) for _ in range(101)]),
        ("owner", ""),
        ("owner", 7),
        ("owner", "a" * 256),
        ("owner", "a\0"),
        ("seconds", 0),
        ("seconds", -1),
        ("seconds", math.nan),
        ("seconds", math.inf),
        ("seconds", True),
        ("seconds", "60"),
        ("seconds", 7 * 86400 + 1),
        ("replaces", "x"),
        ("replaces", UUID),
    ],
)
def test_what_can_not_be(field: str, value: Any) -> None:
    exc = refused([asked(**{field: value})])
    assert exc.field.startswith(f"requests[0].{field}")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "is not a list"),
        ({}, "is not a list"),
        ([], "is empty"),
        ([7], "is not an object"),
        ([asked(), asked()], "comes twice"),
        ([asked(colour="red")], "colour"),
        ([asked()] * 501, "501 claims, at most 500"),
    ],
)
def test_what_is_no_list_of_requests(value: Any, said: str) -> None:
    assert said in refused(value).message


def test_too_many_nodes_at_once() -> None:
    value = [
        asked(
            uuid=str(uuidlib.uuid4()),
            candidates=[str(uuidlib.uuid4()) for _ in range(100)],
        )
        for _ in range(21)
    ]
    assert "2100 nodes, at most 2000" in refused(value).message


def test_too_many_candidates_at_once() -> None:
    """Of few nodes: each request goes through its own."""
    nodes = [str(uuidlib.uuid4()) for _ in range(100)]
    value = [asked(uuid=str(uuidlib.uuid4()), candidates=nodes) for _ in range(101)]
    exc = refused(value)
    assert exc.field == "requests"
    assert "10100 candidates in all, at most 10000" in exc.message
    assert len(claim_requests.parse(value[:100], 600.0)) == 100


def test_uuids_are_stored_in_one_form() -> None:
    (found,) = claim_requests.parse(
        [asked(uuid=UUID.upper(), candidates=[NODE.upper(), NODE])], 1.0
    )
    assert (found.uuid, found.candidates) == (UUID, (NODE,))


def test_a_move_may_leave_out_what_it_asks_for() -> None:
    value = asked(replaces=NODE)
    del value["resources"]
    (found,) = claim_requests.parse([value], 1.0)
    assert found.resources is None
