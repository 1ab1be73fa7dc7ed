"""The objects' versions: what each holds and what may be called.

The field lists are written down from the description of each version (for 1.0, the
columns of Juno's two tables); the fingerprints only tell that something moved.
"""

from collections.abc import Mapping
import copy
import datetime
from typing import Any
from unittest import mock

from oslo_versionedobjects import base as ovo_base
from oslo_versionedobjects import exception as ovo_exception
from oslo_versionedobjects import fixture
import pytest

from musterbook import context
from musterbook import errors
from objects import base
from objects import compute_node
from objects import service
from objects import store

TIMESTAMPS = {"created_at", "updated_at", "deleted_at", "deleted"}
COMPUTE_NODE_1_0 = TIMESTAMPS | {
    "id", "service_id", "vcpus", "memory_mb", "local_gb", "vcpus_used",
    "memory_mb_used", "local_gb_used", "hypervisor_type", "hypervisor_version",
    "hypervisor_hostname", "free_ram_mb", "free_disk_gb", "current_workload",
    "running_vms", "cpu_info", "disk_available_least", "host_ip",
    "supported_instances", "metrics", "pci_stats", "extra_resources", "stats",
    "numa_topology",
}  # fmt: skip
COMPUTE_NODE_1_1 = COMPUTE_NODE_1_0 | {
    "host", "uuid", "reserved_vcpus", "reserved_memory_mb", "reserved_local_gb",
    "cpu_allocation_ratio", "ram_allocation_ratio", "disk_allocation_ratio",
    "boot_id", "generation", "inventory_generation", "service",
}  # fmt: skip
COMPUTE_NODE_1_2 = COMPUTE_NODE_1_1 | {"usage_confirmed"}
COMPUTE_NODE_1_3 = COMPUTE_NODE_1_2 | {"custom_resources", "labels", "booted_at"}
SERVICE_1_0 = TIMESTAMPS | {
    "id", "host", "binary", "topic", "report_count", "disabled", "disabled_reason",
}  # fmt: skip
SERVICE_1_1 = SERVICE_1_0 | {
    "uuid", "last_seen_up", "forced_down", "incarnation", "process_uuid", "boot_id",
    "release", "state", "state_since", "state_cause", "state_evidence", "state_actor",
}  # fmt: skip
SERVICE_1_2 = SERVICE_1_1 | {"version"}
REMOTABLE = {
    "ComputeNode": {
        "get_by_id", "get_by_uuid", "get_by_host_and_nodename", "get_by_service_id",
        "create", "save", "destroy", "confirm_usage",
    },
    "ComputeNodeList": {
        "get_all", "get_all_by_host", "get_by_hypervisor", "get_by_pagination",
        "get_all_by_uuids",
    },
    "Service": {
        "get_by_id", "get_by_uuid", "get_by_host_and_binary", "create", "save",
        "destroy",
    },
    "ServiceList": {"get_all", "get_by_host", "get_by_topic", "get_by_binary"},
}  # fmt: skip

# A change here changes what peers see: raise VERSION, describe it in the class, keep
# the older shape in obj_make_compatible, then note the new fingerprint.
FINGERPRINTS = {
    "ComputeNode": "1.3-07dfa095901884995780cf8adee53a3b",
    "ComputeNodeList": "1.3-50b06cd078ccff5ce4e1d57d17756207",
    "Service": "1.2-28e6220ddc46767687fb58b91c255633",
    "ServiceList": "1.2-f8c6c25523a762242e9e789bcdad05ca",
}


class Services:
    """A store that knows services of the hosts web1 (two; 7 is very old) and web2."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []

    def services(
        self, *, host: str | None = None, binary: str | None = None
    ) -> list[Mapping[str, Any]]:
        self.asked.append(host)
        assert binary == "nova-compute"
        rows = [(7, "web1"), (8, "WEB2"), (9, "web1"), (10, None)]
        return [
            {"id": row_id, "host": name}
            for row_id, name in rows
            if host is None or (name is not None and name.lower() == host)
        ]

    def service_get_by_host_and_binary(self, host: str, _: str) -> Mapping[str, Any]:
        assert host == "web1"  # only where it matters
        return {"id": 9, "host": host}


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Services:
    made = Services()
    monkeypatch.setattr(store, "_bound", [made])
    return made


def a_node(**values: Any) -> compute_node.ComputeNode:
    made = compute_node.ComputeNode(context.service_context())
    now = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    made.obj_fill(
        context.service_context(),
        {
            "created_at": now, "updated_at": None, "deleted_at": None,
            "deleted": False, "id": 3, "uuid": "7d9f9f2e-5a4a-4d15-8f9f-5a0b3bb0a001",
            "host": "web1", "service_id": None, "hypervisor_hostname": "web1",
            "vcpus": 8, "stats": {"a": "1"}, "inventory_generation": 2, **values,
        },
    )  # fmt: skip
    return made


def test_fields() -> None:
    assert set(compute_node.ComputeNode.fields) == COMPUTE_NODE_1_3
    assert set(service.Service.fields) == SERVICE_1_2


def test_no_secret_is_a_field() -> None:
    assert not [name for name in service.Service.fields if "secret" in name]


def test_fingerprints() -> None:
    checker = fixture.ObjectVersionChecker(
        {
            name: classes
            for name, classes in base.VersionedObjectRegistry.obj_classes().items()
            if issubclass(classes[0], base.MusterObject)
        }
    )
    expected, found = checker.test_hashes(FINGERPRINTS)
    assert found == expected


def test_what_may_be_called() -> None:
    assert base.remotable_methods() == {
        (name, method) for name, methods in REMOTABLE.items() for method in methods
    }


@pytest.mark.parametrize(
    ("objname", "method"),
    [
        ("ComputeNode", "__init__"),
        ("ComputeNode", "__class__"),
        ("ComputeNode", "_from_row"),
        ("ComputeNode", "obj_reset_changes"),
        ("ComputeNode", "get_all"),  # of the list, not of the node
        ("ComputeNode", "get_by_id"),  # a class method, asked of an instance
        ("ComputeNode", ""),
        ("ComputeNode", None),
        ("ComputeNode", ["save"]),
        ("ComputeNode", "save\0"),
        ("ComputeNode", "\uff53\uff41\uff56\uff45"),
        ("MusterObject", "save"),
        ("VersionedObject", "save"),
        ("", "save"),
        (None, None),
        ({}, "save"),
        ("x" * 10_000, "save"),
    ],
)
def test_hostile_names(objname: object, method: object) -> None:
    with pytest.raises(errors.MethodNotRemotable) as caught:
        base.instance_method(objname, method)
    assert len(caught.value.message) < 300


def test_class_and_instance_methods_are_kept_apart() -> None:
    assert base.instance_method("ComputeNode", "save").__name__ == "save"
    assert base.class_method("ComputeNode", "get_by_id").__name__ == "get_by_id"
    with pytest.raises(errors.MethodNotRemotable):
        base.class_method("ComputeNode", "save")


def test_a_node_for_a_peer_of_version_1_0() -> None:
    primitive = a_node().obj_to_primitive(target_version="1.0")
    assert primitive["versioned_object.version"] == "1.0"
    data = primitive["versioned_object.data"]
    assert set(data) <= COMPUTE_NODE_1_0
    assert data["vcpus"] == 8
    # It can't hold NULL there, and this process has no store to look it up.
    assert data["service_id"] == -1


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("1.0", COMPUTE_NODE_1_0),
        ("1.1", COMPUTE_NODE_1_1),
        ("1.2", COMPUTE_NODE_1_2),
        ("1.3", COMPUTE_NODE_1_3),
    ],
)
def test_a_peer_gets_the_fields_of_its_version(version: str, known: set[str]) -> None:
    node = a_node(
        usage_confirmed=False, vcpus_used=3, boot_id="b", booted_at=None,
        custom_resources={"CUSTOM_GPU": 4}, labels={"rack": "r1"},
    )  # fmt: skip
    data = node.obj_to_primitive(target_version=version)["versioned_object.data"]
    assert set(data) == known & (node.obj_values().keys())


def test_service_ids_of_many_nodes_are_one_look_up(services: Services) -> None:
    nodes = [
        a_node(host=host, service_id=service_id)
        for host, service_id in [
            ("Web1", None), ("web2", None), ("web3", None), (None, None), ("web2", 5),
        ]
    ]  # fmt: skip
    compute_node.fill_service_ids([*nodes, compute_node.ComputeNode()])
    assert [node.service_id for node in nodes] == [9, 8, None, None, 5]
    assert services.asked == [None]
    assert not any(node.obj_what_changed() for node in nodes)


def test_service_id_of_one_host_is_looked_up_by_host(services: Services) -> None:
    nodes = [a_node(host="web2"), a_node(host="WEB2", id=4)]
    compute_node.fill_service_ids(nodes)
    assert [node.service_id for node in nodes] == [8, 8]
    compute_node.fill_service_ids(nodes)
    assert services.asked == ["web2"]


@pytest.mark.parametrize("manifest", [None, {"ComputeNode": "1.1"}])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_node_with_its_service_for_peers_that_say_nothing_of_it(
    version: str, manifest: dict[str, str] | None
) -> None:
    node = a_node()
    node.service = service.Service().obj_fill(None, {"id": 7, "state": "up"})
    data = node.obj_to_primitive(version, manifest)["versioned_object.data"]
    if version == "1.0":
        assert "service" not in data
    else:
        assert data["service"]["versioned_object.data"] == {"id": 7, "state": "up"}


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2", "1.3"])
def test_a_list_holds_nodes_of_its_own_version(version: str) -> None:
    nodes = compute_node.ComputeNodeList(objects=[a_node()])
    primitive = nodes.obj_to_primitive(version)
    (node,) = primitive["versioned_object.data"]["objects"]
    assert node["versioned_object.version"] == version


@pytest.mark.parametrize("kind", [compute_node.ComputeNode, service.Service])
@pytest.mark.parametrize("method", ["save", "destroy"])
def test_what_has_no_id_is_refused(
    kind: Any, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_bound", [mock.Mock(spec=store.Store)])
    made = kind(context.service_context(), host="web1")
    with pytest.raises(errors.InvalidInput) as caught:
        getattr(made, method)()
    assert caught.value.field == "id"


def test_a_service_for_a_peer_of_version_1_0() -> None:
    made = service.Service().obj_fill(
        None, {"id": 1, "host": "web1", "binary": "nova-compute", "state": "up"}
    )
    data = made.obj_to_primitive(target_version="1.0")["versioned_object.data"]
    assert data == {"id": 1, "host": "web1", "binary": "nova-compute"}


def test_a_call_carries_what_it_needs_only() -> None:
    node = a_node()
    node.vcpus = 9
    primitive = node.obj_for_call().obj_to_primitive()
    assert primitive["versioned_object.data"] == {
        "id": 3,
        "host": "web1",
        "inventory_generation": 2,
        "vcpus": 9,
    }
    assert primitive["versioned_object.changes"] == ["vcpus"]
    assert node.obj_what_changed() == {"vcpus"}


def with_unread_service() -> Any:
    row = {"id": 7, "host": "web1", "state": "up", "state_since": None}
    return a_node(service=row)


def test_a_service_that_came_with_a_list_is_made_when_it_is_read() -> None:
    node = with_unread_service()
    assert node.obj_attr_is_set("service")
    assert "_obj_service" not in vars(node)
    assert (node.service.id, node.service.state) == (7, "up")
    assert node.service is node.service
    assert node.obj_what_changed() == node.service.obj_what_changed() == set()


@pytest.mark.parametrize(
    "read",
    [
        lambda node: node.obj_values()["service"],
        lambda node: node.obj_clone().service,
        lambda node: copy.copy(node).service,
    ],
)
def test_all_ways_to_read_find_it(read: Any) -> None:
    assert read(with_unread_service()).id == 7
    assert "service" in with_unread_service().obj_set_fields()
    text = repr(with_unread_service())
    assert "service=Service(" in text


def test_a_service_that_was_set_is_not_replaced() -> None:
    node = with_unread_service()
    node.service = None
    assert node.obj_values()["service"] is None
    assert node.service is None
    assert a_node(service=None).service is None


@pytest.mark.parametrize("manifest", [None, {"ComputeNode": "1.1", "Service": "1.0"}])
@pytest.mark.parametrize("version", [None, "1.0", "1.1"])
def test_primitives_are_those_of_the_library(
    version: str | None, manifest: dict[str, str] | None
) -> None:
    theirs = ovo_base.VersionedObject.obj_to_primitive
    for node in (with_unread_service(), a_node(), compute_node.ComputeNode()):
        node.metrics = "[]"
        made = node.obj_to_primitive(version, manifest)
        assert made == theirs(node, version, manifest)
        listed = compute_node.ComputeNodeList(objects=[node])
        assert listed.obj_to_primitive(version) == theirs(listed, version)
    with pytest.raises(ovo_exception.InvalidTargetVersion):
        a_node().obj_to_primitive("1.10")


def test_rows_of_other_types_are_coerced_or_refused() -> None:
    """As by the setters; a SQLite file holds what it was given."""
    made = a_node(vcpus="9", host=12, deleted=1, cpu_allocation_ratio=2)
    values = made.obj_values()
    found = {n: values[n] for n in ("vcpus", "host", "deleted", "cpu_allocation_ratio")}
    assert found == {
        "vcpus": 9, "host": "12", "deleted": True, "cpu_allocation_ratio": 2.0,
    }  # fmt: skip
    assert type(values["deleted"]) is bool
    for odd in ({"vcpus": None}, {"vcpus": "x"}, {"stats": "text"}, {"uuid": None}):
        with pytest.raises(ValueError, match=r"None|literal|dict"):
            a_node(**odd)
    node: Any = a_node()
    with pytest.raises(ovo_exception.ReadOnlyFieldError):
        node.obj_fill(None, {"id": 4})
    node.vcpus = 3
    node.obj_fill(None, {"vcpus": 4, "unheard_of": 1})
    assert (node.vcpus, node.obj_what_changed()) == (4, set())
    node.stats["b"] = 2
    assert node.stats == {"a": "1", "b": "2"}


def test_what_changed_is_what_was_set() -> None:
    node = a_node()
    assert node.obj_what_changed() == set()
    node.memory_mb = 5
    node.stats = {"b": "2"}
    assert node.obj_what_changed() == {"memory_mb", "stats"}
