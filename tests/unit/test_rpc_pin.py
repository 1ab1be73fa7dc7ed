"""How new a version may be spoken: fixed, the newest, or found out."""

import pytest

from musterbook.rpc import pin


class Other:
    """The other side: what it speaks, and how often it was asked."""

    def __init__(self, version: str | None) -> None:
        self.version = version
        self.asked = 0
        self.now = 0.0

    def ask(self) -> str | None:
        self.asked += 1
        return self.version

    def pin(self, newest: str = "1.10") -> pin.Pin:
        return pin.Pin(newest, ask=self.ask, clock=lambda: self.now)


def test_without_a_pin_all_there_is_may_be_spoken() -> None:
    free = pin.Pin("1.10")
    assert free.allows("1.10")
    assert not free.refused("1.0")
    assert free.version() == "1.10"


def test_an_operators_word_stands() -> None:
    fixed = pin.Pin("1.10", fixed="1.9")
    assert fixed.allows("1.9")
    assert not fixed.allows("1.10")
    assert not fixed.refused("1.0")
    assert fixed.version() == "1.9"


@pytest.mark.parametrize(
    ("speaks", "version"), [("1.9", "1.9"), ("1.10", "1.10"), ("1.11", "1.10")]
)
def test_what_is_found_out_is_kept_for_a_while(speaks: str, version: str) -> None:
    other = Other(speaks)
    found = other.pin()
    assert [found.version() for _ in range(3)] == [version] * 3
    assert other.asked == 1
    other.now = pin.KEPT
    assert found.version() == version
    assert other.asked == 2


def test_nothing_is_kept_when_nobody_runs() -> None:
    """Lesson 36: the newest is spoken, and the next who starts is seen."""
    other = Other(None)
    found = other.pin()
    assert found.version() == "1.10"
    other.version = "1.2"
    assert found.version() == "1.2"


def test_one_of_several_may_be_older() -> None:
    other = Other("1.10")
    found = other.pin()
    assert found.allows("1.10")
    assert found.refused("1.0")
    assert not found.allows("1.10")
    other.now = pin.KEPT
    assert found.allows("1.10")
