"""The messages as they cross the wire, written by hand.

A message of oslo.messaging's RPC is {method, args, version}; objects in it have the
form of oslo.versionedobjects. The clients here must send exactly these, and the
conductor must understand exactly these, so that a change of the wire by accident is
seen. Nothing here was copied from what our code sends.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import threading
import time
from typing import Any
from typing import ClassVar
import uuid

import oslo_messaging
import pytest

from compute_agent import rpcapi as compute_rpcapi
from conductor import manager as conductor_manager
from conductor import rpcapi as conductor_rpcapi
from musterbook import context
from musterbook import errors
from musterbook import rpc
from objects import base
from objects import compute_node
from objects import service as service_obj
from objects import store
from tests import rpc_lab

NODE_UUID = "7d9f9f2e-5a4a-4d15-8f9f-5a0b3bb0a001"
PROCESS_UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
REQUEST_ID = "req-11111111-2222-3333-4444-555555555555"
CONTEXT: dict[str, Any] = {
    "request_id": REQUEST_ID,
    "user_id": None,
    "project_id": None,
    "is_admin": True,
    "roles": [],
    "grant": {"host": "web1", "incarnation": 4, "secret": "the-secret"},
}

GET_NODE = {
    "method": "object_class_action_versions",
    "version": "1.0",
    "args": {
        "objname": "ComputeNode",
        "objmethod": "get_by_host_and_nodename",
        "object_versions": {"ComputeNode": "1.2", "Service": "1.2"},
        "args": ["web1", "web1"],
        "kwargs": {},
    },
}
SAVE_NODE = {
    "method": "object_action",
    "version": "1.0",
    "args": {
        "objinst": {
            "versioned_object.name": "ComputeNode",
            "versioned_object.namespace": "musterbook",
            "versioned_object.version": "1.2",
            "versioned_object.data": {
                "id": 3,
                "host": "web1",
                "inventory_generation": 2,
                "memory_mb": 32768,
            },
            "versioned_object.changes": ["memory_mb"],
        },
        "objmethod": "save",
        "args": [],
        "kwargs": {},
    },
}
GET_NODES = {
    "method": "object_class_action_versions",
    "version": "1.0",
    "args": {
        "objname": "ComputeNodeList",
        "objmethod": "get_all",
        "object_versions": {"ComputeNodeList": "1.0", "ComputeNode": "1.0"},
        "args": [],
        "kwargs": {},
    },
}
# What an agent of Juno's time sends: version 1.0 of the object has no host.
CREATE_JUNO_NODE = {
    "method": "object_action",
    "version": "1.0",
    "args": {
        "objinst": {
            "versioned_object.name": "ComputeNode",
            "versioned_object.namespace": "musterbook",
            "versioned_object.version": "1.0",
            "versioned_object.data": {
                "service_id": 7,
                "hypervisor_hostname": "web1",
                "vcpus": 8,
                "memory_mb": 16384,
            },
            "versioned_object.changes": [
                "service_id",
                "hypervisor_hostname",
                "vcpus",
                "memory_mb",
            ],
        },
        "objmethod": "create",
        "args": [],
        "kwargs": {},
    },
}
CONFIRM_USAGE = {
    "method": "object_action",
    "version": "1.0",
    "args": {
        "objinst": {
            "versioned_object.name": "ComputeNode",
            "versioned_object.namespace": "musterbook",
            "versioned_object.version": "1.2",
            "versioned_object.data": {
                "id": 3,
                "host": "web1",
                "inventory_generation": 2,
            },
        },
        "objmethod": "confirm_usage",
        "args": [{"vcpus": 2, "memory_mb": 512, "local_gb": 0}],
        "kwargs": {},
    },
}
SAVE_JUNO_NODE = {
    "method": "object_action",
    "version": "1.0",
    "args": {
        "objinst": {
            "versioned_object.name": "ComputeNode",
            "versioned_object.namespace": "musterbook",
            "versioned_object.version": "1.0",
            "versioned_object.data": {"id": 3, "service_id": 6, "vcpus_used": 2},
            "versioned_object.changes": ["vcpus_used"],
        },
        "objmethod": "save",
        "args": [],
        "kwargs": {},
    },
}
BACKPORT = {
    "method": "object_backport_versions",
    "version": "1.0",
    "args": {
        "objinst": {
            "versioned_object.name": "ComputeNode",
            "versioned_object.namespace": "musterbook",
            "versioned_object.version": "1.2",
            "versioned_object.data": {"id": 3, "host": "web1", "service_id": None},
        },
        "object_versions": {"ComputeNode": "1.0"},
    },
}
PING = {"method": "ping", "version": "1.0", "args": {}}
HELLO = {
    "method": "hello",
    "version": "1.0",
    "args": {
        "host": "web1",
        "process_uuid": PROCESS_UUID,
        "boot_id": None,
        "release": "0.1.0",
        "secret": "the-secret",
    },
}
HELLO_AGAIN: dict[str, Any] = {
    "method": "hello",
    "version": "1.0",
    "args": {
        "host": "web1",
        "process_uuid": PROCESS_UUID,
        "boot_id": None,
        "release": "0.1.0",
        "secret": "the-secret",
        "had": 3,
    },
}
HELLO_OF_A_LEVEL: dict[str, Any] = {
    "method": "hello",
    "version": "1.1",
    "args": {**HELLO["args"], "version": 1},  # type: ignore[dict-item]
}
GET_VERSIONS = {"method": "get_versions", "version": "1.1", "args": {}}
HELLO_RENAMED: dict[str, Any] = {
    "method": "hello",
    "version": "1.1",
    "args": {
        "host": "web1",
        "process_uuid": PROCESS_UUID,
        "boot_id": None,
        "release": "0.1.0",
        "secret": "the-secret",
        "formerly": "old1",
        "nodes": [[NODE_UUID, "n1"]],
    },
}
ADOPT = {
    "method": "adopt_node",
    "version": "1.1",
    "args": {"uuid": NODE_UUID, "name": "bm1", "formerly": "web2"},
}
GOODBYE = {"method": "goodbye", "version": "1.0", "args": {}}
VERIFY = {"method": "verify", "version": "1.0", "args": {}}
RESET_FLAPPING = {
    "method": "reset_flapping",
    "version": "1.1",
    "args": {"host": "web1"},
}
RELEASE_FREEZE = {
    "method": "release_freeze",
    "version": "1.3",
    "args": {"zone": "nova"},
}
FRESH_FLEET = {
    "method": "get_fleet",
    "version": "1.3",
    "args": {"columns": ["host"], "max_age": 30},
}
STALLED = {"method": "stalled", "version": "1.0", "args": {"reason": "disk is slow"}}
GET_FLEET = {"method": "get_fleet", "version": "1.0", "args": {"columns": ["host"]}}
PING_AGENT = {"method": "ping", "version": "1.0", "args": {}}
LOOK = {"method": "look", "version": "1.0", "args": {}}
REJOIN = {"method": "rejoin", "version": "1.0", "args": {"incarnation": 4}}

NODE_ROW = {
    "id": 3,
    "uuid": NODE_UUID,
    "host": "web1",
    "hypervisor_hostname": "web1",
    "vcpus": 8,
    "service_id": None,
    "memory_mb": 16384,
    "inventory_generation": 2,
    "usage_confirmed": False,
}


class Nodes:
    """A store with the one node, that notes what is saved."""

    def __init__(self) -> None:
        self.saved: list[Any] = []
        self.grants: list[context.Grant | None] = []
        self.writes_usage: list[bool] = []
        self.confirmed: list[Any] = []
        self.looked_up: list[str | None] = []
        self.answer: Mapping[str, Any] = {"inventory_generation": 3}
        self.listed: list[Mapping[str, Any]] = [
            NODE_ROW,
            {**NODE_ROW, "id": 4, "host": "web2"},
        ]

    def compute_node_get_by_host_and_nodename(
        self, host: str, nodename: str
    ) -> Mapping[str, Any]:
        if (host, nodename) != ("web1", "web1"):
            raise errors.ComputeNodeNotFound(what=f"host {host} and name {nodename}")
        return NODE_ROW

    def compute_node_update(
        self,
        node_id: int,
        values: Mapping[str, Any],
        generation: int | None,
        grant: context.Grant | None = None,
        *,
        writes_usage: bool,
    ) -> Mapping[str, Any]:
        self.grants.append(grant)
        self.writes_usage.append(writes_usage)
        self.saved.append((node_id, dict(values), generation))
        return self.answer

    def compute_node_create(
        self,
        values: Mapping[str, Any],
        grant: context.Grant | None = None,
        *,
        writes_usage: bool,
    ) -> Mapping[str, Any]:
        self.grants.append(grant)
        self.writes_usage.append(writes_usage)
        self.saved.append(dict(values))
        return {**NODE_ROW, **values, "host": "web1", "service_id": None, "id": 3}

    def compute_node_confirm_usage(
        self, node_id: int, used: Mapping[str, int], grant: context.Grant | None
    ) -> Mapping[str, Any]:
        self.grants.append(grant)
        self.confirmed.append((node_id, dict(used)))
        return {"usage_confirmed": True, "vcpus_used": 3}

    def compute_nodes(self, *, with_service: bool = False) -> list[Mapping[str, Any]]:
        return self.listed

    def services(
        self, *, host: str | None = None, binary: str | None = None
    ) -> list[Mapping[str, Any]]:
        self.looked_up.append(host)
        assert binary == "nova-compute"
        return [{"id": 7, "host": "web1"}]


class Records:
    """Liveness records that note what they are told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.refuse: Exception | None = None

    def lowest_level(self, binary: str) -> int | None:
        assert binary == "nova-compute"
        return 0

    def goodbye(self, *args: Any) -> None:
        self.told.append(("goodbye", *args))

    def stalled(self, *args: Any) -> None:
        self.told.append(("stalled", *args))

    def reset_flapping(self, *args: Any) -> None:
        self.told.append(("reset_flapping", *args))

    def release_freeze(self, *args: Any) -> tuple[list[str], list[str]]:
        self.told.append(("release_freeze", *args))
        return ["nova"], [""]

    def adopt(self, grant: context.Grant, *args: Any) -> None:
        self.told.append(("adopt", grant.host, *args))

    def verify(self, *args: Any) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.told.append(("verify", *args))


class Granter:
    """Grants incarnation 4 to everybody, and notes the service levels."""

    levels: ClassVar[list[int | None]] = []

    def hello(
        self,
        _: Any,
        *,
        host: str,
        version: int | None,
        formerly: Any = None,
        **__: Any,
    ) -> dict[str, Any]:
        self.levels.append(version)
        answer = {"host": host, "incarnation": 4}
        if formerly is None:
            return answer
        assert formerly.host == "old1"
        return {**answer, "nodes": [list(pair) for pair in formerly.nodes]}


class Wire:
    """Both ends of a transport, at the level of the driver."""

    def __init__(self, transport: rpc.Transport) -> None:
        self.driver = transport._driver
        self.got: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.arrived = threading.Semaphore(0)

    def listen(self, topic: str, server: str, answer: Any) -> Any:
        def receive(batch: list[Any]) -> None:
            for incoming in batch:
                self.got.append((incoming.ctxt, incoming.message))
                incoming.reply(answer)
                self.arrived.release()

        target = oslo_messaging.Target(topic=topic, server=server)
        listener = self.driver.listen(target, None, None)
        listener.start(receive)
        return listener

    def ask(self, message: Mapping[str, Any], ctxt: Mapping[str, Any] = CONTEXT) -> Any:
        target = oslo_messaging.Target(topic="conductor")
        return self.driver.send(
            target, dict(ctxt), dict(message), wait_for_reply=True, timeout=10
        )


@pytest.fixture
def transport() -> Iterator[rpc.Transport]:
    made = rpc.make_transport(rpc_lab.make_conf(f"inproc:///{uuid.uuid4()}"))
    yield made
    made.cleanup()


@pytest.fixture
def wire(transport: rpc.Transport) -> Wire:
    return Wire(transport)


def a_context() -> context.RequestContext:
    return context.RequestContext.from_dict(CONTEXT)


# -- what the clients send ---------------------------------------------------------


def sent_to_conductor(wire: Wire, call: Any, answer: Any = None) -> Any:
    listener = wire.listen("conductor", "c1", answer)
    try:
        call()
    finally:
        listener.stop()
    ((ctxt, message),) = wire.got
    assert ctxt == {**CONTEXT, "reply_timeout": 10}
    return message


def test_a_read_is_sent(
    wire: Wire, transport: rpc.Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = conductor_rpcapi.ConductorAPI(transport, 10)
    monkeypatch.setattr(base.MusterObject, "indirection_api", api)
    answer = {
        "versioned_object.name": "ComputeNode",
        "versioned_object.namespace": "musterbook",
        "versioned_object.version": "1.2",
        "versioned_object.data": {"id": 3, "vcpus": 8},
    }
    found = []

    def call() -> None:
        found.append(
            compute_node.ComputeNode.get_by_host_and_nodename(
                a_context(), "web1", "web1"
            )
        )

    assert sent_to_conductor(wire, call, answer) == GET_NODE
    assert (found[0].id, found[0].vcpus) == (3, 8)


def test_a_save_is_sent(
    wire: Wire, transport: rpc.Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = conductor_rpcapi.ConductorAPI(transport, 10)
    monkeypatch.setattr(base.MusterObject, "indirection_api", api)
    node = compute_node.ComputeNode().obj_fill(a_context(), NODE_ROW)
    node.memory_mb = 32768
    answer = [{"inventory_generation": 3, "obj_what_changed": []}, None]
    assert sent_to_conductor(wire, node.save, answer) == SAVE_NODE
    assert node.inventory_generation == 3
    assert node.obj_what_changed() == set()


def test_what_the_conductor_is_asked(wire: Wire, transport: rpc.Transport) -> None:
    api = conductor_rpcapi.ConductorAPI(transport, 10)
    listener = wire.listen("conductor", "c1", {"host": "web1", "incarnation": 4})
    api.ping(a_context())
    api.hello(
        a_context(),
        host="web1",
        process_uuid=PROCESS_UUID,
        boot_id=None,
        release="0.1.0",
        secret="the-secret",
    )
    api.hello(
        a_context(),
        host="web1",
        process_uuid=PROCESS_UUID,
        boot_id=None,
        release="0.1.0",
        secret="the-secret",
        had=3,
    )
    api.hello(
        a_context(),
        host="web1",
        process_uuid=PROCESS_UUID,
        boot_id=None,
        release="0.1.0",
        secret="the-secret",
        formerly="old1",
        nodes=[(NODE_UUID, "n1")],
    )
    api.adopt_node(a_context(), NODE_UUID, "bm1", "web2")
    api.goodbye(a_context())
    api.stalled(a_context(), "disk is slow")
    api.verify(a_context())
    api.get_fleet(a_context(), ["host"])
    api.reset_flapping(a_context(), "web1")
    api.release_freeze(a_context(), "nova")
    api.get_fleet(a_context(), ["host"], max_age=30)
    listener.stop()
    messages = [message for _, message in wire.got]
    hellos = [HELLO, HELLO_AGAIN, HELLO_RENAMED]
    others = [ADOPT, GOODBYE, STALLED, VERIFY, GET_FLEET, RESET_FLAPPING]
    others += [RELEASE_FREEZE, FRESH_FLEET]
    assert messages == [PING, *hellos, *others]


def say_hello(api: conductor_rpcapi.ConductorAPI) -> Any:
    return api.hello(
        a_context(),
        host="web1",
        process_uuid=PROCESS_UUID,
        boot_id=None,
        release="0.1.0",
        secret="the-secret",
        version=1,
    )


def test_a_service_level_is_told(wire: Wire, transport: rpc.Transport) -> None:
    api = conductor_rpcapi.ConductorAPI(transport, 10)
    answer = {"host": "web1", "incarnation": 4}
    sent = sent_to_conductor(wire, lambda: say_hello(api), answer)
    assert sent == HELLO_OF_A_LEVEL
    wire.got.clear()
    asked = sent_to_conductor(wire, lambda: api.get_versions(a_context()), {})
    assert asked == GET_VERSIONS


# -- pinned to an older version ----------------------------------------------------

SERVICE = {
    "id": 7, "host": "web1", "report_count": 5, "version": 1, "disabled": False,
}  # fmt: skip


def test_a_pinned_process_says_hello_as_the_older_version_does(
    wire: Wire, transport: rpc.Transport
) -> None:
    api = conductor_rpcapi.ConductorAPI(transport, 10, "1.0")
    answer = {"host": "web1", "incarnation": 4}
    assert sent_to_conductor(wire, lambda: say_hello(api), answer) == HELLO


def test_a_pinned_process_never_calls_what_is_newer(
    wire: Wire, transport: rpc.Transport
) -> None:
    api = conductor_rpcapi.ConductorAPI(transport, 10, "1.0")
    listener = wire.listen("conductor", "c1", {})
    with pytest.raises(errors.VersionPinned, match=r"get_versions needs version 1\.1"):
        api.get_versions(a_context())
    listener.stop()
    assert wire.got == []


@pytest.mark.parametrize(("pinned", "version"), [("1.0", "1.1"), (None, "1.2")])
def test_objects_are_asked_for_and_sent_in_the_versions_of_the_pin(
    wire: Wire,
    transport: rpc.Transport,
    monkeypatch: pytest.MonkeyPatch,
    pinned: str | None,
    version: str,
) -> None:
    api = conductor_rpcapi.ConductorAPI(transport, 10, pinned)
    monkeypatch.setattr(base.MusterObject, "indirection_api", api)

    def get() -> None:
        service_obj.Service.get_by_id(a_context(), 7)

    asked = sent_to_conductor(wire, get, None)
    assert asked["args"]["object_versions"] == {"Service": version}
    wire.got.clear()
    held = service_obj.Service().obj_fill(a_context(), SERVICE)
    held.report_count = 6
    sent = sent_to_conductor(wire, held.save, [{"obj_what_changed": []}, None])
    assert sent["args"]["objinst"] == {
        "versioned_object.name": "Service",
        "versioned_object.namespace": "musterbook",
        "versioned_object.version": version,
        "versioned_object.data": {"id": 7, "report_count": 6},
        "versioned_object.changes": ["report_count"],
    }
    wire.got.clear()

    def backport() -> None:
        api.object_backport_versions(a_context(), held, {"Service": "1.2"})

    asked = sent_to_conductor(wire, backport, None)
    assert asked["args"]["object_versions"] == {"Service": version}
    # The whole object: what the older version doesn't have is left out.
    data = asked["args"]["objinst"]["versioned_object.data"]
    assert ("version" in data) is (pinned is None)


class OldConductor:
    """Serves version 1.0 of the interface."""

    target = oslo_messaging.Target(version="1.0")

    def __init__(self) -> None:
        self.hellos: list[Mapping[str, Any]] = []
        self.versions: list[str] = []

    @rpc.exposed
    def hello(self, _: Any, host: str, **args: Any) -> dict[str, Any]:
        self.hellos.append(args)
        return {"host": host, "incarnation": 4}

    @rpc.exposed
    def object_action(self, _: Any, objinst: Any, **__: Any) -> list[Any]:
        self._refuse_newer(objinst["versioned_object.version"])
        return [{"obj_what_changed": []}, None]

    @rpc.exposed
    def object_class_action_versions(
        self, _: Any, object_versions: dict[str, str], **__: Any
    ) -> None:
        self._refuse_newer(object_versions["Service"])

    def _refuse_newer(self, version: str) -> None:
        self.versions.append(version)
        if version != "1.1":
            raise errors.UnsupportedObject(reason=f"known up to 1.1, not in {version}")


@pytest.fixture
def old_conductor(transport: rpc.Transport) -> Iterator[OldConductor]:
    made = OldConductor()
    serializer = rpc.ContextSerializer()
    server = rpc.Server(transport, "conductor", "c0", [made], serializer)
    server.start()
    yield made
    server.stop()
    server.wait()


def test_auto_falls_back_to_what_an_older_conductor_speaks(
    old_conductor: OldConductor, transport: rpc.Transport
) -> None:
    api = conductor_rpcapi.ConductorAPI(transport, 10, "auto")
    assert say_hello(api) == {"host": "web1", "incarnation": 4}
    assert ["version" in args for args in old_conductor.hellos] == [False]
    assert api._pinned({"Service": "1.2"}) == {"Service": "1.1"}


def test_auto_falls_back_when_the_next_conductor_is_older(
    old_conductor: OldConductor, transport: rpc.Transport
) -> None:
    api = conductor_rpcapi.ConductorAPI(transport, 10, "auto")
    api._pin._found = "1.1", time.monotonic()
    assert say_hello(api) == {"host": "web1", "incarnation": 4}
    assert ["version" in args for args in old_conductor.hellos] == [False]


@pytest.mark.parametrize("asked", ["object_action", "object_class_action_versions"])
def test_auto_sends_older_objects_when_the_next_conductor_is_older(
    old_conductor: OldConductor,
    transport: rpc.Transport,
    monkeypatch: pytest.MonkeyPatch,
    asked: str,
) -> None:
    api = conductor_rpcapi.ConductorAPI(transport, 10, "auto")
    monkeypatch.setattr(base.MusterObject, "indirection_api", api)
    held = service_obj.Service().obj_fill(a_context(), SERVICE)
    for count in range(2):
        # As it is after each ten minutes, and at each turn of a newer one.
        api._pin._found = "1.1", time.monotonic()
        held.report_count = 6 + count
        if asked == "object_action":
            held.save()
        else:
            service_obj.Service.get_by_id(a_context(), 7)
    assert old_conductor.versions == ["1.2", "1.1"] * 2
    assert api._pin.version() == "1.0"


def test_a_refusal_of_the_older_objects_is_told(
    transport: rpc.Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = conductor_rpcapi.ConductorAPI(transport, 10, "auto")
    api._pin._found = "1.1", time.monotonic()
    sent: list[str] = []

    def refuse(_: Any, method: str, **__: Any) -> None:
        sent.append(method)
        raise errors.UnsupportedObject(reason="no")

    monkeypatch.setattr(api._client, "call", refuse)
    for method, times in ((api.ping, 2), (api.verify, 1)):
        with pytest.raises(errors.UnsupportedObject):
            method(a_context())
        assert len(sent) == times
        sent.clear()


def test_auto_speaks_the_newest_to_a_conductor_of_today(
    served: tuple[Nodes, Records], transport: rpc.Transport
) -> None:
    api = conductor_rpcapi.ConductorAPI(transport, 10, "auto")
    Granter.levels.clear()
    say_hello(api)
    assert Granter.levels == [1]


def test_without_a_pin_an_older_conductor_is_named(
    old_conductor: OldConductor, transport: rpc.Transport
) -> None:
    api = conductor_rpcapi.ConductorAPI(transport, 10)
    with pytest.raises(
        errors.UnsupportedObject, match="upgrade the conductors, or set"
    ):
        say_hello(api)
    assert old_conductor.hellos == []


def test_what_an_agent_is_asked(wire: Wire, transport: rpc.Transport) -> None:
    api = compute_rpcapi.ComputeAPI(transport, 10)
    answer = {"process_uuid": PROCESS_UUID, "incarnation": 4}
    listener = wire.listen("compute", "web1", answer)
    assert api.ping(a_context(), "web1") == answer
    api.rejoin(a_context(), "web1", 4)
    api.look(a_context(), "web1")
    for _ in range(3):
        assert wire.arrived.acquire(timeout=10)
    listener.stop()
    assert [message for _, message in wire.got] == [PING_AGENT, REJOIN, LOOK]


# -- what the conductor understands ------------------------------------------------


@pytest.fixture
def served(transport: rpc.Transport) -> Iterator[tuple[Nodes, Records]]:
    nodes, records = Nodes(), Records()
    store.bind(nodes)  # type: ignore[arg-type]  # as much of a store as is used
    server = conductor_manager.make_server(
        transport,
        "c1",
        conductor_manager.ConductorManager(Granter(), records),  # type: ignore[arg-type]
    )
    server.start()
    yield nodes, records
    server.stop()
    server.wait()
    store.unbind()


def test_a_read_is_answered(wire: Wire, served: tuple[Nodes, Records]) -> None:
    answer = wire.ask(GET_NODE)
    assert answer == {
        "versioned_object.name": "ComputeNode",
        "versioned_object.namespace": "musterbook",
        "versioned_object.version": "1.2",
        "versioned_object.data": NODE_ROW,
    }


def test_a_read_is_answered_in_version_1_1(
    wire: Wire, served: tuple[Nodes, Records]
) -> None:
    versions = {"ComputeNode": "1.1", "Service": "1.1"}
    answer = wire.ask(altered(GET_NODE, object_versions=versions))
    assert answer["versioned_object.version"] == "1.1"
    known = {n: v for n, v in NODE_ROW.items() if n != "usage_confirmed"}
    assert answer["versioned_object.data"] == known


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_a_save_of_usage_says_which_version_asks(
    wire: Wire, served: tuple[Nodes, Records], version: str
) -> None:
    objinst = {
        **SAVE_JUNO_NODE["args"]["objinst"],  # type: ignore[index]
        "versioned_object.version": version,
    }
    wire.ask(altered(SAVE_JUNO_NODE, objinst=objinst))
    assert served[0].writes_usage == [False]


def test_a_confirmation_is_answered(wire: Wire, served: tuple[Nodes, Records]) -> None:
    updates, result = wire.ask(CONFIRM_USAGE)
    assert served[0].confirmed == [(3, {"vcpus": 2, "memory_mb": 512, "local_gb": 0})]
    assert served[0].grants == [context.Grant("web1", 4, "the-secret")]
    assert (updates, result) == (
        {"usage_confirmed": True, "vcpus_used": 3, "obj_what_changed": []},
        None,
    )


def test_a_read_is_answered_in_version_1_0(
    wire: Wire, served: tuple[Nodes, Records]
) -> None:
    asked = {**GET_NODE, "args": {**GET_NODE["args"]}}  # type: ignore[dict-item]
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


def test_a_save_is_done(wire: Wire, served: tuple[Nodes, Records]) -> None:
    answer = wire.ask(SAVE_NODE)
    assert served[0].saved == [(3, {"memory_mb": 32768}, 2)]
    assert served[0].grants == [context.Grant("web1", 4, "the-secret")]
    assert answer == [{"inventory_generation": 3, "obj_what_changed": []}, None]


@pytest.mark.parametrize(
    "versions",
    [
        {"ComputeNodeList": "1.0", "ComputeNode": "1.0"},
        {"ComputeNodeList": "1.0.2", "ComputeNode": "1.0.9", "Stranger": "x"},
        {"ComputeNodeList": "1.0"},
    ],
)
def test_a_list_for_version_1_0_is_one_look_up(
    wire: Wire, served: tuple[Nodes, Records], versions: Mapping[str, str]
) -> None:
    answer = wire.ask(altered(GET_NODES, object_versions=versions))
    assert answer["versioned_object.version"] == "1.0"
    found = answer["versioned_object.data"]["objects"]
    assert {node["versioned_object.version"] for node in found} == {"1.0"}
    ids = [node["versioned_object.data"]["service_id"] for node in found]
    assert ids == [7, -1]
    assert served[0].looked_up == [None]


def test_a_peer_that_knows_newer_versions_gets_ours(
    wire: Wire, served: tuple[Nodes, Records]
) -> None:
    versions = {"ComputeNodeList": "1.7", "ComputeNode": "1.12"}
    answer = wire.ask(altered(GET_NODES, object_versions=versions))
    assert answer["versioned_object.version"] == "1.2"
    (first, _) = answer["versioned_object.data"]["objects"]
    assert first["versioned_object.version"] == "1.2"
    assert first["versioned_object.data"] == NODE_ROW
    assert served[0].looked_up == []


def test_a_create_of_version_1_0_is_answered_in_it(
    wire: Wire, served: tuple[Nodes, Records]
) -> None:
    updates, result = wire.ask(CREATE_JUNO_NODE)
    assert result is None
    (values,) = served[0].saved
    assert served[0].grants == [context.Grant("web1", 4, "the-secret")]
    assert uuid.UUID(values.pop("uuid"))
    assert values == CREATE_JUNO_NODE["args"]["objinst"]["versioned_object.data"]  # type: ignore[index]
    assert updates == {"id": 3, "obj_what_changed": []}


def test_a_save_of_version_1_0_is_answered_in_it(
    wire: Wire, served: tuple[Nodes, Records]
) -> None:
    # The store took the row over: it answers host, uuid and service_id, too.
    served[0].answer = {**NODE_ROW, "vcpus_used": 2}
    updates, _ = wire.ask(SAVE_JUNO_NODE)
    assert served[0].saved == [(3, {"vcpus_used": 2}, None)]
    assert served[0].writes_usage == [True]
    assert updates == {
        "hypervisor_hostname": "web1",
        "vcpus": 8,
        "service_id": 7,
        "memory_mb": 16384,
        "obj_what_changed": [],
    }


def test_a_backport_is_answered(wire: Wire, served: tuple[Nodes, Records]) -> None:
    assert wire.ask(BACKPORT) == {
        "versioned_object.name": "ComputeNode",
        "versioned_object.namespace": "musterbook",
        "versioned_object.version": "1.0",
        "versioned_object.data": {"id": 3, "service_id": 7},
    }


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_an_older_object_is_not_backported_upwards(
    wire: Wire, served: tuple[Nodes, Records], version: str
) -> None:
    """Lesson 34."""
    old = {
        "versioned_object.name": "ComputeNode",
        "versioned_object.namespace": "musterbook",
        "versioned_object.version": version,
        "versioned_object.data": {"id": 3, "vcpus": 8},
    }
    versions = {"ComputeNode": "1.1", "Service": "1.2"}
    asked = altered(BACKPORT, objinst=old, object_versions=versions)
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
    wire: Wire,
    served: tuple[Nodes, Records],
    versions: dict[str, str],
    node: str,
    service: str | None,
) -> None:
    """Lesson 33."""
    row = {**NODE_ROW, "service": {"id": 7, "host": "web1", "version": 1}}
    served[0].listed = [row]
    asked = altered(
        GET_NODES, args=[True], object_versions={"ComputeNodeList": "1.1", **versions}
    )
    answer = wire.ask(asked)
    assert answer["versioned_object.version"] == "1.1"
    (found,) = answer["versioned_object.data"]["objects"]
    assert found["versioned_object.version"] == node
    nested = found["versioned_object.data"].get("service")
    assert (nested and nested["versioned_object.version"]) == service
    if nested is not None:
        assert ("version" in nested["versioned_object.data"]) == (service == "1.2")


def test_versions_are_answered(wire: Wire, served: tuple[Nodes, Records]) -> None:
    assert wire.ask(GET_VERSIONS) == {
        "level": 2,
        "lowest_level": 0,
        "conductor": "1.3",
        "compute": "1.0",
        "objects": {
            "ComputeNode": "1.2",
            "ComputeNodeList": "1.2",
            "Service": "1.2",
            "ServiceList": "1.2",
        },
    }
    Granter.levels.clear()
    wire.ask(HELLO)
    wire.ask(HELLO_OF_A_LEVEL)
    assert Granter.levels == [None, 1]


def test_liveness_is_told(wire: Wire, served: tuple[Nodes, Records]) -> None:
    assert wire.ask(HELLO) == {"host": "web1", "incarnation": 4}
    assert wire.ask(altered(HELLO_RENAMED, formerly="WEB1"))["host"] == "web1"
    assert wire.ask(HELLO_RENAMED)["nodes"] == [[NODE_UUID, "n1"]]
    wire.ask(ADOPT)
    wire.ask(GOODBYE)
    wire.ask(STALLED)
    assert wire.ask(VERIFY) is None
    assert wire.ask(RESET_FLAPPING) is None
    assert wire.ask(RELEASE_FREEZE) == {"ended": ["nova"], "kept": [""]}
    assert served[1].told == [
        ("adopt", "web1", NODE_UUID, "bm1", "web2"),
        ("goodbye", "web1", "nova-compute", 4, "the-secret"),
        ("stalled", "web1", "nova-compute", 4, "the-secret", "disk is slow"),
        ("verify", "web1", "nova-compute", 4, "the-secret"),
        ("reset_flapping", "web1", "nova-compute", "operator"),
        ("release_freeze", "nova", "operator"),
    ]
    served[1].refuse = errors.Superseded(host="web1", incarnation=4)
    with pytest.raises(errors.Superseded):
        wire.ask(VERIFY)
    with pytest.raises(errors.InvalidInput):
        wire.ask(VERIFY, {**CONTEXT, "grant": None})


_NO_LEVELS: tuple[object, ...] = (-1, "1", 1.0, True, 2**40, [])


def altered(message: Mapping[str, Any], **args: Any) -> dict[str, Any]:
    return {**message, "args": {**message["args"], **args}}


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (altered(SAVE_NODE, objmethod="__init__"), errors.MethodNotRemotable),
        (altered(SAVE_NODE, objmethod="get_by_id"), errors.MethodNotRemotable),
        (altered(SAVE_NODE, objmethod="obj_reset_changes"), errors.MethodNotRemotable),
        (altered(SAVE_NODE, objinst="save"), errors.InvalidInput),
        (altered(SAVE_NODE, args=["surplus"]), errors.InvalidInput),
        (altered(SAVE_NODE, kwargs={"self": 1}), errors.InvalidInput),
        (altered(GET_NODE, objname="object"), errors.MethodNotRemotable),
        (altered(GET_NODE, objmethod="save"), errors.MethodNotRemotable),
        (altered(GET_NODE, args=["web1"]), errors.InvalidInput),
        (altered(GET_NODE, object_versions={}), errors.InvalidInput),
        (
            altered(GET_NODE, object_versions={"ComputeNode": "9.0"}),
            errors.UnsupportedObject,
        ),
        (altered(GET_NODE, object_versions={"ComputeNode": "x"}), errors.InvalidInput),
        *[
            (altered(message, object_versions=versions), error)
            for message in (GET_NODE, BACKPORT)
            for versions, error in (
                ({}, errors.InvalidInput),
                ([["ComputeNode", "1.0"]], errors.InvalidInput),
                (7, errors.InvalidInput),
                (None, errors.InvalidInput),
                ({"ComputeNode": 7}, errors.InvalidInput),
                ({"ComputeNode": ["1.0"]}, errors.InvalidInput),
                ({"ComputeNode": "x"}, errors.InvalidInput),
                ({"ComputeNode": "1"}, errors.InvalidInput),
                ({"ComputeNode": "1.0\n"}, errors.InvalidInput),
                ({"ComputeNode": "1.1", "Service": "x"}, errors.InvalidInput),
                ({"ComputeNode": "0.1"}, errors.UnsupportedObject),
                ({"ComputeNode": "2.0"}, errors.UnsupportedObject),
                ({"ComputeNode": "1.1", "Service": "0.1"}, errors.UnsupportedObject),
            )
        ],
        (altered(GET_FLEET, columns=5), errors.InvalidInput),
        (altered(GET_FLEET, columns="host"), errors.InvalidInput),
        (altered(GET_FLEET, columns=["host", ["id"]]), errors.InvalidInput),
        (altered(GET_NODE, args=["web2", "web2"]), errors.ComputeNodeNotFound),
        (altered(HELLO, host="a b"), errors.InvalidName),
        (altered(HELLO, host=None), errors.InvalidName),
        (altered(HELLO, secret="short"), errors.InvalidInput),
        (altered(STALLED, reason=5), errors.InvalidInput),
        (altered(STALLED, reason=["x"]), errors.InvalidInput),
        (altered(RESET_FLAPPING, host="a b"), errors.InvalidName),
        (altered(RESET_FLAPPING, host=None), errors.InvalidName),
        *[
            (altered(HELLO_OF_A_LEVEL, version=version), errors.InvalidInput)
            for version in _NO_LEVELS
        ],
        (altered(HELLO_RENAMED, formerly="a b"), errors.InvalidName),
        (altered(HELLO_RENAMED, formerly=7), errors.InvalidName),
        (altered(HELLO_RENAMED, nodes="n1"), errors.InvalidInput),
        (altered(HELLO_RENAMED, nodes=[NODE_UUID]), errors.InvalidInput),
        (altered(HELLO_RENAMED, nodes=[["no-uuid", "n1"]]), errors.InvalidInput),
        (altered(HELLO_RENAMED, nodes=[[NODE_UUID, "a b"]]), errors.InvalidName),
        (altered(HELLO_RENAMED, nodes=[[NODE_UUID, "n1", 1]]), errors.InvalidInput),
        (altered(HELLO_RENAMED, nodes=[[None, "n1"]]), errors.InvalidInput),
        (altered(HELLO_RENAMED, nodes=[[NODE_UUID, "n"]] * 5001), errors.InvalidInput),
        (altered(ADOPT, name="a b"), errors.InvalidName),
        (altered(ADOPT, formerly=None), errors.InvalidName),
        ({**PING, "args": {"frob": 1}}, errors.InvalidInput),
        ({**PING, "args": [1, 2]}, errors.InvalidInput),
        ({**PING, "args": None}, errors.InvalidInput),
        ({**HELLO, "args": {}}, errors.InvalidInput),
        ({**PING, "method": "__init__"}, errors.MethodNotRemotable),
        ({**PING, "method": "_granter"}, errors.MethodNotRemotable),
        ({**PING, "version": "9.0"}, errors.UnsupportedObject),
    ],
)
def test_what_is_refused(
    wire: Wire,
    served: tuple[Nodes, Records],
    message: Mapping[str, Any],
    error: type[errors.MusterbookError],
) -> None:
    with pytest.raises(error):
        wire.ask(message)
    assert served[0].saved == []
    assert wire.ask(PING) is None


@pytest.mark.parametrize("version", ["1.9", "2.0", "0.1", "1.9.1"])
@pytest.mark.parametrize("name", ["object_backport_versions", "object_action"])
def test_a_newer_object_is_refused_where_conductor_and_agent_are_one_process(
    wire: Wire,
    served: tuple[Nodes, Records],
    transport: rpc.Transport,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    version: str,
) -> None:
    carrier = conductor_rpcapi.ConductorAPI(transport, 1)
    monkeypatch.setattr(base.MusterObject, "indirection_api", carrier)
    newer = {
        **SAVE_NODE["args"]["objinst"],  # type: ignore[index]
        "versioned_object.version": version,
    }
    message = altered(SAVE_NODE, objinst=newer)
    if name == "object_backport_versions":
        message["args"] = {"objinst": newer, "object_versions": {"ComputeNode": "1.1"}}
        message["method"] = name
    with pytest.raises(errors.UnsupportedObject, match=r"ComputeNode.*1\.2"):
        wire.ask(message)


@pytest.mark.parametrize("name", ["object_backport_versions", "object_action"])
def test_an_unknown_object_is_refused(
    wire: Wire, served: tuple[Nodes, Records], name: str
) -> None:
    unknown = {
        "versioned_object.name": "Os",
        "versioned_object.namespace": "musterbook",
        "versioned_object.version": "1.0",
        "versioned_object.data": {},
    }
    message = altered(SAVE_NODE, objinst=unknown)
    if name == "object_backport_versions":
        message["args"] = {"objinst": unknown, "object_versions": {}}
        message["method"] = name
    with pytest.raises(errors.UnsupportedObject):
        wire.ask(message)
