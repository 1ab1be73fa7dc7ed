"""Messages that the conductor refuses, and by which error."""

from collections.abc import Mapping
from typing import Any

import pytest

from conductor import rpcapi as conductor_rpcapi
from musterbook import errors
from musterbook import rpc
from objects import base
from tests.contract import samples
from tests.contract import wires

_NO_LEVELS: tuple[object, ...] = (-1, "1", 1.0, True, 2**40, [])


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (
            samples.altered(samples.SAVE_NODE, objmethod="__init__"),
            errors.MethodNotRemotable,
        ),
        (
            samples.altered(samples.SAVE_NODE, objmethod="get_by_id"),
            errors.MethodNotRemotable,
        ),
        (
            samples.altered(samples.SAVE_NODE, objmethod="obj_reset_changes"),
            errors.MethodNotRemotable,
        ),
        (samples.altered(samples.SAVE_NODE, objinst="save"), errors.InvalidInput),
        (samples.altered(samples.SAVE_NODE, args=["surplus"]), errors.InvalidInput),
        (samples.altered(samples.SAVE_NODE, kwargs={"self": 1}), errors.InvalidInput),
        (
            samples.altered(samples.GET_NODE, objname="object"),
            errors.MethodNotRemotable,
        ),
        (
            samples.altered(samples.GET_NODE, objmethod="save"),
            errors.MethodNotRemotable,
        ),
        (samples.altered(samples.GET_NODE, args=["web1"]), errors.InvalidInput),
        (samples.altered(samples.GET_NODE, object_versions={}), errors.InvalidInput),
        (
            samples.altered(samples.GET_NODE, object_versions={"ComputeNode": "9.0"}),
            errors.UnsupportedObject,
        ),
        (
            samples.altered(samples.GET_NODE, object_versions={"ComputeNode": "x"}),
            errors.InvalidInput,
        ),
        *[
            (samples.altered(message, object_versions=versions), error)
            for message in (samples.GET_NODE, samples.BACKPORT)
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
        (samples.altered(samples.GET_FLEET, columns=5), errors.InvalidInput),
        (samples.altered(samples.GET_FLEET, columns="host"), errors.InvalidInput),
        (
            samples.altered(samples.GET_FLEET, columns=["host", ["id"]]),
            errors.InvalidInput,
        ),
        (
            samples.altered(samples.GET_NODE, args=["web2", "web2"]),
            errors.ComputeNodeNotFound,
        ),
        (samples.altered(samples.HELLO, host="a b"), errors.InvalidName),
        (samples.altered(samples.HELLO, host=None), errors.InvalidName),
        (samples.altered(samples.HELLO, secret="short"), errors.InvalidInput),
        (samples.altered(samples.STALLED, reason=5), errors.InvalidInput),
        (samples.altered(samples.STALLED, reason=["x"]), errors.InvalidInput),
        (samples.altered(samples.RESET_FLAPPING, host="a b"), errors.InvalidName),
        (samples.altered(samples.RESET_FLAPPING, host=None), errors.InvalidName),
        *[
            (
                samples.altered(samples.HELLO_OF_A_LEVEL, version=version),
                errors.InvalidInput,
            )
            for version in _NO_LEVELS
        ],
        (samples.altered(samples.HELLO_RENAMED, formerly="a b"), errors.InvalidName),
        (samples.altered(samples.HELLO_RENAMED, formerly=7), errors.InvalidName),
        (samples.altered(samples.HELLO_RENAMED, nodes="n1"), errors.InvalidInput),
        (
            samples.altered(samples.HELLO_RENAMED, nodes=[samples.NODE_UUID]),
            errors.InvalidInput,
        ),
        (
            samples.altered(samples.HELLO_RENAMED, nodes=[["no-uuid", "n1"]]),
            errors.InvalidInput,
        ),
        (
            samples.altered(samples.HELLO_RENAMED, nodes=[[samples.NODE_UUID, "a b"]]),
            errors.InvalidName,
        ),
        (
            samples.altered(
                samples.HELLO_RENAMED, nodes=[[samples.NODE_UUID, "n1", 1]]
            ),
            errors.InvalidInput,
        ),
        (
            samples.altered(samples.HELLO_RENAMED, nodes=[[None, "n1"]]),
            errors.InvalidInput,
        ),
        (
            samples.altered(
                samples.HELLO_RENAMED, nodes=[[samples.NODE_UUID, "n"]] * 5001
            ),
            errors.InvalidInput,
        ),
        (samples.altered(samples.ADOPT, name="a b"), errors.InvalidName),
        (samples.altered(samples.ADOPT, formerly=None), errors.InvalidName),
        ({**samples.PING, "args": {"frob": 1}}, errors.InvalidInput),
        ({**samples.PING, "args": [1, 2]}, errors.InvalidInput),
        ({**samples.PING, "args": None}, errors.InvalidInput),
        ({**samples.HELLO, "args": {}}, errors.InvalidInput),
        ({**samples.PING, "method": "__init__"}, errors.MethodNotRemotable),
        ({**samples.PING, "method": "_granter"}, errors.MethodNotRemotable),
        ({**samples.PING, "version": "9.0"}, errors.UnsupportedObject),
    ],
)
def test_what_is_refused(
    wire: wires.Wire,
    served: tuple[wires.Nodes, wires.Records],
    message: Mapping[str, Any],
    error: type[errors.MusterbookError],
) -> None:
    with pytest.raises(error):
        wire.ask(message)
    assert served[0].saved == []
    assert wire.ask(samples.PING) is None


@pytest.mark.parametrize("version", ["1.9", "2.0", "0.1", "1.9.1"])
@pytest.mark.parametrize("name", ["object_backport_versions", "object_action"])
def test_a_newer_object_is_refused_where_conductor_and_agent_are_one_process(
    wire: wires.Wire,
    served: tuple[wires.Nodes, wires.Records],
    transport: rpc.Transport,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    version: str,
) -> None:
    carrier = conductor_rpcapi.ConductorAPI(transport, 1)
    monkeypatch.setattr(base.MusterObject, "indirection_api", carrier)
    newer = {
        **samples.SAVE_NODE["args"]["objinst"],  # type: ignore[index]
        "versioned_object.version": version,
    }
    message = samples.altered(samples.SAVE_NODE, objinst=newer)
    if name == "object_backport_versions":
        message["args"] = {"objinst": newer, "object_versions": {"ComputeNode": "1.1"}}
        message["method"] = name
    with pytest.raises(errors.UnsupportedObject, match=r"ComputeNode.*1\.3"):
        wire.ask(message)


@pytest.mark.parametrize("name", ["object_backport_versions", "object_action"])
def test_an_unknown_object_is_refused(
    wire: wires.Wire, served: tuple[wires.Nodes, wires.Records], name: str
) -> None:
    unknown = {
        "versioned_object.name": "Os",
        "versioned_object.namespace": "musterbook",
        "versioned_object.version": "1.0",
        "versioned_object.data": {},
    }
    message = samples.altered(samples.SAVE_NODE, objinst=unknown)
    if name == "object_backport_versions":
        message["args"] = {"objinst": unknown, "object_versions": {}}
        message["method"] = name
    with pytest.raises(errors.UnsupportedObject):
        wire.ask(message)
