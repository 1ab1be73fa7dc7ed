"""The machine that the agent runs on, or what a container lets it have of it."""

from collections.abc import Callable
from collections.abc import Mapping
import pathlib
import platform
import re
from typing import Protocol

from oslo_config import cfg
import psutil

from compute_agent.inventory import address
from compute_agent.inventory import boot
from compute_agent.inventory import cgroup
from compute_agent.inventory import cpu
from compute_agent.inventory import kernel
from compute_agent.inventory import memory
from compute_agent.inventory import source
from musterbook import errors

# Work runs right on the host's kernel. Nova has no name for that: its "baremetal"
# means that a machine is given away whole.
HYPERVISOR_TYPE = "host"
# Nova's name for a workload that is a program, not a machine.
VM_MODE = "exe"

MIB = 1024**2
GIB = 1024**3


class Usage(Protocol):
    """What of psutil's disk usage is used."""

    @property
    def total(self) -> int:
        """Bytes."""


class HostInventory(source.InventorySource):
    """Reports one node, named as the agent's host.

    Reads /proc and /sys and asks for the size of one file system; sends nothing.
    disk_available_least is left out: free space moves with every log line, and each
    new value would be written to the database.

    :param conf: host, my_ip, state_path, ``[inventory_host]disk_path`` and
        ``[inventory]custom_resources`` and ``labels`` are used
    :param root: where /proc and /sys are
    :param machine: the architecture; left out: this machine's
    :param disk_usage: returns the size of the file system of a path
    :param interfaces: returns the addresses by network interface
    :raises ConfigurationError: when my_ip isn't an IP address
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        *,
        root: pathlib.Path = pathlib.Path("/"),
        machine: str | None = None,
        disk_usage: Callable[[str], Usage] = psutil.disk_usage,
        interfaces: address.Interfaces = psutil.net_if_addrs,
    ) -> None:
        super().__init__(conf)
        self._name: str = conf.host
        self._my_ip = source.my_ip(conf)
        self._disk_path = pathlib.Path(conf.inventory_host.disk_path or conf.state_path)
        self._root = root
        self._machine = machine or platform.machine()
        self._disk_usage = disk_usage
        self._interfaces = interfaces

    def read(self) -> Mapping[str, source.NodeInventory]:
        """Return the one node.

        :raises InventoryUnavailable: when CPUs, memory or disk can't be told
        """
        running = cpu.online(self._root)
        limits = cgroup.read(self._root)
        cells = memory.cells(self._root)
        cpus = _usable_cpus(running, cpu.allowed(self._root), limits)
        node = source.NodeInventory(
            hypervisor_hostname=self._name,
            vcpus=_count(cpus, limits),
            memory_mb=self._memory(cells, limits) // MIB,
            local_gb=min(self._disk_total() // GIB, source.MAX_INTEGER),
            disk_available_least=None,
            hypervisor_type=HYPERVISOR_TYPE,
            hypervisor_version=self._kernel_version(),
            cpu_info=source.canonical(cpu.info(self._root, self._machine, running)),
            host_ip=self._my_ip or address.find(self._root, self._interfaces),
            supported_instances=source.canonical(
                [[self._machine, HYPERVISOR_TYPE, VM_MODE]]
            ),
            numa_topology=_numa_topology(cells, cpus),
            boot_id=boot.identity(self._root),
            booted_at=boot.instant(self._root),
            **source.configured(self.conf),
        )
        return source.Reading({self._name: node}, one_machine=True)

    def _memory(self, cells: list[memory.Cell], limits: cgroup.Limits) -> int:
        whole = memory.total(self._root)
        if whole is None:
            raise _unavailable("/proc/meminfo doesn't tell MemTotal")
        usable = memory.usable(whole, cells)
        return usable if limits.memory is None else min(usable, limits.memory)

    def _disk_total(self) -> int:
        path = self._disk_path.absolute()
        # The state directory is made later than the first look at its disk.
        while not path.exists() and path != path.parent:
            path = path.parent
        try:
            return self._disk_usage(str(path)).total
        except OSError as exc:
            raise _unavailable(f"the disk of {path}: {exc.strerror}") from None

    def _kernel_version(self) -> int:
        """Return Linux 6.18.2 as 6018002; 0 when it can't be told."""
        release = kernel.text(self._root / "proc/sys/kernel/osrelease") or ""
        match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", release)
        if match is None:
            return 0
        major, minor, patch = (int(number or 0) for number in match.groups())
        return major * 1_000_000 + min(minor, 999) * 1_000 + min(patch, 999)


def _usable_cpus(
    running: frozenset[int], allowed: frozenset[int] | None, limits: cgroup.Limits
) -> frozenset[int]:
    """Return the CPUs that run and that this process may use."""
    cpus = running
    for limit in (allowed, limits.cpus):
        if limit is not None:
            cpus &= limit
    if not cpus:
        raise _unavailable("/sys and /proc don't tell of a CPU that may be used")
    return cpus


def _count(cpus: frozenset[int], limits: cgroup.Limits) -> int:
    """Return whole CPUs; less than one is one, for the agent does run."""
    if limits.quota is None:
        return len(cpus)
    return min(len(cpus), max(1, int(limits.quota)))


def _numa_topology(cells: list[memory.Cell], cpus: frozenset[int]) -> str | None:
    """Return the cells as JSON, each with what may be used of it.

    A quota or a memory limit belongs to no cell: cells may add up to more.
    """
    usable = [
        {
            "id": cell.id,
            "cpus": sorted(cell.cpus & cpus),
            "memory_mb": cell.memory // MIB if cell.allowed else 0,
        }
        for cell in cells
    ]
    usable = [cell for cell in usable if cell["cpus"] or cell["memory_mb"]]
    return source.canonical({"cells": usable}) if usable else None


def _unavailable(reason: str) -> errors.InventoryUnavailable:
    return errors.InventoryUnavailable(source="host", reason=reason)
