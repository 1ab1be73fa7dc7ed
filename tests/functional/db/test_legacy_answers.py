"""Each row of the table in docs/upgrading.md: what a peer of version 1.0 gets.

Messages written by hand, to a conductor on each of the databases.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import pathlib
import re
from typing import Any
import uuid

import oslo_messaging
import pytest
import sqlalchemy as sa

from conductor import manager
from conductor import rpcapi
from conductor.db import engine as db_engine
from conductor.db import liveness
from conductor.db import migration
from conductor.db import models
from conductor.db import store as db_store
from musterbook import context
from musterbook import errors
from musterbook import rpc
from objects import base
from objects import compute_node
from objects import service as service_obj
from objects import store as store_port
from tests import rpc_lab
from tests.functional.db import juno

GUIDE = pathlib.Path(__file__).parents[3] / "docs/upgrading.md"
SERVICE_1_0 = {
    "id", "host", "binary", "topic", "report_count", "disabled", "disabled_reason",
    "created_at", "updated_at", "deleted_at", "deleted",
}  # fmt: skip
NODE_1_0 = {
    "id", "service_id", "vcpus", "memory_mb", "local_gb", "vcpus_used",
    "memory_mb_used", "local_gb_used", "hypervisor_type", "hypervisor_version",
    "hypervisor_hostname", "free_ram_mb", "free_disk_gb", "current_workload",
    "running_vms", "cpu_info", "disk_available_least", "host_ip",
    "supported_instances", "metrics", "pci_stats", "extra_resources", "stats",
    "numa_topology", "created_at", "updated_at", "deleted_at", "deleted",
}  # fmt: skip


class Desk:
    """Where a 1.0 peer asks; the conductor's store and engine beside it."""

    def __init__(self, engine: sa.Engine, transport: rpc.Transport) -> None:
        self.engine = engine
        self.store = db_store.DatabaseStore(engine)
        self.transport = transport
        self._driver = transport._driver
        self.statements: list[str] = []
        sa.event.listen(engine, "before_cursor_execute", self._note)

    def _note(self, _c: object, _u: object, statement: str, *_: object) -> None:
        self.statements.append(statement)

    def send(self, method: str, version: str = "1.0", **args: Any) -> Any:
        return self._driver.send(
            oslo_messaging.Target(topic="conductor"),
            {},
            {"method": method, "version": version, "args": args},
            wait_for_reply=True,
            timeout=30,
        )

    def get(
        self, objname: str, method: str, *args: Any, version: str = "1.0", **kwargs: Any
    ) -> Any:
        """Ask for an object, naming one version for all of them."""
        names = ("Service", "ServiceList", "ComputeNode", "ComputeNodeList")
        return self.send(
            "object_class_action_versions",
            objname=objname,
            objmethod=method,
            object_versions=dict.fromkeys(names, version),
            args=list(args),
            kwargs=kwargs,
        )

    def data(self, objname: str, method: str, *args: Any) -> dict[str, Any]:
        """Ask for an object of version 1.0 and return its fields."""
        answer = self.get(objname, method, *args)
        assert answer["versioned_object.version"] == "1.0"
        assert answer["versioned_object.name"] == objname
        found: dict[str, Any] = answer["versioned_object.data"]
        return found

    def act(
        self, objname: str, method: str, keys: dict[str, Any], **changes: Any
    ) -> dict[str, Any]:
        """Have something done to an object of version 1.0; return what changed."""
        updates, result = self.send(
            "object_action",
            objinst=primitive(objname, "1.0", {**keys, **changes}, list(changes)),
            objmethod=method,
            args=[],
            kwargs={},
        )
        assert result is None
        found: dict[str, Any] = updates
        return found

    def node_row(self, node_id: int) -> Any:
        t = models.compute_nodes
        with self.engine.connect() as connection:
            query = sa.select(t).where(t.c.id == node_id)
            return connection.execute(query).mappings().one()

    def service(self, host: str = "web1") -> int:
        """Create a service as a 1.0 peer does and return its id."""
        made = self.act(
            "Service", "create", {}, host=host, binary="nova-compute",
            topic="compute", report_count=0,
        )  # fmt: skip
        assert made.keys() - {"obj_what_changed"} <= SERVICE_1_0
        return int(made["id"])

    def node(self, service_id: int, name: str = "web1", **more: Any) -> int:
        """Create a node as a 1.0 peer does and return its id."""
        made = self.act(
            "ComputeNode", "create", {}, service_id=service_id,
            hypervisor_hostname=name, vcpus=8, memory_mb=1000, **more,
        )  # fmt: skip
        assert made.keys() - {"obj_what_changed"} <= NODE_1_0
        return int(made["id"])


def primitive(
    name: str, version: str, data: dict[str, Any], changes: list[str]
) -> dict[str, Any]:
    return {
        "versioned_object.name": name,
        "versioned_object.namespace": "musterbook",
        "versioned_object.version": version,
        "versioned_object.data": data,
        "versioned_object.changes": changes,
    }


@contextlib.contextmanager
def opened(url: str) -> Iterator[Desk]:
    engine = db_engine.make_engine(url)
    migration.sync(engine)
    transport = rpc.make_transport(rpc_lab.make_conf(f"inproc:///{uuid.uuid4()}"))
    made = Desk(engine, transport)
    store_port.bind(made.store)
    endpoint = manager.ConductorManager(
        None,  # type: ignore[arg-type]  # nobody says hello
        liveness.LivenessStore(engine),
    )
    server = manager.make_server(transport, "c1", endpoint)
    server.start()
    yield made
    server.stop()
    server.wait()
    transport.cleanup()
    store_port.unbind()
    engine.dispose()


# -- the rows ----------------------------------------------------------------------


def service_get(desk: Desk) -> None:
    with pytest.raises(errors.ServiceNotFound):
        desk.get("Service", "get_by_host_and_binary", "web1", "nova-compute")
    service = desk.service()
    found = desk.data("Service", "get_by_host_and_binary", "WEB1", "nova-compute")
    assert found.keys() <= SERVICE_1_0
    assert (found["id"], found["host"], found["report_count"]) == (service, "web1", 0)
    assert desk.data("Service", "get_by_id", service) == found


def service_create(desk: Desk) -> None:
    desk.service()
    with pytest.raises(errors.ServiceExists):
        desk.service("WEB1")


def service_save(desk: Desk) -> None:
    service = desk.service()
    keys = {"id": service, "host": "web1"}
    told = desk.act("Service", "save", keys, report_count=1)
    assert told.keys() == {"updated_at", "obj_what_changed"}
    first = desk.store.service_get(id=service)["last_seen_up"]
    assert first is not None
    desk.act("Service", "save", keys, report_count=1)
    assert desk.store.service_get(id=service)["last_seen_up"] == first


def node_create(desk: Desk) -> None:
    service = desk.service()
    node = desk.node(service)
    row = desk.node_row(node)
    assert (row["host"], row["service_id"]) == ("web1", None)
    with pytest.raises(errors.ComputeNodeExists):
        desk.node(service, "WEB1")
    with pytest.raises(errors.InvalidInput) as caught:
        desk.node(service + 1000, "n2")
    assert caught.value.field == "service_id"


def node_get(desk: Desk) -> None:
    service = desk.service()
    node = desk.node(service)
    found = desk.data("ComputeNode", "get_by_host_and_nodename", "web1", "web1")
    assert found.keys() <= NODE_1_0
    assert (found["id"], found["service_id"], found["vcpus"]) == (node, service, 8)
    assert desk.data("ComputeNode", "get_by_id", node) == found
    desk.store.service_destroy(service)
    assert desk.data("ComputeNode", "get_by_id", node)["service_id"] == -1


def node_get_by_service_id(desk: Desk) -> None:
    def ask(service: int) -> dict[str, Any]:
        return desk.data("ComputeNode", "get_by_service_id", service)

    service = desk.service()
    with pytest.raises(errors.ServiceNotFound):
        ask(service + 1000)
    with pytest.raises(errors.ComputeNodeNotFound, match=f"service id {service}"):
        ask(service)
    first = desk.node(service, "n1")
    desk.node(service, "n2")
    desk.node(desk.service("web2"), "n3")
    desk.statements.clear()
    found = ask(service)
    assert (found["id"], found["service_id"]) == (first, service)
    # Only rows without a host are looked for by what they belong to.
    asked = " ".join(desk.statements)
    assert not re.search(r"compute_nodes\.service_id = (%|\?|:)", asked)
    # A row of Juno's shape is found as well.
    with desk.engine.begin() as connection:
        juno.service(connection, 500, "old1")
        juno.node(connection, 501, 500, "old1")
    assert ask(500)["id"] == 501
    desk.store.service_update(service, {"host": None})
    with pytest.raises(errors.ComputeNodeNotFound):
        ask(service)


def node_save(desk: Desk) -> None:
    service = desk.service()
    node = desk.node(service)
    desk.store.compute_node_update(node, {"vcpus": 9}, None)  # somebody else's
    desk.act(
        "ComputeNode", "save", {"id": node}, vcpus=10, vcpus_used=3, free_ram_mb=-7,
        memory_mb_used=1007, service_id=4711,
    )  # fmt: skip
    row = desk.node_row(node)
    assert (row["vcpus"], row["vcpus_used"], row["free_ram_mb"]) == (10, 3, -7)
    assert (row["memory_mb_used"], row["service_id"]) == (1007, None)


def node_destroy(desk: Desk) -> None:
    node = desk.node(desk.service())
    desk.act("ComputeNode", "destroy", {"id": node})
    assert desk.node_row(node)["deleted"] == node


def node_lists(desk: Desk) -> None:
    ids = [desk.service(host) for host in ("web1", "web2")]
    for service, name in zip(ids, ("n1", "n2"), strict=True):
        desk.node(service, name)
    asked: list[tuple[str, list[Any]]] = [
        ("get_all", [True]), ("get_all", []), ("get_by_hypervisor", ["n"]),
        ("get_by_pagination", [5]),
    ]  # fmt: skip
    for method, args in asked:
        data = desk.data("ComputeNodeList", method, *args)
        versions = {node["versioned_object.version"] for node in data["objects"]}
        assert versions == {"1.0"}
        nodes = [node["versioned_object.data"] for node in data["objects"]]
        assert [node["service_id"] for node in nodes] == ids
        assert all(node.keys() <= NODE_1_0 for node in nodes)
    assert len(desk.data("ComputeNodeList", "get_all_by_host", "web1")["objects"]) == 1


def service_lists(desk: Desk) -> None:
    desk.service()
    for method, args in [
        ("get_all", []), ("get_by_host", ["web1"]), ("get_by_topic", ["compute"]),
        ("get_by_binary", ["nova-compute"]),
    ]:  # fmt: skip
        (one,) = desk.data("ServiceList", method, *args)["objects"]
        assert one["versioned_object.version"] == "1.0"
        assert one["versioned_object.data"].keys() <= SERVICE_1_0


def backport(desk: Desk) -> None:
    service = desk.service()
    data = {"id": 3, "host": "web1", "service_id": None, "vcpus": 8, "generation": 4}
    answer = desk.send(
        "object_backport_versions",
        objinst=primitive("ComputeNode", "1.1", data, []),
        object_versions={"ComputeNode": "1.0"},
    )
    assert answer["versioned_object.version"] == "1.0"
    assert answer["versioned_object.data"] == {
        "id": 3, "service_id": service, "vcpus": 8,
    }  # fmt: skip


def other_methods(desk: Desk) -> None:
    for objname, method in [
        ("Service", "get_by_args"),
        ("Service", "get_by_compute_host"),
        ("Service", "get_by_host_and_topic"),
        ("ComputeNodeList", "get_by_service"),
    ]:
        with pytest.raises(errors.MethodNotRemotable, match=f"{objname}.{method}"):
            desk.get(objname, method, "web1")


def juno_methods(desk: Desk) -> None:
    node = primitive("ComputeNode", "1.1", {"id": 1}, [])
    asked: dict[str, dict[str, Any]] = {
        "object_class_action": {
            "objname": "ComputeNode", "objmethod": "get_by_id", "objver": "1.0",
            "args": [1], "kwargs": {},
        },
        "object_backport": {"objinst": node, "target_version": "1.0"},
    }  # fmt: skip
    for method, args in asked.items():
        with pytest.raises(errors.MethodNotRemotable, match=method):
            desk.send(method, **args)


def juno_interface(desk: Desk) -> None:
    with pytest.raises(errors.UnsupportedObject, match=r"version '2\.0'"):
        desk.send("ping", "2.0")


def newer_objects(desk: Desk) -> None:
    node = desk.node(desk.service())
    for version in ("1.3", "1.99", "2.0"):
        newer = primitive("ComputeNode", version, {"id": node, "vcpus": 99}, ["vcpus"])
        known = rf"up to version 1\.3, not in {re.escape(version)}"
        with pytest.raises(errors.UnsupportedObject, match=known):
            desk.send(
                "object_action", objinst=newer, objmethod="save", args=[], kwargs={}
            )
        with pytest.raises(errors.UnsupportedObject, match=known):
            desk.send(
                "object_backport_versions",
                objinst=newer,
                object_versions={"ComputeNode": "1.3"},
            )
    assert desk.node_row(node)["vcpus"] == 8


def newer_answers(desk: Desk) -> None:
    node = desk.node(desk.service())
    answer = desk.get("ComputeNode", "get_by_id", node, version="1.9")
    assert answer["versioned_object.version"] == "1.3"
    assert answer["versioned_object.data"]["host"] == "web1"


ROWS: dict[str, Callable[[Desk], None]] = {
    "`Service.get_by_host_and_binary`, `get_by_id`": service_get,
    "`Service.create`": service_create,
    "`Service.save` with `report_count`": service_save,
    "`ComputeNode.create` with `service_id`, without `host`": node_create,
    "`ComputeNode.get_by_host_and_nodename`, `get_by_id`": node_get,
    "`ComputeNode.get_by_service_id`": node_get_by_service_id,
    "`ComputeNode.save` of capacity and usage": node_save,
    "`ComputeNode.destroy`": node_destroy,
    "`ComputeNodeList.get_all` and the other lists": node_lists,
    "`ServiceList.get_all` and the other lists": service_lists,
    "`object_backport_versions` of a node of version 1.1": backport,
    "`Service.get_by_args`, `get_by_compute_host`, and what else isn't named here": (
        other_methods
    ),
    "`object_class_action`, `object_backport` (Juno's own RPC methods)": juno_methods,
    "version 2.0 of the RPC interface, Juno's number": juno_interface,
    "an object of a version that the conductor doesn't know, such as 1.3 or 2.0": (
        newer_objects
    ),
    "an answer in a newer version than there is, such as 1.9": newer_answers,
}


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.__name__)
def test_row(row: Callable[[Desk], None], sqlite_url: str) -> None:
    with opened(sqlite_url) as desk:
        row(desk)


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_all_rows(kind: str, request: pytest.FixtureRequest) -> None:
    with opened(request.getfixturevalue(f"{kind}_url")) as desk:
        for row in ROWS.values():
            print(row.__name__)
            row(desk)
            with desk.engine.begin() as connection:
                connection.execute(models.compute_nodes.delete())
                connection.execute(models.services.delete())


@pytest.mark.parametrize("pinned", [None, "1.0"])
def test_node_and_service_find_each_other_by_host_over_rpc(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, pinned: str | None
) -> None:
    with opened(sqlite_url) as desk:
        api = rpcapi.ConductorAPI(desk.transport, 10.0, pinned)
        monkeypatch.setattr(base.MusterObject, "indirection_api", api)
        service_id = desk.service("Web1")
        first = desk.node(service_id, "n1")
        desk.node(service_id, "n2")
        asking = context.service_context()
        get_service = service_obj.Service.get_by_host_and_binary
        service = get_service(asking, "web1", "nova-compute")
        assert ("1.2" if pinned is None else "1.1") == service.VERSION
        node = service.compute_node
        assert (node.id, node.host) == (first, "Web1")
        assert node.service.id == service_id
        assert node.service_id is None
        (with_service, _) = compute_node.ComputeNodeList.get_all(asking, True)
        assert with_service.service is not None
        assert with_service.service.id == service_id
        service.destroy()
        again = compute_node.ComputeNode.get_by_id(asking, first)
        with pytest.raises(errors.ServiceNotFound):
            again.service  # noqa: B018  # looked up when read
        for node in compute_node.ComputeNodeList.get_all(asking):
            node.destroy()
        with pytest.raises(errors.ComputeNodeNotFound):
            service.compute_node  # noqa: B018


def test_the_guide_has_these_rows() -> None:
    part = GUIDE.read_text().partition("### What a 1.0 peer asks, and what it gets")[2]
    rows = re.findall(r"^\| (.+?) \| ", part.partition("###")[0], re.M)
    assert rows[0] == "asked"
    assert [row for row in rows[1:] if row != "---"] == list(ROWS)
