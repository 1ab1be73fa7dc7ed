"""Random lives of one host, to see which verdict follows which."""

from collections.abc import Sequence
import random

from musterbook.servicegroup import verdict
from tests.unit.servicegroup.fleet import Fleet
from tests.unit.servicegroup.test_roster_properties import apply

HOST = "h01"
#: What may happen; some of it more often.
EVENTS = (
    *("leave", "leave", "leave", "join", "join", "join", "goodbye", "stall"),
    *("unstall", "restart", "restart", "reset", "reset", "forget", "answers", "deaf"),
    *("flap", "flap", "leader", "leader", "lose-group", "unreachable", "reachable"),
    *("reachable", "all-join", "release", "broker-lost", "broker-back"),
    *("force", "lift", "lift"),
)
#: And for how many seconds it goes on like that.
SECONDS = (0, 0, 1, 1, 1, 2, 12, 45)
LENGTH = 60

Follows = tuple[verdict.Cause | None, verdict.Cause]


def history(script: Sequence[tuple[str, int]], hosts: int = 2) -> list[tuple[str, str]]:
    """Return the states and causes of the life of a host."""
    fleet = Fleet(hosts)
    fleet.step()
    for event, seconds in script:
        _happen(fleet, event)
        fleet.run(seconds)
    return fleet.states(HOST)


def live(script: Sequence[tuple[str, int]], hosts: int = 2) -> set[Follows]:
    """Return which cause followed which in the life of a host.

    One that follows itself, for another incarnation, is left out.
    """
    causes = [verdict.Cause(cause) for _, cause in history(script, hosts)]
    pairs = zip([None, *causes], causes, strict=False)
    return {(before, after) for before, after in pairs if before is not after}


def script(seed: int) -> list[tuple[str, int]]:
    """Return what happens by a seed; the same with every release of Python."""
    rng = random.Random(seed)

    def choose(values: Sequence[object]) -> int:
        return int(rng.random() * len(values))

    return [(EVENTS[choose(EVENTS)], SECONDS[choose(SECONDS)]) for _ in range(LENGTH)]


def _happen(fleet: Fleet, event: str) -> None:
    match event:
        case "unstall":
            fleet.change(HOST, stalled=None)
        case "reset":
            fleet.reset(HOST)
        case "answers":
            fleet.answering.add(HOST)
        case "deaf":
            fleet.answering.discard(HOST)
        case "flap":
            for _ in range(3):
                fleet.leave(HOST)
                fleet.run(2)
                fleet.join(HOST)
                fleet.run(2)
        case "forget":
            _forget(fleet)
        case _:
            apply(fleet, event, HOST)


def _forget(fleet: Fleet) -> None:
    """Let a living process say hello again: the database had forgotten it."""
    incarnation = (fleet.granted[HOST].incarnation or 0) + 1
    said = verdict.Verdict(
        verdict.State.UNKNOWN, verdict.Cause.GRANT_FORGOTTEN, incarnation, ""
    )
    fleet.history.append((fleet.now, HOST, said.state, said.cause))
    fleet.leave(HOST)
    fleet.change(
        HOST, incarnation=incarnation, goodbye=False, stalled=None, previous=said
    )
