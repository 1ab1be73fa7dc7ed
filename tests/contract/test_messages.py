"""What clients send and the conductor answers, compared with the samples."""

from collections.abc import Mapping
import datetime
from typing import Any
import uuid

import pytest

from compute_agent import rpcapi as compute_rpcapi
from conductor import rpcapi as conductor_rpcapi
from musterbook import context
from musterbook import errors
from musterbook import rpc
from objects import base
from objects import compute_node
from tests.contract import samples
from tests.contract import wires

BOOT = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)

# -- what the clients send ---------------------------------------------------------


def test_a_read_is_sent(
    wire: wires.Wire, transport: rpc.Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = conductor_rpcapi.ConductorAPI(transport, 10)
    monkeypatch.setattr(base.MusterObject, "indirection_api", api)
    answer = {
        "versioned_object.name": "ComputeNode",
        "versioned_object.namespace": "musterbook",
        "versioned_object.version": "1.3",
        "versioned_object.data": {"id": 3, "vcpus": 8},
    }
    found = []

    def call() -> None:
        found.append(
            compute_node.ComputeNode.get_by_host_and_nodename(
                wires.a_context(), "web1", "web1"
            )
        )

    assert wires.sent_to_conductor(wire, call, answer) == samples.GET_NODE
    assert (found[0].id, found[0].vcpus) == (3, 8)


def test_a_save_is_sent(
    wire: wires.Wire, transport: rpc.Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = conductor_rpcapi.ConductorAPI(transport, 10)
    monkeypatch.setattr(base.MusterObject, "indirection_api", api)
    node = compute_node.ComputeNode().obj_fill(wires.a_context(), samples.NODE_ROW)
    node.memory_mb = 32768
    answer = [{"inventory_generation": 3, "obj_what_changed": []}, None]
    assert wires.sent_to_conductor(wire, node.save, answer) == samples.SAVE_NODE
    assert node.inventory_generation == 3
    assert node.obj_what_changed() == set()


def a_custom_node() -> compute_node.ComputeNode:
    node = compute_node.ComputeNode().obj_fill(wires.a_context(), samples.NODE_ROW)
    node.booted_at = BOOT
    node.custom_resources = {"CUSTOM_GPU": 4}
    node.labels = {"rack": "r1"}
    return node


def in_order(message: Any) -> Any:
    """Return the message with what changed in order: it is a set."""
    objinst = dict(message["args"]["objinst"])
    objinst["versioned_object.changes"] = sorted(objinst["versioned_object.changes"])
    return samples.altered(message, objinst=objinst)


def test_custom_resources_are_sent(
    wire: wires.Wire, transport: rpc.Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = conductor_rpcapi.ConductorAPI(transport, 10)
    monkeypatch.setattr(base.MusterObject, "indirection_api", api)
    answer = [{"inventory_generation": 3, "obj_what_changed": []}, None]
    sent = wires.sent_to_conductor(wire, a_custom_node().save, answer)
    assert in_order(sent) == samples.SAVE_CUSTOM


def test_an_older_conductor_is_not_told_of_them(
    wire: wires.Wire, transport: rpc.Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = conductor_rpcapi.ConductorAPI(transport, 10, "1.1")
    monkeypatch.setattr(base.MusterObject, "indirection_api", api)
    node = a_custom_node()
    node.memory_mb = 32768
    answer = [{"inventory_generation": 3, "obj_what_changed": []}, None]
    sent = wires.sent_to_conductor(wire, node.save, answer)
    objinst = {
        **samples.SAVE_NODE["args"]["objinst"],  # type: ignore[index]
        "versioned_object.version": "1.2",
    }
    assert sent == samples.altered(samples.SAVE_NODE, objinst=objinst)


def test_what_the_conductor_is_asked(
    wire: wires.Wire, transport: rpc.Transport
) -> None:
    api = conductor_rpcapi.ConductorAPI(transport, 10)
    listener = wire.listen("conductor", "c1", {"host": "web1", "incarnation": 4})
    api.ping(wires.a_context())
    api.hello(
        wires.a_context(),
        host="web1",
        process_uuid=samples.PROCESS_UUID,
        boot_id=None,
        release="0.1.0",
        secret="the-secret",
    )
    api.hello(
        wires.a_context(),
        host="web1",
        process_uuid=samples.PROCESS_UUID,
        boot_id=None,
        release="0.1.0",
        secret="the-secret",
        had=3,
    )
    api.hello(
        wires.a_context(),
        host="web1",
        process_uuid=samples.PROCESS_UUID,
        boot_id=None,
        release="0.1.0",
        secret="the-secret",
        formerly="old1",
        nodes=[(samples.NODE_UUID, "n1")],
    )
    api.adopt_node(wires.a_context(), samples.NODE_UUID, "bm1", "web2")
    api.goodbye(wires.a_context())
    api.stalled(wires.a_context(), "disk is slow")
    api.verify(wires.a_context())
    api.get_fleet(wires.a_context(), ["host"])
    api.reset_flapping(wires.a_context(), "web1")
    api.beat(wires.a_context())
    api.get_beats(wires.a_context())
    api.release_freeze(wires.a_context(), "nova")
    api.get_fleet(wires.a_context(), ["host"], max_age=30)
    listener.stop()
    messages = [message for _, message in wire.got]
    hellos = [samples.HELLO, samples.HELLO_AGAIN, samples.HELLO_RENAMED]
    others = [
        samples.ADOPT,
        samples.GOODBYE,
        samples.STALLED,
        samples.VERIFY,
        samples.GET_FLEET,
        samples.RESET_FLAPPING,
        samples.BEAT,
        samples.GET_BEATS,
        samples.RELEASE_FREEZE,
        samples.FRESH_FLEET,
    ]
    assert messages == [samples.PING, *hellos, *others]


def test_a_service_level_is_told(wire: wires.Wire, transport: rpc.Transport) -> None:
    api = conductor_rpcapi.ConductorAPI(transport, 10)
    answer = {"host": "web1", "incarnation": 4}
    sent = wires.sent_to_conductor(wire, lambda: wires.say_hello(api), answer)
    assert sent == samples.HELLO_OF_A_LEVEL
    wire.got.clear()
    asked = wires.sent_to_conductor(
        wire, lambda: api.get_versions(wires.a_context()), {}
    )
    assert asked == samples.GET_VERSIONS


def test_what_an_agent_is_asked(wire: wires.Wire, transport: rpc.Transport) -> None:
    api = compute_rpcapi.ComputeAPI(transport, 10)
    answer = {"process_uuid": samples.PROCESS_UUID, "incarnation": 4}
    listener = wire.listen("compute", "web1", answer)
    assert api.ping(wires.a_context(), "web1") == answer
    api.rejoin(wires.a_context(), "web1", 4)
    api.look(wires.a_context(), "web1")
    api.audit(wires.a_context(), "web1")
    for _ in range(4):
        assert wire.arrived.acquire(timeout=10)
    listener.stop()
    assert [message for _, message in wire.got] == [
        samples.PING_AGENT,
        samples.REJOIN,
        samples.LOOK,
        samples.AUDIT,
    ]


# -- what the conductor understands ------------------------------------------------


def test_a_read_is_answered(
    wire: wires.Wire, served: tuple[wires.Nodes, wires.Records]
) -> None:
    answer = wire.ask(samples.GET_NODE)
    assert answer == {
        "versioned_object.name": "ComputeNode",
        "versioned_object.namespace": "musterbook",
        "versioned_object.version": "1.3",
        "versioned_object.data": samples.NODE_ROW,
    }


def test_a_read_is_answered_in_version_1_1(
    wire: wires.Wire, served: tuple[wires.Nodes, wires.Records]
) -> None:
    versions = {"ComputeNode": "1.1", "Service": "1.1"}
    answer = wire.ask(samples.altered(samples.GET_NODE, object_versions=versions))
    assert answer["versioned_object.version"] == "1.1"
    known = {n: v for n, v in samples.NODE_ROW.items() if n != "usage_confirmed"}
    assert answer["versioned_object.data"] == known


@pytest.mark.parametrize("version", ["1.1", "1.2", "1.3"])
def test_a_save_of_usage_says_which_version_asks(
    wire: wires.Wire, served: tuple[wires.Nodes, wires.Records], version: str
) -> None:
    objinst = {
        **samples.SAVE_JUNO_NODE["args"]["objinst"],  # type: ignore[index]
        "versioned_object.version": version,
    }
    wire.ask(samples.altered(samples.SAVE_JUNO_NODE, objinst=objinst))
    assert served[0].writes_usage == [False]


def test_a_confirmation_is_answered(
    wire: wires.Wire, served: tuple[wires.Nodes, wires.Records]
) -> None:
    updates, result = wire.ask(samples.CONFIRM_USAGE)
    assert served[0].confirmed == [(3, {"vcpus": 2, "memory_mb": 512, "local_gb": 0})]
    assert served[0].grants == [context.Grant("web1", 4, "the-secret")]
    assert (updates, result) == (
        {"usage_confirmed": True, "vcpus_used": 3, "obj_what_changed": []},
        None,
    )


def test_a_read_is_answered_in_version_1_0(
    wire: wires.Wire, served: tuple[wires.Nodes, wires.Records]
) -> None:
    asked = {**samples.GET_NODE, "args": {**samples.GET_NODE["args"]}}  # type: ignore[dict-item]
    asked["args"]["object_versions"] = {"ComputeNode": "1.0"}  # type: ignore[index]
    answer = wire.ask(asked)
    assert answer["versioned_object.version"] == "1.0"
    assert answer["versioned_object.data"] == {
        "id": 3,
        "hypervisor_hostname": "web1",
        "vcpus": 8,
        "service_id": 7,
        "memory_mb": 16384,
    }


def test_a_save_is_done(
    wire: wires.Wire, served: tuple[wires.Nodes, wires.Records]
) -> None:
    answer = wire.ask(samples.SAVE_NODE)
    assert served[0].saved == [(3, {"memory_mb": 32768}, 2)]
    assert served[0].grants == [context.Grant("web1", 4, "the-secret")]
    assert answer == [{"inventory_generation": 3, "obj_what_changed": []}, None]


def test_custom_resources_are_saved(
    wire: wires.Wire, served: tuple[wires.Nodes, wires.Records]
) -> None:
    wire.ask(samples.SAVE_CUSTOM)
    told = {
        "booted_at": BOOT,
        "custom_resources": {"CUSTOM_GPU": 4},
        "labels": {"rack": "r1"},
    }
    assert served[0].saved == [(3, told, 2)]


@pytest.mark.parametrize(
    "versions",
    [
        {"ComputeNodeList": "1.0", "ComputeNode": "1.0"},
        {"ComputeNodeList": "1.0.2", "ComputeNode": "1.0.9", "Stranger": "x"},
        {"ComputeNodeList": "1.0"},
    ],
)
def test_a_list_for_version_1_0_is_one_look_up(
    wire: wires.Wire,
    served: tuple[wires.Nodes, wires.Records],
    versions: Mapping[str, str],
) -> None:
    answer = wire.ask(samples.altered(samples.GET_NODES, object_versions=versions))
    assert answer["versioned_object.version"] == "1.0"
    found = answer["versioned_object.data"]["objects"]
    assert {node["versioned_object.version"] for node in found} == {"1.0"}
    ids = [node["versioned_object.data"]["service_id"] for node in found]
    assert ids == [7, -1]
    assert served[0].looked_up == [None]


def test_a_peer_that_knows_newer_versions_gets_ours(
    wire: wires.Wire, served: tuple[wires.Nodes, wires.Records]
) -> None:
    versions = {"ComputeNodeList": "1.7", "ComputeNode": "1.12"}
    answer = wire.ask(samples.altered(samples.GET_NODES, object_versions=versions))
    assert answer["versioned_object.version"] == "1.3"
    (first, _) = answer["versioned_object.data"]["objects"]
    assert first["versioned_object.version"] == "1.3"
    assert first["versioned_object.data"] == samples.NODE_ROW
    assert served[0].looked_up == []


def test_a_create_of_version_1_0_is_answered_in_it(
    wire: wires.Wire, served: tuple[wires.Nodes, wires.Records]
) -> None:
    updates, result = wire.ask(samples.CREATE_JUNO_NODE)
    assert result is None
    (values,) = served[0].saved
    assert served[0].grants == [context.Grant("web1", 4, "the-secret")]
    assert uuid.UUID(values.pop("uuid"))
    sent = samples.CREATE_JUNO_NODE["args"]["objinst"]
    assert values == sent["versioned_object.data"]
    assert updates == {"id": 3, "obj_what_changed": []}


def test_a_save_of_version_1_0_is_answered_in_it(
    wire: wires.Wire, served: tuple[wires.Nodes, wires.Records]
) -> None:
    # The store took the row over: it answers host, uuid and service_id, too.
    served[0].answer = {**samples.NODE_ROW, "vcpus_used": 2}
    updates, _ = wire.ask(samples.SAVE_JUNO_NODE)
    assert served[0].saved == [(3, {"vcpus_used": 2}, None)]
    assert served[0].writes_usage == [True]
    assert updates == {
        "hypervisor_hostname": "web1",
        "vcpus": 8,
        "service_id": 7,
        "memory_mb": 16384,
        "obj_what_changed": [],
    }


def test_a_backport_is_answered(
    wire: wires.Wire, served: tuple[wires.Nodes, wires.Records]
) -> None:
    assert wire.ask(samples.BACKPORT) == {
        "versioned_object.name": "ComputeNode",
        "versioned_object.namespace": "musterbook",
        "versioned_object.version": "1.0",
        "versioned_object.data": {"id": 3, "service_id": 7},
    }


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_an_older_object_is_not_backported_upwards(
    wire: wires.Wire, served: tuple[wires.Nodes, wires.Records], version: str
) -> None:
    """Lesson 34."""
    old = {
        "versioned_object.name": "ComputeNode",
        "versioned_object.namespace": "musterbook",
        "versioned_object.version": version,
        "versioned_object.data": {"id": 3, "vcpus": 8},
    }
    versions = {"ComputeNode": "1.1", "Service": "1.2"}
    asked = samples.altered(samples.BACKPORT, objinst=old, object_versions=versions)
    assert wire.ask(asked) == old


@pytest.mark.parametrize(
    ("versions", "node", "service"),
    [
        ({"ComputeNode": "1.1", "Service": "1.1"}, "1.1", "1.1"),
        ({"ComputeNode": "1.1", "Service": "1.2"}, "1.1", "1.2"),
        ({"ComputeNode": "1.1"}, "1.1", "1.1"),
        ({}, "1.1", "1.1"),
        ({"ComputeNode": "1.0", "Service": "1.2"}, "1.0", None),
    ],
)
def test_what_is_nested_comes_in_the_versions_of_the_manifest(
    wire: wires.Wire,
    served: tuple[wires.Nodes, wires.Records],
    versions: dict[str, str],
    node: str,
    service: str | None,
) -> None:
    """Lesson 33."""
    row = {**samples.NODE_ROW, "service": {"id": 7, "host": "web1", "version": 1}}
    served[0].listed = [row]
    asked = samples.altered(
        samples.GET_NODES,
        args=[True],
        object_versions={"ComputeNodeList": "1.1", **versions},
    )
    answer = wire.ask(asked)
    assert answer["versioned_object.version"] == "1.1"
    (found,) = answer["versioned_object.data"]["objects"]
    assert found["versioned_object.version"] == node
    nested = found["versioned_object.data"].get("service")
    assert (nested and nested["versioned_object.version"]) == service
    if nested is not None:
        assert ("version" in nested["versioned_object.data"]) == (service == "1.2")


def test_versions_are_answered(
    wire: wires.Wire, served: tuple[wires.Nodes, wires.Records]
) -> None:
    assert wire.ask(samples.GET_VERSIONS) == {
        "level": 2,
        "lowest_level": 0,
        "conductor": "1.2",
        "compute": "1.1",
        "objects": {
            "ComputeNode": "1.3",
            "ComputeNodeList": "1.3",
            "Service": "1.2",
            "ServiceList": "1.2",
        },
    }
    wires.Granter.levels.clear()
    wire.ask(samples.HELLO)
    wire.ask(samples.HELLO_OF_A_LEVEL)
    assert wires.Granter.levels == [None, 1]


def test_liveness_is_told(
    wire: wires.Wire, served: tuple[wires.Nodes, wires.Records]
) -> None:
    assert wire.ask(samples.HELLO) == {"host": "web1", "incarnation": 4}
    assert (
        wire.ask(samples.altered(samples.HELLO_RENAMED, formerly="WEB1"))["host"]
        == "web1"
    )
    assert wire.ask(samples.HELLO_RENAMED)["nodes"] == [[samples.NODE_UUID, "n1"]]
    wire.ask(samples.ADOPT)
    wire.ask(samples.GOODBYE)
    wire.ask(samples.STALLED)
    assert wire.ask(samples.VERIFY) is None
    assert wire.ask(samples.RESET_FLAPPING) is None
    assert wire.ask(samples.BEAT) is None
    stamp = "2026-11-30T12:00:03.250000+00:00"
    assert wire.ask(samples.GET_BEATS) == [["web1", 4, stamp, 1.5]]
    assert wire.ask(samples.RELEASE_FREEZE) == {"ended": ["nova"], "kept": [""]}
    assert served[1].told == [
        ("adopt", "web1", samples.NODE_UUID, "bm1", "web2"),
        ("goodbye", "web1", "nova-compute", 4, "the-secret"),
        ("stalled", "web1", "nova-compute", 4, "the-secret", "disk is slow"),
        ("verify", "web1", "nova-compute", 4, "the-secret"),
        ("reset_flapping", "web1", "nova-compute", "operator"),
        ("beat", "web1", "nova-compute", 4, "the-secret"),
        ("release_freeze", "nova", "operator"),
    ]
    served[1].refuse = errors.Superseded(host="web1", incarnation=4)
    with pytest.raises(errors.Superseded):
        wire.ask(samples.VERIFY)
    with pytest.raises(errors.Superseded):
        wire.ask(samples.BEAT)
    for message in (samples.VERIFY, samples.BEAT):
        with pytest.raises(errors.InvalidInput):
            wire.ask(message, {**samples.CONTEXT, "grant": None})
