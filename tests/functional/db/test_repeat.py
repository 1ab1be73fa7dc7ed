"""Every call of a conductor is safe to repeat: the same message twice, one effect.

A caller that got no answer doesn't know whether its call was run, and asks again; and
a broker may deliver a message twice.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import types
from typing import Any
import uuid

import oslo_messaging
import pytest
import sqlalchemy as sa

from conductor import grants
from conductor import manager as conductor_manager
from conductor.db import liveness
from conductor.db import store as db_store
from musterbook import errors
from musterbook import rpc
from musterbook.rpc import server as rpc_server
from objects import base
from objects import store as object_store
from tests import rpc_lab

HOST = "web1"
SECRET = "the-secret-of-web1"
PROCESS = "0f8fad5b-d9cb-469f-a165-70867728950e"
NODE_UUID = "7d9f9f2e-5a4a-4d15-8f9f-5a0b3bb0a001"
CREATED_UUID = "7d9f9f2e-5a4a-4d15-8f9f-5a0b3bb0a003"
VERSIONS = dict.fromkeys(
    ("ComputeNode", "ComputeNodeList", "Service", "ServiceList"), "1.1"
) | {"ComputeNode": "1.3", "ComputeNodeList": "1.3"}
OTHER_UUID = "7d9f9f2e-5a4a-4d15-8f9f-5a0b3bb0a009"
#: Say when, or how often, and not what.
WHEN = {"updated_at", "created_at", "deleted_at", "granted_at", "generation"}


def primitive(name: str, data: Mapping[str, Any], *changes: str) -> dict[str, Any]:
    """Return an object as it crosses the wire."""
    return {
        "versioned_object.name": name,
        "versioned_object.namespace": "musterbook",
        "versioned_object.version": VERSIONS[name],
        "versioned_object.data": dict(data),
        "versioned_object.changes": list(changes),
    }


def action(method: str, name: str, **data: Any) -> dict[str, Any]:
    keys = {"id", "inventory_generation"} | ({"host"} if "id" in data else set())
    changes = [field for field in data if field not in keys]
    objinst = primitive(name, data, *changes)
    args = ARGUMENTS.get((name, method), [])
    return {"objinst": objinst, "objmethod": method, "args": args, "kwargs": {}}


def class_action(name: str, method: str, *args: Any) -> dict[str, Any]:
    return {
        "objname": name,
        "objmethod": method,
        "object_versions": VERSIONS,
        "args": list(args),
        "kwargs": {},
    }


#: Of methods of an object that take some.
ARGUMENTS = {
    ("ComputeNode", "confirm_usage"): [{"vcpus": 2, "memory_mb": 64, "local_gb": 0}],
}
#: Each remotable method: the message's arguments, from the ids of a stored node and
#: service of HOST; and which named error the second time may end in.
REMOTABLE: dict[tuple[str, str], tuple[Any, type[Exception] | None]] = {
    ("ComputeNode", "get_by_id"): (lambda n, s: (n,), None),
    ("ComputeNode", "get_by_uuid"): (lambda n, s: (NODE_UUID,), None),
    ("ComputeNode", "get_by_host_and_nodename"): (lambda n, s: (HOST, "hv"), None),
    ("ComputeNode", "create"): (
        lambda n, s: {
            "uuid": CREATED_UUID,
            "host": HOST,
            "hypervisor_hostname": "second",
            "vcpus": 4,
        },
        None,
    ),
    ("ComputeNode", "save"): (
        lambda n, s: {"id": n, "host": HOST, "inventory_generation": 0, "vcpus": 16},
        errors.InventoryChanged,
    ),
    ("ComputeNode", "confirm_usage"): (lambda n, s: {"id": n, "host": HOST}, None),
    ("ComputeNode", "destroy"): (
        lambda n, s: {"id": n, "host": HOST},
        errors.ComputeNodeNotFound,
    ),
    ("ComputeNode", "get_by_service_id"): (lambda n, s: (s.id,), None),
    ("ComputeNodeList", "get_all"): (lambda n, s: (True,), None),
    ("ComputeNodeList", "get_all_by_host"): (lambda n, s: (HOST,), None),
    ("ComputeNodeList", "get_by_hypervisor"): (lambda n, s: ("h",), None),
    ("ComputeNodeList", "get_by_pagination"): (lambda n, s: (1, None), None),
    ("ComputeNodeList", "get_all_by_uuids"): (lambda n, s: ([NODE_UUID],), None),
    ("Service", "get_by_id"): (lambda n, s: (s.id,), None),
    ("Service", "get_by_uuid"): (lambda n, s: (s.uuid,), None),
    ("Service", "get_by_host_and_binary"): (
        lambda n, s: (HOST, "nova-compute"),
        None,
    ),
    ("Service", "create"): (
        lambda n, s: {
            "uuid": CREATED_UUID,
            "host": "web2",
            "binary": "nova-compute",
            "topic": "compute",
        },
        None,
    ),
    ("Service", "save"): (lambda n, s: {"id": s.id, "disabled": True}, None),
    ("Service", "destroy"): (lambda n, s: {"id": s.id}, errors.ServiceNotFound),
    ("ServiceList", "get_all"): (lambda n, s: (), None),
    ("ServiceList", "get_by_host"): (lambda n, s: (HOST,), None),
    ("ServiceList", "get_by_topic"): (lambda n, s: ("compute",), None),
    ("ServiceList", "get_by_binary"): (lambda n, s: ("nova-compute",), None),
}
HELLO = {
    "host": HOST,
    "process_uuid": PROCESS,
    "boot_id": None,
    "release": "1",
    "secret": SECRET,
}
#: Each other method: its arguments and the second time's named error.
EXPOSED: dict[str, tuple[dict[str, Any], type[Exception] | None]] = {
    "ping": ({}, None),
    "get_versions": ({}, None),
    "hello": (HELLO, None),
    "adopt_node": ({"uuid": OTHER_UUID, "name": "hv2", "formerly": "web9"}, None),
    "goodbye": ({}, None),
    "stalled": ({"reason": "the disk hangs"}, None),
    "verify": ({}, None),
    "reset_flapping": ({"host": HOST}, None),
    "release_freeze": ({"zone": None}, None),
    "get_fleet": ({"columns": ["host", "vcpus"]}, None),
    "object_backport_versions": (
        {
            "objinst": primitive("ComputeNode", {"id": 1, "vcpus": 2}),
            "object_versions": {"ComputeNode": "1.0"},
        },
        None,
    ),
}
CARRIERS = {"object_action", "object_class_action_versions"}
#: A beat that comes twice is two: what it changes is counted in test_beats_are_counted.
BEATS = {"beat", "get_beats"}


class World:
    """A conductor on a database, and a wire to it."""

    def __init__(self, engine: sa.Engine, transport: rpc.Transport) -> None:
        self.engine = engine
        self.records = liveness.LivenessStore(engine)
        nodes = db_store.DatabaseStore(engine)
        object_store.bind(nodes)
        granter = grants.Granter(self.records, self._ping)
        self.server = conductor_manager.make_server(
            transport, "c1", conductor_manager.ConductorManager(granter, self.records)
        )
        self._driver = transport._driver
        self.server.start()
        self.grant: dict[str, Any] | None = None
        granted = self.ask("hello", HELLO)
        self.grant = {
            "host": HOST,
            "incarnation": granted["incarnation"],
            "secret": SECRET,
        }
        service = nodes.services()[0]
        self.service = types.SimpleNamespace(id=service["id"], uuid=service["uuid"])
        values = {"host": HOST, "hypervisor_hostname": "hv", "vcpus": 8}
        values |= {"uuid": NODE_UUID, "vcpus_used": 3}  # to be confirmed
        row = nodes.compute_node_create(values, None, writes_usage=True)
        self.node_id = row["id"]
        other = {"host": "web9", "hypervisor_hostname": "hv2", "uuid": OTHER_UUID}
        nodes.compute_node_create(other, None)

    def ask(self, method: str, args: Mapping[str, Any]) -> Any:
        """Send a message and return the answer or the error."""
        ctxt = {"request_id": "req-1", "is_admin": True, "grant": self.grant}
        message = {"method": method, "version": "1.0", "args": dict(args)}
        target = oslo_messaging.Target(topic="conductor")
        try:
            return self._driver.send(
                target, ctxt, message, wait_for_reply=True, timeout=30
            )
        except Exception as exc:  # noqa: BLE001  the test looks at it
            return exc

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Return all that is stored, but when."""
        metadata = sa.MetaData()
        metadata.reflect(self.engine)
        with self.engine.connect() as connection:
            return {
                name: [
                    {k: v for k, v in row.items() if k not in WHEN}
                    for row in connection.execute(table.select()).mappings()
                ]
                for name, table in metadata.tables.items()
            }

    def _ping(self, ctxt: Any, host: str) -> dict[str, Any]:
        return {"process_uuid": PROCESS}


@pytest.fixture
def world(engine: sa.Engine) -> Iterator[World]:
    transport = rpc.make_transport(rpc_lab.make_conf(f"inproc:///{uuid.uuid4()}"))
    made = World(engine, transport)
    yield made
    made.server.stop()
    made.server.wait()
    transport.cleanup()
    object_store.unbind()


def check(
    world: World,
    method: str,
    args: Mapping[str, Any],
    second: type[Exception] | None,
) -> None:
    before = world.rows()
    first = world.ask(method, args)
    assert not isinstance(first, Exception), (method, args, first)
    after = world.rows()
    again = world.ask(method, args)
    assert world.rows() == after, (method, args)
    if second is None:
        assert without_times(again) == without_times(first), (method, args)
    else:
        assert isinstance(again, second), (method, args, again)
        assert before != after


def without_times(answer: Any) -> Any:
    if isinstance(answer, Mapping):
        return {
            k: without_times(v)
            for k, v in answer.items()
            if k not in WHEN | {"lease_age"}
        }
    if isinstance(answer, list):
        return [without_times(value) for value in answer]
    return answer


def test_none_is_forgotten() -> None:
    manager = conductor_manager.ConductorManager
    exposed = {
        name
        for name in dir(manager)
        if rpc_server.is_exposed(object.__new__(manager), name)
    }
    assert exposed == EXPOSED.keys() | CARRIERS | BEATS
    assert base.remotable_methods() == REMOTABLE.keys()


def test_all(world: World) -> None:
    # No capacity first: the inventory's generation is not touched by it.
    usage = {"inventory_generation": 0, "running_vms": 3}
    save = action("save", "ComputeNode", id=world.node_id, host=HOST, **usage)
    check(world, "object_action", save, None)
    for method in EXPOSED.keys() - {"goodbye"}:
        check(world, method, *EXPOSED[method])
    for name, method in sorted(REMOTABLE, key=lambda key: (key[1] == "destroy", key)):
        make, second = REMOTABLE[name, method]
        made = make(world.node_id, world.service)
        if (name, method) == ("Service", "destroy"):
            # The grant goes with the service.
            check(world, "goodbye", *EXPOSED["goodbye"])
        if (name, method) == ("ComputeNode", "destroy"):
            # Who is in use isn't deleted.
            unused = {"vcpus_used": 0, "memory_mb_used": 0}
            object_store.bound().compute_node_update(
                world.node_id, unused, None, writes_usage=True
            )
        if isinstance(made, tuple):
            args = class_action(name, method, *made)
            check(world, "object_class_action_versions", args, second)
        else:
            check(world, "object_action", action(method, name, **made), second)


def test_beats_are_counted(world: World) -> None:
    """Twice in a row they change the stamp and the count, and nothing else."""

    def service() -> dict[str, Any]:
        (row,) = world.rows()["services"]
        return dict(row)

    assert world.ask("beat", {}) is None
    once = service()
    assert world.ask("beat", {}) is None
    twice = service()
    changed = {name for name in once if once[name] != twice[name]}
    assert changed <= {"last_seen_up", "report_count"}
    assert twice["report_count"] == once["report_count"] + 1
    (first,) = world.ask("get_beats", {})
    assert first[:2] == [HOST, 1]


def test_a_peer_of_version_1_0_deletes_what_is_in_use(world: World) -> None:
    """As Juno's did: its usage never was without what is reserved."""
    args = action("destroy", "ComputeNode", id=world.node_id)
    newer = world.ask("object_action", args)
    assert isinstance(newer, errors.ComputeNodeInUse)
    args["objinst"]["versioned_object.version"] = "1.0"
    world.grant = None
    assert not isinstance(world.ask("object_action", args), Exception)
    (row,) = (r for r in world.rows()["compute_nodes"] if r["id"] == world.node_id)
    assert row["deleted"] == row["id"]
