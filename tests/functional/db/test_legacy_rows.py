"""Rows of Juno's shape: found by their service's host, detached by a save."""

from concurrent import futures
import re
from typing import Any
from unittest import mock
import uuid

import pytest
import sqlalchemy as sa

from conductor.db import leftovers
from conductor.db import liveness
from conductor.db import store as db_store
from musterbook import errors
from tests.functional.db import juno
from tests.functional.db.test_store_nodes import statements

VALUES = {"host": "H1", "hypervisor_hostname": "HV", "vcpus": 8}


@pytest.fixture
def legacy(engine: sa.Engine) -> sa.Engine:
    with engine.begin() as c:
        juno.service(c, 1, "h1")
        juno.node(c, 1, 1, "hv")
        juno.service(c, 2, "old", deleted=None)
        juno.node(c, 2, 2, "hv", deleted=None)
        juno.service(c, 3, "dead", deleted=3)
        juno.node(c, 3, 3, "hv")
    return engine


def stored(engine: sa.Engine, node_id: int) -> tuple[Any, ...]:
    query = sa.text("SELECT host, service_id, uuid FROM compute_nodes WHERE id = :id")
    with engine.connect() as connection:
        return tuple(connection.execute(query, {"id": node_id}).one())


def test_found_by_derived_host(
    legacy: sa.Engine, store: db_store.DatabaseStore
) -> None:
    row = store.compute_node_get_by_host_and_nodename("H1", "HV")
    assert (row["id"], row["host"], row["service_id"]) == (1, "h1", 1)
    assert [n["id"] for n in store.compute_nodes_by_host("OLD")] == [2]
    assert store.compute_node_get(uuid=row["uuid"].upper())["id"] == 1
    assert [n["id"] for n in store.compute_nodes_by_uuids([row["uuid"]])] == [1]
    assert store.compute_nodes_by_host("dead") == []
    assert [n["id"] for n in store.compute_nodes_page(None, None)] == [1, 2, 3]
    uuid = store.service_get(id=1)["uuid"]
    assert store.service_get(uuid=uuid)["id"] == 1


@pytest.mark.parametrize("by", ["identity", "host", "uuid", "uuids"])
def test_found_while_it_changes_its_shape(
    legacy: sa.Engine, store: db_store.DatabaseStore, by: str
) -> None:
    """A reader looks twice, and another process saves the row in between."""
    uuid = store.compute_node_get(id=1)["uuid"]
    saved: list[object] = []

    @sa.event.listens_for(legacy, "after_cursor_execute")
    def _save(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "FROM compute_nodes" not in statement or saved:
            return
        saved.append(statement)
        other = sa.create_engine(legacy.url)
        with other.begin() as connection:
            detach = (
                "UPDATE compute_nodes SET host = 'h1', service_id = NULL, uuid = :u"
            )
            connection.execute(sa.text(f"{detach} WHERE id = 1"), {"u": uuid})
        other.dispose()

    if by == "host":
        (found,) = [row["id"] for row in store.compute_nodes_by_host("h1")]
    elif by == "identity":
        found = store.compute_node_get_by_host_and_nodename("h1", "hv")["id"]
    elif by == "uuid":
        found = store.compute_node_get(uuid=uuid)["id"]
    else:
        (found,) = [row["id"] for row in store.compute_nodes_by_uuids([uuid])]
    assert found == 1
    assert saved


@pytest.mark.parametrize(("node_id", "host"), [(1, "h1"), (2, "old")])
def test_save_detaches(
    legacy: sa.Engine, store: db_store.DatabaseStore, node_id: int, host: str
) -> None:
    before = store.compute_node_get(id=node_id)
    answer = store.compute_node_update(node_id, {"reserved_memory_mb": 100}, 0)
    assert stored(legacy, node_id) == (host, None, before["uuid"])
    after = store.compute_node_get(id=node_id)
    assert {k: after[k] for k in answer} == dict(answer)
    assert answer["host"] == host
    assert answer["service_id"] is None
    # What is reserved from now on was part of Juno's usage.
    assert after["memory_mb_used"] == before["memory_mb_used"]
    assert after["free_ram_mb"] == before["free_ram_mb"]
    assert after["deleted"] is False
    with pytest.raises(errors.InventoryChanged):
        store.compute_node_update(node_id, {"vcpus": 1}, 0)


def test_late_save_of_a_legacy_row_leaves_it_alone(
    legacy: sa.Engine, store: db_store.DatabaseStore
) -> None:
    with pytest.raises(errors.InventoryChanged):
        store.compute_node_update(1, {"vcpus": 1}, 5)
    assert stored(legacy, 1) == (None, 1, None)


def test_of_two_savers_one_detaches(
    legacy: sa.Engine, store: db_store.DatabaseStore
) -> None:
    with futures.ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(store.compute_node_update, 1, {"vcpus": 20 + i}, 0)
            for i in range(2)
        ]
        outcomes = [run.exception() for run in runs]
    assert sum(isinstance(o, errors.InventoryChanged) for o in outcomes) == 1
    assert sum(o is None for o in outcomes) == 1
    assert stored(legacy, 1)[:2] == ("h1", None)


def test_create_beside_a_legacy_row_is_refused(
    legacy: sa.Engine, store: db_store.DatabaseStore
) -> None:
    with pytest.raises(errors.ComputeNodeExists):
        store.compute_node_create(VALUES)
    # The orphan belongs to no host: its host may have a node of its own.
    made = store.compute_node_create(VALUES | {"host": "dead"})
    assert [n["id"] for n in store.compute_nodes_by_host("dead")] == [made["id"]]


def test_creators_and_savers_leave_one_row(
    legacy: sa.Engine, store: db_store.DatabaseStore
) -> None:
    with futures.ThreadPoolExecutor(8) as pool:
        creates = [pool.submit(store.compute_node_create, VALUES) for _ in range(6)]
        saves = [
            pool.submit(store.compute_node_update, 1, {"running_vms": i}, None)
            for i in range(2)
        ]
        assert [run.exception() for run in saves] == [None, None]
        refusals = [run.exception() for run in creates]
    assert all(isinstance(r, errors.ComputeNodeExists) for r in refusals)
    assert [n["id"] for n in store.compute_nodes_by_host("h1")] == [1]


def test_a_live_identity_is_never_doubled_by_a_save(
    legacy: sa.Engine, store: db_store.DatabaseStore
) -> None:
    with legacy.begin() as c:
        juno.node(c, 4, 1, "hv2", host="h1", uuid=None)
        juno.node(c, 5, 1, "HV2")
    with pytest.raises(errors.ComputeNodeExists):
        store.compute_node_update(5, {"vcpus": 1}, None)
    with pytest.raises(errors.ComputeNodeExists):
        store.compute_node_update(4, {"hypervisor_hostname": "hv"}, None)
    assert stored(legacy, 5)[:2] == (None, 1)


def test_orphan_is_saved_without_a_host(
    legacy: sa.Engine, store: db_store.DatabaseStore
) -> None:
    assert store.compute_node_get(id=3)["host"] is None
    store.compute_node_update(3, {"vcpus": 1}, 0)
    assert stored(legacy, 3)[:2] == (None, 3)
    assert store.compute_node_get(id=3)["vcpus"] == 1


def test_destroy(legacy: sa.Engine, store: db_store.DatabaseStore) -> None:
    with pytest.raises(errors.ComputeNodeNotFound):
        store.compute_node_destroy(1, "other")
    with pytest.raises(errors.ComputeNodeNotFound):
        store.compute_node_destroy(3, "dead")
    with pytest.raises(errors.ComputeNodeInUse):
        store.compute_node_destroy(1, "H1")
    store.compute_node_destroy(1, "H1", force=True)
    store.compute_node_destroy(2, None, force=True)
    assert [n["id"] for n in store.compute_nodes()] == [3]


def test_peer_of_version_1_0_creates_by_service(
    legacy: sa.Engine, store: db_store.DatabaseStore
) -> None:
    values = {"service_id": 1, "hypervisor_hostname": "hv9", "vcpus": 8}
    made = store.compute_node_create(values, writes_usage=True)
    assert (made["host"], made["service_id"]) == ("h1", None)
    with pytest.raises(errors.InvalidInput, match="service_id"):
        store.compute_node_create(values | {"service_id": 3})


def test_hello_of_a_legacy_service(
    legacy: sa.Engine, store: db_store.DatabaseStore
) -> None:
    live = liveness.LivenessStore(legacy)
    uuid = store.service_get(id=2)["uuid"]
    known = live.known("OLD", "nova-compute")
    assert known == liveness.KnownService("old", None, None, False)
    number = live.grant("old", "nova-compute", "compute", "p", None, None, "s", None)
    assert number == 1
    assert store.service_get_by_host_and_binary("old", "nova-compute")["id"] == 2
    assert store.service_get(uuid=uuid)["incarnation"] == 1


def test_queries_by_host_cost_nothing_extra_once_no_row_is_left(
    legacy: sa.Engine, store: db_store.DatabaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(leftovers, "time", mock.Mock(monotonic=lambda: now[0]))

    def ask() -> tuple[list[int], list[str]]:
        with statements(legacy) as seen:
            found = store.compute_nodes_by_host("h1")
        return [node["id"] for node in found], [s for s in seen if s != "BEGIN"]

    store.compute_node_create(VALUES | {"hypervisor_hostname": "second"})
    assert ask()[0] == [1, 4]  # of either shape
    with legacy.begin() as connection:
        connection.execute(sa.text("DELETE FROM compute_nodes WHERE id < 4"))
    now[0] += 1
    assert ask()[0] == [4]
    assert ask() == ([4], ["SELECT"])
    # Nova's own code makes one: found at once where nothing else is, ...
    with legacy.begin() as connection:
        juno.service(connection, 4, "h4")
        juno.node(connection, 5, 4, "hv4")
        juno.node(connection, 6, 1, "hv6")
    assert [n["id"] for n in store.compute_nodes_by_host("h4")] == [5]
    assert store.compute_node_get_by_host_and_nodename("h1", "hv6")["id"] == 6
    with pytest.raises(errors.ComputeNodeExists):
        store.compute_node_create(VALUES | {"hypervisor_hostname": "hv6"})
    # ... and beside another within a second.
    assert ask()[0] == [4]
    now[0] += 1
    assert ask()[0] == [4, 6]
    assert ask() == ([4, 6], ["SELECT"])


def test_a_random_uuid_is_not_derived_for_each_legacy_row(
    legacy: sa.Engine, store: db_store.DatabaseStore
) -> None:
    """Nor are legacy rows read as a whole for one that may be derived."""
    random, derived = str(uuid.uuid4()), str(uuid.uuid5(uuid.NAMESPACE_DNS, "x"))
    known = store.compute_node_get(id=2)["uuid"]
    read: list[str] = []

    @sa.event.listens_for(legacy, "before_cursor_execute")
    def _note(_c: Any, _u: Any, statement: str, *_: Any) -> None:
        if re.search(r"uuid\W+IS NULL", statement):
            read.append(statement)

    with pytest.raises(errors.ComputeNodeNotFound):
        store.compute_node_get(uuid=random)
    with pytest.raises(errors.ServiceNotFound):
        store.service_get(uuid=random)
    assert store.compute_nodes_by_uuids([random]) == []
    assert read == []
    found = store.compute_nodes_by_uuids([derived, known.upper(), random])
    assert [node["id"] for node in found] == [2]
    (one,) = read
    assert "cpu_info" not in one


def test_all_of_many_get_their_uuid_in_between(
    engine: sa.Engine, store: db_store.DatabaseStore
) -> None:
    """More than one batch of nodes of Juno's shape, looked for while they change it."""
    with engine.begin() as c:
        juno.service(c, 1, "h1")
        for node in range(1, 602):
            juno.node(c, node, 1, f"n{node}")
    uuids = [str(node["uuid"]) for node in store.compute_nodes()]
    done: list[int] = []

    @sa.event.listens_for(engine, "after_cursor_execute")
    def _save(_c: Any, _u: Any, statement: str, *_: Any) -> None:
        # Between the second batch by uuid and the look at rows without one.
        done.append(1)
        if len(done) != 2:
            return
        other = sa.create_engine(engine.url)
        with other.begin() as connection:
            for node, text in enumerate(uuids, 1):
                change = "UPDATE compute_nodes SET uuid = :uuid WHERE id = :id"
                connection.execute(sa.text(change), {"uuid": text, "id": node})
        other.dispose()

    found = store.compute_nodes_by_uuids(uuids)
    assert [node["id"] for node in found] == list(range(1, 602))


@pytest.mark.parametrize(
    ("takes", "good_for"), [(0.001, 1.0), (0.1, 10.0), (30.0, 60.0)]
)
def test_asking_for_them_takes_a_hundredth_of_the_time(
    monkeypatch: pytest.MonkeyPatch, takes: float, good_for: float
) -> None:
    """100,000 soft-deleted rows of Juno's shape take MariaDB 0.1 s."""
    now, asked = [100.0], []
    monkeypatch.setattr(leftovers, "time", mock.Mock(monotonic=lambda: now[0]))

    def execute(query: object) -> mock.Mock:
        now[0] += takes
        asked.append(query)
        return mock.Mock(first=lambda: None)

    left = leftovers.Leftovers(sa.select(sa.literal(1)))
    connection: Any = mock.Mock(execute=execute)
    left.there_are(connection)
    now[0] += good_for - 0.01
    assert not left.there_are(connection)
    assert len(asked) == 1
    now[0] += 0.02
    left.there_are(connection)
    assert len(asked) == 2


@pytest.mark.parametrize("very_old", [51, 53])
def test_of_two_services_of_a_host_a_list_has_the_one_that_counts(
    engine: sa.Engine, store: db_store.DatabaseStore, very_old: int
) -> None:
    with engine.begin() as c:
        juno.service(c, very_old, "web1", deleted=None)
        juno.service(c, 52, "WEB1")
    store.compute_node_create({"host": "web1", "hypervisor_hostname": "n1"})
    (node,) = store.compute_nodes(with_service=True)
    assert store.read_service(node["service"])["id"] == 52
    counts = store.service_get_by_host_and_binary("web1", "nova-compute")
    assert counts["id"] == 52
