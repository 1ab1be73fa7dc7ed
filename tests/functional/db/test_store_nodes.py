"""Compute nodes: create, read, update, destroy on three databases."""

from collections.abc import Callable
from collections.abc import Iterator
from concurrent import futures
import contextlib
import datetime
from typing import Any

import pytest
import sqlalchemy as sa

from conductor.db import models
from conductor.db import retry
from conductor.db import store as db_store
from musterbook import errors
from objects import service as service_obj

VALUES: dict[str, Any] = {
    "host": "Node1.example",
    "hypervisor_hostname": "hv-1",
    "vcpus": 8,
    "memory_mb": 16000,
    "local_gb": 500,
    "reserved_memory_mb": 512,
    "reserved_vcpus": 1,
    "cpu_allocation_ratio": 16.123456789,
    "stats": {"a": "1", "b": None},
}


@contextlib.contextmanager
def statements(engine: sa.Engine) -> Iterator[list[str]]:
    seen: list[str] = []

    def note(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        seen.append(statement.split()[0])

    sa.event.listen(engine, "before_cursor_execute", note)
    yield seen
    sa.event.remove(engine, "before_cursor_execute", note)


def at_once(count: int, work: Callable[[int], Any]) -> list[Any]:
    with futures.ThreadPoolExecutor(count) as pool:
        runs = [pool.submit(work, i) for i in range(count)]
        return [run.exception() or run.result() for run in runs]


def test_create_returns_the_whole_stored_row(store: db_store.DatabaseStore) -> None:
    made = store.compute_node_create(VALUES)
    assert made == store.compute_node_get(id=made["id"])
    assert {k: made[k] for k in VALUES} == VALUES
    assert made["deleted"] is False
    assert made["vcpus_used"] == 1
    assert made["memory_mb_used"] == 512
    assert made["free_ram_mb"] == 16000 - 512
    assert made["free_disk_gb"] == 500
    assert made["cpu_info"] == ""
    assert made["service_id"] is None
    assert (made["generation"], made["inventory_generation"]) == (0, 0)
    assert made["created_at"].tzinfo is datetime.UTC
    assert len(made["uuid"]) == 36


def test_names_are_the_same_in_any_case(store: db_store.DatabaseStore) -> None:
    made = store.compute_node_create(VALUES)
    found = store.compute_node_get_by_host_and_nodename("nODE1.Example", "HV-1")
    assert found == made
    assert [n["id"] for n in store.compute_nodes_by_host("NODE1.EXAMPLE")] == [
        made["id"]
    ]
    twin = VALUES | {"host": "node1.EXAMPLE", "hypervisor_hostname": "Hv-1"}
    with pytest.raises(errors.ComputeNodeExists) as caught:
        store.compute_node_create(twin)
    assert caught.value.host == "node1.EXAMPLE"


def test_of_ten_creators_one_wins(store: db_store.DatabaseStore) -> None:
    store.service_create(
        {"host": "Node1.example", "binary": "nova-compute", "topic": "compute"}
    )
    outcomes = at_once(10, lambda i: store.compute_node_create(VALUES))
    rows = [o for o in outcomes if not isinstance(o, Exception)]
    losers = [o for o in outcomes if isinstance(o, errors.ComputeNodeExists)]
    assert (len(rows), len(losers)) == (1, 9)
    assert [n["id"] for n in store.compute_nodes()] == [rows[0]["id"]]


def test_create_again_with_the_same_uuid_is_the_same_create(
    store: db_store.DatabaseStore,
) -> None:
    values = VALUES | {"uuid": "2b1d9a52-51de-4ba4-97f7-4c7e0d3ad2ab"}
    assert store.compute_node_create(values) == store.compute_node_create(values)
    other = values | {"hypervisor_hostname": "hv-2"}
    with pytest.raises(errors.ComputeNodeExists):
        store.compute_node_create(other)


def test_hot_path_is_one_statement(
    store: db_store.DatabaseStore, engine: sa.Engine
) -> None:
    made = store.compute_node_create(VALUES)
    # SQLite's BEGIN is a statement of ours; the servers' isn't one.
    begin = ["BEGIN"] if engine.dialect.name == "sqlite" else []
    with statements(engine) as seen:
        store.compute_node_get_by_host_and_nodename("node1.example", "hv-1")
    assert seen == [*begin, "SELECT"]
    with statements(engine) as seen:
        answer = store.compute_node_update(
            made["id"], {"disk_available_least": 7, "vcpus": 9}, 0
        )
    assert seen == ["UPDATE"]
    assert answer.keys() == {"updated_at", "inventory_generation"}
    stored = store.compute_node_get(id=made["id"])
    assert {k: stored[k] for k in answer} == answer
    assert (stored["generation"], stored["inventory_generation"]) == (1, 1)


@pytest.mark.parametrize(
    ("values", "answered"),
    [
        ({"running_vms": 7}, set()),
        ({"memory_mb": 900}, {"free_ram_mb"}),
        ({"local_gb": 501}, {"free_disk_gb"}),
        ({"memory_mb": 100, "local_gb": 9}, {"free_ram_mb", "free_disk_gb"}),
        ({"memory_mb": 512, "local_gb": 0}, {"free_ram_mb", "free_disk_gb"}),
        (
            {"memory_mb": 2**31 - 1, "local_gb": -(2**31)},
            {"free_ram_mb", "free_disk_gb"},
        ),
    ],
)
@pytest.mark.parametrize("generation", [0, None])
def test_free_amounts_come_with_the_update(
    store: db_store.DatabaseStore,
    engine: sa.Engine,
    values: dict[str, int],
    answered: set[str],
    generation: int | None,
) -> None:
    made = store.compute_node_create(VALUES)
    with statements(engine) as seen:
        answer = store.compute_node_update(made["id"], values, generation)
    in_one = generation == 0 or not values.keys() & {"memory_mb", "local_gb"}
    if in_one or engine.dialect.name != "mysql":
        assert seen == ["UPDATE"]
    assert (
        answered <= answer.keys() <= answered | {"updated_at", "inventory_generation"}
    )
    stored = store.compute_node_get(id=made["id"])
    assert {k: stored[k] for k in answer} == answer
    assert stored["free_ram_mb"] == stored["memory_mb"] - stored["memory_mb_used"]
    assert stored["free_disk_gb"] == stored["local_gb"] - stored["local_gb_used"]
    assert stored["generation"] == 1


def test_a_save_is_one_round_trip(
    store: db_store.DatabaseStore, engine: sa.Engine
) -> None:
    if engine.dialect.name != "mysql":
        pytest.skip("MySQL counts what a session sends")
    made = store.compute_node_create(VALUES)
    asking = sa.text("SHOW SESSION STATUS LIKE 'Questions'")

    def count() -> int:
        return int(retry.read(engine, lambda c: c.execute(asking).one()[1]))

    before = count()
    store.compute_node_update(made["id"], {"memory_mb": 1, "local_gb": 1}, 0)
    assert count() - before == 2  # with that of the second count


def test_late_save_of_capacity_is_refused(store: db_store.DatabaseStore) -> None:
    made = store.compute_node_create(VALUES)
    store.compute_node_update(made["id"], {"vcpus": 9}, 0)
    with pytest.raises(errors.InventoryChanged) as caught:
        store.compute_node_update(made["id"], {"vcpus": 8}, 0)
    assert (caught.value.expected, caught.value.found) == (0, 1)
    # Values that aren't capacity don't depend on it, and don't move it.
    store.compute_node_update(made["id"], {"running_vms": 3}, 0)
    stored = store.compute_node_get(id=made["id"])
    assert (stored["vcpus"], stored["running_vms"]) == (9, 3)
    assert stored["inventory_generation"] == 1


def test_of_two_savers_one_wins(store: db_store.DatabaseStore) -> None:
    made = store.compute_node_create(VALUES)
    outcomes = at_once(
        2, lambda i: store.compute_node_update(made["id"], {"vcpus": 10 + i}, 0)
    )
    assert sum(isinstance(o, errors.InventoryChanged) for o in outcomes) == 1


def test_the_uuid_is_given_at_creation_only(store: db_store.DatabaseStore) -> None:
    made = store.compute_node_create(VALUES)
    for uuid in (made["uuid"], "2b1d9a52-51de-4ba4-97f7-4c7e0d3ad2ab", None):
        with pytest.raises(errors.InvalidInput) as caught:
            store.compute_node_update(made["id"], {"uuid": uuid, "vcpus": 1}, 0)
        assert caught.value.field == "uuid"
    assert store.compute_node_get(id=made["id"]) == made


def test_update_without_change_still_matches(store: db_store.DatabaseStore) -> None:
    made = store.compute_node_create(VALUES)
    for _ in range(2):
        store.compute_node_update(made["id"], {"running_vms": 3}, None)


@pytest.mark.parametrize(
    ("values", "used", "free"),
    [
        ({"reserved_memory_mb": 1024}, 1024 + 100, 16000 - 1124),
        ({"reserved_memory_mb": 0}, 100, 16000 - 100),
        ({"memory_mb": 32000}, 612, 32000 - 612),
        ({"memory_mb": 32000, "reserved_memory_mb": 1000}, 1100, 32000 - 1100),
        ({"memory_mb": 100}, 612, 100 - 612),
    ],
)
def test_usage_follows_reserved_and_free_follows_both(
    store: db_store.DatabaseStore, values: dict[str, int], used: int, free: int
) -> None:
    made = store.compute_node_create(
        VALUES | {"memory_mb_used": 612}, writes_usage=True
    )
    answer = store.compute_node_update(made["id"], values, 0)
    stored = store.compute_node_get(id=made["id"])
    assert (stored["memory_mb_used"], stored["free_ram_mb"]) == (used, free)
    assert {k: stored[k] for k in values} == values
    assert {k: stored[k] for k in answer} == dict(answer)
    assert stored["vcpus_used"] == 1
    assert stored["free_disk_gb"] == 500


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"reserved_memory_mb": 2**31 - 1}, "memory_mb_used"),
        ({"reserved_vcpus": 2**31 - 1}, "vcpus_used"),
        ({"reserved_memory_mb": -(2**31)}, "free_ram_mb"),
        ({"local_gb": -(2**31)}, "free_disk_gb"),
    ],
)
@pytest.mark.parametrize("generation", [0, None])
def test_amounts_that_follow_must_fit(
    store: db_store.DatabaseStore,
    values: dict[str, int],
    field: str,
    generation: int | None,
) -> None:
    used = {"vcpus_used": 100, "memory_mb_used": 612, "local_gb_used": 100}
    made = store.compute_node_create(VALUES | used, writes_usage=True)
    with pytest.raises(errors.InvalidInput) as caught:
        store.compute_node_update(made["id"], values, generation)
    assert caught.value.field == field
    assert "not between" in caught.value.reason
    assert store.compute_node_get(id=made["id"]) == made


def test_amounts_may_overflow_on_their_way_to_what_fits(
    store: db_store.DatabaseStore, engine: sa.Engine
) -> None:
    largest = 2**31 - 1
    made = store.compute_node_create(VALUES)
    with engine.begin() as connection:
        values = {"memory_mb_used": largest, "reserved_memory_mb": -5}
        connection.execute(models.compute_nodes.update().values(values))
    store.compute_node_update(
        made["id"], {"reserved_memory_mb": -6, "memory_mb": largest}, 0
    )
    stored = store.compute_node_get(id=made["id"])
    assert (stored["memory_mb_used"], stored["free_ram_mb"]) == (largest - 1, 1)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"memory_mb": -(2**31), "reserved_memory_mb": 1}, "free_ram_mb"),
        ({"local_gb": -(2**31), "reserved_local_gb": 1}, "free_disk_gb"),
    ],
)
def test_amounts_that_follow_at_creation_must_fit(
    store: db_store.DatabaseStore, values: dict[str, int], field: str
) -> None:
    with pytest.raises(errors.InvalidInput) as caught:
        store.compute_node_create(VALUES | values)
    assert caught.value.field == field
    assert store.compute_nodes() == []


def test_unconditional_capacity_write_says_the_new_generation(
    store: db_store.DatabaseStore,
) -> None:
    made = store.compute_node_create(VALUES)
    answer = store.compute_node_update(made["id"], {"vcpus": 2}, None)
    assert answer["inventory_generation"] == 1


def test_moving_onto_a_live_identity_is_refused(store: db_store.DatabaseStore) -> None:
    store.compute_node_create(VALUES)
    other = store.compute_node_create(VALUES | {"hypervisor_hostname": "hv-2"})
    with pytest.raises(errors.ComputeNodeExists) as caught:
        store.compute_node_update(other["id"], {"hypervisor_hostname": "HV-1"}, 0)
    assert caught.value.kwargs == {
        "host": "Node1.example",
        "hypervisor_hostname": "HV-1",
    }
    store.compute_node_update(other["id"], {"host": "other"}, 0)
    assert store.compute_node_get(id=other["id"])["host"] == "other"


def test_destroy_is_the_owners_and_create_revives(
    store: db_store.DatabaseStore,
) -> None:
    in_use = {"vcpus_used": 5, "memory_mb_used": 512, "running_vms": 4}
    made = store.compute_node_create(VALUES | in_use, writes_usage=True)
    with pytest.raises(errors.ComputeNodeNotFound):
        store.compute_node_destroy(made["id"], "stranger")
    with pytest.raises(errors.ComputeNodeInUse, match="vcpus_used 5, 1 reserved"):
        store.compute_node_destroy(made["id"], "node1.example")
    assert store.compute_node_get(id=made["id"]) == made
    store.compute_node_destroy(made["id"], "NODE1.example", force=True)
    with pytest.raises(errors.ComputeNodeNotFound):
        store.compute_node_destroy(made["id"], None)
    for found in (store.compute_nodes(), store.compute_nodes_by_host("node1.example")):
        assert found == []
    with pytest.raises(errors.ComputeNodeNotFound):
        store.compute_node_update(made["id"], {"vcpus": 1}, 0)
    back = store.compute_node_create(VALUES | {"vcpus": 3, "reserved_vcpus": 2})
    assert (back["id"], back["uuid"]) == (made["id"], made["uuid"])
    # What others used of it they use still, and 2 are reserved now.
    assert (back["vcpus"], back["vcpus_used"], back["running_vms"]) == (3, 6, None)
    assert (back["memory_mb_used"], back["free_ram_mb"]) == (512, 16000 - 512)
    assert back["deleted"] is False
    assert back["deleted_at"] is None
    with pytest.raises(errors.InventoryChanged):
        store.compute_node_update(made["id"], {"vcpus": 1}, 0)


def test_delete_and_create_many_times(store: db_store.DatabaseStore) -> None:
    ids = set()
    for _ in range(3):
        made = store.compute_node_create(VALUES)
        ids.add(made["id"])
        store.compute_node_destroy(made["id"], None)
    assert len(ids) == 1


def test_lists(store: db_store.DatabaseStore) -> None:
    made = [
        store.compute_node_create(VALUES | {"hypervisor_hostname": name})
        for name in ("a%b", "a_b", "Axb", "c")
    ]
    ids = [m["id"] for m in made]
    assert [n["id"] for n in store.compute_nodes()] == ids
    assert [n["id"] for n in store.compute_nodes_by_hypervisor("%")] == ids[:1]
    assert [n["id"] for n in store.compute_nodes_by_hypervisor("A_")] == ids[1:2]
    assert [n["id"] for n in store.compute_nodes_by_hypervisor("aX")] == ids[2:3]
    assert len(store.compute_nodes_by_hypervisor("")) == 4
    assert [n["id"] for n in store.compute_nodes_page(2, None)] == ids[:2]
    assert [n["id"] for n in store.compute_nodes_page(2, ids[1])] == ids[2:]
    assert [n["id"] for n in store.compute_nodes_page(None, ids[0])] == ids[1:]
    assert store.compute_nodes_page(0, None) == []
    for marker in (10**6, 10**30):
        with pytest.raises(errors.MarkerNotFound):
            store.compute_nodes_page(2, marker)
    with pytest.raises(errors.InvalidInput):
        store.compute_nodes_page(-1, None)
    uuids = [made[2]["uuid"].upper(), made[0]["uuid"], "nonsense"]
    assert [n["id"] for n in store.compute_nodes_by_uuids(uuids)] == [ids[0], ids[2]]
    assert store.compute_nodes_by_uuids([]) == []


def test_with_service_is_one_query(
    store: db_store.DatabaseStore, engine: sa.Engine
) -> None:
    made = store.service_create(
        {"host": "NODE1.example", "binary": "nova-compute", "topic": "compute"}
    )
    store.compute_node_create(VALUES)
    store.compute_node_create(VALUES | {"host": "alone"})
    with statements(engine) as seen:
        found = store.compute_nodes(with_service=True)
    assert seen.count("SELECT") == 1
    assert found[1]["service"] is None
    service = store.read_service(found[0]["service"])
    fields = service_obj.Service.fields.keys() & made.keys()
    assert service == {name: made[name] for name in fields}
    assert len(service) == len(service_obj.Service.fields)
    assert "service" not in store.compute_nodes()[0]


def test_services_of_a_list_are_those_of_a_look_up(
    store: db_store.DatabaseStore, engine: sa.Engine
) -> None:
    """Whatever they hold: in lists they come as JSON."""
    text = 'q"b\\s/\t\n\r\x01\x1f\x7f é ✓ </x> \u2028'
    values = {
        "disabled_reason": text, "state_evidence": "z" * 60000, "report_count": -3,
        "disabled": None, "forced_down": True, "incarnation": 2**31 - 1, "uuid": None,
        "created_at": datetime.datetime(2014, 10, 16, 1, 2, 3, tzinfo=datetime.UTC),
        "state_since": datetime.datetime(2026, 1, 2, 3, 4, 5, 60, tzinfo=datetime.UTC),
    }  # fmt: skip
    store.compute_node_create(VALUES)
    host = {"host": VALUES["host"], "binary": "nova-compute", "topic": "compute"}
    with engine.begin() as connection:
        # Two of a host: of rows that are so old the unique key knows nothing.
        old = models.services.insert().values(values | host | {"deleted": None})
        connection.execute(old)
        connection.execute(old)
        if engine.dialect.name == "mysql":
            connection.execute(sa.text("SET sql_mode = ''"))
            connection.execute(sa.text("UPDATE services SET deleted_at = 0"))
    expected = store.service_get_by_host_and_binary(VALUES["host"], "nova-compute")
    assert expected["disabled_reason"] == text
    [node] = store.compute_nodes(with_service=True)
    service = store.read_service(node["service"])
    assert {name: expected[name] for name in service} == dict(service)
    assert service["state_since"] == values["state_since"]
    assert service["deleted_at"] is None


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("host", "h" * 256, "256 characters"),
        ("host", None, "can't be empty"),
        ("hypervisor_hostname", "a\0b", "U+0000"),
        ("hypervisor_type", "\U0001f600", "U+1F600"),
        ("hypervisor_type", "\ud800", "U+D800"),
        ("hypervisor_type", None, "can't be empty"),
        ("numa_topology", "ü" * 32768, "65536 bytes"),
        ("stats", {"k": "x" * 65536}, "at most 65535"),
        ("cpu_info", "x" * 16_777_216, "16777216 bytes"),
        ("vcpus", 2**31, "between"),
        ("vcpus", "8", "integer"),
        ("vcpus", True, "integer"),
        ("cpu_allocation_ratio", float("nan"), "finite"),
        ("host_ip", "1" * 40, "at most 39"),
        ("colour", "red", "not a field"),
        ("custom_resources", {"GPU": 1}, "'GPU' is no name"),
        ("labels", {"rack": 1}, "rack: 1 is no value"),
        ("booted_at", "2026", "not an instant"),
    ],
)
def test_values_that_do_not_fit(
    store: db_store.DatabaseStore, field: str, value: Any, reason: str
) -> None:
    with pytest.raises(errors.InvalidInput) as caught:
        store.compute_node_create(VALUES | {field: value})
    assert caught.value.field == field
    assert reason in caught.value.reason
    if value is not None:
        with pytest.raises(errors.InvalidInput):
            store.compute_node_update(1, {field: value}, None)
    assert store.compute_nodes() == []


def test_custom_resources_are_kept_and_emptied(
    store: db_store.DatabaseStore, engine: sa.Engine
) -> None:
    boot = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    told = {
        "custom_resources": {"CUSTOM_A": 2**31 - 1, "CUSTOM_GPU": 0},
        "labels": {"rack": 'r"1', "site": "north"},
        "booted_at": boot,
    }
    made = store.compute_node_create(VALUES | told)
    assert {k: made[k] for k in told} == told
    less = {"custom_resources": {"CUSTOM_GPU": 3}, "labels": {}}
    answer = store.compute_node_update(made["id"], less, made["inventory_generation"])
    assert answer["inventory_generation"] == made["inventory_generation"] + 1
    (listed,) = store.compute_nodes()
    assert listed["custom_resources"] == {"CUSTOM_GPU": 3}
    assert listed["labels"] is None  # so a row of before is as one without any
    with pytest.raises(errors.InventoryChanged):
        store.compute_node_update(made["id"], told, made["inventory_generation"])
    # What nobody of ours wrote doesn't keep a list from being read.
    with engine.begin() as connection:
        odd = {"custom_resources": "{4", "labels": '{"a":1}'}
        connection.execute(models.compute_nodes.update().values(odd))
    (listed,) = store.compute_nodes()
    assert (listed["custom_resources"], listed["labels"]) == (None, None)


def test_largest_values_fit(store: db_store.DatabaseStore) -> None:
    values = VALUES | {
        "host": "h" * 255,
        "hypervisor_hostname": "n" * 255,
        "numa_topology": "x" * 65535,
        "hypervisor_type": "ü€" * 1000,
        "vcpus": 2**31 - 1,
        "cpu_info": None,
    }
    made = store.compute_node_create(values)
    assert {k: made[k] for k in values} == values | {"cpu_info": ""}


@pytest.mark.parametrize("odd", ["", "\0", "\U0001f600", "\ud800", "x" * 300, None, 7])
def test_look_ups_of_nonsense_find_nothing(
    store: db_store.DatabaseStore, odd: Any
) -> None:
    store.compute_node_create(VALUES)
    with pytest.raises(errors.ComputeNodeNotFound):
        store.compute_node_get_by_host_and_nodename(odd, "hv-1")
    with pytest.raises(errors.ComputeNodeNotFound):
        store.compute_node_get(uuid=odd)
    assert store.compute_nodes_by_host(odd) == []
    assert store.compute_nodes_by_uuids([odd]) == []
    with pytest.raises(errors.ServiceNotFound):
        store.service_get_by_host_and_binary(odd, "nova-compute")


@pytest.mark.parametrize("odd", [-1, 0, 10**30])
def test_ids_of_nonsense_find_nothing(store: db_store.DatabaseStore, odd: int) -> None:
    with pytest.raises(errors.ComputeNodeNotFound):
        store.compute_node_get(id=odd)
    with pytest.raises(errors.ComputeNodeNotFound):
        store.compute_node_update(odd, {"vcpus": 1}, None)
    with pytest.raises(errors.ComputeNodeNotFound):
        store.compute_node_destroy(odd, None)
    with pytest.raises(errors.ServiceNotFound):
        store.service_get(id=odd)
    with pytest.raises(errors.ServiceNotFound):
        store.service_update(odd, {"disabled": True})
    with pytest.raises(errors.ServiceNotFound):
        store.service_destroy(odd)
