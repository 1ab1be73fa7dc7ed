from importlib import metadata
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest

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
    assert re.search("'libvrit'; known are: .*fake, host", caught.value.reason)


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
    ],
)
def test_what_cannot_be_stored_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(errors.MusterbookError) as caught:
        source.NodeInventory(**{**FIELDS, field: value})
    assert caught.value.message.startswith(f"{field}: ")


# -- the guide -------------------------------------------------------------------


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)
    return str(found)


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
        "from compute_agent.inventory import bounded, source\n"
        "from tests.unit.compute_agent import trees\n"
        "conf = trees.load_conf(inventory__source='rack')\n"
        "reader = bounded.BoundedReader(source.load(conf), 30.0, 'rack')\n"
        "node = reader.read()['node-a']\n"
        "print(node.vcpus, node.memory_mb, node.local_gb)\n"
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
    assert run.stdout == "8 16384 200\n", run.stderr
