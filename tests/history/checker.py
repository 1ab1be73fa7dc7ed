"""What must be true of a whole history of claims, not of its end alone.

An answer says that something was true at some instant between its begin and its end, so
that only what must be true at all of these instants is held against it. A claim that is
not answered may be booked or not.
"""

import collections
from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses

from tests.history import events

_NEVER = float("inf")


@dataclasses.dataclass(frozen=True)
class Violation:
    """What isn't true.

    :ivar rule: over-limit, not-the-sum, lost, doubled, risen, not-booked or generation
    """

    rule: str
    text: str


@dataclasses.dataclass
class _Claim:
    """What the history says of one uuid.

    :ivar acknowledged: when it was first answered that it is booked
    :ivar ending: when something first began that may end it
    :ivar ended: when it was first answered that it is over
    :ivar maybe: whether any answer leaves it open, or says that it is booked
    """

    amount: int = 0
    nodes: set[str] = dataclasses.field(default_factory=set)
    acknowledged: float = _NEVER
    ending: float = _NEVER
    ended: float = _NEVER
    maybe: bool = False


def check(
    history: Iterable[events.Event], limits: Mapping[str, int]
) -> list[Violation]:
    """Return what is wrong with a history.

    :param limits: how much of each node may be claimed
    """
    all_events = list(history)
    asks = [event for event in all_events if isinstance(event, events.Ask)]
    reads = [event for event in all_events if isinstance(event, events.Read)]
    claims = _claims(asks)
    found = _doubled(claims)
    found += _over_by_answers(claims, limits)
    for read in reads:
        found += _check_read(read, limits)
    found += _check_against(reads, claims)
    found += _generations(reads)
    return found


def _claims(asks: Iterable[events.Ask]) -> dict[str, _Claim]:
    claims: dict[str, _Claim] = collections.defaultdict(_Claim)
    for ask in asks:
        claim = claims[ask.uuid]
        end = _NEVER if ask.end is None else ask.end
        if ask.kind == "claim":
            claim.amount = ask.amount
            if ask.answer == "claimed":
                claim.nodes.add(str(ask.node))
                claim.acknowledged = min(claim.acknowledged, end)
                claim.maybe = True
            elif ask.answer == "unknown":
                claim.maybe = True
            elif ask.answer == "gone":
                claim.ended = min(claim.ended, end)
        elif ask.kind == "release":
            claim.ending = min(claim.ending, ask.begin)
            if ask.answer == "done":
                claim.ended = min(claim.ended, end)
    return dict(claims)


def _doubled(claims: Mapping[str, _Claim]) -> list[Violation]:
    return [
        Violation("doubled", f"{uuid} was answered to be on {sorted(claim.nodes)}")
        for uuid, claim in claims.items()
        if len(claim.nodes) > 1
    ]


def _over_by_answers(
    claims: Mapping[str, _Claim], limits: Mapping[str, int]
) -> list[Violation]:
    """Add up what is surely booked at each instant, between the reads as well."""
    changes: dict[str, list[tuple[float, int]]] = collections.defaultdict(list)
    for claim in claims.values():
        if claim.acknowledged < claim.ending:
            for node in claim.nodes:
                changes[node].append((claim.acknowledged, claim.amount))
                changes[node].append((claim.ending, -claim.amount))
    found = []
    for node, steps in changes.items():
        total = 0
        # At one instant, what ends does so first.
        for at, amount in sorted(steps):
            total += amount
            if total > limits[node]:
                text = f"{node}: {total} of {limits[node]} acknowledged at {at:.3f}"
                found.append(Violation("over-limit", text))
                break
    return found


def _check_read(read: events.Read, limits: Mapping[str, int]) -> list[Violation]:
    found = []
    total = sum(amount for _, amount in read.live)
    at = f"{read.node} at {read.begin:.3f}"
    if max(total, read.used) > limits[read.node]:
        text = f"{at}: {read.used} used, {total} booked of {limits[read.node]}"
        found.append(Violation("over-limit", text))
    if total != read.used:
        found.append(
            Violation("not-the-sum", f"{at}: {read.used} used, {total} booked")
        )
    uuids = collections.Counter(uuid for uuid, _ in read.live)
    found += [
        Violation("doubled", f"{at}: {uuid} is there {count} times")
        for uuid, count in uuids.items()
        if count > 1
    ]
    return found


def _check_against(
    reads: Iterable[events.Read], claims: Mapping[str, _Claim]
) -> list[Violation]:
    """Hold what was read against what was answered."""
    found = []
    by_node: dict[str, list[tuple[str, _Claim]]] = collections.defaultdict(list)
    seen_on: dict[str, set[str]] = collections.defaultdict(set)
    for uuid, claim in claims.items():
        for node in claim.nodes:
            by_node[node].append((uuid, claim))
    for read in reads:
        live = {uuid for uuid, _ in read.live}
        at = f"{read.node} at {read.begin:.3f}"
        found += [
            Violation("lost", f"{at}: {uuid} was acknowledged and isn't there")
            for uuid, claim in by_node[read.node]
            if claim.acknowledged <= read.begin
            and claim.ending >= read.end
            and uuid not in live
        ]
        for uuid in live & claims.keys():
            seen_on[uuid].add(read.node)
            claim = claims[uuid]
            if claim.ended <= read.begin:
                text = f"{at}: {uuid} was answered to be over and is there"
                found.append(Violation("risen", text))
            if not claim.maybe:
                text = f"{at}: {uuid} was refused each time and is there"
                found.append(Violation("not-booked", text))
    for uuid, nodes in seen_on.items():
        all_nodes = nodes | claims[uuid].nodes
        if len(all_nodes) > 1:
            text = f"{uuid} is on {sorted(all_nodes)}"
            found.append(Violation("doubled", text))
    return found


def _generations(reads: Iterable[events.Read]) -> list[Violation]:
    """Check that generations never fall, and rise with what is booked."""
    found = []
    last: dict[str, events.Read] = {}
    for read in sorted(reads, key=lambda r: r.begin):
        before = last.get(read.node)
        if before is not None and before.end <= read.begin:
            changed = sorted(before.live) != sorted(read.live)
            if read.generation < before.generation + changed:
                text = (
                    f"{read.node} at {read.begin:.3f}: generation {read.generation} "
                    f"after {before.generation}{', and other claims' * changed}"
                )
                found.append(Violation("generation", text))
        if before is None or read.end >= before.end:
            last[read.node] = read
    return found
