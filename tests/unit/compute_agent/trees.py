"""Pieces of /proc and /sys as real machines show them, and a way to plant them."""

from collections.abc import Mapping
import pathlib
from typing import Any

from oslo_config import cfg

from musterbook import conf as conf_mod


def plant(root: pathlib.Path, *trees: Mapping[str, str]) -> pathlib.Path:
    """Write files by path; later trees win."""
    for tree in trees:
        for name, content in tree.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    return root


def load_conf(**overrides: Any) -> cfg.ConfigOpts:
    """Return a configuration; group and option are joined by two underscores."""

    def override(conf: cfg.ConfigOpts) -> None:
        conf.set_override("host", "node-a")
        for name, value in overrides.items():
            group, _, option = name.rpartition("__")
            conf.set_override(option, value, group or None)

    return conf_mod.load([], "musterbook-compute", defaults=override, config_files=[])


def topology(number: int, *, socket: int, siblings: str) -> dict[str, str]:
    base = f"sys/devices/system/cpu/cpu{number}/topology"
    return {
        f"{base}/physical_package_id": f"{socket}\n",
        f"{base}/thread_siblings_list": f"{siblings}\n",
    }


def x86_cpuinfo(number: int, flags: str = "fpu sse2 avx") -> str:
    return (
        f"processor\t: {number}\nvendor_id\t: GenuineIntel\n"
        "cpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R) Gold 6430\n"
        f"cpu MHz\t\t: {2100.0 + number}\nflags\t\t: {flags}\nbugs\t\t:\n\n"
    )


# Eight CPUs: two sockets of two cores of two threads; two NUMA cells.
SERVER: dict[str, str] = {
    "proc/meminfo": "MemTotal:       16777216 kB\nMemFree:        1 kB\n",
    "proc/cpuinfo": "".join(x86_cpuinfo(n) for n in range(8)),
    "proc/self/status": "Name:\tpython\nCpus_allowed_list:\t0-63\n"
    "Mems_allowed_list:\t0-1\n",
    "proc/sys/kernel/osrelease": "6.18.2-generic\n",
    "proc/sys/kernel/random/boot_id": "0a4e1f6e-0000-4000-8000-000000000001\n",
    "sys/devices/system/cpu/online": "0-7\n",
    **topology(0, socket=0, siblings="0,4"),
    **topology(1, socket=0, siblings="1,5"),
    **topology(2, socket=1, siblings="2,6"),
    **topology(3, socket=1, siblings="3,7"),
    **topology(4, socket=0, siblings="0,4"),
    **topology(5, socket=0, siblings="1,5"),
    **topology(6, socket=1, siblings="2,6"),
    **topology(7, socket=1, siblings="3,7"),
    "sys/devices/system/node/node0/cpulist": "0-1,4-5\n",
    "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:        8388608 kB\n",
    "sys/devices/system/node/node1/cpulist": "2-3,6-7\n",
    "sys/devices/system/node/node1/meminfo": "Node 1 MemTotal:        8388608 kB\n",
}

ARM_CPUINFO = (
    "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd evtstrm aes\n"
    "CPU implementer\t: {implementer}\nCPU architecture: 8\nCPU variant\t: 0x3\n"
    "CPU part\t: {part}\nCPU revision\t: 1\n\n"
)

V2_MOUNT = (
    "31 23 0:27 {top} /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
)
V1_MOUNTS = (
    "32 31 0:29 {top} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 {top} /sys/fs/cgroup/cpuset rw shared:4 - cgroup cgroup rw,cpuset\n"
    "34 31 0:31 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "35 31 0:32 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n"
    "36 31 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)
NO_LIMIT_1 = "9223372036854771712\n"


def v2(group: str, top: str = "/") -> dict[str, str]:
    """Return a machine with control groups version 2 and this process in ``group``."""
    return {
        "proc/self/cgroup": f"0::{group}\n",
        "proc/self/mountinfo": "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        + V2_MOUNT.format(top=top),
    }


def v1(group: str, top: str = "/") -> dict[str, str]:
    """Return a machine with version 1, and an empty version 2 beside it."""
    return {
        "proc/self/cgroup": f"9:name=systemd:{group}\n4:memory:{group}\n"
        f"3:cpuset:{group}\n1:cpu,cpuacct:{group}\n0::/\n",
        "proc/self/mountinfo": V1_MOUNTS.format(top=top),
    }
