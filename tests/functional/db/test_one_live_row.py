"""A-INV-1 and Nova's bugs about nodes that exist twice, come back, or go wrongly."""

from collections.abc import Callable
from collections.abc import Iterator
import functools
import threading
import time
from typing import Any
import uuid

from oslo_db import exception as oslo_exc
import pytest
import sqlalchemy as sa

from conductor import grants
from conductor import manager
from conductor import rpcapi
from conductor.db import liveness
from conductor.db import models
from conductor.db import retry
from conductor.db import store as db_store
from musterbook import context
from musterbook import errors
from musterbook import rpc
from objects import base
from objects import compute_node
from objects import service as service_obj
from objects import store as object_store
from tests import rpc_lab
from tests import util
from tests.functional.db import juno
from tests.functional.db import test_store_nodes

VALUES = {"host": "node-x", "hypervisor_hostname": "node-x", "vcpus": 8}


@pytest.fixture
def carrier(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> Iterator[rpcapi.ConductorAPI]:
    """Serve the database by a conductor's endpoint and call it as an agent does."""
    transport = rpc.make_transport(rpc_lab.make_conf(f"inproc:///{uuid.uuid4()}"))
    records = liveness.LivenessStore(engine)
    granter = grants.Granter(records, lambda *_: {})
    server = manager.make_server(
        transport, "c1", manager.ConductorManager(granter, records)
    )
    object_store.bind(db_store.DatabaseStore(engine))
    api = rpcapi.ConductorAPI(transport, 30.0)
    monkeypatch.setattr(base.MusterObject, "indirection_api", api)
    server.start()
    yield api
    server.stop()
    server.wait()
    transport.cleanup()
    object_store.unbind()


def create(_: int) -> compute_node.ComputeNode:
    node = compute_node.ComputeNode(context.service_context(), **VALUES)
    node.create()
    return node


def check_one_winner(outcomes: list[Any], winners: int = 1) -> None:
    losers = [o for o in outcomes if isinstance(o, Exception)]
    assert len(outcomes) - len(losers) == winners, outcomes
    assert {type(loser) for loser in losers} == {errors.ComputeNodeExists}
    for loser in losers:
        assert "already exists" in str(loser)
        assert not any(
            word in str(loser) for word in ("INSERT", "SELECT", "Duplicate", "UNIQUE")
        )


def test_ten_create_one_node(
    carrier: rpcapi.ConductorAPI, store: db_store.DatabaseStore
) -> None:
    """A-INV-1; Nova bug 1326901: siblings raced creating the row."""
    outcomes = test_store_nodes.at_once(10, create)
    check_one_winner(outcomes)
    (row,) = store.compute_nodes()
    assert [o.uuid for o in outcomes if not isinstance(o, Exception)] == [row["uuid"]]


def test_ten_create_one_node_that_was_deleted(
    carrier: rpcapi.ConductorAPI, store: db_store.DatabaseStore
) -> None:
    """Nova bugs 1839560 and 1853159: a soft-deleted uuid blocked the creation."""
    old = store.compute_node_create(VALUES)
    store.compute_node_destroy(old["id"], None)
    check_one_winner(test_store_nodes.at_once(10, create))
    (row,) = store.compute_nodes()
    assert (row["id"], row["uuid"]) == (old["id"], old["uuid"])


def test_ten_create_one_node_beside_a_row_of_junos_shape(
    carrier: rpcapi.ConductorAPI, store: db_store.DatabaseStore, engine: sa.Engine
) -> None:
    with engine.begin() as connection:
        juno.service(connection, 1, "node-x")
        juno.node(connection, 1, 1, "node-x")
    check_one_winner(test_store_nodes.at_once(10, create), winners=0)
    assert [row["id"] for row in store.compute_nodes()] == [1]


def test_delete_and_register_again_and_again(store: db_store.DatabaseStore) -> None:
    """Nova bug 1418298: a constraint blocked registering again after a delete."""
    seen = set()
    for _ in range(3):
        row = store.compute_node_create(VALUES)
        seen.add((row["id"], row["uuid"]))
        store.compute_node_destroy(row["id"], None)
    assert len(seen) == 1


def test_a_deleted_uuid_comes_back_under_its_new_identity(
    store: db_store.DatabaseStore,
) -> None:
    """Nova bug 1839560, of a node that moved while it had no record."""
    old = store.compute_node_create(VALUES | {"vcpus_used": 2}, writes_usage=True)
    store.compute_node_destroy(old["id"], None, force=True)
    moved = VALUES | {"host": "node-y", "uuid": old["uuid"]}
    row = store.compute_node_create(moved)
    assert (row["id"], row["uuid"], row["host"]) == (old["id"], old["uuid"], "node-y")
    assert row["vcpus_used"] == 2
    assert store.compute_nodes() == [row]


@pytest.mark.parametrize("by_uuid", [False, True])
def test_no_purge_comes_between_the_look_and_the_revival(
    store: db_store.DatabaseStore, engine: sa.Engine, by_uuid: bool
) -> None:
    """The creator holds what it is about to bring back."""
    if engine.dialect.name == "sqlite":
        pytest.skip("one writer at a time: nothing comes in between")
    old = store.compute_node_create(VALUES)
    store.compute_node_destroy(old["id"], None)
    other = sa.create_engine(engine.url, poolclass=sa.NullPool)
    free: list[list[int]] = []

    @sa.event.listens_for(engine, "before_cursor_execute")
    def _look(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if not statement.startswith("UPDATE compute_nodes"):
            return
        with other.begin() as connection:
            deleted = sa.select(models.compute_nodes.c.id)
            query = deleted.where(models.compute_nodes.c.deleted > 0)
            unlocked = query.with_for_update(skip_locked=True)
            assert connection.execute(query).scalars().all() == [old["id"]]
            free.append(list(connection.execute(unlocked).scalars()))

    row = store.compute_node_create(VALUES | ({"uuid": old["uuid"]} if by_uuid else {}))
    assert free == [[]]
    assert (row["id"], row["uuid"]) == (old["id"], old["uuid"])


def test_deleting_another_service_removes_no_nodes(
    store: db_store.DatabaseStore,
) -> None:
    """Nova bug 1852993: deleting another service of the host removed its nodes."""
    services = [
        store.service_create({"host": "node-x", "binary": b, "topic": b})
        for b in ("nova-conductor", "nova-compute", "nova-scheduler")
    ]
    row = store.compute_node_create(VALUES)
    for service in services:
        store.service_destroy(service["id"])
        assert store.compute_nodes() == [row]


def test_uuids_never_find_what_was_deleted(store: db_store.DatabaseStore) -> None:
    """Nova bug 1793533: a query by uuid returned deleted nodes."""
    row = store.compute_node_create(VALUES)
    kept = store.compute_node_create(VALUES | {"hypervisor_hostname": "other"})
    store.compute_node_destroy(row["id"], None)
    assert store.compute_nodes_by_uuids([row["uuid"], kept["uuid"]]) == [kept]
    with pytest.raises(errors.ComputeNodeNotFound):
        store.compute_node_get(uuid=row["uuid"])
    with pytest.raises(errors.ComputeNodeNotFound):
        store.compute_node_get(id=row["id"])


def test_nothing_is_left_behind_by_a_deletion(
    store: db_store.DatabaseStore, engine: sa.Engine
) -> None:
    """Nova bugs 1763183, 1852610, 1811726, 1829479: deletes orphaned providers.

    There is no second record of a node's capacity that could be orphaned: no other
    table has a column of it, so that the one update that deletes a node is all. One
    that is in use is refused. Allocations stay with their node, deleted or not.
    """
    capacity = {"vcpus_used", "reserved_vcpus", "cpu_info", "hypervisor_hostname"}
    holders = [
        name
        for name, table in models.METADATA.tables.items()
        if capacity & set(table.c.keys())
    ]
    assert holders == ["compute_nodes"]
    row = store.compute_node_create(VALUES | {"vcpus_used": 1}, writes_usage=True)
    with pytest.raises(errors.ComputeNodeInUse, match="vcpus_used 1, 0 reserved"):
        store.compute_node_destroy(row["id"], None)
    assert store.compute_nodes() == [row]


def test_a_revived_host_is_discovered_at_once(
    store: db_store.DatabaseStore, engine: sa.Engine
) -> None:
    """Nova bug 2085135: "mapped" was not reset, and the host was undiscoverable.

    There is no such flag: what lists show is decided by ``deleted`` alone, and a
    revived row is one that changed for the fleet's difference stream.
    """
    assert "mapped" not in models.compute_nodes.c
    row = store.compute_node_create(VALUES)
    node = models.compute_nodes
    retry.run(engine, lambda c: c.execute(node.update().values(stream_version=7)))
    store.compute_node_destroy(row["id"], None)
    retry.run(engine, lambda c: c.execute(node.update().values(stream_version=8)))
    back = store.compute_node_create(VALUES)
    assert store.compute_nodes_by_host("node-x") == [back]
    query = sa.select(node.c.stream_version)
    assert retry.read(engine, lambda c: c.execute(query).scalar_one()) is None


# -- A-DB-1 ------------------------------------------------------------------------


class Deadlocks:
    """Lets updates of nodes fail as a deadlock's victims do.

    :ivar left: how many of the next ones fail
    """

    def __init__(self, engine: sa.Engine) -> None:
        self.left = 0
        sa.event.listen(engine, "before_cursor_execute", self._fail)

    def _fail(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE compute_nodes") and self.left:
            self.left -= 1
            raise oslo_exc.DBDeadlock


def test_a_save_survives_two_deadlocks(
    carrier: rpcapi.ConductorAPI, engine: sa.Engine
) -> None:
    """A-DB-1, first step; Nova bugs 1370191 and 1253455."""
    deadlocks = Deadlocks(engine)
    node = create(0)
    for vcpus in (9, 10):
        deadlocks.left = 2
        node.vcpus = vcpus
        node.save()
        assert deadlocks.left == 0
    found = compute_node.ComputeNode.get_by_uuid(context.service_context(), node.uuid)
    assert (found.vcpus, found.inventory_generation) == (10, 2)


def test_ten_deadlocks_in_a_row_are_named(
    carrier: rpcapi.ConductorAPI, engine: sa.Engine
) -> None:
    """A-DB-1, second step."""
    deadlocks = Deadlocks(engine)
    node = create(0)
    node.vcpus = 9
    deadlocks.left = 10
    with pytest.raises(errors.DatabaseBusy, match="try again"):
        node.save()
    assert node.obj_what_changed() == {"vcpus"}  # Nova bug 1834712: not remembered
    node.save()
    assert deadlocks.left == 0
    found = compute_node.ComputeNode.get_by_uuid(context.service_context(), node.uuid)
    assert (found.vcpus, found.inventory_generation) == (9, 1)


def check_savers_among_lockers(
    store: db_store.DatabaseStore, engine: sa.Engine, seconds: float, period: float
) -> None:
    """Let three save while two sessions lock their rows in opposite order.

    :param seconds: at least; and until everybody had a turn, as a deadlock's victim
        may be the same session for a while
    """
    rows = [
        store.compute_node_create(VALUES | {"hypervisor_hostname": f"n{i}"})
        for i in range(3)
    ]
    ids = [row["id"] for row in rows]
    over = threading.Event()
    saves = [0, 0, 0]
    locks = [0, 0]

    def save(which: int) -> tuple[int, int]:
        """Save until the time is over, and then until a save has succeeded."""
        node = compute_node.ComputeNode.get_by_uuid(
            context.service_context(), rows[which]["uuid"]
        )
        sent = busy = 0
        done = False
        while not (over.is_set() and done):
            sent += 1
            node.vcpus = sent
            try:
                node.save()
                done = True
                saves[which] += 1
            except errors.DatabaseBusy:
                done = False
                busy += 1
            over.wait(period)
        return sent, busy

    def lock(which: int) -> None:
        table = models.compute_nodes
        other = sa.create_engine(engine.url, poolclass=sa.NullPool)
        while not over.is_set():
            try:
                with other.begin() as connection:
                    for node_id in ids[:: -1 if which else 1]:
                        change = table.update().where(table.c.id == node_id)
                        connection.execute(change.values(metrics="locked"))
                locks[which] += 1
            except sa.exc.DBAPIError:
                pass  # the deadlock's victim was this one
            over.wait(0.01)  # lock without pause, and SQLite lets nobody else in

    def watch() -> None:
        time.sleep(seconds)  # the length of it, not a wait for anything
        try:
            util.wait_until(
                lambda: min(locks) > 0 and min(saves) > 1, 100.0, "a turn of everybody"
            )
        finally:
            over.set()

    work: list[Callable[[], Any]] = [functools.partial(save, i) for i in range(3)]
    work += [functools.partial(lock, 0), functools.partial(lock, 1), watch]
    outcomes = test_store_nodes.at_once(len(work), lambda i: work[i]())
    assert not [o for o in outcomes if isinstance(o, Exception)], (outcomes, locks)
    assert min(locks) > 0
    assert min(saves) > 1
    for row, (sent, _) in zip(rows, outcomes[:3], strict=True):
        assert store.compute_node_get(id=row["id"])["vcpus"] == sent


def test_saves_among_sessions_that_lock_in_opposite_order(
    carrier: rpcapi.ConductorAPI, store: db_store.DatabaseStore, engine: sa.Engine
) -> None:
    """A-DB-1, third step, made short."""
    check_savers_among_lockers(store, engine, 2.0, 0.01)


@pytest.mark.slow
def test_saves_among_sessions_that_lock_for_a_minute(
    carrier: rpcapi.ConductorAPI, store: db_store.DatabaseStore, engine: sa.Engine
) -> None:
    check_savers_among_lockers(store, engine, 60.0, 1.0)


# -- A-DB-2 ------------------------------------------------------------------------


#: Field, value, and the limit that is named.
TOO_LONG: list[tuple[str, object, str]] = [
    ("hypervisor_hostname", "n" * 300, "255"),
    ("stats", {"text": "x" * 70 * 1024}, "65535"),
    ("numa_topology", "я" * 35 * 1024, "65535"),
]
#: Texts, and why they are refused, if they are.
REASONS = [
    ("a" * 255, None),
    ("a" * 256, "256 characters, at most 255"),
    ("ж" * 255, None),
    ("\N{GRINNING FACE}" * 100, "U+1F600"),
    ("", None),
    ("Кабель заменён, naïve €", None),
]


def test_texts_are_stored_whole_or_refused_by_name(
    carrier: rpcapi.ConductorAPI, store: db_store.DatabaseStore
) -> None:
    """A-DB-2, by the objects: the same on every database."""
    node = create(0)
    before = store.compute_nodes()
    for field, value, limit in TOO_LONG:
        read = compute_node.ComputeNode.get_by_id(node._context, node.id)
        setattr(read, field, value)
        read.vcpus = 1
        with pytest.raises(errors.MusterbookError) as caught:
            read.save()
        assert caught.value.code in {"invalid-input", "invalid-name"}
        assert caught.value.kwargs["field"] == field
        assert limit in caught.value.message
        assert store.compute_nodes() == before
    node.vcpus = 1
    node.save()  # and the loop goes on
    made = store.service_create({"host": "h", "binary": "nova-compute", "topic": "c"})
    stored: object = None
    for reason, refused in REASONS:
        service = service_obj.Service.get_by_id(node._context, made["id"])
        service.disabled_reason = reason
        if refused is None:
            service.save()
            stored = reason
        else:
            with pytest.raises(errors.InvalidInput) as caught:
                service.save()
            assert caught.value.kwargs["field"] == "disabled_reason"
            assert refused in caught.value.message
        assert store.service_get(id=made["id"])["disabled_reason"] == stored
