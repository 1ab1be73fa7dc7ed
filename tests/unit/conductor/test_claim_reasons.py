"""Why claims get nothing: with whose numbers, and what an answer leaves out."""

import json

import pytest

from conductor.db import claim_reasons
from conductor.db import claim_rules
from musterbook import errors


def room(name: str, *hindrances: tuple[str, str]) -> claim_rules.Room:
    has = {"vcpus": 8, "memory_mb": 4}
    return claim_rules.Room(name, has, dict(has), dict(has), hindrances)


def ask(uuid: str, candidates: str, **resources: int) -> claim_rules.Request:
    return claim_rules.Request(uuid, resources, tuple(candidates), None, 1.0)


def explain(
    *requests: claim_rules.Request, most_bytes: int = 10**6, atomic: bool = False
) -> dict[str, claim_reasons.Told]:
    rooms = {name: room(name) for name in "abc"}
    choices = claim_rules.choose(requests, rooms, atomic=atomic)
    return claim_reasons.explain(choices, rooms, most_bytes)


@pytest.mark.parametrize("atomic", [False, True])
def test_numbers_are_of_when_it_was_decided(atomic: bool) -> None:
    """Not of the end of the batch, nor of a group that was given back."""
    found = explain(
        ask("first", "a", vcpus=2),
        ask("second", "a", vcpus=7),
        ask("third", "a", vcpus=3),
        ask("fourth", "a", vcpus=4),
        atomic=atomic,
    )
    free = {u: [reason["free"] for reason in told.reasons] for u, told in found.items()}
    fitting: dict[str, list[object]] = {"first": [], "third": []} if atomic else {}
    assert free == {"second": [6], "fourth": [3], **fitting}


def test_what_does_not_fit_is_counted() -> None:
    wanted = {"vcpus": 9, "memory_mb": 9, "CUSTOM_X": 1}
    whole = explain(ask("1", "abcx", **wanted))["1"]
    assert (len(whole.reasons), whole.left_out) == (10, 0)
    sizes = [len(json.dumps(reason)) for reason in whole.reasons]
    for count in range(1, 11):
        for spare in (0, 1):
            most = sum(sizes[:count]) + spare
            told = explain(ask("1", "abcx", **wanted), most_bytes=most)["1"]
            assert told == (whole.reasons[:count], 10 - count)
    # One is told in any case.
    assert explain(ask("1", "abcx", **wanted), most_bytes=0)["1"] == (
        whole.reasons[:1],
        9,
    )


def test_each_of_a_batch_gets_its_share() -> None:
    asked = [ask(str(n), "abc", vcpus=9, memory_mb=9) for n in range(10)]
    asked.insert(0, ask("small", "x", vcpus=1))
    asked.insert(4, ask("booked", "a", vcpus=1))
    found = explain(*asked, most_bytes=5000)
    assert found.keys() == {request.uuid for request in asked} - {"booked"}
    told = [reason for one in found.values() for reason in one.reasons]
    assert sum(len(json.dumps(reason)) for reason in told) <= 5000
    assert found.pop("small").left_out == 0
    assert {len(one.reasons) + one.left_out for one in found.values()} == {6}
    assert min(len(one.reasons) for one in found.values()) >= 2
    assert min(one.left_out for one in found.values()) > 0


def test_an_error_says_some_and_counts_the_rest() -> None:
    reasons = [{"node": f"n{n}", "message": f"no {n}"} for n in range(60)]
    exc = errors.ClaimRefused(uuid="u", reasons=reasons, reasons_left_out=40)
    assert exc.reasons == reasons
    assert "node n49: no 49; and 50 more reasons" in exc.message
    assert "n50" not in exc.message
    assert "more" not in errors.ClaimRefused(uuid="u", reasons=reasons[:50]).message
