import fractions
import pathlib

from compute_agent.inventory import cgroup
from tests.unit.compute_agent import trees

GIB = 1024**3
NONE = cgroup.Limits(cpus=None, quota=None, memory=None)
V2 = "sys/fs/cgroup"


def test_nothing_is_known_without_files(tmp_path: pathlib.Path) -> None:
    assert cgroup.read(tmp_path) == NONE


def test_v2_own_group_limits(tmp_path: pathlib.Path) -> None:
    group = f"{V2}/system.slice/agent.service"
    root = trees.plant(
        tmp_path,
        trees.v2("/system.slice/agent.service"),
        {
            f"{group}/cpu.max": "250000 100000\n",
            f"{group}/memory.max": f"{2 * GIB}\n",
            f"{group}/cpuset.cpus.effective": "0-3,6\n",
        },
    )
    assert cgroup.read(root) == cgroup.Limits(
        cpus=frozenset({0, 1, 2, 3, 6}),
        quota=fractions.Fraction(5, 2),
        memory=2 * GIB,
    )


def test_v2_nested_the_smallest_limit_wins_and_max_is_none(
    tmp_path: pathlib.Path,
) -> None:
    root = trees.plant(
        tmp_path,
        trees.v2("/a/b/c"),
        {
            f"{V2}/a/b/c/cpu.max": "max 100000\n",
            f"{V2}/a/b/cpu.max": "50000 20000\n",
            f"{V2}/a/cpu.max": "800000 100000\n",
            f"{V2}/a/b/c/memory.max": f"{8 * GIB}\n",
            f"{V2}/a/b/memory.max": "max\n",
            f"{V2}/a/memory.max": f"{4 * GIB}\n",
            f"{V2}/a/cpuset.cpus.effective": "0-7\n",
            f"{V2}/a/b/cpuset.cpus.effective": "2-3\n",
        },
    )
    assert cgroup.read(root) == cgroup.Limits(
        cpus=frozenset({2, 3}), quota=fractions.Fraction(5, 2), memory=4 * GIB
    )


def test_v2_all_max_is_no_limit(tmp_path: pathlib.Path) -> None:
    root = trees.plant(
        tmp_path,
        trees.v2("/a"),
        {f"{V2}/a/cpu.max": "max 100000\n", f"{V2}/a/memory.max": "max\n"},
    )
    assert cgroup.read(root) == NONE


def test_v2_container_with_a_namespace_of_its_own(tmp_path: pathlib.Path) -> None:
    root = trees.plant(
        tmp_path,
        trees.v2("/"),
        {f"{V2}/cpu.max": "100000 100000\n", f"{V2}/memory.max": f"{GIB}\n"},
    )
    assert cgroup.read(root) == cgroup.Limits(
        cpus=None, quota=fractions.Fraction(1), memory=GIB
    )


def test_v2_outside_of_its_namespace_reads_the_top(tmp_path: pathlib.Path) -> None:
    root = trees.plant(
        tmp_path, trees.v2("/../sibling"), {f"{V2}/memory.max": f"{GIB}\n"}
    )
    assert cgroup.read(root).memory == GIB


def test_v2_container_without_a_namespace(tmp_path: pathlib.Path) -> None:
    # The path is the host's, the mount shows only what is below the container.
    root = trees.plant(
        tmp_path,
        trees.v2("/docker/abc/inner", top="/docker/abc"),
        {
            f"{V2}/memory.max": f"{3 * GIB}\n",
            f"{V2}/inner/memory.max": f"{5 * GIB}\n",
        },
    )
    assert cgroup.read(root).memory == 3 * GIB


def test_a_mount_that_shows_another_group_is_read_at_its_top(
    tmp_path: pathlib.Path,
) -> None:
    root = trees.plant(
        tmp_path,
        trees.v2("/docker/xyz", top="/docker/abc"),
        {f"{V2}/memory.max": f"{GIB}\n"},
    )
    assert cgroup.read(root).memory == GIB


def test_of_several_mounts_the_one_that_shows_the_own_group(
    tmp_path: pathlib.Path,
) -> None:
    lines = "".join(
        f"3{n} 23 0:27 {top} {point} rw - cgroup2 cgroup2 rw\n"
        for n, (top, point) in enumerate([("/b", "/mnt/b"), ("/a", "/mnt/a")])
    )
    root = trees.plant(
        tmp_path,
        {"proc/self/cgroup": "0::/a/x\n", "proc/self/mountinfo": lines},
        {"mnt/b/memory.max": f"{GIB}\n", "mnt/a/x/memory.max": f"{2 * GIB}\n"},
    )
    assert cgroup.read(root).memory == 2 * GIB


def test_v1_nested(tmp_path: pathlib.Path) -> None:
    cpu, cpuset, memory = (
        f"{V2}/{name}/docker/abc" for name in ("cpu,cpuacct", "cpuset", "memory")
    )
    root = trees.plant(
        tmp_path,
        trees.v1("/docker/abc"),
        {
            f"{cpu}/cpu.cfs_quota_us": "-1\n",
            f"{cpu}/cpu.cfs_period_us": "100000\n",
            f"{V2}/cpu,cpuacct/docker/cpu.cfs_quota_us": "350000\n",
            f"{V2}/cpu,cpuacct/docker/cpu.cfs_period_us": "100000\n",
            f"{cpuset}/cpuset.cpus": "0-5\n",
            f"{V2}/cpuset/cpuset.cpus": "0-7\n",
            f"{memory}/memory.limit_in_bytes": f"{6 * GIB}\n",
            f"{V2}/memory/memory.limit_in_bytes": trees.NO_LIMIT_1,
        },
    )
    assert cgroup.read(root) == cgroup.Limits(
        cpus=frozenset(range(6)), quota=fractions.Fraction(7, 2), memory=6 * GIB
    )


def test_v1_container_without_a_namespace(tmp_path: pathlib.Path) -> None:
    root = trees.plant(
        tmp_path,
        trees.v1("/docker/abc", top="/docker/abc"),
        {f"{V2}/memory/memory.limit_in_bytes": f"{GIB}\n"},
    )
    assert cgroup.read(root).memory == GIB


def test_v1_effective_cpus_leave_out_what_is_offline(tmp_path: pathlib.Path) -> None:
    root = trees.plant(
        tmp_path,
        trees.v1("/a"),
        {
            f"{V2}/cpuset/a/cpuset.cpus": "0-7\n",
            f"{V2}/cpuset/a/cpuset.effective_cpus": "0-3\n",
        },
    )
    assert cgroup.read(root).cpus == frozenset(range(4))


def test_a_mount_point_with_a_blank(tmp_path: pathlib.Path) -> None:
    line = r"31 23 0:27 / /mnt/control\040groups rw - cgroup2 cgroup2 rw"
    root = trees.plant(
        tmp_path,
        {"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": line},
        {"mnt/control groups/a/memory.max": f"{GIB}\n"},
    )
    assert cgroup.read(root).memory == GIB


def test_nonsense_is_no_limit(tmp_path: pathlib.Path) -> None:
    root = trees.plant(
        tmp_path,
        trees.v2("/a"),
        {
            f"{V2}/a/cpu.max": "100000 0\n",
            f"{V2}/a/memory.max": "lots\n",
            f"{V2}/a/cpuset.cpus.effective": "\n",
        },
    )
    assert cgroup.read(root) == NONE
