"""The thread that gives back claims: only while its process leads, whatever happens."""

from typing import Any

import pytest

from conductor import claim_expiry
from musterbook import errors
from tests import util


class Store:
    """Has so many claims that are due, and that are old."""

    def __init__(self) -> None:
        self.due = 0
        self.old = 0
        self.asked: list[Any] = []
        self.fails: Exception | None = None

    def expire(self, name: str, owner: str, term: int, limit: int) -> list[str]:
        self.asked.append((name, owner, term))
        if self.fails is not None:
            raise self.fails
        count = min(limit, self.due)
        self.due -= count
        return ["uuid"] * count

    def forget(
        self, name: str, owner: str, term: int, seconds: float, limit: int
    ) -> int:
        assert seconds == 86400.0
        count = min(limit, self.old)
        self.old -= count
        return count


def make(store: Store, term: int | None) -> claim_expiry.Expiry:
    return claim_expiry.Expiry(
        store,  # type: ignore[arg-type]  # as much of a store as is used
        lambda: term,
        "c1/x",
        lambda: 86400.0,
        interval=0.01,
    )


def test_all_that_are_due_in_one_turn() -> None:
    store = Store()
    store.due, store.old = 450, 1200
    make(store, 3).turn(3)
    assert (store.due, store.old) == (0, 0)
    assert store.asked == [("liveness", "c1/x", 3)] * 3


def test_who_does_not_lead_does_nothing() -> None:
    store = Store()
    store.due = 1
    made = make(store, None)
    for _ in range(3):
        made._attempt()
    assert store.asked == []


@pytest.mark.parametrize(
    "exc", [errors.DatabaseUnavailable(reason="gone"), RuntimeError("odd")]
)
def test_it_goes_on_after_errors_and_says_so_once(
    exc: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store()
    store.due, store.fails = 1, exc
    made = make(store, 3)
    made.start()
    try:
        util.wait_until(lambda: len(store.asked) > 5)
        store.fails = None
        util.wait_until(lambda: store.due == 0)
        util.wait_until(lambda: "given back again" in caplog.text)
    finally:
        made.stop()
    assert caplog.text.count("are due wait") == 1
