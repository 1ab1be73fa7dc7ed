"""Nodes that go to another host, on three databases: one live row, usage kept."""

from typing import Any

import pytest
import sqlalchemy as sa

from conductor.db import liveness
from conductor.db import models
from conductor.db import online
from conductor.db import store as db_store
from musterbook import errors
from musterbook.context import Grant
from tests.functional.db import juno
from tests.functional.db import test_store_nodes

SECRET = "the-secret-of-everybody"
USED = {"vcpus": 8, "memory_mb": 16000, "vcpus_used": 3, "memory_mb_used": 4000}
UUID = "7d9f9f2e-5a4a-4d15-8f9f-5a0b3bb0a001"
OTHER = "7d9f9f2e-5a4a-4d15-8f9f-5a0b3bb0a002"


@pytest.fixture
def records(engine: sa.Engine) -> liveness.LivenessStore:
    return liveness.LivenessStore(engine)


def granted(
    records: liveness.LivenessStore, host: str, claim: liveness.Claim | None = None
) -> Grant:
    known = records.known(host, "nova-compute")
    number = records.grant(
        host,
        "nova-compute",
        "compute",
        f"process-of-{host}",
        None,
        "1",
        SECRET,
        expected=known.incarnation if known else None,
        claim=claim,
    )
    return Grant(host, number, SECRET)


def make(store: db_store.DatabaseStore, host: str, name: str, **more: Any) -> Any:
    values = {"host": host, "hypervisor_hostname": name, **USED, **more}
    return store.compute_node_create(values, writes_usage=True)


#: What a move must not touch: all but whose it is, when, and the generations.
MOVED = {"host", "hypervisor_hostname", "updated_at", "generation"} | {
    "inventory_generation"
}


def check_moved(before: Any, after: Any, host: str, name: str) -> None:
    assert (after["host"], after["hypervisor_hostname"]) == (host, name)
    assert {k: v for k, v in after.items() if k not in MOVED} == {
        k: v for k, v in before.items() if k not in MOVED
    }
    assert after["generation"] > before["generation"]
    assert after["inventory_generation"] > before["inventory_generation"]


def test_a_renamed_host_takes_its_nodes_along(
    store: db_store.DatabaseStore, records: liveness.LivenessStore
) -> None:
    old = granted(records, "web1")
    ours = [make(store, "web1", name) for name in ("n1", "n2")]
    stays = make(store, "web1", "n3")
    uuids = frozenset(node["uuid"] for node in ours)
    new = granted(records, "web2", liveness.Claim("WEB1", 1, uuids))
    for node in ours:
        after = store.compute_node_get(id=node["id"])
        check_moved(node, after, "web2", node["hypervisor_hostname"])
        # Whoever held it under the former name finds out at its next save.
        with pytest.raises(errors.ComputeNodeMoved) as caught:
            store.compute_node_update(node["id"], {"vcpus": 1}, 0, old)
        assert (caught.value.uuid, caught.value.host) == (node["uuid"], "web2")
        store.compute_node_update(
            node["id"], {"vcpus": 9}, after["inventory_generation"], new
        )
    assert store.compute_node_get(id=stays["id"]) == stays
    assert len(store.services()) == 2  # the former one is the operator's to delete
    assert records.hosts_of([ours[0]["uuid"], stays["uuid"], UUID]) == [
        (ours[0]["uuid"], "web2"),
        (stays["uuid"], "web1"),
        (UUID, None),
    ]


def test_a_row_of_junos_shape_goes_along(
    store: db_store.DatabaseStore,
    records: liveness.LivenessStore,
    engine: sa.Engine,
) -> None:
    with engine.begin() as connection:
        juno.service(connection, 1, "web1")
        juno.node(connection, 1, 1, "hv")
    before = store.compute_node_get(id=1)
    assert records.nodes_of("WEB1", [before["uuid"]]) == [(before["uuid"], "hv")]
    granted(records, "web2", liveness.Claim("web1", None, frozenset([before["uuid"]])))
    after = store.compute_node_get(id=1)
    assert (after["host"], after["uuid"], after["service_id"]) == (
        "web2",
        before["uuid"],
        None,
    )
    assert after["memory_mb_used"] == before["memory_mb_used"] > 0


def test_a_host_with_nodes_was_not_renamed(
    store: db_store.DatabaseStore, records: liveness.LivenessStore
) -> None:
    """The row with the key wins; there is no second one, and the other stays."""
    granted(records, "web1")
    before = [make(store, "web1", "n1"), make(store, "web2", "n1")]
    granted(records, "web2", liveness.Claim("web1", 1, frozenset([before[0]["uuid"]])))
    assert store.compute_nodes() == before


def test_evidence_that_does_not_hold_any_more_moves_nothing(
    store: db_store.DatabaseStore, records: liveness.LivenessStore
) -> None:
    granted(records, "web1")
    node = make(store, "web1", "n1")
    for seen in (None, 7):  # it was granted meanwhile
        claim = liveness.Claim("web1", seen, frozenset([node["uuid"]]))
        with pytest.raises(liveness.GrantConflict):
            granted(records, "web2", claim)
    assert store.compute_nodes() == [node]
    assert records.known("web2", "nova-compute") is None


def test_a_node_that_moved_keeps_its_record(
    store: db_store.DatabaseStore, records: liveness.LivenessStore
) -> None:
    """Nova bug 1714248: a rebalance made a new uuid; the record is used again."""
    a, b = granted(records, "a"), granted(records, "b")
    node = make(store, "a", "bm1", uuid=UUID)
    records.adopt(b, UUID, "bm1", "A")
    after = store.compute_node_get(uuid=UUID)
    check_moved(node, after, "b", "bm1")
    records.adopt(b, UUID, "bm1", "a")  # its answer was lost
    assert store.compute_node_get(uuid=UUID) == after
    with pytest.raises(errors.ComputeNodeMoved) as caught:
        store.compute_node_update(node["id"], {"vcpus": 1}, 0, a)
    assert caught.value.host == "b"
    assert [row["id"] for row in store.compute_nodes()] == [node["id"]]


def test_cleaning_up_never_deletes_what_another_host_adopted(
    store: db_store.DatabaseStore, records: liveness.LivenessStore
) -> None:
    """Nova bug 1853009: the former host's cleanup deleted the adopted node."""
    a, b = granted(records, "a"), granted(records, "b")
    node = make(store, "a", "bm1", uuid=UUID, **{**USED, "vcpus_used": 0})
    records.adopt(b, UUID, "bm1", "a")
    with pytest.raises(errors.ComputeNodeNotFound):
        store.compute_node_destroy(node["id"], "a", a)
    with pytest.raises(errors.ComputeNodeMoved):
        store.compute_node_destroy(node["id"], None, a)
    assert store.compute_node_get(uuid=UUID)["host"] == "b"


def test_of_many_that_adopt_one_gets_it(
    store: db_store.DatabaseStore, records: liveness.LivenessStore
) -> None:
    grants = [granted(records, f"h{i}") for i in range(5)]
    make(store, "a", "bm1", uuid=UUID)
    outcomes = test_store_nodes.at_once(
        5, lambda i: records.adopt(grants[i], UUID, "bm1", "a")
    )
    assert sorted(str(type(o).__name__) for o in outcomes) == [
        *["ComputeNodeMoved"] * 4,
        "NoneType",
    ]
    (row,) = store.compute_nodes()
    assert row["host"] == f"h{outcomes.index(None)}"


def test_what_can_not_be_adopted(
    store: db_store.DatabaseStore, records: liveness.LivenessStore
) -> None:
    grant = granted(records, "b")
    node = make(store, "a", "bm1", uuid=UUID)

    def check(error: type[errors.MusterbookError], uuid: str = UUID) -> None:
        before = store.compute_nodes()
        with pytest.raises(error):
            records.adopt(grant, uuid, "bm1", "a")
        assert store.compute_nodes() == before

    for odd in ("nonsense", "\0", UUID[:-1]):
        check(errors.ComputeNodeNotFound, odd)
    other = make(store, "b", "bm1", **{**USED, "vcpus_used": 0, "memory_mb_used": 0})
    check(errors.ComputeNodeExists)
    store.compute_node_destroy(other["id"], None)
    store.compute_node_destroy(node["id"], None, force=True)
    check(errors.ComputeNodeNotFound)
    make(store, "a", "bm1")
    store.service_destroy(store.services()[0]["id"])
    check(errors.Superseded)


@pytest.mark.parametrize("migrated", [False, True], ids=["bare", "migrated"])
def test_a_node_of_junos_takes_its_sources_uuid_once(
    store: db_store.DatabaseStore,
    records: liveness.LivenessStore,
    engine: sa.Engine,
    migrated: bool,
) -> None:
    with engine.begin() as connection:
        juno.service(connection, 1, "ironic")
        juno.node(connection, 1, 1, "rack7")
    if migrated:
        list(online.migrate(engine))
    grant = granted(records, "ironic")
    before = store.compute_node_get(id=1)
    for _ in range(2):  # the first answer was lost
        records.adopt(grant, UUID.upper(), "rack7", "Ironic")
        after = store.compute_node_get(uuid=UUID)
        assert (after["id"], after["host"]) == (1, "ironic")
    assert after["memory_mb_used"] == before["memory_mb_used"] == 4608
    assert after["inventory_generation"] > before["inventory_generation"]
    with pytest.raises(errors.ComputeNodeNotFound):
        store.compute_node_get(uuid=before["uuid"])
    # What is used stays one allocation, whoever writes it next.
    values = {"memory_mb_used": 3000}
    store.compute_node_update(1, values, None, writes_usage=True)
    used = {"vcpus": 1, "memory_mb": 2000, "local_gb": 3}
    store.compute_node_confirm_usage(1, used, grant)
    with engine.connect() as connection:
        table = models.allocations
        held = connection.execute(sa.select(table.c.node_id, table.c.memory_mb)).all()
    assert held == [(1, 2000)]
    assert store.compute_node_get(id=1)["memory_mb_used"] == 2000
    # Another uuid of its source's may be another machine.
    with pytest.raises(errors.ComputeNodeExists):
        records.adopt(grant, OTHER, "rack7", "ironic")
    assert store.compute_node_get(id=1)["uuid"] == UUID
    # By which it is found where it turns up.
    records.adopt(granted(records, "ironic2"), UUID, "rack7", "ironic")
    (row,) = store.compute_nodes()
    assert (row["id"], row["host"], row["memory_mb_used"]) == (1, "ironic2", 2000)


def test_a_bare_row_of_junos_is_adopted_by_its_derived_uuid(
    store: db_store.DatabaseStore, records: liveness.LivenessStore, engine: sa.Engine
) -> None:
    with engine.begin() as connection:
        juno.service(connection, 1, "a")
        juno.node(connection, 1, 1, "n1")
    before = store.compute_node_get(id=1)
    grant = granted(records, "b")
    with pytest.raises(errors.ComputeNodeMoved):
        records.adopt(grant, before["uuid"], "n1", "c")
    records.adopt(grant, before["uuid"], "n1", "a")
    (after,) = store.compute_nodes()
    assert (after["id"], after["host"]) == (1, "b")
    for field in ("uuid", "memory_mb_used"):
        assert after[field] == before[field]


def test_no_uuid_is_taken_that_is_another_nodes_or_none(
    store: db_store.DatabaseStore, records: liveness.LivenessStore, engine: sa.Engine
) -> None:
    with engine.begin() as connection:
        juno.service(connection, 1, "a")
        juno.node(connection, 1, 1, "n1")
    grant = granted(records, "a")
    free = {**USED, "vcpus_used": 0, "memory_mb_used": 0}
    other = make(store, "b", "n1", uuid=UUID, **free)

    def check(error: type[errors.MusterbookError], uuid: str, name: str) -> None:
        before = store.compute_nodes()
        with pytest.raises(error):
            records.adopt(grant, uuid, name, "a")
        assert store.compute_nodes() == before

    check(errors.ComputeNodeMoved, UUID, "n1")
    check(errors.ComputeNodeNotFound, OTHER, "n2")
    check(errors.ComputeNodeNotFound, "nonsense", "n1")
    store.compute_node_destroy(other["id"], None)
    check(errors.ComputeNodeExists, UUID, "n1")


def left(engine: sa.Engine, *hosts: str, migrated: bool) -> None:
    """Insert a node of Juno's named rack7 at each host, whose agents are Juno's."""
    with engine.begin() as connection:
        for number, host in enumerate(hosts, 1):
            juno.service(connection, number, host)
            juno.node(connection, number, number, "rack7")
    if migrated:
        list(online.migrate(engine))


@pytest.mark.parametrize("migrated", [False, True], ids=["bare", "migrated"])
def test_a_node_of_junos_that_roamed_unreported_is_known_by_its_name(
    store: db_store.DatabaseStore,
    records: liveness.LivenessStore,
    engine: sa.Engine,
    migrated: bool,
) -> None:
    left(engine, "a", migrated=migrated)
    grant = granted(records, "b")
    for _ in range(2):  # the first answer was lost
        records.adopt(grant, UUID.upper(), "Rack7", "b")
        (after,) = store.compute_nodes()
        assert (after["id"], after["host"], after["uuid"]) == (1, "b", UUID)
        assert after["memory_mb_used"] == 4608
    # It is booked once, whichever uuid it was booked under.
    list(online.migrate(engine))
    used = {"vcpus": 1, "memory_mb": 2000, "local_gb": 3}
    store.compute_node_confirm_usage(1, used, grant)
    assert store.compute_node_get(id=1)["memory_mb_used"] == 2000
    with engine.connect() as connection:
        table = models.allocations
        held = connection.execute(sa.select(table.c.node_id, table.c.memory_mb)).all()
    assert held == [(1, 2000)]


@pytest.mark.parametrize(
    ("service", "error"),
    [
        ({"state": "up"}, errors.ComputeNodeNotFound),
        ({"state": "suspect"}, errors.ComputeNodeNotFound),
        ({"state": "down"}, None),
        ({"state": "up", "forced_down": True}, None),
        ({"state": "up", "incarnation": 3}, errors.InvalidInput),  # another's verdict
        ({"state": "down", "incarnation": 3, "state_incarnation": 3}, None),
        ({"incarnation": 3}, errors.InvalidInput),
        ({"deleted": 1}, None),
    ],
    ids=str,
)
def test_a_name_is_nothing_where_somebody_may_serve(
    store: db_store.DatabaseStore,
    records: liveness.LivenessStore,
    engine: sa.Engine,
    service: dict[str, Any],
    error: type[errors.MusterbookError] | None,
) -> None:
    left(engine, "a", migrated=False)
    with engine.begin() as connection:
        connection.execute(models.services.update().values(service))
    grant = granted(records, "b")
    if error is None:
        records.adopt(grant, UUID, "rack7", "b")
        assert store.compute_node_get(id=1)["host"] == "b"
        return
    before = store.compute_nodes()
    with pytest.raises(error):
        records.adopt(grant, UUID, "rack7", "b")
    assert store.compute_nodes() == before


def test_of_two_that_were_left_none_is_guessed(
    store: db_store.DatabaseStore, records: liveness.LivenessStore, engine: sa.Engine
) -> None:
    left(engine, "a", "c", migrated=False)
    grant, before = granted(records, "b"), store.compute_nodes()
    with pytest.raises(errors.InvalidInput, match=r"1 \(of host a\), 2 \(of host c\)"):
        records.adopt(grant, UUID, "rack7", "b")
    assert store.compute_nodes() == before
    store.compute_node_destroy(1, None, force=True)
    # What an agent of ours may have reported, by a source without uuids, stays there.
    store.compute_node_update(2, {"vcpus": 9}, None)
    granted(records, "c")
    with engine.begin() as connection:
        connection.execute(models.services.update().values(state="down"))
    with pytest.raises(errors.ComputeNodeNotFound):
        records.adopt(grant, UUID, "rack7", "b")
    assert [row["host"] for row in store.compute_nodes()] == ["c"]


def test_of_many_that_find_what_was_left_one_gets_it(
    store: db_store.DatabaseStore, records: liveness.LivenessStore, engine: sa.Engine
) -> None:
    left(engine, "a", migrated=False)
    grants = [granted(records, f"h{i}") for i in range(5)]
    outcomes = test_store_nodes.at_once(
        5, lambda i: records.adopt(grants[i], UUID, "rack7", f"h{i}")
    )
    (row,) = store.compute_nodes()
    assert row["host"] == f"h{outcomes.index(None)}"
    assert outcomes.count(None) == 1
    assert row["memory_mb_used"] == 4608
