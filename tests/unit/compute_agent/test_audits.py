"""When audits happen, with oslo.service's real timers."""

from collections.abc import Iterator
import threading
import time

import pytest

from compute_agent import audits
from tests import util
from tests.unit.compute_agent import trees

LIMIT = 30.0


class Audit:
    """Counts; may be held up."""

    def __init__(self) -> None:
        self.count = self.running = self.most = 0
        self.entered = threading.Event()
        self.go = threading.Event()
        self.go.set()
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self.count += 1
            self.running += 1
            self.most = max(self.most, self.running)
        self.entered.set()
        assert self.go.wait(LIMIT)
        with self._lock:
            self.running -= 1


@pytest.fixture
def audit() -> Audit:
    return Audit()


@pytest.fixture
def wanted() -> threading.Event:
    return threading.Event()


@pytest.fixture
def made(audit: Audit, wanted: threading.Event) -> Iterator[audits.Audits]:
    made = audits.Audits(trees.load_conf(), audit, wanted)
    yield made
    audit.go.set()
    made.stop()


def test_it_audits_again_and_again_until_stopped(
    made: audits.Audits, audit: Audit
) -> None:
    made.set_interval(0.01)
    util.wait_until(lambda: audit.count > 3)
    made.stop()
    count = audit.count
    time.sleep(0.1)  # several intervals
    assert audit.count == count
    made.set_interval(0.02)  # too late
    time.sleep(0.1)
    assert audit.count == count


def test_a_shorter_interval_need_not_wait_for_the_longer_one(
    made: audits.Audits, audit: Audit
) -> None:
    made.set_interval(86400.0)
    made.set_interval(0.01)
    util.wait_until(lambda: audit.count > 3)
    made.set_interval(86400.0)
    util.wait_until(lambda: audit.running == 0)
    time.sleep(0.05)
    count = audit.count
    time.sleep(0.1)  # several intervals of the former
    assert audit.count == count


def test_the_same_interval_changes_nothing(made: audits.Audits, audit: Audit) -> None:
    for _ in range(1000):
        made.set_interval(86400.0)
    assert len([t for t in threading.enumerate() if not t.daemon]) < 100


def test_audits_of_two_timers_never_overlap(made: audits.Audits, audit: Audit) -> None:
    audit.go.clear()
    made.set_interval(0.01)
    assert audit.entered.wait(LIMIT)
    for number in range(5):
        made.set_interval(0.01 + number / 1000)
    time.sleep(0.1)  # several intervals
    assert audit.count == 1
    audit.go.set()
    util.wait_until(lambda: audit.count > 5)
    assert audit.most == 1


def test_a_stop_waits_for_the_audit_in_hand(made: audits.Audits, audit: Audit) -> None:
    audit.go.clear()
    made.set_interval(0.01)
    assert audit.entered.wait(LIMIT)
    made.set_interval(0.02)
    stopper = threading.Thread(target=made.stop, name="stopper")
    stopper.start()
    stopper.join(0.2)
    assert stopper.is_alive()
    audit.go.set()
    stopper.join(LIMIT)
    assert not stopper.is_alive()
    assert (audit.running, audit.count) == (0, 1)


def test_a_wanted_audit_need_not_wait_for_the_interval(
    audit: Audit, wanted: threading.Event
) -> None:
    def once() -> None:
        wanted.clear()
        audit()

    made = audits.Audits(trees.load_conf(), once, wanted)
    try:
        made.set_interval(86400.0)
        wanted.set()
        util.wait_until(lambda: audit.count == 1)
        wanted.set()
        util.wait_until(lambda: audit.count == 2)
        assert not wanted.is_set()
    finally:
        made.stop()
