"""The limits that control groups set to this process, version 1 and 2.

A limit of any group above the process holds too, so the walk goes from its own
group up to the top of the mounted hierarchy and the smallest limit wins. In a
container the top is the container's group: what lies above can't be seen.
"""

from collections.abc import Iterable
import dataclasses
import fractions
import functools
import pathlib
import re
from typing import TypeVar

from compute_agent.inventory import kernel

# The controller under which /proc/self/cgroup lists the version 2 hierarchy.
UNIFIED = ""

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Limits:
    """What the groups allow; None where they set no limit.

    :param cpus: numbers of the CPUs that may be used
    :param quota: CPU time per time, that is, a number of CPUs
    :param memory: bytes
    """

    cpus: frozenset[int] | None
    quota: fractions.Fraction | None
    memory: int | None


@dataclasses.dataclass(frozen=True)
class _Mount:
    """A mounted hierarchy: whose controllers, which group is its top, and where."""

    controllers: frozenset[str]
    top: pathlib.PurePosixPath
    point: str


def read(root: pathlib.Path) -> Limits:
    """Return the limits of this process, as far as they can be seen."""
    # A machine may have both versions mounted, with controllers in either.
    levels = functools.partial(_levels, root, _mounts(root), _groups(root))
    unified = levels(UNIFIED)
    cpus = _known([*map(_cpus_1, levels("cpuset")), *map(_cpus_2, unified)])
    quotas = _known([*map(_quota_1, levels("cpu")), *map(_quota_2, unified)])
    memory = _known([*map(_memory_1, levels("memory")), *map(_memory_2, unified)])
    return Limits(
        cpus=frozenset.intersection(*cpus) if cpus else None,
        quota=min(quotas, default=None),
        memory=min(memory, default=None),
    )


def _known(values: Iterable[_T | None]) -> list[_T]:
    return [value for value in values if value is not None]


def _cpus_1(group: pathlib.Path) -> frozenset[int] | None:
    # The first one exists since Linux 3.17 and leaves out what is offline.
    return kernel.id_set(kernel.text(group / "cpuset.effective_cpus")) or kernel.id_set(
        kernel.text(group / "cpuset.cpus")
    )


def _cpus_2(group: pathlib.Path) -> frozenset[int] | None:
    return kernel.id_set(kernel.text(group / "cpuset.cpus.effective"))


def _quota_1(group: pathlib.Path) -> fractions.Fraction | None:
    return _ratio(
        kernel.integer(group / "cpu.cfs_quota_us"),
        kernel.integer(group / "cpu.cfs_period_us"),
    )


def _quota_2(group: pathlib.Path) -> fractions.Fraction | None:
    quota, _, period = (kernel.text(group / "cpu.max") or "").partition(" ")
    if not (quota.isdecimal() and period.isdecimal()):
        return None  # "max 100000"
    return _ratio(int(quota), int(period))


def _ratio(quota: int | None, period: int | None) -> fractions.Fraction | None:
    if quota is None or period is None or quota <= 0 or period <= 0:
        return None
    return fractions.Fraction(quota, period)


def _memory_1(group: pathlib.Path) -> int | None:
    # Without a limit it is 2**63 less a page, which no machine's memory exceeds.
    return kernel.integer(group / "memory.limit_in_bytes")


def _memory_2(group: pathlib.Path) -> int | None:
    return kernel.integer(group / "memory.max")  # or "max"


def _groups(root: pathlib.Path) -> dict[str, str]:
    """Return the process's group by controller."""
    groups: dict[str, str] = {}
    for line in (kernel.text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon:
            groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def _mounts(root: pathlib.Path) -> list[_Mount]:
    """Return the mounted hierarchies, in the order they were mounted."""
    mounts: list[_Mount] = []
    for line in (kernel.text(root / "proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        place, kind = left.split(" "), right.split(" ")
        if len(place) < 5 or len(kind) < 3 or kind[0] not in {"cgroup", "cgroup2"}:
            continue
        names = kind[2].split(",") if kind[0] == "cgroup" else [UNIFIED]
        top, point = _unescape(place[3]), _unescape(place[4])
        mounts.append(_Mount(frozenset(names), pathlib.PurePosixPath(top), point))
    return mounts


def _unescape(path: str) -> str:
    r"""Undo the kernel's ``\040`` for blanks and the like."""
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), path)


def _levels(
    root: pathlib.Path, mounts: list[_Mount], groups: dict[str, str], controller: str
) -> list[pathlib.Path]:
    """Return the directories of the process's group and of all above it.

    Without a namespace of its own a container sees its group's full path but only
    the part of the hierarchy below that group. With one, paths that lead out of it
    start with "/..". Where the group's own place can't be told, the top of what is
    mounted is the nearest that can be read.
    """
    fitting = [mount for mount in mounts if controller in mount.controllers]
    if controller not in groups or not fitting:
        return []
    own = pathlib.PurePosixPath(groups[controller])
    mount = next((m for m in fitting if own.is_relative_to(m.top)), None)
    inside: tuple[str, ...] = ()
    if mount is None or ".." in own.parts:
        mount = fitting[0]
    else:
        inside = own.relative_to(mount.top).parts
    point = root / mount.point.lstrip("/")
    return [point.joinpath(*inside[:depth]) for depth in range(len(inside), -1, -1)]
