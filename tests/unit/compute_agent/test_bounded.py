from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import pathlib
import threading
import time

import pytest

from compute_agent.inventory import bounded
from compute_agent.inventory import fake
from compute_agent.inventory import source
from musterbook import errors
from tests import util
from tests.unit.compute_agent import trees

LIMIT = 30.0


def node(name: str = "node-a", vcpus: int = 1) -> source.NodeInventory:
    return source.NodeInventory(
        hypervisor_hostname=name,
        vcpus=vcpus,
        memory_mb=1,
        local_gb=1,
        disk_available_least=None,
        hypervisor_type="scripted",
        hypervisor_version=1,
        cpu_info="{}",
        host_ip=None,
        supported_instances="[]",
        numa_topology=None,
        boot_id=None,
    )


class Scripted(source.InventorySource):
    """Does at each reading what it was told to do next."""

    def __init__(self) -> None:
        super().__init__(trees.load_conf())
        self.go = threading.Event()
        self.entered = threading.Semaphore(0)
        self.threads: list[str] = []
        self.running = self.most = self.closed = 0
        self.lock = threading.Lock()
        self.action: Callable[[], object] = lambda: {"node-a": node()}

    def read(self) -> Mapping[str, source.NodeInventory]:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
            self.threads.append(threading.current_thread().name)
        self.entered.release()
        try:
            return self.action()  # type: ignore[return-value]  # nonsense on purpose
        finally:
            with self.lock:
                self.running -= 1

    def block(self) -> object:
        assert self.go.wait(LIMIT)
        return {"node-a": node(vcpus=99)}

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    made = Scripted()
    yield made
    made.go.set()


def refused(reader: bounded.BoundedReader) -> str:
    with pytest.raises(errors.InventoryUnavailable) as caught:
        reader.read()
    assert caught.value.source == "scripted"
    return caught.value.reason


def reader_threads() -> int:
    return sum(t.name == "inventory-scripted" for t in threading.enumerate())


def test_an_answer_comes_from_a_named_thread(scripted: Scripted) -> None:
    reader = bounded.BoundedReader(scripted, LIMIT, "scripted")
    assert reader.read() == reader.read() == {"node-a": node()}
    assert scripted.threads == ["inventory-scripted"] * 2
    reader.close()
    assert reader_threads() == 0


def test_another_limit_holds_from_the_next_one_on(scripted: Scripted) -> None:
    reader = bounded.BoundedReader(scripted, LIMIT, "scripted")
    scripted.action = scripted.block
    reader.set_timeout(0.3)
    assert refused(reader) == "did not answer within 0.3 s"
    reader.close()


def test_a_late_one_is_given_up_and_no_second_one_begun(scripted: Scripted) -> None:
    reader = bounded.BoundedReader(scripted, 0.3, "scripted")
    scripted.action = scripted.block
    assert refused(reader) == "did not answer within 0.3 s"
    began = time.monotonic()
    for _ in range(20):
        assert refused(reader).startswith("has not answered for ")
    assert time.monotonic() - began < 0.3 * 10
    assert reader_threads() == len(scripted.threads) == 1
    scripted.go.set()
    scripted.action = lambda: {"node-a": node(vcpus=2)}
    util.wait_until(lambda: reader_threads() == 0)
    # Not the 99 that came too late.
    assert reader.read()["node-a"].vcpus == 2
    reader.close()


def test_several_callers_take_turns(scripted: Scripted) -> None:
    reader = bounded.BoundedReader(scripted, LIMIT, "scripted")
    answers: list[object] = []
    callers = [
        threading.Thread(target=lambda: answers.append(reader.read())) for _ in range(8)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(LIMIT)
    assert answers == [{"node-a": node()}] * 8
    assert scripted.most == 1
    assert len(scripted.threads) == 8
    reader.close()


def test_one_that_waits_for_its_turn_fails_with_the_stuck_one(
    scripted: Scripted,
) -> None:
    reader = bounded.BoundedReader(scripted, 0.3, "scripted")
    scripted.action = scripted.block
    reasons: list[str] = []
    first = threading.Thread(target=lambda: reasons.append(refused(reader)))
    first.start()
    assert scripted.entered.acquire(timeout=LIMIT)
    assert refused(reader).startswith("has not answered for ")
    first.join(LIMIT)
    assert reasons == ["did not answer within 0.3 s"]
    assert len(scripted.threads) == 1
    scripted.go.set()
    reader.close()


def raising(exc: BaseException) -> Callable[[], object]:
    def action() -> object:
        raise exc

    return action


NOT_READY = errors.InventoryUnavailable(source="scripted", reason="is starting")


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (raising(NOT_READY), "is starting"),
        (raising(ZeroDivisionError("a\nb")), "failed: ZeroDivisionError: a b"),
        (raising(SystemExit()), "failed: SystemExit"),
        (lambda: None, "nodes: is not a mapping"),
        (lambda: {"n": {}}, "node 'n': is not a NodeInventory"),
        (lambda: {"n": node("m")}, "node 'n': has the hypervisor_hostname m"),
        (
            lambda: {"n": node("n"), "N": node("N")},
            "node N: has the same name as node n",
        ),
    ],
)
def test_failures_and_nonsense_become_one_error(
    scripted: Scripted, action: Callable[[], object], reason: str
) -> None:
    reader = bounded.BoundedReader(scripted, LIMIT, "scripted")
    scripted.action = action
    assert refused(reader) == reason
    scripted.action = dict
    assert reader.read() == {}
    reader.close()


def test_a_blocked_fake_comes_back_with_its_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "nodes.json"
    path.write_text('{"nodes": {}, "fault": "block"}')
    conf = trees.load_conf(inventory_fake__file=str(path))
    reader = bounded.BoundedReader(fake.FakeInventory(conf), 0.1, "scripted")

    def refusal() -> str:
        with pytest.raises(errors.InventoryUnavailable) as caught:
            reader.read()
        return caught.value.reason

    assert refusal() == "did not answer within 0.1 s"
    assert refusal().startswith("has not answered for ")
    fresh = tmp_path / "fresh.json"
    fresh.write_text('{"nodes": {}}')
    fresh.replace(path)
    util.wait_until(lambda: reader_threads() == 0)
    assert reader.read() == {}
    fresh.write_text('{"nodes": {}, "fault": "block"}')
    fresh.replace(path)
    assert refusal() == "did not answer within 0.1 s"
    reader.close()
    assert reader_threads() == 0


def test_close_wakes_who_waits_and_is_bounded(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "CLOSE_SECONDS", 0.1)
    reader = bounded.BoundedReader(scripted, LIMIT, "scripted")
    scripted.action = scripted.block
    reasons: list[str] = []
    waiting = threading.Thread(target=lambda: reasons.append(refused(reader)))
    waiting.start()
    assert scripted.entered.acquire(timeout=LIMIT)
    began = time.monotonic()
    reader.close()
    reader.close()
    waiting.join(LIMIT)
    assert time.monotonic() - began < LIMIT / 2
    assert reasons == ["was closed"]
    assert refused(reader) == "was closed"
    assert scripted.closed == 1
