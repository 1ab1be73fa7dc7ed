from collections.abc import Mapping
import dataclasses
import json
import math
import pathlib
import struct
from typing import Any

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from compute_agent import core
from compute_agent.inventory import source
from conductor.db import booking
from conductor.db import usage
from musterbook import conf as conf_mod
from musterbook import errors
from tests.unit.compute_agent import test_resource_tracker
from tests.unit.compute_agent import trees

# A busy machine is no failure.
UNHURRIED = settings(deadline=None)
RATIOS = ("cpu_allocation_ratio", "ram_allocation_ratio", "disk_allocation_ratio")

counts = st.integers(0, source.MAX_INTEGER)
texts = st.text(st.characters(codec="ascii", min_codepoint=33), min_size=1, max_size=9)
inventories = st.builds(
    source.NodeInventory,
    hypervisor_hostname=st.from_regex(r"[A-Za-z0-9_-]{1,9}", fullmatch=True),
    vcpus=counts,
    memory_mb=counts,
    local_gb=counts,
    disk_available_least=st.none() | st.integers(-1000, 1000),
    hypervisor_type=texts,
    hypervisor_version=counts,
    cpu_info=st.dictionaries(texts, texts).map(source.canonical),
    host_ip=st.none() | st.ip_addresses().map(str),
    supported_instances=st.lists(texts).map(source.canonical),
    numa_topology=st.none() | st.just('{"cells":[]}'),
    boot_id=st.none() | st.uuids().map(str),
)
sane = st.floats(core.MIN_RATIO, core.MAX_RATIO)
ratios = st.builds(core.Ratio, configured=st.none() | sane, initial=sane)
policies = st.builds(
    core.Policy,
    reserved_vcpus=counts,
    reserved_memory_mb=counts,
    reserved_local_gb=counts,
    cpu=ratios,
    ram=ratios,
    disk=ratios,
)
# Whatever a database that was taken over might hold in these columns.
junk = st.none() | st.floats() | st.integers() | st.text() | st.booleans()
records = st.none() | st.dictionaries(
    st.sampled_from([*RATIOS, "vcpus", "hypervisor_hostname", "host_ip"]), junk
)


@UNHURRIED
@given(inventories, policies, records)
def test_what_was_saved_need_not_be_saved_again(
    inventory: source.NodeInventory,
    policy: core.Policy,
    stored: Mapping[str, object] | None,
) -> None:
    wanted = core.capacity(inventory, policy, stored)
    saved = {**(stored or {}), **core.changes(stored, wanted)}
    assert core.changes(saved, core.capacity(inventory, policy, saved)) == {}


@UNHURRIED
@given(inventories, policies, records)
def test_a_ratio_is_always_one_to_reckon_with(
    inventory: source.NodeInventory,
    policy: core.Policy,
    stored: Mapping[str, object] | None,
) -> None:
    wanted = core.capacity(inventory, policy, stored)
    saved = {**(stored or {}), **core.changes(stored, wanted)}
    for record in (wanted, saved):
        for name in RATIOS:
            value = record[name]
            assert isinstance(value, int | float)
            assert not isinstance(value, bool)
            assert core.MIN_RATIO <= value <= core.MAX_RATIO


@UNHURRIED
@given(inventories, policies)
def test_a_new_node_gets_every_column(
    inventory: source.NodeInventory, policy: core.Policy
) -> None:
    wanted = core.capacity(inventory, policy, None)
    assert core.changes(None, wanted) == wanted
    # The uuid is given once; that it roams is for the agent alone.
    assert wanted.keys() == {
        *(
            field.name
            for field in dataclasses.fields(inventory)
            if field.name != "used"
        ),
        *RATIOS,
        "reserved_vcpus",
        "reserved_memory_mb",
        "reserved_local_gb",
    } - {"uuid", "roams"}


@UNHURRIED
@given(inventories, policies, sane)
def test_only_what_differs_is_saved(
    inventory: source.NodeInventory, policy: core.Policy, ratio: float
) -> None:
    saved = core.capacity(inventory, policy, None)
    more = dataclasses.replace(inventory, vcpus=(inventory.vcpus + 1) % 2**31)
    assert core.changes(saved, core.capacity(more, policy, saved)) == {
        "vcpus": more.vcpus
    }


@UNHURRIED
@given(sane)
def test_single_precision_in_the_database_causes_no_writes(ratio: float) -> None:
    (rounded,) = struct.unpack("f", struct.pack("f", ratio))
    as_mysql_shows_it = float(f"{rounded:.6g}")
    wanted = {"cpu_allocation_ratio": ratio}
    assert core.changes({"cpu_allocation_ratio": as_mysql_shows_it}, wanted) == {}


@pytest.mark.parametrize("stored", [None, 0.0, 0, -1.0, math.nan, math.inf, "4", True])
def test_a_senseless_stored_ratio_is_replaced(stored: object) -> None:
    ratio = core.Ratio(configured=None, initial=4.0)
    assert ratio.in_force(stored) == 4.0


def test_configured_wins_over_stored_wins_over_initial() -> None:
    assert core.Ratio(configured=8.0, initial=4.0).in_force(2.0) == 8.0
    assert core.Ratio(configured=None, initial=4.0).in_force(2.0) == 2.0
    assert core.Ratio(configured=None, initial=4.0).in_force(None) == 4.0


def policy(**conf: Any) -> core.Policy:
    return core.Policy.from_conf(trees.load_conf(**conf))


@pytest.mark.parametrize(
    ("disk_mb", "reserved_gb"), [(0, 0), (1, 1), (500, 1), (1024, 1), (10240, 10)]
)
def test_reserved_disk_is_rounded_up(disk_mb: int, reserved_gb: int) -> None:
    assert policy(reserved_host_disk_mb=disk_mb).reserved_local_gb == reserved_gb


def test_the_defaults() -> None:
    assert policy() == core.Policy(
        reserved_vcpus=0,
        reserved_memory_mb=512,
        reserved_local_gb=0,
        cpu=core.Ratio(None, 4.0),
        ram=core.Ratio(None, 1.0),
        disk=core.Ratio(None, 1.0),
    )


def test_zero_is_unset_and_a_change_is_taken_up() -> None:
    assert policy(cpu_allocation_ratio=0.0).cpu.configured is None
    assert policy(cpu_allocation_ratio=16.0).cpu.in_force(4.0) == 16.0


@pytest.mark.parametrize(
    "option",
    ["cpu_allocation_ratio", "ram_allocation_ratio", "initial_cpu_allocation_ratio"],
)
@pytest.mark.parametrize("value", ["-1", "nan", "inf", "1e-9", "1001", "abc"])
def test_a_senseless_ratio_is_named(
    tmp_path: pathlib.Path, option: str, value: str
) -> None:
    assert refused(tmp_path, option, value).startswith(f"option {option}: ")


@pytest.mark.parametrize(
    "option",
    ["reserved_host_memory_mb", "reserved_host_disk_mb", "reserved_host_cpus"],
)
@pytest.mark.parametrize("value", ["-1", str(2**31), "10m"])
def test_a_senseless_reserve_is_named(
    tmp_path: pathlib.Path, option: str, value: str
) -> None:
    assert refused(tmp_path, option, value).startswith(f"option {option}: ")


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_no_number_may_be_infinite(tmp_path: pathlib.Path, value: str) -> None:
    refusal = refused(tmp_path, "update_resources_interval", value)
    assert refusal.startswith("option update_resources_interval: ")


def refused(tmp_path: pathlib.Path, option: str, value: str) -> str:
    path = tmp_path / "musterbook.conf"
    path.write_text(f"[DEFAULT]\n{option} = {value}\n")
    with pytest.raises(errors.ConfigurationError) as caught:
        core.Policy.from_conf(conf_mod.load([], "x", config_files=[str(path)]))
    return caught.value.message


def test_the_case_of_a_name_is_no_change() -> None:
    wanted = {"hypervisor_hostname": "Node-A"}
    assert core.changes({"hypervisor_hostname": "node-a"}, wanted) == {}
    assert core.changes({"hypervisor_hostname": None}, wanted) == wanted
    assert core.changes({"hypervisor_hostname": "node-b"}, wanted) == wanted
    assert core.changes({}, wanted) == wanted


def test_canonical_text_does_not_depend_on_order() -> None:
    assert json.loads(source.canonical({"b": [1], "a": "ä"})) == {"a": "ä", "b": [1]}
    assert source.canonical({"b": 1, "a": 2}) == source.canonical({"a": 2, "b": 1})


amounts = st.builds(core.Amounts, counts, counts, counts)


@UNHURRIED
@given(inventories, st.lists(amounts, max_size=5), policies, records)
def test_usage_is_what_the_conductor_makes_of_it(
    inventory: source.NodeInventory,
    claims: list[core.Amounts],
    policy: core.Policy,
    stored: Mapping[str, object] | None,
) -> None:
    """One formula on both sides: an agent that reckons otherwise misleads claims."""
    made = core.node(inventory, claims, policy, stored)
    row = {**made.columns, "booking": booking.Booking.CONFIRMED}
    others = booking.Amounts(*(sum(column) for column in zip(*claims, strict=True)))
    book = booking.Book(others=others)
    settled = booking.settle(row, row, book).columns
    for used, column in zip(made.used, usage.RESOURCES, strict=True):
        assert used == settled[column.used]
    assert made.free.memory_mb == settled["free_ram_mb"]
    assert made.free.local_gb == settled["free_disk_gb"]
    for free, has, used in zip(
        made.free,
        (inventory.vcpus, inventory.memory_mb, inventory.local_gb),
        made.used,
        strict=True,
    ):
        assert free == has - used  # and so below 0 where more is used than there is


@UNHURRIED
@given(inventories, st.lists(amounts, max_size=5), policies, records)
def test_claims_change_nothing_that_an_agent_writes(
    inventory: source.NodeInventory,
    claims: list[core.Amounts],
    policy: core.Policy,
    stored: Mapping[str, object] | None,
) -> None:
    columns = core.node(inventory, claims, policy, stored).columns
    assert columns == core.node(inventory, [], policy, stored).columns
    assert not [name for name in columns if "used" in name or "free" in name]


@pytest.mark.parametrize(
    ("stored", "boot_id", "anew"),
    [
        ({"boot_id": "a"}, "b", True),
        ({"boot_id": "a"}, "a", False),
        ({"boot_id": None}, "a", False),  # a row of Juno's
        ({}, "a", False),
        ({"boot_id": "a"}, None, False),  # the source can't tell any more
    ],
)
def test_a_boot_is_told_from_what_was_not_known(
    stored: dict[str, object], boot_id: str | None, anew: bool
) -> None:
    reading = test_resource_tracker.node("n1", boot_id=boot_id)
    assert core.booted_anew(stored, reading) is anew
