"""Nodes that lost their record, or nearly, come back under it with their usage."""

import datetime
from typing import Any
import uuid as uuidlib

import pytest
import sqlalchemy as sa

from conductor.db import online
from conductor.db import store as db_store
from musterbook import errors
from tests.functional.db import juno
from tests.functional.db import sums

IDENTITY = {"host": "h1", "hypervisor_hostname": "hv"}
#: Of memory 4608 is used: the host's own 512 MiB with it.
REPORT = IDENTITY | {"memory_mb": 16000, "reserved_memory_mb": 512}


def memory(store: db_store.DatabaseStore) -> list[tuple[Any, ...]]:
    """Return id, uuid, and memory in use of all live nodes."""
    return [(n["id"], n["uuid"], n["memory_mb_used"]) for n in store.compute_nodes()]


@pytest.mark.parametrize("known", ["derived", "new"])
@pytest.mark.parametrize("migrated", [False, True])
def test_the_node_of_a_deleted_service_comes_back(
    store: db_store.DatabaseStore, engine: sa.Engine, known: str, migrated: bool
) -> None:
    """Be it before or after the migration deletes it, and another one with it."""
    with engine.begin() as c:
        juno.service(c, 1, "H1", deleted=1)
        juno.service(c, 2, "h1")
        juno.node(c, 1, 1, "hv", memory_mb_used=1)
        juno.node(c, 2, 2, "HV")
    uuid = store.compute_node_get(id=2)["uuid"]
    store.service_destroy(2)
    if migrated:
        list(online.migrate(engine))
        assert memory(store) == []
    values = REPORT | {"uuid": uuid if known == "derived" else str(uuidlib.uuid4())}
    made = store.compute_node_create(values)
    assert (made["id"], made["uuid"], made["memory_mb_used"]) == (2, uuid, 4608)
    list(online.migrate(engine))
    assert memory(store) == [(2, uuid, 4608)]
    assert not any(online.count(engine).values())
    sums.check(engine)


def test_a_derived_uuid_is_nobody_elses(
    store: db_store.DatabaseStore, engine: sa.Engine
) -> None:
    with engine.begin() as c:
        juno.service(c, 1, "h1")
        juno.node(c, 1, 1, "hv")
    uuid = store.compute_node_get(id=1)["uuid"]
    other = {"host": "h2", "hypervisor_hostname": "hv2", "uuid": uuid}
    with pytest.raises(errors.ComputeNodeExists):
        store.compute_node_create(other)
    list(online.migrate(engine))
    assert memory(store) == [(1, uuid, 4608)]


def test_a_deleted_node_of_junos_shape_keeps_its_uuid(
    store: db_store.DatabaseStore, engine: sa.Engine
) -> None:
    with engine.begin() as c:
        juno.service(c, 1, "h1")
        juno.node(c, 1, 1, "hv")
    before = store.compute_node_get(id=1)
    store.compute_node_destroy(1, "h1", force=True)
    made = store.compute_node_create(REPORT | {"uuid": str(uuidlib.uuid4())})
    assert (made["id"], made["uuid"]) == (1, before["uuid"])
    assert made["memory_mb_used"] == 4608


def test_a_very_old_row_with_a_host_is_not_made_twice(
    store: db_store.DatabaseStore, engine: sa.Engine
) -> None:
    """An operator stored the host of a row that nothing else told it of."""
    with engine.begin() as c:
        juno.service(c, 1, None)
        juno.node(c, 1, 1, "hv", deleted=None, host="H1")
    made = store.compute_node_create(REPORT)
    assert (made["id"], made["memory_mb_used"]) == (1, 4608)
    list(online.migrate(engine))
    assert memory(store) == [(1, made["uuid"], 4608)]
    assert store.compute_node_get_by_host_and_nodename("h1", "hv")["id"] == 1


def test_the_last_deleted_one_comes_back_whatever_has_no_date(
    store: db_store.DatabaseStore, engine: sa.Engine
) -> None:
    long_ago = datetime.datetime(2014, 10, 16)  # noqa: DTZ001  as it is stored
    with engine.begin() as c:
        juno.service(c, 1, "h1")
        for row_id, when in ((1, None), (2, long_ago), (3, None)):
            juno.node(c, row_id, 1, "hv", host="h1", deleted=row_id, deleted_at=when)
    assert store.compute_node_create(REPORT)["id"] == 2


def test_a_service_keeps_its_host_while_nodes_have_theirs_from_it(
    store: db_store.DatabaseStore, engine: sa.Engine
) -> None:
    with engine.begin() as c:
        juno.service(c, 1, "h1")
        juno.node(c, 1, 1, "hv")
    store.compute_node_create({"host": "h2", "hypervisor_hostname": "hv"})
    for host in ("h2", None):
        with pytest.raises(errors.InvalidInput, match="online_data_migrations"):
            store.service_update(1, {"host": host})
    store.service_update(1, {"host": "H1", "disabled": True})
    list(online.migrate(engine))
    store.service_update(1, {"host": "h3"})
    assert [n["host"] for n in store.compute_nodes()] == ["H1", "h2"]


def test_a_duplicate_that_is_confirmed_is_refused_by_name(
    store: db_store.DatabaseStore, engine: sa.Engine
) -> None:
    with engine.begin() as c:
        juno.service(c, 1, "h1")
        juno.node(c, 1, 1, "hv")
        juno.node(c, 2, 1, "HV")
    store.compute_node_update(1, {"vcpus": 8}, None)
    told = {"vcpus": 1, "memory_mb": 1, "local_gb": 1}
    with pytest.raises(errors.ComputeNodeExists, match="h1"):
        store.compute_node_confirm_usage(2, told)
