"""The checker of histories finds what is planted, and nothing in what is right."""

import pathlib

import pytest

from tests.history import checker
from tests.history import events

LIMITS = {"n1": 4, "n2": 4}


def claim(
    uuid: str, begin: float, end: float | None, node: str | None = "n1", amount: int = 2
) -> events.Ask:
    answer = "claimed" if node else "refused"
    if end is None:
        answer, node = "unknown", None
    return events.Ask("claim", uuid, begin, end, answer, amount, node)


def release(uuid: str, begin: float, end: float | None) -> events.Ask:
    answer = "unknown" if end is None else "done"
    return events.Ask("release", uuid, begin, end, answer)


def read(at: float, generation: int, *uuids: str, node: str = "n1") -> events.Read:
    live = tuple((uuid, 2) for uuid in uuids)
    return events.Read(node, at, at + 0.5, 2 * len(live), generation, live)


RIGHT: list[events.Event] = [
    read(0, 1),
    claim("a", 1, 2),
    read(1, 2, "a"),
    claim("a", 2, 3),
    claim("b", 2, 3, node=None),
    events.Kill("c1", 3),
    claim("b", 4, None),
    read(4, 3, "a", "b"),
    claim("b", 5, 6),
    claim("c", 6, 7, node=None),
    release("a", 7, 8),
    read(7, 4, "b"),
    claim("c", 8, 9),
    read(9, 5, "b", "c"),
    events.Ask("confirm", "b", 9, 10, "done"),
    events.Ask("claim", "a", 9, 10, "gone", 2),
    release("b", 10, None),
    read(11, 5, "b", "c"),
    read(11, 1, node="n2"),
]


def rules(history: list[events.Event]) -> set[str]:
    return {violation.rule for violation in checker.check(history, LIMITS)}


def test_what_is_right() -> None:
    assert checker.check(RIGHT, LIMITS) == []


@pytest.mark.parametrize(
    ("planted", "rule"),
    [
        # Acknowledged and nowhere; released by nobody.
        ([claim("x", 20, 21), read(22, 9, "c")], {"lost"}),
        # Read on two nodes, or answered so, or there twice.
        ([read(20, 9, "c"), read(20, 9, "c", node="n2")], {"doubled"}),
        ([claim("c", 20, 21, node="n2")], {"doubled", "lost"}),
        ([read(20, 9, "c", "c")], {"doubled"}),
        # More than there is, as read, or as answered between two reads.
        ([read(20, 9, "c", "y", "z")], {"over-limit"}),
        (
            [
                claim("x", 20, 21, "n2"),
                claim("y", 20, 21, "n2"),
                claim("z", 20, 22, "n2"),
            ],
            {"over-limit"},
        ),
        # Usage that isn't what is booked.
        ([events.Read("n1", 20, 21, 4, 9, (("c", 2),))], {"not-the-sum"}),
        # There again after its release was answered; there although it was refused.
        ([read(20, 9, "a", "c")], {"risen"}),
        ([claim("x", 20, 21, node=None), read(22, 9, "c", "x")], {"not-booked"}),
        # Back in time, and other claims under the same number.
        ([read(20, 4, "b", "c")], {"generation"}),
        ([read(20, 5, "c")], {"generation"}),
    ],
)
def test_what_is_planted_is_found(planted: list[events.Event], rule: set[str]) -> None:
    assert rules([*RIGHT, *planted]) == rule


def test_what_was_under_way_is_not_held_against_anybody() -> None:
    """Between the begin and the end of a call both may be seen."""
    assert (
        rules([claim("a", 1, 9), read(2, 1), read(3, 2, "a"), release("a", 4, 8)])
        == set()
    )
    history: list[events.Event]
    history = [claim("a", 1, 2), release("a", 4, None), read(5, 2), read(6, 2)]
    assert rules(history) == set()


def test_a_history_survives_its_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "history"
    with path.open("w", encoding="utf-8") as file:
        recorder = events.Recorder(file)
        for event in RIGHT:
            recorder.add(event)
        file.write('["Ask", {"kind": "cla')
    assert list(events.load(path)) == RIGHT
