from collections.abc import Iterator
import dataclasses
import datetime
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from typing import Any
import uuid

import pytest

from compute_agent.inventory import cgroup
from compute_agent.inventory import host
from compute_agent.inventory import source
from musterbook import errors
from tests.unit.compute_agent import trees

MIB = 1024**2
GIB = 1024**3


@dataclasses.dataclass(frozen=True)
class Disk:
    total: int


def build(
    root: pathlib.Path, total: int = 200 * GIB, **conf: Any
) -> host.HostInventory:
    return host.HostInventory(
        trees.load_conf(**conf),
        root=root,
        machine="x86_64",
        disk_usage=lambda path: Disk(total),
        interfaces=dict,
    )


def read(root: pathlib.Path, **conf: Any) -> source.NodeInventory:
    nodes = build(root, **conf).read()
    assert list(nodes) == ["node-a"]
    return nodes["node-a"]


def test_a_server_without_limits(tmp_path: pathlib.Path) -> None:
    node = read(trees.plant(tmp_path, trees.SERVER), my_ip="192.0.2.7")
    assert node == source.NodeInventory(
        hypervisor_hostname="node-a",
        vcpus=8,
        memory_mb=16384,
        local_gb=200,
        disk_available_least=None,
        hypervisor_type="host",
        hypervisor_version=6018002,
        cpu_info=node.cpu_info,
        host_ip="192.0.2.7",
        supported_instances='[["x86_64","host","exe"]]',
        numa_topology='{"cells":['
        '{"cpus":[0,1,4,5],"id":0,"memory_mb":8192},'
        '{"cpus":[2,3,6,7],"id":1,"memory_mb":8192}]}',
        boot_id="0a4e1f6e-0000-4000-8000-000000000001",
    )
    assert json.loads(node.cpu_info)["topology"]["sockets"] == 2


@pytest.mark.parametrize(
    ("quota", "vcpus"),
    [("max 100000", 8), ("399999 100000", 3), ("20000 100000", 1), ("9900 99", 8)],
)
def test_a_quota_is_rounded_down_but_not_to_nothing(
    tmp_path: pathlib.Path, quota: str, vcpus: int
) -> None:
    root = trees.plant(
        tmp_path, trees.SERVER, trees.v2("/"), {"sys/fs/cgroup/cpu.max": quota}
    )
    assert read(root).vcpus == vcpus


def test_affinity_and_cpuset_both_hold(tmp_path: pathlib.Path) -> None:
    root = trees.plant(
        tmp_path,
        trees.SERVER,
        trees.v2("/"),
        {
            "proc/self/status": "Cpus_allowed_list:\t1-4\nMems_allowed_list:\t0\n",
            "sys/fs/cgroup/cpuset.cpus.effective": "0-2\n",
        },
    )
    node = read(root)
    assert node.vcpus == 2
    assert node.memory_mb == 8192
    assert json.loads(node.numa_topology or "")["cells"] == [
        {"id": 0, "cpus": [1], "memory_mb": 8192},
        {"id": 1, "cpus": [2], "memory_mb": 0},
    ]


def test_a_hot_plugged_cpu_counts_once_it_is_online(tmp_path: pathlib.Path) -> None:
    root = trees.plant(
        tmp_path, trees.SERVER, {"sys/devices/system/cpu/online": "0-6\n"}
    )
    source_ = build(root)
    before = source_.read()["node-a"].vcpus
    trees.plant(root, {"sys/devices/system/cpu/online": "0-7\n"})
    assert (before, source_.read()["node-a"].vcpus) == (7, 8)


MEMORY: dict[str, str] = {
    "proc/meminfo": "MemTotal:       33554432 kB\n",
    "sys/devices/system/node/node1/meminfo": "Node 1 MemTotal:       25165824 kB\n",
}
HOT_PLUGGED: dict[str, str] = {
    "sys/devices/system/cpu/online": "0-8\n",
    "sys/devices/system/node/node1/cpulist": "2-3,6-8\n",
    **trees.topology(8, socket=1, siblings="8"),
    "proc/cpuinfo": "".join(trees.x86_cpuinfo(n) for n in range(9)),
}


@pytest.mark.parametrize(
    ("tree", "total", "changed"),
    [
        ({}, 200, {}),
        (MEMORY, 200, {"memory_mb": 32768, "cells": [8192, 24576]}),
        (HOT_PLUGGED, 200, {"vcpus": 9}),
        ({}, 300, {"local_gb": 300}),
        ({}, 100, {"local_gb": 100}),
    ],
)
def test_hardware_that_is_plugged_in_or_out_shows_at_the_next_reading(
    tmp_path: pathlib.Path, tree: dict[str, str], total: int, changed: dict[str, Any]
) -> None:
    sizes = [200 * GIB]
    root = trees.plant(tmp_path, trees.SERVER)
    inventory = build(root)
    inventory._disk_usage = lambda path: Disk(sizes[0])
    before = inventory.read()["node-a"]
    trees.plant(root, tree)
    sizes[0] = total * GIB
    after = inventory.read()["node-a"]
    assert (after == before) is (not changed)
    for name in ("vcpus", "memory_mb", "local_gb"):
        assert getattr(after, name) == changed.get(name, getattr(before, name))
    cells = json.loads(str(after.numa_topology))["cells"]
    assert [c["memory_mb"] for c in cells] == changed.get("cells", [8192, 8192])
    # And gone again.
    trees.plant(root, trees.SERVER)
    sizes[0] = 200 * GIB
    assert inventory.read() == {"node-a": before}


def test_the_boot_is_told_and_when_it_was(tmp_path: pathlib.Path) -> None:
    root = trees.plant(tmp_path, trees.SERVER)
    assert read(root).booted_at is None
    stat = "cpu  1 2 3\nintr 5\nbtime 1767323045\nprocesses 9\n"
    trees.plant(root, {"proc/stat": stat})
    node = read(root)
    when = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    assert node.booted_at == when
    # The uptime moves with every set of the clock: it is no difference.
    trees.plant(root, {"proc/stat": stat.replace("045", "046")})
    assert read(root) == node
    trees.plant(root, {"proc/sys/kernel/random/boot_id": "another\n"})
    assert read(root) != node
    (root / "proc/sys/kernel/random/boot_id").unlink()
    assert read(root).booted_at is None


@pytest.mark.parametrize("value", ["0", "-1", "x", "9" * 30, ""])
def test_a_clock_that_was_never_set(tmp_path: pathlib.Path, value: str) -> None:
    stat = {"proc/stat": f"btime {value}\n"}
    assert read(trees.plant(tmp_path, trees.SERVER, stat)).booted_at is None


def test_what_the_operator_adds(tmp_path: pathlib.Path) -> None:
    node = read(
        trees.plant(tmp_path, trees.SERVER),
        inventory__custom_resources={"CUSTOM_GPU": 4},
        inventory__labels={"rack": "r1"},
    )
    assert node.custom_resources == {"CUSTOM_GPU": 4}
    assert node.labels == {"rack": "r1"}


def test_the_memory_limit_is_rounded_down(tmp_path: pathlib.Path) -> None:
    root = trees.plant(
        tmp_path,
        trees.SERVER,
        trees.v2("/"),
        {"sys/fs/cgroup/memory.max": f"{512 * MIB + MIB - 1}\n"},
    )
    assert read(root).memory_mb == 512


def test_a_limit_above_the_memory_changes_nothing(tmp_path: pathlib.Path) -> None:
    limit = {"sys/fs/cgroup/memory/memory.limit_in_bytes": trees.NO_LIMIT_1}
    root = trees.plant(tmp_path, trees.SERVER, trees.v1("/"), limit)
    assert read(root).memory_mb == 16384


def test_disk_is_rounded_down_and_bounded(tmp_path: pathlib.Path) -> None:
    root = trees.plant(tmp_path, trees.SERVER)
    assert build(root, total=200 * GIB - 1).read()["node-a"].local_gb == 199
    # Object storage that is mounted as a file system claims 2**63 bytes.
    huge = build(root, total=2**63).read()["node-a"]
    assert huge.local_gb == source.MAX_INTEGER


def test_the_nearest_existing_parent_of_the_disk_path(tmp_path: pathlib.Path) -> None:
    asked: list[str] = []
    trees.plant(tmp_path, trees.SERVER)

    def disk_usage(path: str) -> Disk:
        asked.append(path)
        return Disk(GIB)

    for conf in (
        {"state_path": str(tmp_path / "not/yet")},
        {"state_path": "/", "inventory_host__disk_path": str(tmp_path / "sys")},
    ):
        host.HostInventory(
            trees.load_conf(**conf), root=tmp_path, disk_usage=disk_usage
        ).read()
    assert asked == [str(tmp_path), str(tmp_path / "sys")]


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        ("proc/meminfo", "/proc/meminfo doesn't tell MemTotal"),
        ("sys/devices/system/cpu/online", "of a CPU that may be used"),
    ],
)
def test_without_memory_or_cpus_nothing_is_said(
    tmp_path: pathlib.Path, missing: str, reason: str
) -> None:
    files = {**trees.SERVER, "proc/cpuinfo": ""}
    del files[missing]
    root = trees.plant(tmp_path, files)
    with pytest.raises(errors.InventoryUnavailable, match=reason):
        read(root)


def test_a_disk_that_hosts_share_is_not_supported(tmp_path: pathlib.Path) -> None:
    """Each reports the whole of it, as the guide says in so many words."""
    root = trees.plant(tmp_path, trees.SERVER)
    hosts = [build(root, total=1000 * GIB, host=f"node-{n}") for n in "abc"]
    sizes = [node.local_gb for h in hosts for node in h.read().values()]
    assert sizes == [1000, 1000, 1000]
    guide = (pathlib.Path(__file__).parents[3] / "docs/inventory.md").read_text()
    assert "each reports the whole of it.\nSharing is not supported" in guide


def test_a_disk_that_fails(tmp_path: pathlib.Path) -> None:
    def disk_usage(path: str) -> Disk:
        raise OSError(5, "Input/output error")

    source_ = host.HostInventory(
        trees.load_conf(),
        root=trees.plant(tmp_path, trees.SERVER),
        disk_usage=disk_usage,
    )
    with pytest.raises(errors.InventoryUnavailable, match="Input/output error"):
        source_.read()


def test_the_least_that_a_reading_needs(tmp_path: pathlib.Path) -> None:
    needed = ("proc/meminfo", "sys/devices/system/cpu/online")
    root = trees.plant(tmp_path, {name: trees.SERVER[name] for name in needed})
    node = read(root)
    assert (node.vcpus, node.memory_mb) == (8, 16384)
    assert (node.hypervisor_version, node.numa_topology, node.boot_id) == (
        0,
        None,
        None,
    )
    assert node.host_ip == "127.0.0.1"


@pytest.mark.parametrize(
    ("release", "version"),
    [("4.9.337", 4009337), ("6.1", 6001000), ("4.4.1234-x", 4004999), ("huh", 0)],
)
def test_kernel_version(tmp_path: pathlib.Path, release: str, version: int) -> None:
    root = trees.plant(
        tmp_path, trees.SERVER, {"proc/sys/kernel/osrelease": f"{release}\n"}
    )
    assert read(root).hypervisor_version == version


@pytest.mark.parametrize("text", ["node-a.example.org", "", "fe80::1%eth0"])
def test_my_ip_must_be_an_address(tmp_path: pathlib.Path, text: str) -> None:
    with pytest.raises(errors.ConfigurationError, match="option my_ip"):
        build(tmp_path, my_ip=text)


# -- this machine, by other means ------------------------------------------------

SCRIPT = """
import dataclasses, json, sys
from compute_agent.inventory import host
from musterbook import conf
def override(loaded):
    loaded.set_override("host", "node-a")
    loaded.set_override("state_path", "/")
loaded = conf.load([], "x", defaults=override, config_files=[])
node = host.HostInventory(loaded).read()["node-a"]
print(json.dumps(dataclasses.asdict(node), default=str))
"""


def in_a_process(prefix: str = "") -> dict[str, Any]:
    """Read this machine in a shell that has done ``prefix`` to itself first."""
    command = f'{prefix} exec "$0" -c "$1"'
    run = subprocess.run(
        ["sh", "-ec", command, sys.executable, SCRIPT],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    answer: dict[str, Any] = json.loads(run.stdout)
    return answer


def test_this_machine() -> None:
    conf = trees.load_conf(state_path="/")
    source_ = host.HostInventory(conf)
    node = source_.read()["node-a"]
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    listed = subprocess.check_output(["getconf", "_NPROCESSORS_ONLN"], text=True)
    assert 1 <= node.vcpus <= len(os.sched_getaffinity(0)) <= int(listed)
    assert 0 < node.memory_mb <= physical // MIB
    limits = cgroup.read(pathlib.Path("/"))
    if limits.quota is None:
        assert node.vcpus == len(os.sched_getaffinity(0))
    if limits.memory is None or limits.memory >= physical:
        assert node.memory_mb == physical // MIB
    assert node.local_gb == shutil.disk_usage("/").total // GIB
    assert json.loads(node.cpu_info)["arch"] == os.uname().machine
    assert node.hypervisor_version // 1_000_000 == int(os.uname().release.split(".")[0])
    assert node.boot_id == str(uuid.UUID(node.boot_id))
    assert source_.read() == {"node-a": node}
    assert node.booted_at is not None
    uptime = float(pathlib.Path("/proc/uptime").read_text().split()[0])
    assert abs(time.time() - uptime - node.booted_at.timestamp()) < 5


def test_this_machine_with_an_affinity() -> None:
    first = min(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {first})
    try:
        assert in_a_process()["vcpus"] == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.fixture
def memory_group() -> Iterator[tuple[pathlib.Path, str]]:
    """Make a control group of our own: its directory, and the file with its limit."""
    name = f"musterbook-test-{os.getpid()}"
    for base, limit in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max"),
    ):
        group = pathlib.Path(base, name)
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / limit).exists():
            yield group, limit
            group.rmdir()
            return
        group.rmdir()
    pytest.skip("no right to make a control group with a memory limit here")


def test_this_machine_with_a_memory_limit(
    memory_group: tuple[pathlib.Path, str],
) -> None:
    group, limit = memory_group
    (group / limit).write_text(str(300 * MIB))
    (group / "inner").mkdir()
    try:
        node = in_a_process(f"echo $$ > {group}/inner/cgroup.procs;")
    finally:
        (group / "inner").rmdir()
    assert node["memory_mb"] == 300
