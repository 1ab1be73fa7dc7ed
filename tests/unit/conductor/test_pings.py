"""Pings: side by side, one per host, answers counted while asked for."""

import threading

from conductor import pings
from tests import util


def test_answers_are_counted_and_told() -> None:
    told: list[tuple[str, int]] = []
    pinger = pings.Pinger({"a": 1, "b": None}.get, lambda *item: told.append(item), 2)
    pinger.ping({"a": 1, "b": 1})
    util.wait_until(lambda: told)
    assert told == [("a", 1)]
    assert set(pinger.answered({"a": 1, "b": 1})) == {"a"}
    pinger.stop()


def test_another_incarnation_is_no_answer() -> None:
    done = threading.Event()

    def ask(host: str) -> int:
        if host == "last":
            done.set()
        return 7

    pinger = pings.Pinger(ask, lambda *_: None, 1)
    pinger.ping({"a": 6, "last": 6})
    assert done.wait(20)
    pinger.stop()
    assert pinger.answered({"a": 6, "last": 6}) == {}


def test_one_ping_per_host_at_a_time() -> None:
    go_on = threading.Event()
    asked: list[str] = []

    def ask(host: str) -> int:
        asked.append(host)
        go_on.wait(20)
        return 1

    pinger = pings.Pinger(ask, lambda *_: None, 4)
    pinger.ping({"a": 1})
    pinger.ping({"a": 1, "b": 1})
    util.wait_until(lambda: len(asked) == 2)
    go_on.set()
    util.wait_until(lambda: len(pinger.answered({"a": 1, "b": 1})) == 2)
    assert sorted(asked) == ["a", "b"]
    pinger.ping({"a": 1})
    util.wait_until(lambda: len(asked) == 3)
    pinger.stop()


def test_a_ping_that_fails_oddly_is_no_answer() -> None:
    def ask(host: str) -> int:
        if host == "bad":
            raise ValueError("odd")
        return 1

    pinger = pings.Pinger(ask, lambda *_: None, 1)
    pinger.ping({"bad": 1, "good": 1})
    both = {"bad": 1, "good": 1}
    util.wait_until(lambda: pinger.answered(both))
    assert set(pinger.answered(both)) == {"good"}
    pinger.stop()


def test_an_answer_counts_for_its_incarnation() -> None:
    pinger = pings.Pinger(lambda _: 1, lambda *_: None, 1)
    pinger.ping({"a": 1})
    util.wait_until(lambda: pinger.answered({"a": 1}))
    pinger.ping({})
    assert set(pinger.answered({"a": 1})) == {"a"}
    assert pinger.answered({"a": 2}) == {}
    assert pinger.answered({"a": 1}) == {}
    pinger.stop()
