"""Usage is the sum of allocations: taking over, confirming, going and coming back."""

import datetime
import json
import logging
import pathlib
from typing import Any

import pytest
import sqlalchemy as sa

from conductor.db import audit
from conductor.db import liveness
from conductor.db import models
from conductor.db import online
from conductor.db import purge
from conductor.db import store as db_store
from musterbook import context
from musterbook import errors
from tests.functional.db import command
from tests.functional.db import juno
from tests.functional.db import sums

#: What an agent of ours reports that reserves nothing, and the defaults.
REPORT: dict[str, Any] = {"cpu_allocation_ratio": 4.0}
RESERVING = REPORT | {
    "reserved_vcpus": 1,
    "reserved_memory_mb": 512,
    "reserved_local_gb": 10,
}
IDENTITY = {"host": "h1", "hypervisor_hostname": "hv"}
CAPACITY = {"vcpus": 8, "memory_mb": 16000, "local_gb": 500}


@pytest.fixture
def legacy(engine: sa.Engine) -> sa.Engine:
    """Return a node with 2 CPUs, 4608 MiB (with the host's) and 40 GiB in use."""
    with engine.begin() as c:
        juno.service(c, 1, "h1")
        juno.node(c, 1, 1, "hv")
    return engine


def used(store: db_store.DatabaseStore, node_id: int = 1) -> tuple[int, ...]:
    row = store.compute_node_get(id=node_id)
    assert row["free_ram_mb"] == row["memory_mb"] - row["memory_mb_used"]
    assert row["free_disk_gb"] == row["local_gb"] - row["local_gb_used"]
    return row["vcpus_used"], row["memory_mb_used"], row["local_gb_used"]


def migrate(engine: sa.Engine) -> None:
    assert list(online.migrate(engine))


def broken(engine: sa.Engine, kind: str = "usage_not_the_sum") -> list[Any]:
    return next(list(found) for k, found in audit.findings(engine) if k.name == kind)


@pytest.mark.parametrize("first", ["save", "migration"])
def test_what_is_reserved_is_not_counted_twice(
    legacy: sa.Engine, store: db_store.DatabaseStore, first: str
) -> None:
    if first == "migration":
        migrate(legacy)
        assert used(store) == (2, 4608, 40)
        assert sums.allocations(legacy) == [("legacy", "held", 2, 4608, 40)]
        sums.check(legacy)
    answer = store.compute_node_update(1, RESERVING, 0)
    assert answer["usage_confirmed"] is False
    # Juno counted the host's memory and disk, and knew no reserved CPUs.
    assert used(store) == (3, 4608, 40)
    assert sums.allocations(legacy) == [("legacy", "held", 2, 4096, 30)]
    sums.check(legacy)
    # From then on it's a change like any other.
    store.compute_node_update(1, {"reserved_memory_mb": 1024}, 1)
    assert used(store) == (3, 5120, 40)
    sums.check(legacy)


def test_the_first_report_may_reserve_nothing(
    legacy: sa.Engine, store: db_store.DatabaseStore
) -> None:
    store.compute_node_update(1, REPORT, 0)
    store.compute_node_update(1, {"reserved_memory_mb": 512}, 1)
    assert used(store) == (2, 4608 + 512, 40)
    sums.check(legacy)


def test_a_save_that_is_no_report_leaves_the_reserved_part_open(
    legacy: sa.Engine, store: db_store.DatabaseStore
) -> None:
    store.compute_node_update(1, {"vcpus": 16, "running_vms": 3}, 0)
    assert used(store) == (2, 4608, 40)
    store.compute_node_update(1, RESERVING, 1)
    assert used(store) == (3, 4608, 40)
    sums.check(legacy)


def test_more_is_reserved_than_was_used(
    legacy: sa.Engine, store: db_store.DatabaseStore
) -> None:
    store.compute_node_update(1, RESERVING | {"reserved_memory_mb": 8192}, 0)
    assert used(store) == (3, 8192, 40)
    assert sums.allocations(legacy) == [("legacy", "held", 2, 0, 30)]
    sums.check(legacy)


@pytest.mark.parametrize("by_save", [True, False])
def test_an_empty_node_has_nothing_to_confirm(
    engine: sa.Engine, store: db_store.DatabaseStore, by_save: bool
) -> None:
    with engine.begin() as c:
        juno.service(c, 1, "h1")
        empty = {"vcpus_used": 0, "memory_mb_used": -512, "local_gb_used": 0}
        juno.node(c, 1, 1, "hv", **empty)
    if not by_save:
        migrate(engine)
    assert store.compute_node_update(1, RESERVING, 0)
    assert store.compute_node_get(id=1)["usage_confirmed"] is True
    assert used(store) == (1, 512, 10)
    assert sums.allocations(engine) == []
    sums.check(engine)


def test_what_older_code_took_over_is_booked_as_well(
    legacy: sa.Engine, store: db_store.DatabaseStore, tmp_path: pathlib.Path
) -> None:
    """Code of the previous revision stores hosts, and knows no booking."""
    with legacy.begin() as c:
        c.execute(sa.text("UPDATE compute_nodes SET host = 'h1', service_id = NULL"))
        juno.node(c, 2, 1, "hv2", host="h1", reserved_memory_mb=512)
    assert [row["id"] for row in broken(legacy, "legacy_nodes")] == [1, 2]
    store.compute_node_update(1, {"running_vms": 1}, None)
    migrate(legacy)
    assert [used(store, n) for n in (1, 2)] == [(2, 4608, 40)] * 2
    assert sums.allocations(legacy, 2) == [("legacy", "held", 2, 4096, 40)]
    sums.check(legacy)


def test_usage_is_not_the_callers_to_write(store: db_store.DatabaseStore) -> None:
    node = IDENTITY | CAPACITY
    other = node | {"hypervisor_hostname": "other"}
    made = store.compute_node_create(node)
    for field in (
        "vcpus_used", "memory_mb_used", "local_gb_used", "free_ram_mb", "free_disk_gb",
    ):  # fmt: skip
        with pytest.raises(errors.InvalidInput, match="conductor's") as caught:
            store.compute_node_create(other | {field: 1})
        assert caught.value.field == field
        with pytest.raises(errors.InvalidInput, match="conductor's") as caught:
            store.compute_node_update(made["id"], {field: 1, "vcpus": 3}, 0)
        assert caught.value.field == field
    assert store.compute_nodes() == [made]


def test_a_peer_of_version_1_0_writes_usage_until_it_is_replaced(
    store: db_store.DatabaseStore, engine: sa.Engine
) -> None:
    """It creates, saves, goes; ours takes over; it comes back."""

    def save(**values: int) -> None:
        store.compute_node_update(node_id, values, None, writes_usage=True)
        sums.check(engine)

    values = IDENTITY | CAPACITY | {"memory_mb_used": 512, "free_ram_mb": 3}
    node_id = store.compute_node_create(values, writes_usage=True)["id"]
    assert used(store, node_id) == (0, 512, 0)
    save(vcpus_used=4, memory_mb_used=2560, local_gb_used=20, free_ram_mb=-9)
    assert used(store, node_id) == (4, 2560, 20)
    save(memory_mb_used=4608)
    assert used(store, node_id) == (4, 4608, 20)
    save(vcpus_used=0, memory_mb_used=0, local_gb_used=0)
    assert sums.allocations(engine) == [("legacy", "released", 4, 4608, 20)]
    save(vcpus_used=1, memory_mb_used=1536)
    assert sums.allocations(engine) == [("legacy", "held", 1, 1536, 0)]
    store.compute_node_update(node_id, RESERVING, 0)
    assert used(store, node_id) == (2, 1536, 10)
    told = {"vcpus": 1, "memory_mb": 1000, "local_gb": 0}
    store.compute_node_confirm_usage(node_id, told)
    # Less than what is reserved can't be used.
    save(memory_mb_used=100, vcpus_used=5)
    assert used(store, node_id) == (5, 512, 10)
    assert store.compute_node_get(id=node_id)["usage_confirmed"] is False


@pytest.mark.parametrize(
    ("told", "state"),
    [
        ({"vcpus": 2, "memory_mb": 4096, "local_gb": 30}, "confirmed"),
        ({"vcpus": 9, "memory_mb": 0, "local_gb": 31}, "confirmed"),
        ({"vcpus": 0, "memory_mb": 0, "local_gb": 0}, "released"),
    ],
)
def test_an_agent_confirms_or_corrects_once(
    legacy: sa.Engine,
    store: db_store.DatabaseStore,
    told: dict[str, int],
    state: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    store.compute_node_update(1, RESERVING, 0)
    assert [row["id"] for row in broken(legacy, "unconfirmed_usage")] == [1]
    answer = store.compute_node_confirm_usage(1, told)
    expected = (1 + told["vcpus"], 512 + told["memory_mb"], 10 + told["local_gb"])
    row = store.compute_node_get(id=1)
    assert used(store) == expected
    assert row["usage_confirmed"] is True
    assert {name: row[name] for name in answer} == dict(answer)
    ((_, found, *_),) = sums.allocations(legacy)
    assert found == state
    assert broken(legacy, "unconfirmed_usage") == []
    assert "booked until now: vcpus 2, memory_mb 4096, local_gb 30" in caplog.text
    # Again, late, or of something else: it is confirmed.
    caplog.clear()
    for again in (told, {"vcpus": 1, "memory_mb": 1, "local_gb": 1}):
        answer = store.compute_node_confirm_usage(1, again)
        assert answer["usage_confirmed"] is True
        assert store.compute_node_get(id=1) == row
    assert caplog.text == ""
    sums.check(legacy)


def test_what_can_not_be_confirmed(
    legacy: sa.Engine, store: db_store.DatabaseStore
) -> None:
    good: dict[str, Any] = {"vcpus": 1, "memory_mb": 1, "local_gb": 1}
    bad: list[Any] = [None, {"vcpus": 1, "memory_mb": 1}, good | {"pci": 1}]
    bad += [good | {"vcpus": amount} for amount in (-1, 1.5, True, 2**31, None, "1")]
    bad += [good | {"memory_mb": 2**31 - 1}]  # too much with what is reserved
    store.compute_node_update(1, RESERVING, 0)
    before = store.compute_node_get(id=1)
    for told in bad:
        with pytest.raises(errors.InvalidInput):
            store.compute_node_confirm_usage(1, told)
    assert store.compute_node_get(id=1) == before
    with pytest.raises(errors.ComputeNodeNotFound):
        store.compute_node_confirm_usage(2, good)


def test_only_the_granted_agent_confirms(
    legacy: sa.Engine, store: db_store.DatabaseStore
) -> None:
    live = liveness.LivenessStore(legacy)
    secrets = ("first-secret", "second-secret")
    grants = [
        context.Grant(
            "h1", live.grant("h1", "nova-compute", "compute", s, None, None, s, n), s
        )
        for n, s in zip((None, 1), secrets, strict=True)
    ]
    store.compute_node_update(1, RESERVING, 0, grants[1])
    told = {"vcpus": 1, "memory_mb": 1, "local_gb": 1}
    with pytest.raises(errors.Superseded):
        store.compute_node_confirm_usage(1, told, grants[0])
    other = live.grant("h2", "nova-compute", "compute", "p", None, None, "s" * 9, None)
    with pytest.raises(errors.ComputeNodeMoved, match="h1"):
        store.compute_node_confirm_usage(1, told, context.Grant("h2", other, "s" * 9))
    assert used(store) == (3, 4608, 40)
    store.compute_node_confirm_usage(1, told, grants[1])
    assert used(store) == (2, 513, 11)


@pytest.mark.parametrize("reported", [True, False])
def test_a_node_that_comes_back_has_its_usage(
    legacy: sa.Engine, store: db_store.DatabaseStore, reported: bool
) -> None:
    if reported:
        store.compute_node_update(1, RESERVING, 0)
    else:
        migrate(legacy)
    store.compute_node_destroy(1, "h1", force=True)
    assert [a[1] for a in sums.allocations(legacy)] == ["held"]
    back = store.compute_node_create(IDENTITY | CAPACITY | RESERVING)
    assert (back["id"], back["usage_confirmed"]) == (1, False)
    assert used(store) == (3, 4608, 40)
    sums.check(legacy)


def test_an_orphan_that_comes_back_has_its_usage(
    engine: sa.Engine, store: db_store.DatabaseStore
) -> None:
    with engine.begin() as c:
        juno.service(c, 1, "h1", deleted=1)
        juno.node(c, 1, 1, "hv")
    migrate(engine)
    assert store.compute_nodes() == []
    back = store.compute_node_create(IDENTITY | CAPACITY | RESERVING)
    assert back["id"] == 1
    assert used(store) == (3, 4608, 40)
    sums.check(engine)


def test_a_duplicate_adds_nothing(
    engine: sa.Engine, store: db_store.DatabaseStore
) -> None:
    with engine.begin() as c:
        juno.service(c, 1, "h1")
        juno.service(c, 2, "H1", deleted=2)
        juno.node(c, 1, 1, "hv")
        juno.node(c, 2, 2, "HV", vcpus_used=7)
        juno.node(c, 3, 1, "Hv", vcpus_used=5)
    # An orphan may be saved, and is booked then.
    store.compute_node_update(2, {"running_vms": 1}, None)
    migrate(engine)
    assert [n["id"] for n in store.compute_nodes()] == [1]
    assert used(store) == (2, 4608, 40)
    assert sums.allocations(engine, 1) == [("legacy", "held", 2, 4608, 40)]
    live = [a for a in sums.allocations(engine) if a[1] in sums.LIVE]
    assert len(live) == 1
    sums.check(engine)


def test_purged_with_its_node(legacy: sa.Engine, store: db_store.DatabaseStore) -> None:
    migrate(legacy)
    store.compute_node_destroy(1, None, force=True)
    list(purge.purge(legacy))
    assert sums.allocations(legacy) == []
    made = store.compute_node_create(IDENTITY | CAPACITY)
    assert used(store, made["id"]) == (0, 0, 0)


def test_db_check_names_what_is_not_the_sum(
    legacy: sa.Engine,
    store: db_store.DatabaseStore,
    database_url: str,
    tmp_path: pathlib.Path,
) -> None:
    store.compute_node_update(1, RESERVING, 0)
    migrate(legacy)  # the service
    done = command.manage(tmp_path, database_url, "db", "check")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("for information: unconfirmed_usage: 1 (")
    assert lines[2].split() == ["1", "h1", "hv", "2", "4096", "30"]
    assert (done.returncode, lines[-1]) == (0, "nothing found")
    with legacy.begin() as c:
        c.execute(sa.text("UPDATE compute_nodes SET memory_mb_used = 4609"))
    with pytest.raises(AssertionError):
        sums.check(legacy)
    done = command.manage(tmp_path, database_url, "db", "check", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["clean"]) == (1, False)
    (row,) = told["findings"]["usage_not_the_sum"]
    assert (row["id"], row["memory_mb_used"], row["memory_mb_booked"]) == (
        1,
        4609,
        4608,
    )
    assert [row["id"] for row in told["information"]["unconfirmed_usage"]] == [1]
    # The next thing that looks at its allocations mends it.
    told_now = {"vcpus": 2, "memory_mb": 4096, "local_gb": 30}
    store.compute_node_confirm_usage(1, told_now)
    assert broken(legacy) == []


@pytest.mark.parametrize("reporter", ["ours", "of version 1.0"])
def test_what_older_code_left_is_mended(
    legacy: sa.Engine,
    store: db_store.DatabaseStore,
    database_url: str,
    tmp_path: pathlib.Path,
    reporter: str,
) -> None:
    """A conductor that books nothing wrote usage: by create or for a 1.0 peer."""
    migrate(legacy)
    if reporter == "ours":
        store.compute_node_update(1, RESERVING, 0)
        written, right = 512, (3, 4608, 40)
    else:
        written, right = 5120, (2, 5120, 40)
    with legacy.begin() as c:
        query = sa.text("UPDATE compute_nodes SET memory_mb_used = :used")
        c.execute(query, {"used": written})
    if reporter == "ours":
        # It adds and subtracts: it doesn't look.
        store.compute_node_update(1, {"vcpus": 9}, None)
    assert [row["id"] for row in broken(legacy)] == [1]
    before = command.content(legacy)
    line = f"usage mended: compute node 1 (host h1, name hv): used vcpus {right[0]}, "
    done = command.inside(
        tmp_path, database_url, "db", "online_data_migrations", "--dry-run"
    )
    assert line in done.stdout
    assert command.content(legacy) == before
    done = command.inside(tmp_path, database_url, "db", "online_data_migrations")
    assert (done.returncode, done.stderr) == (0, "")
    assert line in done.stdout
    assert used(store) == right
    sums.check(legacy)
    done = command.inside(tmp_path, database_url, "db", "online_data_migrations")
    assert "mended" not in done.stdout


def test_usage_is_mended_when_the_count_is_reached_by_the_last_row(
    legacy: sa.Engine,
    store: db_store.DatabaseStore,
    database_url: str,
    tmp_path: pathlib.Path,
) -> None:
    """An upgrade script that runs it in batches ends with the first 0."""
    migrate(legacy)
    with legacy.begin() as c:
        c.execute(sa.text("UPDATE compute_nodes SET memory_mb_used = 512"))
        juno.node(c, 2, 1, "hv2")
    action = ("db", "online_data_migrations", "--max-count", "1")
    done = command.inside(tmp_path, database_url, *action, "--dry-run")
    assert (done.returncode, "usage mended: compute node 1" in done.stdout) == (0, True)
    done = command.inside(tmp_path, database_url, *action)
    assert (done.returncode, "usage mended: compute node 1" in done.stdout) == (0, True)
    sums.check(legacy)


def test_usage_that_can_not_be_mended_is_stuck(
    legacy: sa.Engine, database_url: str, tmp_path: pathlib.Path
) -> None:
    migrate(legacy)
    claim = {
        "node_id": 1, "kind": "claim", "state": "confirmed",
        "vcpus": 0, "memory_mb": 2**31 - 1, "local_gb": 0,
        "created_at": datetime.datetime.now(datetime.UTC),
    }  # fmt: skip
    with legacy.begin() as c:
        for last in "12":
            row = claim | {"uuid": f"7d9f9f2e-5a4a-4d15-8f9f-5a0b3bb0a00{last}"}
            c.execute(models.allocations.insert().values(row))
    before = command.content(legacy)
    for more in ((), ("--dry-run",)):
        done = command.inside(
            tmp_path, database_url, "db", "online_data_migrations", *more
        )
        assert (done.returncode, done.stderr) == (2, "")
        assert "not mended: compute node 1 (host h1, name hv): " in done.stdout
        assert done.stdout.splitlines()[-1].startswith("stuck: 1 row")
        assert command.content(legacy) == before
