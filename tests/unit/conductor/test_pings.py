"""Pings: side by side, one per host, answers counted while asked for."""

from collections.abc import Callable
from collections.abc import Mapping
import threading
import time

import pytest

from conductor import pings
from musterbook import errors
from tests import util

SILENCE = errors.AgentUnavailable(host="a", method="ping", seconds=3)


def asker(
    answers: Mapping[str, int | Exception] | None = None, **more: int | Exception
) -> Callable[[str], int]:
    known = more if answers is None else answers

    def ask(host: str) -> int:
        found = known[host]
        if isinstance(found, Exception):
            raise found
        return found

    return ask


def test_answers_are_counted_and_told() -> None:
    told: list[tuple[str, int]] = []
    both = {"a": 1, "b": 1}
    pinger = pings.Pinger(asker(a=1, b=SILENCE), lambda *item: told.append(item), 2)
    before = time.monotonic()
    pinger.ping(both)
    util.wait_until(lambda: told)
    util.wait_until(lambda: pinger.replies(both).unanswered)
    assert told == [("a", 1)]
    replies = pinger.replies(both)
    assert replies.answered.keys() == {"a"}
    assert replies.unanswered.keys() == {"b"}
    assert replies.asked.keys() == {"a", "b"}
    assert before <= replies.asked["b"] == replies.unanswered["b"] <= time.monotonic()
    pinger.stop()


@pytest.mark.parametrize(
    "outcome",
    [
        errors.AgentNotAsked(host="a", method="ping", reason="no broker"),
        errors.RemoteFailure(class_name="KeyError"),
        errors.MethodNotRemotable("no such method"),
        ValueError("odd"),
        1,
    ],
)
def test_what_is_no_silence_ends_the_silence_before(outcome: int | Exception) -> None:
    answers: dict[str, int | Exception] = {"a": SILENCE}
    pinger = pings.Pinger(asker(answers), lambda *_: None, 1)
    pinger.ping({"a": 1})
    util.wait_until(lambda: pinger.replies({"a": 1}).unanswered)
    answers["a"] = outcome

    def asked_again() -> bool:
        pinger.ping({"a": 1})
        return not pinger.replies({"a": 1}).unanswered

    util.wait_until(asked_again)
    assert bool(pinger.replies({"a": 1}).answered) == (outcome == 1)
    pinger.stop()


def test_the_newest_order_counts_and_who_is_no_longer_wanted_is_not_asked() -> None:
    go_on = threading.Event()
    asked: list[str] = []

    def ask(host: str) -> int:
        asked.append(host)
        assert go_on.wait(20)
        return 1

    pinger = pings.Pinger(ask, lambda *_: None, 1)
    pinger.ping({"z": 1, "y": 1, "x": 1})
    util.wait_until(lambda: asked)
    pinger.ping({"new": 1, "z": 1, "y": 1})
    go_on.set()
    util.wait_until(lambda: len(asked) == 3)
    assert asked == ["z", "new", "y"]
    pinger.stop()


def test_telling_that_fails_does_not_cost_a_worker() -> None:
    def fail(*_: object) -> None:
        raise ValueError("odd")

    both = {"a": 1, "b": 1}
    pinger = pings.Pinger(lambda _: 1, fail, 1)
    pinger.ping({"a": 1})
    util.wait_until(lambda: pinger.replies(both).answered)
    pinger.ping({"b": 1})
    util.wait_until(lambda: len(pinger.replies(both).answered) == 2)
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
    assert pinger.replies({"a": 6, "last": 6}).answered == {}


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
    util.wait_until(lambda: len(pinger.replies({"a": 1, "b": 1}).answered) == 2)
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
    util.wait_until(lambda: pinger.replies(both).answered)
    assert set(pinger.replies(both).answered) == {"good"}
    assert pinger.replies(both).unanswered == {}
    pinger.stop()


def test_an_answer_counts_for_its_incarnation() -> None:
    pinger = pings.Pinger(lambda _: 1, lambda *_: None, 1)
    pinger.ping({"a": 1})
    util.wait_until(lambda: pinger.replies({"a": 1}).answered)
    pinger.ping({})
    assert set(pinger.replies({"a": 1}).answered) == {"a"}
    assert pinger.replies({"a": 2}).answered == {}
    assert pinger.replies({"a": 1}).answered == {}
    pinger.stop()


def ping_threads() -> int:
    return sum(thread.name == "ping" for thread in threading.enumerate())


def test_many_silent_hosts_are_asked_side_by_side() -> None:
    """None waits for another one's time-out; and no thread outlives the questions."""
    go_on = threading.Event()
    asked: set[str] = set()

    def ask(host: str) -> int:
        asked.add(host)
        assert go_on.wait(60)
        raise SILENCE

    pinger = pings.Pinger(ask, lambda *_: None, 200)
    hosts = {f"h{number}": 1 for number in range(250)}
    util.wait_until(lambda: ping_threads() == 0)  # of other tests
    pinger.ping(hosts)
    util.wait_until(lambda: len(asked) == 200)
    assert ping_threads() == 200
    go_on.set()
    util.wait_until(lambda: len(pinger.replies(hosts).unanswered) == 250)
    util.wait_until(lambda: ping_threads() == 0)
    pinger.ping({"one more": 1})
    util.wait_until(lambda: "one more" in asked)
    pinger.stop()
    pinger.ping({"after the end": 1})
    util.wait_until(lambda: ping_threads() == 0)
    assert "after the end" not in asked


def test_a_machine_that_allows_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = {f"h{number}": 1 for number in range(20)}
    pinger = pings.Pinger(lambda _: 1, lambda *_: None, 10)
    start = threading.Thread.start
    left = [2]

    def scarce(thread: threading.Thread) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", scarce)
        pinger.ping(hosts)
    util.wait_until(lambda: len(pinger.replies(hosts).answered) == 20)
    left[0] = 1
    pinger.ping({"h1": 1})
    util.wait_until(lambda: ping_threads() == 0)
    pinger.stop()
