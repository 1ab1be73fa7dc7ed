"""What is sent by a process that is pinned to an older version, or finds one."""

from collections.abc import Iterator
from collections.abc import Mapping
import time
from typing import Any

import oslo_messaging
import pytest

from conductor import rpcapi as conductor_rpcapi
from musterbook import errors
from musterbook import rpc
from objects import base
from objects import compute_node
from objects import service as service_obj
from tests.contract import samples
from tests.contract import wires

SERVICE = {
    "id": 7, "host": "web1", "report_count": 5, "version": 1, "disabled": False,
}  # fmt: skip


def test_a_pinned_process_says_hello_as_the_older_version_does(
    wire: wires.Wire, transport: rpc.Transport
) -> None:
    api = conductor_rpcapi.ConductorAPI(transport, 10, "1.0")
    answer = {"host": "web1", "incarnation": 4}
    assert (
        wires.sent_to_conductor(wire, lambda: wires.say_hello(api), answer)
        == samples.HELLO
    )


def test_a_pinned_process_never_calls_what_is_newer(
    wire: wires.Wire, transport: rpc.Transport
) -> None:
    api = conductor_rpcapi.ConductorAPI(transport, 10, "1.0")
    listener = wire.listen("conductor", "c1", {})
    with pytest.raises(errors.VersionPinned, match=r"get_versions needs version 1\.1"):
        api.get_versions(wires.a_context())
    listener.stop()
    assert wire.got == []


@pytest.mark.parametrize(("pinned", "version"), [("1.0", "1.1"), (None, "1.2")])
def test_objects_are_asked_for_and_sent_in_the_versions_of_the_pin(
    wire: wires.Wire,
    transport: rpc.Transport,
    monkeypatch: pytest.MonkeyPatch,
    pinned: str | None,
    version: str,
) -> None:
    api = conductor_rpcapi.ConductorAPI(transport, 10, pinned)
    monkeypatch.setattr(base.MusterObject, "indirection_api", api)

    def get() -> None:
        service_obj.Service.get_by_id(wires.a_context(), 7)

    asked = wires.sent_to_conductor(wire, get, None)
    assert asked["args"]["object_versions"] == {"Service": version}
    wire.got.clear()
    held = service_obj.Service().obj_fill(wires.a_context(), SERVICE)
    held.report_count = 6
    sent = wires.sent_to_conductor(wire, held.save, [{"obj_what_changed": []}, None])
    assert sent["args"]["objinst"] == {
        "versioned_object.name": "Service",
        "versioned_object.namespace": "musterbook",
        "versioned_object.version": version,
        "versioned_object.data": {"id": 7, "report_count": 6},
        "versioned_object.changes": ["report_count"],
    }
    wire.got.clear()

    def backport() -> None:
        api.object_backport_versions(wires.a_context(), held, {"Service": "1.2"})

    asked = wires.sent_to_conductor(wire, backport, None)
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
    assert wires.say_hello(api) == {"host": "web1", "incarnation": 4}
    assert ["version" in args for args in old_conductor.hellos] == [False]
    assert api._pinned({"Service": "1.2"}) == {"Service": "1.1"}


def test_auto_falls_back_when_the_next_conductor_is_older(
    old_conductor: OldConductor, transport: rpc.Transport
) -> None:
    api = conductor_rpcapi.ConductorAPI(transport, 10, "auto")
    api._pin._found = "1.1", time.monotonic()
    assert wires.say_hello(api) == {"host": "web1", "incarnation": 4}
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
    held = service_obj.Service().obj_fill(wires.a_context(), SERVICE)
    for count in range(2):
        # As it is after each ten minutes, and at each turn of a newer one.
        api._pin._found = "1.1", time.monotonic()
        held.report_count = 6 + count
        if asked == "object_action":
            held.save()
        else:
            service_obj.Service.get_by_id(wires.a_context(), 7)
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
            method(wires.a_context())
        assert len(sent) == times
        sent.clear()


def test_auto_falls_back_by_one_version_at_a_time(
    transport: rpc.Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conductor of version 1.1 keeps what 1.0 doesn't have."""
    api = conductor_rpcapi.ConductorAPI(transport, 10, "auto")
    api._pin._found = "1.2", time.monotonic()
    sent: list[str] = []

    def refuse_newer(*_: Any, **__: Any) -> tuple[dict[str, Any], None]:
        version = api._object_versions()["ComputeNode"]
        sent.append(version)
        if version == "1.3":
            raise errors.UnsupportedObject(reason="known up to 1.2")
        return {}, None

    monkeypatch.setattr(api._client, "call", refuse_newer)
    node = compute_node.ComputeNode().obj_fill(wires.a_context(), samples.NODE_ROW)
    api.object_action(wires.a_context(), node, "save", [], {})
    assert sent == ["1.3", "1.2"]
    assert api._pin.version() == "1.1"


def test_auto_speaks_the_newest_to_a_conductor_of_today(
    served: tuple[wires.Nodes, wires.Records], transport: rpc.Transport
) -> None:
    api = conductor_rpcapi.ConductorAPI(transport, 10, "auto")
    wires.Granter.levels.clear()
    wires.say_hello(api)
    assert wires.Granter.levels == [1]


def test_without_a_pin_an_older_conductor_is_named(
    old_conductor: OldConductor, transport: rpc.Transport
) -> None:
    api = conductor_rpcapi.ConductorAPI(transport, 10)
    with pytest.raises(
        errors.UnsupportedObject, match="upgrade the conductors, or set"
    ):
        wires.say_hello(api)
    assert old_conductor.hellos == []
