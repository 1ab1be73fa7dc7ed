"""What libvirt says in XML, turned into what an inventory says. Pure."""

import dataclasses
from typing import Any
from xml.etree import ElementTree

#: Kinds of pools that are a machine's own. All others (netfs, rbd, iscsi, gluster, ...)
#: may be other machines' too, and scsi and mpath can't tell.
LOCAL_POOLS = frozenset({"dir", "fs", "logical", "disk", "zfs"})
#: Of those, which are a part of a file system, which others may be a part of as well.
IN_FILE_SYSTEM = frozenset({"dir"})
KIB = 1024


@dataclasses.dataclass(frozen=True)
class Cell:
    """A NUMA node.

    :param memory: bytes
    """

    id: int
    cpus: tuple[int, ...]
    memory: int


@dataclasses.dataclass(frozen=True)
class Capabilities:
    """What a hypervisor's capabilities say.

    :param uuid: the machine's own
    :param model: of the CPU; "unknown" where nothing tells, as the vendor
    :param features: sorted names
    :param specs: sorted [arch, hypervisor type, vm mode]
    """

    uuid: str | None
    arch: str
    model: str
    vendor: str
    features: tuple[str, ...]
    cells: tuple[Cell, ...]
    specs: tuple[tuple[str, str, str], ...]


@dataclasses.dataclass(frozen=True)
class Pool:
    """A storage pool.

    :param path: where its volumes are, or None
    """

    kind: str
    path: str | None


@dataclasses.dataclass(frozen=True)
class Domain:
    """What a domain may use at the most, as Nova counts it.

    :param memory: bytes
    :param disks: paths of its disks on this machine
    :param pooled: of others the pool and the volume, by name
    """

    vcpus: int
    memory: int
    disks: tuple[str, ...]
    pooled: tuple[tuple[str, str], ...]


def capabilities(text: str) -> Capabilities:
    """Return what virConnectGetCapabilities says; ValueError if it is none of that."""
    root = _parse(text)
    cpu = _need(root, "host/cpu")
    # Without a model there are only names of abilities, such as <pae/>.
    features = {str(found.get("name")) for found in cpu.findall("feature")}
    features |= {found.tag for found in cpu.findall("features/*")}
    return Capabilities(
        uuid=root.findtext("host/uuid"),
        arch=_text(cpu, "arch"),
        model=cpu.findtext("model") or "unknown",
        vendor=cpu.findtext("vendor") or "unknown",
        features=tuple(sorted(features)),
        cells=tuple(_cell(found) for found in root.findall("host/topology/cells/cell")),
        specs=tuple(sorted(set(_specs(root)))),
    )


def pool(text: str) -> Pool:
    """Return what a pool's description says; ValueError if it is none."""
    root = _parse(text)
    return Pool(kind=str(root.get("type")), path=root.findtext("target/path"))


def domain(text: str) -> Domain:
    """Return what a domain's description says; ValueError if it is none.

    Counted is the most that it may grow to, whether it runs or not: an instance that
    is shut off keeps its place. Disks of other machines (network) aren't this one's.
    """
    root = _parse(text)
    disks = [d for d in root.findall("devices/disk") if d.get("device") != "cdrom"]
    sources = [(d.get("type"), d.find("source")) for d in disks]
    paths = {
        "file": "file",
        "block": "dev",
        "dir": "dir",
    }
    return Domain(
        vcpus=int(_text(root, "vcpu")),
        memory=_bytes(_need(root, "memory")),
        disks=tuple(
            found.get(paths[kind]) or ""
            for kind, found in sources
            if kind in paths and found is not None
        ),
        pooled=tuple(
            (found.get("pool") or "", found.get("volume") or "")
            for kind, found in sources
            if kind == "volume" and found is not None
        ),
    )


def _specs(root: Any) -> list[tuple[str, str, str]]:
    return [
        (str(arch.get("name")), str(kind.get("type")), _text(guest, "os_type"))
        for guest in root.findall("guest")
        for arch in guest.findall("arch")
        for kind in arch.findall("domain")
    ]


def _cell(found: Any) -> Cell:
    memory = found.find("memory")
    return Cell(
        id=int(found.get("id")),
        cpus=tuple(sorted(int(cpu.get("id")) for cpu in found.findall("cpus/cpu"))),
        memory=0 if memory is None else _bytes(memory),
    )


def _parse(text: str) -> Any:
    try:
        # libvirt's own words: no stranger's.
        return ElementTree.fromstring(text)  # noqa: S314
    except ElementTree.ParseError as exc:
        raise ValueError(f"libvirt's XML can't be read: {exc}") from None


def _need(element: Any, path: str) -> Any:
    found = element.find(path)
    if found is None:
        raise ValueError(f"libvirt's {element.tag} has no {path}")
    return found


def _text(element: Any, path: str) -> str:
    return (_need(element, path).text or "").strip()


_UNITS = {"b": 1, "bytes": 1, "KiB": KIB, "k": KIB, "MiB": KIB**2, "GiB": KIB**3}


def _bytes(element: Any) -> int:
    unit = element.get("unit", "KiB")
    if unit not in _UNITS:
        raise ValueError(f"libvirt's {element.tag} is in {unit}")
    return int(element.text) * _UNITS[unit]
