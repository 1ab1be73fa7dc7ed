"""The tracker's shell: what it saves, when, and what a failure leaves behind."""

from collections.abc import Iterator
from collections.abc import Mapping
import threading
from typing import Any

from oslo_config import cfg
import pytest

from compute_agent import core
from compute_agent import holdings
from compute_agent import resource_tracker
from compute_agent import tenure
from compute_agent.inventory import bounded
from compute_agent.inventory import source
from musterbook import conf as conf_module
from musterbook import context
from musterbook import errors
from objects import store


class Book:
    """A store of nodes in memory, whose writes can be made to fail."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}
        self.calls: list[str] = []
        self.fail: Exception | None = None
        self.lose_race = False

    def compute_node_get_by_host_and_nodename(
        self, host: str, nodename: str
    ) -> Mapping[str, Any]:
        self.calls.append("get")
        try:
            return dict(self.rows[host, nodename])
        except KeyError:
            raise errors.ComputeNodeNotFound(what=f"{host}/{nodename}") from None

    def compute_node_get(
        self,
        *,
        id: int | None = None,  # noqa: A002  # the column's name
        uuid: str | None = None,
    ) -> Mapping[str, Any]:
        self.calls.append("get")
        for row in self.rows.values():
            if row["uuid"] == uuid:
                return dict(row)
        raise errors.ComputeNodeNotFound(what=f"uuid {uuid}")

    def compute_nodes_by_host(self, host: str) -> list[Mapping[str, Any]]:
        self.calls.append("list")
        if self.fail is not None:
            raise self.fail
        return [dict(row) for (owner, _), row in self.rows.items() if owner == host]

    def compute_node_create(
        self,
        values: Mapping[str, Any],
        grant: context.Grant | None = None,
        *,
        writes_usage: bool,
    ) -> Mapping[str, Any]:
        assert not writes_usage
        self.calls.append("create")
        if self.fail is not None:
            raise self.fail
        key = (values["host"], values["hypervisor_hostname"])
        row = {"id": len(self.rows) + 1, "inventory_generation": 0, **values}
        if self.lose_race:
            self.rows[key] = row
        if key in self.rows:
            raise errors.ComputeNodeExists(host=key[0], hypervisor_hostname=key[1])
        self.rows[key] = row
        return dict(row)

    def compute_node_update(
        self,
        node_id: int,
        values: Mapping[str, Any],
        generation: int | None,
        grant: context.Grant | None = None,
        *,
        writes_usage: bool,
    ) -> Mapping[str, Any]:
        assert not writes_usage
        self.calls.append("update")
        if self.fail is not None:
            raise self.fail
        row = next(row for row in self.rows.values() if row["id"] == node_id)
        if generation != row["inventory_generation"]:
            raise errors.InventoryChanged(
                what="node", expected=generation, found=row["inventory_generation"]
            )
        following = row["inventory_generation"] + 1
        row.update(values, inventory_generation=following)
        return {"inventory_generation": following}

    def compute_node_confirm_usage(
        self, node_id: int, used: Mapping[str, int], grant: context.Grant | None
    ) -> Mapping[str, Any]:
        self.calls.append("confirm")
        if self.fail is not None:
            raise self.fail
        row = next(row for row in self.rows.values() if row["id"] == node_id)
        now = {f"{name}_used": amount for name, amount in used.items()}
        row.update(now, usage_confirmed=True)
        return {**now, "usage_confirmed": True}


class Source(source.InventorySource):
    """A source that says what the test says."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(conf)
        self.nodes: dict[str, source.NodeInventory] = {}
        self.fail: Exception | None = None

    def read(self) -> Mapping[str, source.NodeInventory]:
        if self.fail is not None:
            raise self.fail
        return self.nodes


def node(name: str, **values: Any) -> source.NodeInventory:
    filled: dict[str, Any] = {
        "hypervisor_hostname": name,
        "vcpus": 8,
        "memory_mb": 16384,
        "local_gb": 200,
        "disk_available_least": None,
        "hypervisor_type": "fake",
        "hypervisor_version": 1,
        "cpu_info": "{}",
        "host_ip": None,
        "supported_instances": "[]",
        "numa_topology": None,
        "boot_id": None,
        **values,
    }
    return source.NodeInventory(**filled)


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> Book:
    made = Book()
    monkeypatch.setattr(store, "_bound", [made])
    return made


@pytest.fixture
def machine() -> Source:
    conf = conf_module.load([], "test", config_files=[])
    return Source(conf)


def make_tracker(
    machine: Source, **values: Any
) -> tuple[resource_tracker.ResourceTracker, bounded.BoundedReader]:
    reader = bounded.BoundedReader(machine, 5.0, "test")
    held = tenure.Tenure(context.Grant(host="web1", incarnation=1, secret="secret"))
    known = holdings.Holdings(held, lambda *_: None, {})
    policy = core.Policy.from_conf(machine.conf)
    made = resource_tracker.ResourceTracker(
        reader, policy, known, lambda _: None, **values
    )
    return made, reader


@pytest.fixture
def tracker(machine: Source) -> Iterator[resource_tracker.ResourceTracker]:
    made, reader = make_tracker(machine)
    yield made
    reader.close()


def test_first_audit_creates(
    book: Book, machine: Source, tracker: resource_tracker.ResourceTracker
) -> None:
    machine.nodes = {"n1": node("n1"), "n2": node("n2", vcpus=2)}
    assert tracker.audit().created == ("n1", "n2")
    row = book.rows["web1", "n2"]
    assert (row["vcpus"], row["reserved_memory_mb"]) == (2, 512)
    assert row["cpu_allocation_ratio"] == 4.0


def test_nothing_changed_asks_nothing(
    book: Book, machine: Source, tracker: resource_tracker.ResourceTracker
) -> None:
    machine.nodes = {"n1": node("n1")}
    tracker.audit()
    book.calls.clear()
    assert tracker.audit().unchanged == ("n1",)
    assert book.calls == []


def test_a_change_is_saved_once_and_alone(
    book: Book, machine: Source, tracker: resource_tracker.ResourceTracker
) -> None:
    machine.nodes = {"n1": node("n1")}
    tracker.audit()
    before = dict(book.rows["web1", "n1"])
    machine.nodes = {"n1": node("n1", memory_mb=32768)}
    assert tracker.audit().saved == ("n1",)
    assert tracker.audit().unchanged == ("n1",)
    after = book.rows["web1", "n1"]
    assert {k for k in after if after[k] != before[k]} == {
        "memory_mb",
        "inventory_generation",
    }


def taken_over(book: Book) -> None:
    """Let the book have a node with usage that nobody confirmed."""
    used = {"vcpus_used": 4, "memory_mb_used": 4608, "local_gb_used": 40}
    book.rows["web1", "n1"] = {
        "id": 1,
        "uuid": "7d9f9f2e-5a4a-4d15-8f9f-5a0b3bb0a001",
        "host": "web1",
        "hypervisor_hostname": "n1",
        "inventory_generation": 0,
        "usage_confirmed": False,
        **used,
    }


USAGE = source.Usage(vcpus=2, memory_mb=512, local_gb=0)


def test_usage_is_confirmed_once(
    book: Book,
    machine: Source,
    tracker: resource_tracker.ResourceTracker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    taken_over(book)
    machine.nodes = {"n1": node("n1", used=USAGE)}
    assert tracker.audit().saved == ("n1",)
    assert book.calls == ["get", "update", "confirm"]
    assert (
        "Node n1: usage confirmed: vcpus 2, memory_mb 512, local_gb 0; "
        "was vcpus 4, memory_mb 4608, local_gb 40"
    ) in caplog.text
    # What it says later is neither saved nor asked for.
    machine.nodes = {"n1": node("n1", used=None)}
    assert tracker.audit().unchanged == ("n1",)
    assert len(book.calls) == 3


def test_a_source_that_can_not_tell_leaves_usage_unconfirmed(
    book: Book,
    machine: Source,
    tracker: resource_tracker.ResourceTracker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    taken_over(book)
    machine.nodes = {"n1": node("n1")}
    assert tracker.audit().saved == ("n1",)
    for _ in range(2):
        assert tracker.audit().unchanged == ("n1",)
    assert book.calls == ["get", "update"]
    assert caplog.text.count("Node n1: was taken over with vcpus 4, memory_mb") == 1
    # As soon as it can, it's said.
    machine.nodes = {"n1": node("n1", used=USAGE)}
    assert tracker.audit().saved == ("n1",)
    assert book.rows["web1", "n1"]["vcpus_used"] == 2


def test_a_failed_confirmation_is_tried_again(
    book: Book, machine: Source, tracker: resource_tracker.ResourceTracker
) -> None:
    taken_over(book)
    machine.nodes = {"n1": node("n1")}
    tracker.audit()
    machine.nodes = {"n1": node("n1", used=USAGE)}
    book.fail = errors.DatabaseBusy(reason="test")
    assert [name for name, _ in tracker.audit().failed] == ["n1"]
    book.fail = None
    assert tracker.audit().saved == ("n1",)
    assert book.calls[-2:] == ["get", "confirm"]


def test_a_failed_save_is_not_remembered_as_done(
    book: Book, machine: Source, tracker: resource_tracker.ResourceTracker
) -> None:
    machine.nodes = {"n1": node("n1")}
    tracker.audit()
    machine.nodes = {"n1": node("n1", vcpus=16)}
    book.fail = errors.DatabaseBusy(reason="test")
    ((name, reason),) = tracker.audit().failed
    assert name == "n1"
    assert "try again" in reason
    book.fail = None
    assert tracker.audit().saved == ("n1",)
    assert book.rows["web1", "n1"]["vcpus"] == 16


NOBODY_THERE = [
    errors.ConductorUnavailable(method="object_action", seconds=5),
    errors.DatabaseUnavailable(reason="test"),
]


@pytest.mark.parametrize("fault", NOBODY_THERE, ids=lambda fault: type(fault).__name__)
def test_when_nobody_is_there_no_other_node_is_tried(
    book: Book,
    machine: Source,
    tracker: resource_tracker.ResourceTracker,
    fault: Exception,
) -> None:
    machine.nodes = {name: node(name) for name in ("n1", "n2", "n3")}
    book.fail = fault
    failed = dict(tracker.audit().failed)
    assert sorted(failed) == ["n1", "n2", "n3"]
    assert failed["n2"].startswith("not tried")
    assert book.calls == ["get", "create"]
    book.fail = None
    assert sorted(tracker.audit().created) == ["n1", "n2", "n3"]


def test_a_node_that_makes_it_give_up_keeps_none_from_being_saved(
    book: Book, machine: Source, tracker: resource_tracker.ResourceTracker
) -> None:
    machine.nodes = {name: node(name) for name in ("n1", "n2", "n3", "n4")}
    create = book.compute_node_create

    def slow_for_some(values: Any, grant: Any = None, **more: Any) -> Any:
        if values["hypervisor_hostname"] in ("n1", "n2"):
            raise errors.ConductorUnavailable(method="object_action", seconds=10)
        return create(values, grant, **more)

    book.compute_node_create = slow_for_some  # type: ignore[method-assign]
    for _ in range(3):
        assert len(tracker.audit().failed) > 0
    assert sorted(name for _, name in book.rows) == ["n3", "n4"]


def test_stopping_it_begins_with_no_other_node(book: Book, machine: Source) -> None:
    stopping = threading.Event()
    tracker, reader = make_tracker(machine, stopping=stopping)
    machine.nodes = {name: node(name) for name in ("n1", "n2", "n3")}
    create = book.compute_node_create

    def stop_meanwhile(values: Any, grant: Any = None, **more: Any) -> Any:
        stopping.set()
        return create(values, grant, **more)

    book.compute_node_create = stop_meanwhile  # type: ignore[method-assign]
    result = tracker.audit()
    assert result.created == ("n1",)
    assert [name for name, _ in result.failed] == ["n2", "n3"]
    assert book.calls == ["get", "create"]
    reader.close()


def test_a_failed_create_is_not_remembered_as_done(
    book: Book, machine: Source, tracker: resource_tracker.ResourceTracker
) -> None:
    machine.nodes = {"n1": node("n1")}
    book.fail = errors.ConductorUnavailable(method="object_action", seconds=5)
    assert [name for name, _ in tracker.audit().failed] == ["n1"]
    book.fail = None
    assert tracker.audit().created == ("n1",)


def test_an_unforeseen_failure_of_one_node_spares_the_other(
    book: Book, machine: Source, tracker: resource_tracker.ResourceTracker
) -> None:
    machine.nodes = {"n1": node("n1"), "n2": node("n2")}
    tracker.audit()
    machine.nodes = {"n1": node("n1", vcpus=1), "n2": node("n2", vcpus=1)}
    del book.rows["web1", "n1"]  # the update doesn't find it and stumbles
    result = tracker.audit()
    assert [name for name, _ in result.failed] == ["n1"]
    assert result.saved == ("n2",)
    assert tracker.audit().created == ("n1",)


def test_a_save_on_an_old_generation_is_decided_anew(
    book: Book, machine: Source, tracker: resource_tracker.ResourceTracker
) -> None:
    machine.nodes = {"n1": node("n1")}
    tracker.audit()
    book.rows["web1", "n1"].update(inventory_generation=7, vcpus=99)
    machine.nodes = {"n1": node("n1", vcpus=16)}
    assert [name for name, _ in tracker.audit().failed] == ["n1"]
    assert tracker.audit().saved == ("n1",)
    assert book.rows["web1", "n1"]["vcpus"] == 16


def test_a_lost_race_to_create_takes_what_is_there(
    book: Book, machine: Source, tracker: resource_tracker.ResourceTracker
) -> None:
    machine.nodes = {"n1": node("n1")}
    book.lose_race = True
    assert tracker.audit().failed == ()
    book.lose_race = False
    book.calls.clear()
    assert tracker.audit().unchanged == ("n1",)
    assert book.calls == []


def test_a_source_that_is_not_ready_changes_nothing(
    book: Book, machine: Source, tracker: resource_tracker.ResourceTracker
) -> None:
    machine.nodes = {"n1": node("n1")}
    tracker.audit()
    book.calls.clear()
    machine.fail = errors.InventoryUnavailable(source="test", reason="is not ready")
    with pytest.raises(errors.InventoryUnavailable):
        tracker.audit()
    assert book.calls == []
    machine.fail = None
    assert tracker.audit().unchanged == ("n1",)


def test_each_reason_of_a_source_that_fails_is_told_once(
    machine: Source,
    tracker: resource_tracker.ResourceTracker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for reason in ("no answer for 1 s", "no answer for 2 s", "is not JSON"):
        machine.fail = errors.InventoryUnavailable(source="test", reason=reason)
        with pytest.raises(errors.InventoryUnavailable):
            tracker.audit()
    told = [m for m in caplog.messages if "nothing is changed" in m]
    assert ["JSON" in text for text in told] == [False, True]


def test_a_node_that_is_missing_once_is_kept(
    book: Book, machine: Source, tracker: resource_tracker.ResourceTracker
) -> None:
    machine.nodes = {"n1": node("n1"), "n2": node("n2")}
    tracker.audit()
    machine.nodes = {"n1": node("n1")}
    tracker.audit()
    assert set(book.rows) == {("web1", "n1"), ("web1", "n2")}


@pytest.mark.parametrize(("count", "calls"), [(1, ["get"]), (7, ["list"])])
def test_looking_again_costs_one_read_however_many_nodes(
    book: Book,
    machine: Source,
    tracker: resource_tracker.ResourceTracker,
    count: int,
    calls: list[str],
) -> None:
    machine.nodes = {f"n{i}": node(f"n{i}") for i in range(count)}
    tracker.audit()
    book.calls.clear()
    tracker.reread()
    assert len(tracker.audit().unchanged) == count
    assert book.calls == calls
    assert len(tracker.audit().unchanged) == count
    assert book.calls == calls


def test_a_list_that_fails_is_done_without(
    book: Book, machine: Source, tracker: resource_tracker.ResourceTracker
) -> None:
    machine.nodes = {name: node(name) for name in ("n1", "n2")}
    tracker.audit()
    del book.rows["web1", "n2"]
    tracker.reread()
    book.calls.clear()
    book.fail = errors.MessageTooLarge(what="a list", limit=1, size=2)
    result = tracker.audit()
    assert result.unchanged == ("n1",)
    assert [name for name, _ in result.failed] == ["n2"]
    book.fail = None
    assert tracker.audit().created == ("n2",)


def test_a_boot_of_the_host_is_noticed_and_recorded(
    book: Book,
    machine: Source,
    tracker: resource_tracker.ResourceTracker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However fast it was: nobody need have missed the host."""
    machine.nodes = {"n1": node("n1", boot_id="first")}
    tracker.audit()
    machine.nodes = {"n1": node("n1", boot_id="second")}
    assert tracker.audit().saved == ("n1",)
    assert book.rows["web1", "n1"]["boot_id"] == "second"
    (line,) = [m for m in caplog.messages if "was booted" in m]
    assert ("second" in line, "first" in line) == (True, True)
    caplog.clear()
    tracker.audit()
    assert "was booted" not in caplog.text


def test_an_amount_below_zero_is_true(book: Book, machine: Source) -> None:
    """Hardware that went away leaves what is used; nothing is rounded up to 0."""
    tracker, reader = make_tracker(machine)
    machine.nodes = {"n1": node("n1", memory_mb=256)}
    tracker.audit()
    assert tracker.node("n1").free.memory_mb == 256 - 512
    reader.close()
