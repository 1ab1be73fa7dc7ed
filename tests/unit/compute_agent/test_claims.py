"""Claims by the agent: what it looks at, and what it leaves behind."""

from collections.abc import Callable
from collections.abc import Mapping
import threading
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
        #: What happens while a release is on its way.
        self.releasing: Callable[[str], None] = lambda uuid: None

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
        self.releasing(uuid)
        if self.release_fails is not None:
            raise self.release_fails
        self.released.append(uuid)


class World:
    def __init__(self) -> None:
        self.now = 100.0
        self.conductor = Conductor()
        self.marks = progress.Progress(30.0, lambda: self.now)
        held = tenure.Tenure(Grant("web1", 4, "secret"))
        self.interval = 10.0
        self.stopping = threading.Event()
        self.claimer = claims.Claimer(
            self.conductor,
            held,
            self.marks,
            5.0,
            lambda: self.interval,
            self.stopping,
            lambda: self.now,
        )
        self.claimer.know({"web1": NODE})

    def leave_unreleased(self, count: int) -> list[str]:
        """Let so many claims and their releases be lost; return their uuids."""
        asked = [f"{number:08}{UUID[8:]}" for number in range(count)]
        self.conductor.claim_fails = self.conductor.release_fails = LOST
        for uuid in asked:
            with pytest.raises(errors.ConductorUnavailable):
                self.claimer.claim({**ASKED, "uuid": uuid})
        self.conductor.release_fails = None
        self.conductor.seconds.clear()
        return asked

    def audit(self) -> None:
        """Do what a loop does, at the end of which the claimer is told."""
        self.marks.reading()
        self.marks.read()
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


def test_a_slow_conductor_keeps_no_audit_waiting(world: World) -> None:
    """Audits come as ever, nobody calls the agent stalled, and all is done at last."""
    world.marks.set_seconds(2.0)
    world.interval = 1.0
    asked = world.leave_unreleased(300)
    taken = 0.03  # seconds, as a busy conductor's

    def slow(uuid: str) -> None:
        for _ in range(3):
            world.now += taken / 3
            assert world.marks.standstill() is None

    world.conductor.releasing = slow
    audits = 0
    while len(world.conductor.released) < len(asked):
        began = world.now
        world.audit()
        # A quarter of the second between two, and the call that was begun in it.
        assert world.now - began < 0.25 + taken + 0.001
        audits += 1
        assert audits < 60
        world.now += world.interval
        assert world.marks.standstill() is None
    assert world.conductor.released == asked  # the oldest first, each once
    world.audit()
    assert world.conductor.released == asked


def test_one_call_may_take_longer_than_a_standstill(world: World) -> None:
    world.marks.set_seconds(2.0)
    world.interval = 1.0
    asked = world.leave_unreleased(3)

    def slow(uuid: str) -> None:
        world.now += 9.0
        assert world.marks.standstill() is None
        assert world.marks.trouble() is None

    world.conductor.releasing = slow
    for done in (1, 2, 3):
        world.audit()
        assert world.conductor.released == asked[:done]
        assert world.marks.standstill() is None
    # One call has no longer than any of an audit's.
    assert set(world.conductor.seconds) == {1.0}


def test_a_release_after_an_audit_has_no_more_than_ten_seconds() -> None:
    world = World()
    world.claimer._seconds = 600.0
    world.leave_unreleased(1)
    world.audit()
    assert world.conductor.seconds == [10.0]


@pytest.mark.parametrize(
    ("failure", "others"),
    [
        (LOST, False),
        (errors.DatabaseUnavailable(reason="x"), False),
        (errors.DatabaseBusy(reason="x"), True),
        (errors.RemoteFailure(class_name="X"), True),
    ],
)
def test_one_that_always_fails_keeps_no_other_waiting(
    world: World, failure: errors.MusterbookError, others: bool
) -> None:
    asked = world.leave_unreleased(3)

    def fail(uuid: str) -> None:
        if uuid == asked[0]:
            raise failure

    world.conductor.releasing = fail
    world.audit()
    assert world.conductor.released == (asked[1:] if others else [])
    world.audit()
    assert world.conductor.released == asked[1:]
    world.conductor.releasing = lambda uuid: None
    world.audit()
    assert sorted(world.conductor.released) == asked


def test_a_stop_waits_for_one_release_only(world: World) -> None:
    asked = world.leave_unreleased(3)
    world.conductor.releasing = lambda uuid: world.stopping.set()
    world.audit()
    world.audit()
    assert world.conductor.released == asked[:1]
