"""Writing as an agent: only with its host's current grant, only its host's nodes."""

from typing import Any

import pytest
import sqlalchemy as sa

from conductor.db import liveness
from conductor.db import store as db_store
from musterbook import errors
from musterbook.context import Grant
from tests.functional.db import juno
from tests.functional.db import test_store_nodes

SECRET = "the-secret-of-the-first"
NODE: dict[str, Any] = {"hypervisor_hostname": "hv", "vcpus": 8}


def granted(engine: sa.Engine, host: str, secret: str, after: int | None) -> Grant:
    live = liveness.LivenessStore(engine)
    number = live.grant(
        host, "nova-compute", "compute", f"process {secret}", None, None, secret, after
    )
    return Grant(host, number, secret)


@pytest.fixture
def grant(engine: sa.Engine) -> Grant:
    return granted(engine, "Web1", SECRET, None)


@pytest.fixture
def node(store: db_store.DatabaseStore, grant: Grant) -> dict[str, Any]:
    return dict(store.compute_node_create(NODE | {"host": "web1"}, grant))


def write_all(
    store: db_store.DatabaseStore, node_id: int, grant: Grant, error: type[Exception]
) -> None:
    """Try every way to write, and expect the error."""
    for values in ({"vcpus": 9}, {"running_vms": 1}, {"hypervisor_hostname": "new"}):
        for generation in (0, None):
            with pytest.raises(error):
                store.compute_node_update(node_id, values, generation, grant)
    with pytest.raises(error):
        store.compute_node_destroy(node_id, None, grant)
    with pytest.raises(error):
        store.compute_node_create(
            NODE | {"host": "web1", "hypervisor_hostname": "second"}, grant
        )


def write_all_of_another(
    store: db_store.DatabaseStore, node_id: int, grant: Grant
) -> None:
    """Try every way to write web1's node as another host's agent."""
    for values in ({"vcpus": 9}, {"running_vms": 1}, {"hypervisor_hostname": "new"}):
        for generation in (0, None):
            with pytest.raises(errors.ComputeNodeMoved) as caught:
                store.compute_node_update(node_id, values, generation, grant)
            assert caught.value.host == "web1"
    with pytest.raises(errors.ComputeNodeMoved):
        store.compute_node_destroy(node_id, None, grant)
    with pytest.raises(errors.InvalidInput):
        store.compute_node_create(
            NODE | {"host": "web1", "hypervisor_hostname": "second"}, grant
        )


def test_the_granted_agent_writes(
    store: db_store.DatabaseStore, grant: Grant, node: dict[str, Any]
) -> None:
    answer = store.compute_node_update(node["id"], {"vcpus": 9}, 0, grant)
    assert answer["inventory_generation"] == 1
    store.compute_node_update(node["id"], {"host": "WEB1", "vcpus": 7}, 1, grant)
    assert store.compute_node_get(id=node["id"])["host"] == "WEB1"
    store.compute_node_destroy(node["id"], "web1", grant)
    assert store.compute_nodes() == []


def test_a_save_is_still_one_statement(
    store: db_store.DatabaseStore,
    engine: sa.Engine,
    grant: Grant,
    node: dict[str, Any],
) -> None:
    with test_store_nodes.statements(engine) as seen:
        store.compute_node_update(node["id"], {"vcpus": 9}, 0, grant)
    assert seen == ["UPDATE"]


def test_a_superseded_agent_writes_nothing(
    store: db_store.DatabaseStore,
    engine: sa.Engine,
    grant: Grant,
    node: dict[str, Any],
) -> None:
    successor = granted(engine, "web1", "the-secret-of-the-second", grant.incarnation)
    assert successor.incarnation == grant.incarnation + 1
    stolen_number = Grant(grant.host, successor.incarnation, SECRET)
    write_all(store, node["id"], grant, errors.Superseded)
    write_all(store, node["id"], stolen_number, errors.GrantForgotten)
    assert store.compute_nodes() == [node]
    # The reason that comes first is the one an agent must act upon.
    with pytest.raises(errors.Superseded):
        store.compute_node_update(node["id"], {"vcpus": 9}, 5, grant)
    store.compute_node_update(node["id"], {"vcpus": 9}, 0, successor)
    with pytest.raises(errors.InventoryChanged):
        store.compute_node_update(node["id"], {"vcpus": 9}, 0, successor)


def test_an_agent_whose_service_is_deleted_writes_nothing(
    store: db_store.DatabaseStore, grant: Grant, node: dict[str, Any]
) -> None:
    service = store.service_get_by_host_and_binary("web1", "nova-compute")
    store.service_destroy(service["id"])
    write_all(store, node["id"], grant, errors.Superseded)
    assert store.compute_nodes() == [node]


@pytest.mark.parametrize(
    ("odd", "error"),
    [
        (Grant("web1", 2**40, SECRET), errors.Superseded),
        (Grant("web1", 1, "\ud800"), errors.GrantForgotten),
        (Grant("web\0", 1, SECRET), errors.Superseded),
        (Grant("nowhere", 1, SECRET), errors.GrantForgotten),
    ],
)
def test_what_can_be_no_grant_writes_nothing(
    store: db_store.DatabaseStore,
    node: dict[str, Any],
    odd: Grant,
    error: type[errors.MusterbookError],
) -> None:
    write_all(store, node["id"], odd, error)
    assert store.compute_nodes() == [node]


def test_an_agent_writes_its_own_hosts_nodes_only(
    store: db_store.DatabaseStore,
    engine: sa.Engine,
    grant: Grant,
    node: dict[str, Any],
) -> None:
    other = granted(engine, "web2", SECRET, None)
    write_all_of_another(store, node["id"], other)
    with pytest.raises(errors.InvalidInput) as caught:
        store.compute_node_update(node["id"], {"host": "web2"}, 0, grant)
    assert caught.value.field == "host"
    assert store.compute_nodes() == [node]
    # Nobody's agent (an operator's tool, a migration) isn't bound to a host.
    store.compute_node_update(node["id"], {"host": "web2"}, 0)
    store.compute_node_update(node["id"], {"vcpus": 1}, 1, other)


def test_a_row_of_junos_shape_belongs_to_its_services_agent(
    store: db_store.DatabaseStore, engine: sa.Engine
) -> None:
    with engine.begin() as connection:
        juno.service(connection, 1, "web1")
        juno.node(connection, 1, 1, "hv")
        juno.service(connection, 2, "dead", deleted=2)
        juno.node(connection, 2, 2, "hv")
    grant = granted(engine, "web1", SECRET, None)
    other = granted(engine, "web2", SECRET, None)
    write_all_of_another(store, 1, other)
    with pytest.raises(errors.InvalidInput):
        store.compute_node_update(2, {"vcpus": 9}, 0, grant)
    assert store.compute_node_update(1, {"vcpus": 9}, 0, grant)["host"] == "web1"
    assert store.compute_node_update(1, {"vcpus": 8}, 1, grant)
    with pytest.raises(errors.GrantForgotten):
        store.compute_node_update(
            1, {"vcpus": 8}, 2, Grant("web1", 1, "another-secret")
        )
