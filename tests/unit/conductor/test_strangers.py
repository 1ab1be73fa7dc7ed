"""Who is in the group without a grant is told so, now and then."""

from conductor import strangers


def test_who_is_granted_is_no_stranger() -> None:
    made = strangers.Strangers()
    members = frozenset({"a#1", "b#2"})
    assert made.due(members, {"a": 1, "b": 2, "c": 1}, 0.0) == []


def test_a_stranger_is_told_again_until_it_is_none() -> None:
    made = strangers.Strangers()
    members = frozenset({"a#1", "b#2"})
    assert made.due(members, {"a": 1}, 0.0) == ["b"]
    assert made.due(members, {"a": 1}, strangers.AGAIN - 0.1) == []
    assert made.due(members, {"a": 1}, strangers.AGAIN) == ["b"]
    assert made.due(members, {"a": 1, "b": 2}, strangers.AGAIN * 3) == []
    # Another time it is another matter.
    assert made.due(members, {"a": 1}, strangers.AGAIN * 3 + 0.1) == ["b"]


def test_another_incarnation_is_a_stranger() -> None:
    assert strangers.Strangers().due(frozenset({"a#1"}), {"a": 2}, 0.0) == ["a"]


def test_a_fleet_is_told_in_parts_each_in_turn() -> None:
    made = strangers.Strangers()
    members = frozenset(f"h{number:04}#1" for number in range(250))
    told: list[str] = []
    for step in range(3):
        told += made.due(members, {}, float(step))
    assert len(told) == len(set(told)) == 250


def test_in_doubt_everybody_is_told_once_the_strangers_first() -> None:
    made = strangers.Strangers()
    members = frozenset({"a#1", "b#1", "z#1"})
    granted = {"a": 1, "b": 1}
    made.doubt(members)
    assert made.due(members, granted, 0.0) == ["z", "a", "b"]
    assert made.due(members, granted, 1.0) == []
    assert made.due(members, granted, strangers.AGAIN) == ["z"]


def test_in_doubt_a_fleet_is_told_in_parts() -> None:
    made = strangers.Strangers()
    members = frozenset(f"h{number:04}#1" for number in range(250))
    granted = {member.partition("#")[0]: 1 for member in members}
    made.doubt(members)
    told: list[str] = []
    for step in range(4):
        part = made.due(members, granted, float(step))
        assert len(part) <= strangers.PER_STEP
        told += part
    assert len(told) == len(set(told)) == 250


def test_a_name_that_is_none_of_ours_is_left_alone() -> None:
    assert strangers.Strangers().due(frozenset({"odd"}), {}, 0.0) == []
