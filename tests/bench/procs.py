"""CPU time and memory of processes and of all they have started."""

from collections.abc import Mapping
import os
import pathlib
import time
from typing import NamedTuple

import psutil

_TICK = 1.0 / os.sysconf("SC_CLK_TCK")
MIB = 2**20


def tree(pid: int) -> list[int]:
    """Return the process and all its living descendants."""
    root = psutil.Process(pid)
    return [pid, *(child.pid for child in root.children(recursive=True))]


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and all that it has started, dead or alive.

    In steps of a clock tick (10 ms).
    """
    return sum(_of_one(member) for member in tree(pid))


def _of_one(pid: int) -> float:
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # it has just ended; its parent's count has it now
    # The name, in parentheses, may hold anything; utime is the twelfth field after it.
    fields = text.rpartition(")")[2].split()
    # Its own two, and those of its children that have ended and were waited for.
    return sum(int(field) for field in fields[11:15]) * _TICK


def largest_mib(pid: int) -> float:
    """Return the resident memory of the largest process of the tree, in MiB.

    With a master and one worker this is the worker.
    """
    sizes = []
    for member in tree(pid):
        try:
            sizes.append(psutil.Process(member).memory_info().rss)
        except psutil.NoSuchProcess:
            continue
    return max(sizes) / MIB


class Reading(NamedTuple):
    """CPU seconds so far, and when that was."""

    at: float
    cpu: dict[str, float]
    machine: float


class Meter:
    """Reads the CPU of named process trees.

    :param pids: the root of each tree by name
    """

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)

    def read(self) -> Reading:
        """Return the CPU seconds of each tree up to now."""
        times = psutil.cpu_times()
        busy = times.user + times.nice + times.system + times.irq + times.softirq
        cpu = {name: cpu_seconds(pid) for name, pid in self._pids.items()}
        return Reading(time.monotonic(), cpu, busy)


def per_call_ms(start: Reading, end: Reading, calls: int) -> dict[str, float]:
    """Return the CPU milliseconds of each tree for one call."""
    return {n: (end.cpu[n] - start.cpu[n]) * 1000 / calls for n in start.cpu}


def foreign_cores(start: Reading, end: Reading) -> float:
    """Return how many cores were busy with what isn't measured, on average."""
    ours = sum(end.cpu.values()) - sum(start.cpu.values())
    busy = end.machine - start.machine
    return max(0.0, (busy - ours) / (end.at - start.at))
