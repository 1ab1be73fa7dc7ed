"""The tracker's one lock: fair, and held across no call and no reading."""

from collections.abc import Mapping
import threading
import time
from typing import Any

import pytest

from compute_agent import core
from compute_agent import resource_tracker
from compute_agent.inventory import source
from musterbook import errors
from objects import store
from tests import util
from tests.unit.compute_agent import test_resource_tracker

LIMIT = 60.0
NODES = ("n0", "n1", "n2")
_TAKEN_OVER = {
    "usage_confirmed": False, "vcpus_used": 1, "memory_mb_used": 1, "local_gb_used": 1,
}  # fmt: skip


@pytest.fixture
def machine() -> test_resource_tracker.Source:
    return test_resource_tracker.machine.__wrapped__()  # type: ignore[attr-defined,no-any-return]


def _nodes(**values: Any) -> dict[str, source.NodeInventory]:
    return {name: test_resource_tracker.node(name, **values) for name in NODES}


def held(tracker: resource_tracker.ResourceTracker) -> bool:
    """Tell whether anybody has the lock."""
    return tracker._lock.owner is not None


def test_no_lock_is_held_across_a_call_or_a_reading(
    machine: test_resource_tracker.Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call and each reading looks; others get at the tracker meanwhile."""
    book = test_resource_tracker.Book()
    seen: list[str] = []
    tracker, reader = test_resource_tracker.make_tracker(machine)

    def look(method: str) -> None:
        assert not held(tracker)
        other = threading.Thread(target=tracker.set_policy, args=(tracker._policy,))
        other.start()
        other.join(LIMIT)
        assert not other.is_alive()
        seen.append(method)

    class Watched:
        def __getattr__(self, method: str) -> Any:
            def call(*args: Any, **more: Any) -> Any:
                look(method)
                return getattr(book, method)(*args, **more)

            return call

    read = machine.read

    def watched_read() -> Mapping[str, source.NodeInventory]:
        look("read")
        return read()

    machine.read = watched_read  # type: ignore[method-assign]
    monkeypatch.setattr(store, "_bound", [Watched()])
    usage = source.Usage(vcpus=1, memory_mb=1, local_gb=1)
    for values in ({}, {"vcpus": 2, "used": usage}):
        machine.nodes = _nodes(**values)
        for row in book.rows.values():
            row.update(_TAKEN_OVER)
        tracker.reread()
        tracker.audit()
    reader.close()
    assert {"read", "compute_node_create", "compute_node_update"} <= set(seen)
    assert "compute_node_confirm_usage" in seen


def test_while_the_source_blocks_nobody_else_waits(
    machine: test_resource_tracker.Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_bound", [test_resource_tracker.Book()])
    tracker, reader = test_resource_tracker.make_tracker(machine)
    machine.nodes = _nodes()
    tracker.audit()
    reading, go_on = threading.Event(), threading.Event()

    def block() -> Mapping[str, source.NodeInventory]:
        reading.set()
        assert go_on.wait(LIMIT)
        return _nodes()

    machine.read = block  # type: ignore[method-assign]
    audit = threading.Thread(target=tracker.audit)
    reader.set_timeout(LIMIT)
    audit.start()
    assert reading.wait(LIMIT)
    began = time.monotonic()
    assert tracker.node("n0").used.memory_mb == 512
    tracker.reread()
    assert time.monotonic() - began < LIMIT / 2
    go_on.set()
    audit.join(LIMIT)
    reader.close()


def test_the_lock_is_fair(machine: test_resource_tracker.Source) -> None:
    """In the order in which they asked, however often one of them asks again."""
    tracker, reader = test_resource_tracker.make_tracker(machine)
    lock, order = tracker._lock, list[int]()

    def take(number: int) -> None:
        with lock.write_lock():
            order.append(number)

    threads = [threading.Thread(target=take, args=(n,)) for n in range(20)]
    with lock.write_lock():
        for number, thread in enumerate(threads):
            thread.start()
            util.wait_until(
                lambda number=number: len(lock._pending_writers) == number + 1  # type: ignore[misc]
            )
    # The one that had it asks again at once, and comes after all who wait.
    take(99)
    for thread in threads:
        thread.join(LIMIT)
    assert order == [*range(20), 99]
    reader.close()


def test_a_node_is_told_by_what_is_known_here(
    machine: test_resource_tracker.Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = test_resource_tracker.Book()
    monkeypatch.setattr(store, "_bound", [book])
    tracker, reader = test_resource_tracker.make_tracker(machine)
    machine.nodes = _nodes(memory_mb=1024)
    with pytest.raises(errors.ComputeNodeNotFound, match="n0"):
        tracker.node("n0")
    book.fail = errors.DatabaseBusy(reason="test")
    tracker.audit()
    with pytest.raises(errors.ComputeNodeNotFound):
        tracker.node("n0")  # which isn't in the book: nothing can be claimed of it
    book.fail = None
    tracker.audit()
    told = tracker.node("n0", [core.Amounts(memory_mb=600), core.Amounts(vcpus=9)])
    assert told.used == core.Amounts(9, 512 + 600, 0)
    assert told.free == core.Amounts(8 - 9, 1024 - 512 - 600, 200)
    assert told.columns["cpu_allocation_ratio"] == 4.0
    machine.nodes = {}
    tracker.audit()
    with pytest.raises(errors.ComputeNodeNotFound):
        tracker.node("n0")
    reader.close()
