"""Claims by the agent: what it looks at, and what it leaves behind."""

from collections.abc import Mapping
from typing import Any

import pytest

from compute_agent import claims
from compute_agent import progress
from compute_agent import tenure
from musterbook import errors
from musterbook.context import Grant

UUID = "3c2f9d53-7f0c-4c4e-8f5b-6d1f2a3b4c5d"
NODE = "7d9f9f2e-5a4a-4d15-8f9f-5a0b3bb0a001"
OTHER = "7d9f9f2e-5a4a-4d15-8f9f-5a0b3bb0a002"
ASKED = {"uuid": UUID, "resources": {"vcpus": 1}, "candidates": [NODE]}
LOST = errors.ConductorUnavailable(method="claim", seconds=3, asked=True)


class Conductor:
    """Answers as it is told, and notes what it is asked."""

    def __init__(self) -> None:
        self.claimed: list[Any] = []
        self.attempts: list[str] = []
        self.released: list[str] = []
        self.seconds: list[float] = []
        self.claim_fails: Exception | None = None
        self.release_fails: Exception | None = None

    def claim(
        self, context: Any, request: Mapping[str, Any], timeout: float
    ) -> dict[str, Any]:
        assert context.grant.incarnation == 4
        asked = dict(request)
        self.attempts.append(asked.pop("attempt"))
        self.claimed.append(asked)
        self.seconds.append(timeout)
        if self.claim_fails is not None:
            raise self.claim_fails
        return {"uuid": request["uuid"], "node": NODE}

    def release_claim(
        self, context: Any, uuid: str, *, timeout: float, attempt: str
    ) -> None:
        assert attempt in self.attempts
        self.seconds.append(timeout)
        if self.release_fails is not None:
            raise self.release_fails
        self.released.append(uuid)


class World:
    def __init__(self) -> None:
        self.now = 100.0
        self.conductor = Conductor()
        self.marks = progress.Progress(30.0, lambda: self.now)
        held = tenure.Tenure(Grant("web1", 4, "secret"))
        self.claimer = claims.Claimer(self.conductor, held, self.marks, 5.0)
        self.claimer.know({"web1": NODE})


@pytest.fixture
def world() -> World:
    return World()


def test_the_conductor_decides(world: World) -> None:
    assert world.claimer.claim(ASKED) == {"uuid": UUID, "node": NODE}
    no_node = {"uuid": UUID, "resources": {"vcpus": 1}}
    world.claimer.claim(no_node)
    assert world.conductor.claimed == [ASKED, ASKED]
    refused = errors.ClaimRefused(uuid=UUID, reasons=[])
    world.conductor.claim_fails = refused
    with pytest.raises(errors.ClaimRefused):
        world.claimer.claim(ASKED)
    assert world.conductor.released == []


def test_a_host_that_stands_still_takes_nothing(world: World) -> None:
    world.marks.reading()
    world.now += 31
    with pytest.raises(errors.ClaimRefused, match="no inventory for 30 s") as caught:
        world.claimer.claim(ASKED)
    assert caught.value.reasons[0]["reason"] == "stalled"
    world.marks.unreadable("the disk is gone")
    world.marks.begin()
    with pytest.raises(errors.ClaimRefused, match="the disk is gone"):
        world.claimer.claim(ASKED)
    assert world.conductor.claimed == []
    world.marks.read()
    world.claimer.claim(ASKED)


def test_nodes_of_others_are_not_claimed_here(world: World) -> None:
    with pytest.raises(errors.ClaimRefused) as caught:
        world.claimer.claim({**ASKED, "candidates": [NODE, OTHER]})
    assert [reason["node"] for reason in caught.value.reasons] == [OTHER]
    world.claimer.know({"web1": NODE, "web1-b": OTHER})
    world.claimer.claim({**ASKED, "candidates": [NODE, OTHER.upper()]})
    with pytest.raises(errors.InvalidInput, match="has 2 nodes"):
        world.claimer.claim({"uuid": UUID})
    with pytest.raises(errors.InvalidInput, match="candidates"):
        world.claimer.claim({**ASKED, "candidates": NODE})


def test_what_ended_unknown_is_released_in_the_callers_time(world: World) -> None:
    for lost in (
        LOST,
        errors.DatabaseUnavailable(reason="x"),
        errors.RemoteFailure(class_name="X"),
    ):
        world.conductor.claim_fails = lost
        with pytest.raises(type(lost)):
            world.claimer.claim(ASKED)
    assert world.conductor.released == [UUID] * 3
    assert len(set(world.conductor.attempts)) == 3
    # Of the five seconds that the caller waits.
    assert world.conductor.seconds[0] == pytest.approx(3.0)
    assert sum(world.conductor.seconds[:2]) < 5.0 * 0.81


def test_a_release_that_is_lost_as_well_is_tried_again(world: World) -> None:
    world.conductor.claim_fails = world.conductor.release_fails = LOST
    with pytest.raises(errors.ConductorUnavailable):
        world.claimer.claim(ASKED)
    world.claimer.know({"web1": NODE})
    world.conductor.release_fails = None
    for _ in range(2):
        world.claimer.know({"web1": NODE})
    assert world.conductor.released == [UUID]


def test_a_release_that_is_refused_is_not_tried_for_ever(world: World) -> None:
    world.conductor.claim_fails = LOST
    world.conductor.release_fails = errors.InvalidInput(field="uuid", reason="no")
    with pytest.raises(errors.ConductorUnavailable):
        world.claimer.claim({**ASKED, "uuid": "x"})
    world.conductor.release_fails = None
    world.claimer.know({"web1": NODE})
    assert world.conductor.released == []
