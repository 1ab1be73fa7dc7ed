"""What libvirt's hypervisor has: one node, under the name that libvirt gives it."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import os
import pathlib
from typing import Any
from urllib import parse

from oslo_config import cfg
import psutil

from compute_agent.inventory import address
from compute_agent.inventory import boot
from compute_agent.inventory import libvirt_link
from compute_agent.inventory import libvirt_xml
from compute_agent.inventory import source
from musterbook import errors

OPTION = "[inventory]source"
MIB = 1024**2
GIB = 1024**3
_ROOT = pathlib.Path("/")


class LibvirtInventory(source.InventorySource):
    """Reports one node, named as libvirt names the machine.

    Asks libvirt and, of file systems of this machine, the kernel; see docs/inventory.md
    for what is counted. Connects at the first reading, and anew when need be.

    :param conf: my_ip, ``[inventory_libvirt]`` and ``[inventory]custom_resources`` and
        ``labels`` are used
    :param library: libvirt's bindings, left out: those that are installed
    :param disk_usage: returns the size of the file system of a path
    :raises ConfigurationError: when they aren't installed, or my_ip isn't an address
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        *,
        library: Any = None,
        disk_usage: Callable[[str], Any] = psutil.disk_usage,
    ) -> None:
        super().__init__(conf)
        options = conf.inventory_libvirt
        self._my_ip = source.my_ip(conf)
        self._library = library or libvirt_link.bindings(OPTION)
        self._link = libvirt_link.Link(self._library, options.uri)
        self._local = _is_local(options.uri)
        self._pool: str | None = options.storage_pool
        self._with_uuid: bool = options.use_host_uuid
        self._disk_usage = disk_usage

    def read(self) -> Mapping[str, source.NodeInventory]:
        """Return the one node.

        :raises InventoryUnavailable: when libvirt can't be asked, or says what can't
            be understood
        """
        try:
            node = self._link.run(self._node)
        except ValueError as exc:
            raise libvirt_link.unavailable(errors.one_line(str(exc))) from None
        return source.Reading({node.hypervisor_hostname: node}, one_machine=True)

    def close(self) -> None:
        """Let go of the connection."""
        self._link.close()

    def _node(self, connection: Any) -> source.NodeInventory:
        said = libvirt_xml.capabilities(connection.getCapabilities())
        _, memory_mb, cpus, _, nodes, sockets, cores, threads = connection.getInfo()
        topology = {"sockets": nodes * sockets, "cores": cores, "threads": threads}
        return source.NodeInventory(
            hypervisor_hostname=connection.getHostname(),
            vcpus=cpus,
            memory_mb=memory_mb,
            local_gb=min(self._disk_total(connection) // GIB, source.MAX_INTEGER),
            disk_available_least=None,
            hypervisor_type=connection.getType(),
            hypervisor_version=connection.getVersion(),
            cpu_info=source.canonical(
                {
                    "arch": said.arch,
                    "model": said.model,
                    "vendor": said.vendor,
                    "topology": topology,
                    "features": said.features,
                }
            ),
            host_ip=self._my_ip or address.find(_ROOT, psutil.net_if_addrs),
            supported_instances=source.canonical(said.specs),
            numa_topology=_numa_topology(said.cells, memory_mb),
            # The kernel's, which is the hypervisor's only if that is here.
            boot_id=boot.identity(_ROOT) if self._local else None,
            booted_at=boot.instant(_ROOT) if self._local else None,
            used=self._used(connection),
            uuid=said.uuid if self._with_uuid else None,
            **source.configured(self.conf),
        )

    # -- disks -------------------------------------------------------------------------

    def _disk_total(self, connection: Any) -> int:
        """Return the bytes of the pools that count, each file system once."""
        found: dict[object, int] = {}
        for pool in self._pools(connection):
            said = libvirt_xml.pool(pool.XMLDesc())
            if self._pool is not None or said.kind in libvirt_xml.LOCAL_POOLS:
                identity, size = self._sized(pool, said)
                found[identity] = size
        return sum(found.values())

    def _pools(self, connection: Any) -> list[Any]:
        if self._pool is None:
            active = self._library.VIR_CONNECT_LIST_STORAGE_POOLS_ACTIVE
            return list(connection.listAllStoragePools(active))
        try:
            pool = connection.storagePoolLookupByName(self._pool)
        except self._library.libvirtError as exc:
            if exc.get_error_code() != self._library.VIR_ERR_NO_STORAGE_POOL:
                raise
            raise libvirt_link.unavailable(
                f"has no storage pool {self._pool!a}, which "
                "[inventory_libvirt]storage_pool names"
            ) from None
        if not pool.isActive():
            raise libvirt_link.unavailable(f"storage pool {self._pool!a} isn't active")
        return [pool]

    def _sized(self, pool: Any, said: libvirt_xml.Pool) -> tuple[object, int]:
        """Return what tells a pool's storage from others', and its bytes.

        libvirt knows a file system's size of when the pool was last refreshed, the
        kernel that of now.
        """
        if self._local and said.kind in {"dir", "fs"} and said.path is not None:
            try:
                device = os.stat(said.path).st_dev
                return device, self._disk_usage(said.path).total
            except OSError:
                pass  # only libvirt can see it
        return pool.name(), pool.info()[1]

    # -- usage -------------------------------------------------------------------------

    def _used(self, connection: Any) -> source.Usage | None:
        """Return what all domains may use; None: a disk's size can't be told.

        Asks the storage driver for sizes, never a running domain: one whose emulator
        hangs would hold up the reading.
        """
        vcpus = memory = disk = 0
        for said in self._domains(connection):
            size = self._disk_size(connection, said)
            if size is None:
                return None
            vcpus, memory, disk = vcpus + said.vcpus, memory + said.memory, disk + size
        return source.Usage(
            vcpus=vcpus, memory_mb=-(-memory // MIB), local_gb=-(-disk // GIB)
        )

    def _domains(self, connection: Any) -> Iterator[libvirt_xml.Domain]:
        for domain in connection.listAllDomains():
            try:
                yield libvirt_xml.domain(domain.XMLDesc())
            except self._library.libvirtError as exc:
                if exc.get_error_code() != self._library.VIR_ERR_NO_DOMAIN:
                    raise
                # It was undefined since it was listed.

    def _disk_size(self, connection: Any, said: libvirt_xml.Domain) -> int | None:
        total = 0
        try:
            for path in said.disks:
                total += connection.storageVolLookupByPath(path).info()[1]
            for pool, volume in said.pooled:
                found = connection.storagePoolLookupByName(pool)
                kind = libvirt_xml.pool(found.XMLDesc()).kind
                if kind in libvirt_xml.LOCAL_POOLS:
                    total += found.storageVolLookupByName(volume).info()[1]
        except self._library.libvirtError as exc:
            missing = {
                self._library.VIR_ERR_NO_STORAGE_POOL,
                self._library.VIR_ERR_NO_STORAGE_VOL,
            }
            if exc.get_error_code() not in missing:
                raise
            return None
        return total


def _numa_topology(cells: tuple[libvirt_xml.Cell, ...], memory_mb: int) -> str | None:
    """Return the cells as JSON; the only one has all the memory, as with 'host'."""
    found = [
        {
            "id": cell.id,
            "cpus": list(cell.cpus),
            "memory_mb": memory_mb if len(cells) == 1 else cell.memory // MIB,
        }
        for cell in cells
    ]
    return source.canonical({"cells": found}) if found else None


def _is_local(uri: str) -> bool:
    """Return whether a libvirt URI names no other machine."""
    try:
        return not parse.urlsplit(uri).netloc
    except ValueError:
        raise errors.ConfigurationError(
            option="[inventory_libvirt]uri", reason="can't be taken apart as a URI"
        ) from None
