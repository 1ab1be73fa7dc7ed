"""Who asks for an audit gets one that began later, and shares it with the others."""

from concurrent import futures
import threading
import time
from typing import Any

import pytest

from compute_agent import demand
from compute_agent import resource_tracker
from compute_agent import rpcapi
from musterbook import errors
from tests import util

LIMIT = 60.0
RESULT = resource_tracker.AuditResult(saved=("n1",), unchanged=("n2", "n3"))


def waiting(asked: demand.Demand) -> int:
    return asked._waiting


def test_many_who_ask_share_one_audit() -> None:
    asked = demand.Demand()
    count = demand.MOST_WAITING
    with futures.ThreadPoolExecutor(count) as pool:
        answers = [
            pool.submit(lambda: asked.wait(asked.ask(), LIMIT)) for _ in range(count)
        ]
        util.wait_until(lambda: waiting(asked) == count)
        assert asked.wanted.is_set()
        asked.begin()
        assert not asked.wanted.is_set()
        asked.end(RESULT)
        found = [answer.result() for answer in answers]
    assert len({id(report) for report in found}) == 1
    assert found[0] is not None
    assert found[0].result == RESULT


def test_an_audit_in_hand_is_none_of_theirs() -> None:
    """It may have read the source before whatever they ask about happened."""
    asked = demand.Demand()
    first = asked.ask()
    asked.begin()
    second = asked.ask()
    asked.end(RESULT)
    assert asked.wait(first, 0.0) is not None
    assert asked.wait(second, 0.0) is None
    assert asked.wanted.is_set()
    asked.begin()
    asked.end(None, errors.InventoryUnavailable(source="test", reason="is not ready"))
    report = asked.wait(second, 0.0)
    assert report is not None
    assert report.result is None


def test_a_wait_is_bounded_and_so_are_those_who_wait() -> None:
    asked = demand.Demand()
    began = time.monotonic()
    assert asked.wait(asked.ask(), 0.05) is None
    assert time.monotonic() - began >= 0.05
    with futures.ThreadPoolExecutor(demand.MOST_WAITING) as pool:
        for _ in range(demand.MOST_WAITING):
            pool.submit(asked.wait, asked.ask(), LIMIT)
        util.wait_until(lambda: waiting(asked) == demand.MOST_WAITING)
        ticket = asked.ask()  # which is not in vain
        assert asked.wait(ticket, LIMIT) is None
        asked.begin()
        asked.end(RESULT)
        assert asked.wait(ticket, 0.0) is not None


def test_nobody_waits_beyond_the_end() -> None:
    asked = demand.Demand()
    thread = threading.Thread(target=asked.wait, args=(asked.ask(), LIMIT))
    thread.start()
    util.wait_until(lambda: waiting(asked) == 1)
    asked.close()
    thread.join(LIMIT / 2)
    assert not thread.is_alive()
    assert not asked.pause(LIMIT)


def test_a_pause_ends_when_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand, "_LEAST_PAUSE", 0.05)
    asked = demand.Demand()
    with futures.ThreadPoolExecutor(1) as pool:
        pausing = pool.submit(asked.pause, LIMIT)
        asked.ask()
        assert pausing.result(LIMIT / 2)
    # Who asked before is no reason to haste more than that.
    began = time.monotonic()
    assert asked.pause(LIMIT)
    assert time.monotonic() - began >= 0.05
    asked.begin()
    assert asked.pause(0.0)


def test_what_is_told_names_what_is_news_within_bounds() -> None:
    names = tuple(f"n{number}" for number in range(1000))
    failed = tuple((name, "the database is busy") for name in names)
    result = resource_tracker.AuditResult(saved=names, unchanged=names, failed=failed)
    told = demand.told(demand.Report(0.25, result))
    assert told["ended"] is True
    assert told["seconds"] == 0.25
    assert told["counts"] == {
        "created": 0, "saved": 1000, "unchanged": 1000, "elsewhere": 0, "deleted": 0,
        "failed": 1000,
    }  # fmt: skip
    assert list(told["nodes"]) == ["saved"]
    assert len(told["nodes"]["saved"]) == len(told["failed"]) == 20
    exc = errors.InventoryUnavailable(source="host", reason="is not ready")
    told = demand.told(demand.Report(0.25, error=exc))
    assert told["error"] == {"code": exc.code, "message": exc.message}
    assert "counts" not in told
    assert demand.told(None) == {"ended": False}


@pytest.mark.parametrize("wait", [-1, 61, float("nan"), float("inf"), True, "5", None])
def test_a_senseless_wait_is_refused(wait: Any) -> None:
    with pytest.raises(errors.InvalidInput, match="wait"):
        rpcapi.check_wait(wait)
