from collections.abc import Mapping
import datetime
from importlib import metadata
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest

from compute_agent import core
from compute_agent.inventory import fake
from compute_agent.inventory import host
from compute_agent.inventory import source
from musterbook import errors
from tests.unit.compute_agent import test_bounded
from tests.unit.compute_agent import trees

TREE = pathlib.Path(__file__).parents[3]
GUIDE = (TREE / "docs/inventory.md").read_text(encoding="utf-8")


def test_each_source_has_a_name(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "nodes.json")
    conf = trees.load_conf(inventory_fake__file=path, inventory__source="fake")
    assert type(source.load(conf)) is fake.FakeInventory
    assert type(source.load(trees.load_conf())) is host.HostInventory


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        source.load(trees.load_conf(inventory__source="libvrit"))
    assert caught.value.option == "[inventory]source"
    assert re.search("'libvrit'; known are: .*fake, host, libvirt", caught.value.reason)


def test_the_error_of_a_source_s_own_option_comes_through() -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        source.load(trees.load_conf(inventory__source="fake"))
    assert caught.value.option == "[inventory_fake]file"


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("no_such_module:Source", "can't be loaded: ModuleNotFoundError: No module"),
        ("json:JSONDecoder", "isn't an InventorySource"),
    ],
)
def test_an_entry_point_that_leads_nowhere(
    monkeypatch: pytest.MonkeyPatch, target: str, reason: str
) -> None:
    point = metadata.EntryPoint("broken", target, source.NAMESPACE)
    monkeypatch.setattr(
        "stevedore.extension.ExtensionManager.list_entry_points", lambda self: [point]
    )
    with pytest.raises(errors.ConfigurationError, match=re.escape(reason)) as caught:
        source.load(trees.load_conf(inventory__source="broken"))
    assert caught.value.option == "[inventory]source"


FIELDS: dict[str, Any] = {
    name: getattr(test_bounded.node(), name)
    for name in source.NodeInventory.__dataclass_fields__
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hypervisor_hostname", "a b"),
        ("vcpus", -1),
        ("memory_mb", None),
        ("local_gb", 2**31),
        ("hypervisor_version", "1"),
        ("disk_available_least", -(2**31)),
        ("hypervisor_type", None),
        ("cpu_info", ""),
        ("cpu_info", "[]"),
        ("supported_instances", "{}"),
        ("numa_topology", "cells"),
        ("host_ip", "node-a"),
        ("boot_id", ""),
        ("booted_at", datetime.datetime(2026, 1, 2)),  # noqa: DTZ001  # as a bug has it
        ("booted_at", datetime.datetime(1969, 1, 2, tzinfo=datetime.UTC)),
        ("booted_at", "2026-01-02T03:04:05Z"),
        ("custom_resources", {"GPU": 1}),
        ("custom_resources", None),
        ("labels", {"rack": ""}),
    ],
)
def test_what_cannot_be_stored_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(errors.MusterbookError) as caught:
        source.NodeInventory(**{**FIELDS, field: value})
    assert caught.value.message.startswith(f"{field}: ")


def test_a_boot_s_instant_needs_its_id() -> None:
    when = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    with pytest.raises(errors.InvalidInput, match="booted_at: needs a boot_id"):
        source.NodeInventory(**{**FIELDS, "boot_id": None, "booted_at": when})


# -- what an audit saves ---------------------------------------------------------

BOOT = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)


def a_node(**fields: Any) -> source.NodeInventory:
    return source.NodeInventory(
        **{**FIELDS, "boot_id": "one", "booted_at": BOOT, **fields}
    )


def saved(stored: Mapping[str, object], node: source.NodeInventory) -> set[str]:
    """Return the columns that an audit would save."""
    policy = core.Policy.from_conf(trees.load_conf())
    return set(core.changes(stored, core.capacity(node, policy, stored)))


def as_stored(node: source.NodeInventory) -> dict[str, object]:
    return core.capacity(node, core.Policy.from_conf(trees.load_conf()), None)


def test_a_clock_that_is_set_writes_nothing_and_a_boot_does() -> None:
    stored = as_stored(a_node())
    later = BOOT + datetime.timedelta(seconds=1)
    assert a_node(booted_at=later) == a_node()
    assert saved(stored, a_node(booted_at=later)) == set()
    assert saved(stored, a_node(booted_at=None)) == set()
    rebooted = a_node(boot_id="two", booted_at=later)
    assert saved(stored, rebooted) == {"boot_id", "booted_at"}
    # A row of before has the boot, and not yet when it was.
    assert saved({**stored, "booted_at": None}, a_node()) == {"booted_at"}


def test_none_of_them_is_null() -> None:
    stored = as_stored(a_node())
    assert (stored["custom_resources"], stored["labels"]) == (None, None)
    two = a_node(custom_resources={"CUSTOM_B": 1, "CUSTOM_A": 2}, labels={"r": "1"})
    assert saved(stored, two) == {"custom_resources", "labels"}
    assert saved(as_stored(two), two) == set()
    other_order = a_node(
        custom_resources={"CUSTOM_A": 2, "CUSTOM_B": 1}, labels={"r": "1"}
    )
    assert other_order == two
    assert saved(as_stored(two), a_node()) == {"custom_resources", "labels"}


def test_what_a_conductor_is_too_old_for_is_not_saved_at_each_audit() -> None:
    node = a_node(custom_resources={"CUSTOM_A": 2}, labels={"r": "1"})
    stored = as_stored(node)
    for name in ("booted_at", "custom_resources", "labels"):
        del stored[name]
    assert saved(stored, node) == set()
    # As it is read anew of one that knows them.
    upgraded = {**stored, "booted_at": None, "custom_resources": None, "labels": None}
    assert saved(upgraded, node) == {"booted_at", "custom_resources", "labels"}


def test_what_is_given_may_change_later() -> None:
    given = {"CUSTOM_A": 2}
    node = a_node(custom_resources=given)
    given["CUSTOM_A"] = 3
    assert node.custom_resources == {"CUSTOM_A": 2}


@pytest.mark.parametrize("own", [{}, {"CUSTOM_A": 7, "CUSTOM_C": 1}])
def test_what_is_configured_yields_to_what_the_source_knows(
    own: dict[str, int],
) -> None:
    conf = trees.load_conf(
        inventory__custom_resources={"CUSTOM_A": 2, "CUSTOM_B": 1},
        inventory__labels={"rack": "r1"},
    )
    found = source.configured(conf, own)
    assert found["custom_resources"] == {"CUSTOM_A": 2, "CUSTOM_B": 1, **own}
    assert found["labels"] == {"rack": "r1"}
    conf.set_override("labels", {"rack": "r2"}, "inventory")  # a reload
    assert source.configured(conf)["labels"] == {"rack": "r2"}


# -- the guide -------------------------------------------------------------------


def block(language: str) -> str:
    """Return the guide's last block of a language."""
    return str(re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)[-1])


def test_the_guide_s_file_is_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "nodes.json"
    path.write_text(block("json"), encoding="utf-8")
    conf = trees.load_conf(inventory_fake__file=str(path))
    assert list(fake.FakeInventory(conf).read()) == ["node-a", "node-b"]


def test_the_guide_s_fields_are_the_fields() -> None:
    table = GUIDE.split("## ")[0]
    named = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.M)))
    assert named == list(source.NodeInventory.__dataclass_fields__)


def test_the_guide_s_source_works_as_an_installed_one(tmp_path: pathlib.Path) -> None:
    code = block("python")
    assert len(code.splitlines()) <= 40
    rack = tmp_path / "rack"
    points = block("ini").replace("[options.entry_points]\n", "")
    group, point = (line.strip() for line in points.strip().splitlines())
    trees.plant(
        tmp_path,
        {
            "rack/node-a": "8 16384 200\n",
            "rack.py": code.replace("/etc/rack", str(rack)),
            "rack-1.dist-info/METADATA": "Name: rack\nVersion: 1\n",
            "rack-1.dist-info/entry_points.txt": f"[{group.split()[0]}]\n{point}\n",
        },
    )
    script = (
        "import rack\n"
        "from compute_agent import core\n"
        "from compute_agent.inventory import bounded, source\n"
        "from tests.unit.compute_agent import trees\n"
        "conf = trees.load_conf(\n"
        "    inventory__source='rack', inventory__labels={'rack': 'r1'}\n"
        ")\n"
        "reader = bounded.BoundedReader(source.load(conf), 30.0, 'rack')\n"
        "policy = core.Policy.from_conf(conf)\n"
        "stored = core.capacity(reader.read()['node-a'], policy, None)\n"
        "print(stored['vcpus'], stored['memory_mb'], stored['local_gb'])\n"
        "print(stored['labels'])\n"
        "again = core.capacity(reader.read()['node-a'], policy, stored)\n"
        "print(core.changes(stored, again))\n"
        "(rack.DIRECTORY / 'node-a').write_text('8 32768 200')\n"
        "grown = core.capacity(reader.read()['node-a'], policy, stored)\n"
        "print(core.changes(stored, grown))\n"
    )
    path = os.pathsep.join([str(tmp_path), str(TREE)])
    run = subprocess.run(
        [sys.executable, "-c", script],
        # stevedore keeps what it found in a cache of the user's.
        env={**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path / "c")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = ["8 16384 200", "{'rack': 'r1'}", "{}", "{'memory_mb': 32768}"]
    assert run.stdout.splitlines() == lines, run.stderr


def test_the_instant_of_the_boot_is_told_as_it_is_stored() -> None:
    east = datetime.timezone(datetime.timedelta(hours=2))
    when = datetime.datetime(2026, 1, 2, 5, 4, 5, tzinfo=east)
    told = a_node(boot_id="two", booted_at=when).columns()["booted_at"]
    assert isinstance(told, datetime.datetime)
    assert told.isoformat() == "2026-01-02T03:04:05+00:00"
