"""The rule for rows of Juno's shape: who survives, and that it never matters when."""

from collections.abc import Sequence
import random

import hypothesis
from hypothesis import strategies
import pytest

from conductor.db import legacy
from conductor.db.legacy import Action
from conductor.db.legacy import Node
from conductor.db.legacy import Owner

LIVE = Node(4, "n", None, 1, Owner.LIVE, "h")
ORPHAN = Node(3, "n", None, 8, Owner.DELETED, "h")
DETACHED = Node(9, "N", "H", None)


@pytest.mark.parametrize(
    ("node", "same", "serving", "action", "reason"),
    [
        (LIVE, [], True, Action.MIGRATE, None),
        # A service that isn't nova-compute owns it: Juno's reading.
        (LIVE, [], False, Action.MIGRATE, None),
        (LIVE, [DETACHED], True, Action.DELETE, "compute node 9 has"),
        (LIVE, [ORPHAN], True, Action.MIGRATE, None),
        (ORPHAN, [LIVE], True, Action.DELETE, "compute node 4 has"),
        (ORPHAN, [DETACHED], True, Action.DELETE, "compute node 9 has"),
        (ORPHAN, [], True, Action.MIGRATE, "new one adopts it"),
        (ORPHAN, [], False, Action.DELETE, "the host has no other"),
        (
            Node(5, "n", None, 1, Owner.LIVE, "H"),
            [LIVE],
            True,
            Action.DELETE,
            "compute node 4 has",
        ),
        (
            Node(2, "n", None, 9, Owner.DELETED, "h"),
            [ORPHAN],
            True,
            Action.MIGRATE,
            "service 9 was deleted",
        ),
        (Node(1, None, None, 1, Owner.LIVE, "h"), [], True, Action.MIGRATE, None),
        (Node(1, "n", "h", 1, Owner.GONE), [], True, Action.MIGRATE, None),
        (Node(1, "n", None, None), [], True, Action.NOTHING, "neither a host"),
        (Node(1, "n", None, 7), [], True, Action.NOTHING, "its service 7 is gone"),
        (
            Node(1, "n", None, 7, Owner.LIVE, None),
            [],
            False,
            Action.NOTHING,
            "its service 7 has no host",
        ),
        (
            Node(1, "n", "", 7, Owner.LIVE, ""),
            [],
            False,
            Action.NOTHING,
            "its service 7 has no host",
        ),
        (
            Node(1, None, None, 7, Owner.DELETED, "h"),
            [],
            True,
            Action.NOTHING,
            "without a name",
        ),
    ],
)
def test_rule(
    node: Node,
    same: Sequence[Node],
    serving: bool,
    action: Action,
    reason: str | None,
) -> None:
    decision = legacy.decide(node, same, serving)
    assert decision.action is action
    if reason is None:
        assert decision.reason is None
    else:
        assert decision.reason is not None
        assert reason in decision.reason


@strategies.composite
def fleets(draw: strategies.DrawFn) -> list[Node]:
    """Return live rows of a few hosts and names, at most one of each detached."""
    found: list[Node] = []
    detached = set()
    for number in range(1, draw(strategies.integers(1, 9)) + 1):
        name = draw(strategies.sampled_from(["n", "N", "m", None]))
        host = draw(strategies.sampled_from(["h", "H", "g", None]))
        owner = draw(strategies.sampled_from(Owner))
        service = draw(strategies.integers(1, 4))
        stored = host is not None and draw(strategies.booleans())
        key = (str(host).lower(), str(name).lower())
        if stored and key not in detached:
            detached.add(key)
            found.append(Node(number, name, host, None))
        else:
            tells = None if owner is Owner.GONE else host
            found.append(Node(number, name, None, service, owner, tells))
    return found


def judged(node: Node, there: list[Node], serving: set[str]) -> Action:
    same = [o for o in there if node.identity and o.identity == node.identity]
    serves = (node.derived_host or "").lower() in serving
    return legacy.decide(node, same, serves).action


def run(
    nodes: list[Node], serving: set[str], order: list[int]
) -> tuple[dict[int, Action], list[Node]]:
    """Do one row after the other, each on what is there by then."""
    there = {node.id: node for node in nodes}
    outcome = {}
    for number in order:
        node = there[number]
        if node.host:
            continue
        same = [
            o for o in there.values() if node.identity and o.identity == node.identity
        ]
        action = legacy.decide(
            node, same, (node.derived_host or "").lower() in serving
        ).action
        outcome[number] = action
        if action is Action.DELETE:
            del there[number]
        elif action is Action.MIGRATE:
            there[number] = Node(node.id, node.name, node.derived_host, None)
    return outcome, list(there.values())


@hypothesis.given(
    fleets(), strategies.sets(strategies.sampled_from("hg")), strategies.randoms()
)
def test_one_survives_whatever_the_order(
    nodes: list[Node], serving: set[str], rng: random.Random
) -> None:
    order = [node.id for node in nodes]
    outcome, left = run(nodes, serving, order)
    identities = [node.identity for node in left if node.identity]
    assert len(identities) == len(set(identities))
    # Who had a living service, or no need of one, still has its place.
    for node in nodes:
        if node.identity and (node.host or node.owner is Owner.LIVE):
            assert node.identity in identities
    rng.shuffle(order)
    assert run(nodes, serving, order)[0] == outcome
    # What a dry run says, which sees all rows as they are at first.
    predicted = {n.id: judged(n, nodes, serving) for n in nodes if not n.host}
    assert predicted == outcome
