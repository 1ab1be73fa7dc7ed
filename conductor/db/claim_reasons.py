"""Why claims get nothing: told after the commit, when no node is locked any more.

A batch may have millions of reasons, of which an answer takes some: those that it
leaves out are only counted.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import json
from typing import Any
from typing import NamedTuple

from conductor.db import claim_rules


class Told(NamedTuple):
    """The reasons of one request.

    :ivar reasons: JSON objects; none in a group of which another one got no node
    :ivar left_out: how many more there are
    """

    reasons: list[dict[str, Any]]
    left_out: int


#: Of what would fit, but for its group.
NOTHING = Told([], 0)


def explain(
    choices: Sequence[claim_rules.Choice],
    rooms: Mapping[str, claim_rules.Room],
    most_bytes: int,
) -> dict[str, Told]:
    """Return why requests get nothing, by their uuids.

    Each reason has the numbers of the instant at which its request was decided: what
    the requests before it got is taken once more.

    :param choices: what choose() returned
    :param rooms: as choose() left them; used up
    :param most_bytes: that all reasons have as JSON, besides one of each request
    """
    for choice in choices:
        if choice.node is not None:
            rooms[choice.node].give_back(choice.request.resources or {})
    waiting = sum(choice.node is None for choice in choices)
    found: dict[str, Told] = {}
    for choice in choices:
        if choice.node is None:
            # What one leaves of its share is there for the others.
            told, used = _tell(choice, rooms, most_bytes // waiting)
            found[choice.request.uuid] = told
            most_bytes, waiting = max(0, most_bytes - used), waiting - 1
        if choice.fitting is not None:
            rooms[choice.fitting].take(choice.request.resources or {})
    return found


def _tell(
    choice: claim_rules.Choice,
    rooms: Mapping[str, claim_rules.Room],
    most_bytes: int,
) -> tuple[Told, int]:
    """Return the reasons of a request and the bytes that they have."""
    reasons: list[dict[str, Any]] = []
    used = left_out = 0
    for count, some in _of_each(choice, rooms):
        for told, reason in enumerate(some):
            facts = reason.facts()
            size = len(json.dumps(facts))
            if reasons and used + size > most_bytes:
                left_out += count - told
                most_bytes = 0  # no smaller one after it: what is told has no gaps
                break
            reasons.append(facts)
            used += size
    return Told(reasons, left_out), used


def _of_each(
    choice: claim_rules.Choice, rooms: Mapping[str, claim_rules.Room]
) -> Iterator[tuple[int, Iterator[claim_rules.Reason]]]:
    """Yield, of each candidate, how many reasons there are, and these."""
    if choice.hopeless is not None:
        yield 1, iter([choice.hopeless])
        return
    if choice.fitting is not None:
        return
    resources = choice.request.resources or {}
    for uuid in choice.request.candidates:
        room = rooms.get(uuid)
        if room is None:
            yield 1, iter([_unknown_node(uuid)])
            continue
        lacks = room.lacks(resources)
        yield len(room.hindrances) + len(lacks), _of_room(room, resources, lacks)


def _of_room(
    room: claim_rules.Room, resources: Mapping[str, int], lacks: Sequence[str]
) -> Iterator[claim_rules.Reason]:
    for word, text in room.hindrances:
        yield claim_rules.Reason(room.uuid, word, text)
    for name in lacks:
        yield room.reason(name, resources[name])


def _unknown_node(uuid: str) -> claim_rules.Reason:
    return claim_rules.Reason(uuid, "no-such-node", "there is no node of this uuid")
