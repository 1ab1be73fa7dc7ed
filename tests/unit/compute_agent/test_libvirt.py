"""The source 'libvirt', on libvirt's own test driver: no daemon, no hypervisor."""

from collections.abc import Callable
from collections.abc import Iterator
import pathlib
import sys
import threading
import time
from typing import Any

import psutil
import pytest

from compute_agent.inventory import bounded
from compute_agent.inventory import libvirt
from compute_agent.inventory import source
from musterbook import errors
from tests import util
from tests.unit.compute_agent import trees

URI = "test:///default"
GIB = 1024**3
#: What the test driver says of its made-up machine: 2 NUMA nodes of 2 sockets of 2
#: cores of 2 threads, 3 GiB, and one pool of 100 GiB.
NAME, CPUS, MEMORY_MB, DISK_GB = "vm", 16, 3072, 100


class Connection:
    """A connection of the test driver, of which calls can be made to fail."""

    def __init__(self, real: Any, library: "Library") -> None:
        self._real = real
        self._library = library

    def __getattr__(self, name: str) -> Any:
        fault = self._library.faults.get(name)
        return fault if fault is not None else getattr(self._real, name)

    def close(self) -> None:
        self._library.open.discard(self)
        self._real.close()


class Library:
    """The bindings, noting what is open."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.open: set[Connection] = set()
        self.opened = 0
        self.faults: dict[str, Callable[..., Any]] = {}
        self.before_open: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def openReadOnly(self, uri: str) -> Connection:  # noqa: N802  # libvirt's name
        self.before_open()
        made = Connection(self.real.openReadOnly(uri), self)
        self.open.add(made)
        self.opened += 1
        return made


@pytest.fixture
def library(libvirt_bindings: Any) -> Library:
    return Library(libvirt_bindings)


@pytest.fixture
def own(libvirt_bindings: Any) -> Iterator[Any]:
    """Yield a connection of the test's own; what it changes ends with it."""
    connection = libvirt_bindings.open(URI)
    connection.listAllDomains()[0].destroy()
    connection.listAllDomains()[0].undefine()
    yield connection
    connection.close()


@pytest.fixture
def make(library: Library) -> Iterator[Callable[..., libvirt.LibvirtInventory]]:
    """Yield a maker of sources, which are closed at the end and leave nothing."""
    made: list[libvirt.LibvirtInventory] = []

    def make(**conf: Any) -> libvirt.LibvirtInventory:
        conf = {"inventory_libvirt__uri": URI, "my_ip": "192.0.2.7", **conf}
        loaded = trees.load_conf(**conf)
        made.append(libvirt.LibvirtInventory(loaded, library=library))
        return made[-1]

    yield make
    for one in made:
        one.close()
    assert library.open == set()
    assert not [t for t in threading.enumerate() if t.name == "libvirt-events"]


Make = Callable[..., libvirt.LibvirtInventory]


def only(inventory: source.InventorySource) -> source.NodeInventory:
    (node,) = inventory.read().values()
    return node


def test_what_the_driver_says_is_reported(make: Make) -> None:
    inventory = make(
        inventory__custom_resources={"CUSTOM_GPU": 2}, inventory__labels={"rack": "r1"}
    )
    reading = source.check(inventory.read())
    assert reading.one_machine
    node = reading[NAME]
    assert (node.vcpus, node.memory_mb, node.local_gb) == (CPUS, MEMORY_MB, DISK_GB)
    assert (node.hypervisor_type, node.host_ip) == ("TEST", "192.0.2.7")
    assert node.supported_instances == '[["i686","test","hvm"],["i686","test","xen"]]'
    assert node.cpu_info == source.canonical(
        {
            "arch": "i686",
            "model": "unknown",
            "vendor": "unknown",
            "topology": {"sockets": 4, "cores": 2, "threads": 2},
            "features": ["nonpae", "pae"],
        }
    )
    assert node.numa_topology == source.canonical(
        {
            "cells": [
                {"id": 0, "cpus": list(range(8)), "memory_mb": 2048},
                {"id": 1, "cpus": list(range(8, 16)), "memory_mb": 4096},
            ]
        }
    )
    here = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert node.boot_id == here
    booted = node.booted_at
    assert booted is not None
    assert abs(booted.timestamp() - psutil.boot_time()) < 5
    assert node.custom_resources == {"CUSTOM_GPU": 2}
    assert node.labels == {"rack": "r1"}
    # Its domain has a disk in no pool: how large it is can't be told.
    assert node.used is None
    assert (node.uuid, node.roams) == (None, False)


def test_unchanged_readings_are_equal_on_one_connection(
    make: Make, library: Library
) -> None:
    inventory = make()
    assert len({str(only(inventory).columns()) for _ in range(5)}) == 1
    assert library.opened == 1


def test_another_machine_s_boot_is_not_this_one_s(make: Make, library: Library) -> None:
    inventory = make(inventory_libvirt__uri="test+ssh://elsewhere/default")
    inventory._link._uri = URI  # nobody answers there
    node = only(inventory)
    assert (node.boot_id, node.booted_at) == (None, None)


def test_a_uri_that_cannot_be_taken_apart_is_named(make: Make) -> None:
    with pytest.raises(errors.ConfigurationError, match=r"\[inventory_libvirt\]uri"):
        make(inventory_libvirt__uri="qemu+tls://[bad/system")


# -- changes -------------------------------------------------------------------------

MACHINE = """<node>
  <cpu><mhz>2000</mhz><model>x</model><active>{cpus}</active><nodes>1</nodes>
    <sockets>1</sockets><cores>{cpus}</cores><threads>1</threads></cpu>
  <memory>{kib}</memory>
</node>"""


def test_hot_plugged_memory_and_cpus_show_at_the_next_reading(
    make: Make, library: Library, tmp_path: pathlib.Path
) -> None:
    machine = tmp_path / "machine.xml"
    machine.write_text(MACHINE.format(cpus=4, kib=8 * 1024**2))
    inventory = make(inventory_libvirt__uri=f"test://{machine}")
    node = only(inventory)
    assert (node.vcpus, node.memory_mb, node.local_gb) == (4, 8192, 0)
    machine.write_text(MACHINE.format(cpus=6, kib=16 * 1024**2))
    # The test driver reads its file when it is opened; real ones look each time.
    library.faults["isAlive"] = lambda: 0
    changed = only(inventory)
    assert (changed.vcpus, changed.memory_mb) == (6, 16384)
    assert changed != node


def a_pool(name: str, kind: str, path: object, origin: str = "") -> str:
    return (
        f"<pool type='{kind}'><name>{name}</name><source>{origin}</source>"
        f"<target><path>{path}</path></target></pool>"
    )


NETFS = "<host name='nfs1'/><dir path='/export'/><format type='nfs'/>"


def test_a_pool_counts_while_it_is_active(make: Make, own: Any) -> None:
    inventory = make()
    pool = own.storagePoolDefineXML(a_pool("second", "dir", "/no/such/folder"))
    assert only(inventory).local_gb == DISK_GB
    pool.create()
    assert only(inventory).local_gb == 2 * DISK_GB
    pool.destroy()
    assert only(inventory).local_gb == DISK_GB


def test_pools_that_others_share_do_not_count(make: Make, own: Any) -> None:
    own.storagePoolCreateXML(a_pool("shared", "netfs", "/no/such/mount", NETFS))
    assert only(make()).local_gb == DISK_GB
    # Named by the operator, it does.
    assert only(make(inventory_libvirt__storage_pool="shared")).local_gb == DISK_GB


def test_two_pools_of_one_file_system_count_once(
    make: Make, own: Any, tmp_path: pathlib.Path
) -> None:
    own.storagePoolLookupByName("default-pool").destroy()
    for name in ("images", "isos"):
        (tmp_path / name).mkdir()
        own.storagePoolCreateXML(a_pool(name, "dir", tmp_path / name))
    inventory = make()
    # The kernel's figure, not the one that libvirt remembers.
    inventory._disk_usage = lambda path: type("", (), {"total": 7 * GIB + 1})
    assert only(inventory).local_gb == 7


@pytest.mark.parametrize(
    ("active", "says"), [(True, "has no storage pool 'gone'"), (False, "isn't active")]
)
def test_a_named_pool_that_cannot_be_used(
    make: Make, own: Any, active: bool, says: str
) -> None:
    own.storagePoolDefineXML(a_pool("idle", "dir", "/no/such/folder"))
    inventory = make(inventory_libvirt__storage_pool="gone" if active else "idle")
    with pytest.raises(errors.InventoryUnavailable, match=says):
        inventory.read()


# -- usage ---------------------------------------------------------------------------

DOMAIN = """<domain type='test'><name>{name}</name><memory unit='KiB'>{kib}</memory>
  <vcpu current='1'>{vcpus}</vcpu><os><type arch='i686'>hvm</type></os>
  <devices>{disks}</devices></domain>"""
CDROM = (
    "<disk type='file' device='cdrom'><source file='/nowhere.iso'/>"
    "<target dev='hda' bus='ide'/></disk>"
)


def a_volume(own: Any, name: str, size: int) -> str:
    pool = own.storagePoolLookupByName("default-pool")
    volume = pool.createXML(
        f"<volume><name>{name}</name><capacity unit='bytes'>{size}</capacity></volume>"
    )
    return str(volume.path())


def test_what_domains_may_use_is_summed_and_rounded_up(make: Make, own: Any) -> None:
    assert only(make()).used == source.Usage(vcpus=0, memory_mb=0, local_gb=0)
    file = a_volume(own, "d1", 10 * GIB)
    a_volume(own, "d2", 1)
    by_path = f"<disk type='file'><source file='{file}'/><target dev='vda'/></disk>"
    by_name = (
        "<disk type='volume'><source pool='default-pool' volume='d2'/>"
        "<target dev='vdb'/></disk>"
    )
    own.defineXML(  # shut off: it keeps its place
        DOMAIN.format(name="a", kib=1024**2, vcpus=3, disks=by_path + CDROM)
    )
    own.createXML(DOMAIN.format(name="b", kib=1024, vcpus=2, disks=by_name))
    used = source.Usage(vcpus=5, memory_mb=1025, local_gb=11)
    assert only(make()).used == used
    # It is asked for once, so it makes no difference to what is compared.
    assert "used" not in only(make()).columns()


def test_a_domain_that_goes_while_it_is_read(
    make: Make, own: Any, library: Library
) -> None:
    own.defineXML(DOMAIN.format(name="a", kib=1024, vcpus=3, disks=""))
    gone = own.lookupByName("a")
    library.faults["listAllDomains"] = lambda: [gone]
    inventory = make()
    assert only(inventory).used == source.Usage(vcpus=3, memory_mb=1, local_gb=0)
    gone.undefine()
    assert only(inventory).used == source.Usage(vcpus=0, memory_mb=0, local_gb=0)


# -- faults --------------------------------------------------------------------------


def test_a_connection_that_was_closed_is_opened_again(
    make: Make, library: Library
) -> None:
    inventory = make()
    before = only(inventory)
    (held,) = library.open
    held._real.close()  # as after a restart: each call fails
    library.faults["isAlive"] = lambda: 1  # and nobody has noticed yet
    assert only(inventory) == before
    assert library.opened == 2
    assert len(library.open) == 1


def test_a_driver_that_fails_halfway(make: Make, library: Library) -> None:
    inventory = make()
    before = only(inventory)

    def fail() -> None:
        raise library.libvirtError("the driver\nhas a fault")

    library.faults["getInfo"] = fail
    for _ in range(3):
        with pytest.raises(errors.InventoryUnavailable) as caught:
            inventory.read()
        assert "the driver has a fault" in caught.value.message
        assert library.open == set()  # none is left over
    library.faults.clear()
    assert only(inventory) == before


def test_nonsense_is_told_in_one_line(make: Make, library: Library) -> None:
    inventory = make()
    library.faults["getCapabilities"] = lambda: "<capabilities>"
    with pytest.raises(errors.InventoryUnavailable, match="can't be read") as caught:
        inventory.read()
    assert "\n" not in caught.value.message


def test_a_libvirtd_that_nobody_runs(make: Make, tmp_path: pathlib.Path) -> None:
    nobody = f"qemu:///system?socket={tmp_path}/nobody"
    inventory = make(inventory_libvirt__uri=nobody)
    with pytest.raises(errors.InventoryUnavailable, match="Failed to connect socket"):
        inventory.read()


@pytest.mark.parametrize("call", ["open", "getInfo"])
def test_one_that_hangs_costs_one_thread_and_is_given_up(
    make: Make, library: Library, call: str
) -> None:
    hanging, entered = threading.Event(), threading.Event()

    def hang(*_: object) -> Any:
        entered.set()
        assert hanging.wait(60)
        return library.real.open(URI).getInfo()

    if call == "open":
        library.before_open = hang
    else:
        library.faults["getInfo"] = hang
    reader = bounded.BoundedReader(make(), 0.2, "libvirt")
    with pytest.raises(errors.InventoryUnavailable, match="did not answer"):
        reader.read()
    assert entered.wait(60)
    with pytest.raises(errors.InventoryUnavailable, match="has not answered for"):
        reader.read()
    hanging.set()
    reader.set_timeout(60)
    util.wait_until(lambda: not _reading())
    assert list(reader.read()) == [NAME]
    reader.close()


def _reading() -> bool:
    return any(t.name == "inventory-libvirt" for t in threading.enumerate())


def test_closing_does_not_wait_for_one_that_hangs(make: Make, library: Library) -> None:
    hanging, entered = threading.Event(), threading.Event()

    def hang() -> Any:
        entered.set()
        assert hanging.wait(60)
        raise library.libvirtError("no answer to the keepalive")

    library.faults["getInfo"] = hang
    inventory = make()

    def read() -> None:
        with pytest.raises(errors.InventoryUnavailable):
            inventory.read()

    reading = threading.Thread(target=read)
    reading.start()
    assert entered.wait(60)
    began = time.monotonic()
    inventory.close()
    assert time.monotonic() - began < 10
    hanging.set()
    reading.join(60)
    # The reading that was late has let go of it; the fixture looks for leftovers.
    assert library.open == set()
    with pytest.raises(errors.InventoryUnavailable, match="was closed"):
        inventory.read()


def test_two_sources_share_the_loop(make: Make) -> None:
    first, second = make(), make()
    first.read()
    second.read()
    first.close()
    assert list(second.read()) == [NAME]


def test_without_the_bindings_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "libvirt", None)
    conf = trees.load_conf()
    with pytest.raises(errors.ConfigurationError) as caught:
        libvirt.LibvirtInventory(conf)
    assert caught.value.option == "[inventory]source"
    assert "musterbook[libvirt]" in caught.value.message
    assert "\n" not in caught.value.message
