"""Lists that don't fit a message: they come in pages, or it is told at once."""

from collections.abc import Iterator
import time

import pytest
import sqlalchemy as sa

from conductor import grants
from conductor import manager as conductor_manager
from conductor import rpcapi as conductor_rpcapi
from conductor.db import engine as db_engine
from conductor.db import liveness
from conductor.db import migration
from conductor.db import store as db_store
from musterbook import context
from musterbook import errors
from musterbook import rpc
from objects import base
from objects import compute_node
from objects import store as object_store
from tests import rpc_lab

CTXT = context.service_context()
NODES = 5000
LIMIT = 2**20


@pytest.fixture
def engine(mariadb_url: str) -> Iterator[sa.Engine]:
    made = db_engine.make_engine(mariadb_url)
    migration.sync(made)
    table = sa.Table("compute_nodes", sa.MetaData(), autoload_with=made)
    rows = [
        {
            "uuid": f"7d9f9f2e-5a4a-4d15-8f9f-{number:012d}",
            "host": f"web{number}",
            "hypervisor_hostname": f"web{number}",
            "vcpus": 8,
            "memory_mb": 16384,
            "local_gb": 200,
            "vcpus_used": 0,
            "memory_mb_used": 0,
            "local_gb_used": 0,
            "hypervisor_type": "fake",
            "hypervisor_version": 1,
            "cpu_info": "c" * 1000,
            "deleted": 0,
        }
        for number in range(NODES)
    ]
    with made.begin() as connection:
        connection.execute(table.insert(), rows)
    yield made
    made.dispose()


@pytest.fixture
def api(
    engine: sa.Engine, rabbit_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[conductor_rpcapi.ConductorAPI]:
    records = liveness.LivenessStore(engine)
    object_store.bind(db_store.DatabaseStore(engine))
    conf = rpc_lab.make_conf(rabbit_url, rpc_message_limit=LIMIT)
    transports = [rpc.make_transport(conf), rpc.make_transport(conf)]
    granter = grants.Granter(records, lambda *_: {})
    server = conductor_manager.make_server(
        transports[0], "c1", conductor_manager.ConductorManager(granter, records)
    )
    server.start()
    made = conductor_rpcapi.ConductorAPI(transports[1], 30.0)
    monkeypatch.setattr(base.MusterObject, "indirection_api", made)
    yield made
    server.stop()
    server.wait()
    for transport in transports:
        transport.cleanup()
    object_store.unbind()


def check_small_call() -> None:
    started = time.monotonic()
    node = compute_node.ComputeNode.get_by_host_and_nodename(CTXT, "web1", "web1")
    assert time.monotonic() - started < 1
    assert node.host == "web1"


def test_all_nodes_come_in_pages(api: conductor_rpcapi.ConductorAPI) -> None:
    found = compute_node.ComputeNodeList.get_all(CTXT)
    assert [node.host for node in found] == [f"web{number}" for number in range(NODES)]
    assert not found.obj_what_changed()
    check_small_call()


def test_other_lists_are_refused_by_name(api: conductor_rpcapi.ConductorAPI) -> None:
    node_list = compute_node.ComputeNodeList
    for ask in (
        lambda: node_list.get_by_hypervisor(CTXT, "web"),
        lambda: node_list.get_all(CTXT, with_service=True),
        lambda: node_list.get_by_pagination(CTXT),
        lambda: api.get_fleet(CTXT),
    ):
        started = time.monotonic()
        with pytest.raises(errors.MessageTooLarge, match="size") as caught:
            ask()
        assert time.monotonic() - started < 15  # a timeout would take 30
        assert caught.value.limit == LIMIT
        check_small_call()


def test_a_save_that_is_too_large(api: conductor_rpcapi.ConductorAPI) -> None:
    node = compute_node.ComputeNode.get_by_host_and_nodename(CTXT, "web1", "web1")
    node.stats = {"text": "x" * 2 * 2**20}
    with pytest.raises(errors.MessageTooLarge, match="size"):
        node.save()
    check_small_call()


@pytest.mark.parametrize(
    ("name", "version"), [("Ship", "1.0"), ("ComputeNode", "9.0"), ("ComputeNode", "x")]
)
def test_an_object_that_nobody_knows(
    api: conductor_rpcapi.ConductorAPI, name: str, version: str
) -> None:
    stranger = {
        "versioned_object.name": name,
        "versioned_object.namespace": "musterbook",
        "versioned_object.version": version,
        "versioned_object.data": {"id": 1},
    }
    started = time.monotonic()
    with pytest.raises(errors.UnsupportedObject):
        api._client.call(
            CTXT,
            "object_action",
            objinst=stranger,
            objmethod="save",
            args=[],
            kwargs={},
        )
    assert time.monotonic() - started < 5
    check_small_call()
