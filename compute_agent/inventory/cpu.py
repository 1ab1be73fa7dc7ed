"""Which CPUs there are, what they are called and how they hang together."""

from collections.abc import Iterable
import pathlib
import re

from compute_agent.inventory import kernel

_DIRECTORY = "sys/devices/system/cpu"

# On ARM the kernel gives numbers only. The names are those of the Main ID
# Register's implementers, and of the parts that are met in servers.
_ARM_IMPLEMENTERS = {
    0x41: "ARM",
    0x42: "Broadcom",
    0x43: "Cavium",
    0x46: "Fujitsu",
    0x48: "HiSilicon",
    0x4E: "NVIDIA",
    0x50: "APM",
    0x51: "Qualcomm",
    0x53: "Samsung",
    0x56: "Marvell",
    0x61: "Apple",
    0x69: "Intel",
    0x6D: "Microsoft",
    0x70: "Phytium",
    0xC0: "Ampere",
}
_ARM_PARTS = {
    (0x41, 0xD03): "Cortex-A53",
    (0x41, 0xD07): "Cortex-A57",
    (0x41, 0xD08): "Cortex-A72",
    (0x41, 0xD0B): "Cortex-A76",
    (0x41, 0xD0C): "Neoverse-N1",
    (0x41, 0xD40): "Neoverse-V1",
    (0x41, 0xD49): "Neoverse-N2",
    (0x41, 0xD4F): "Neoverse-V2",
    (0x43, 0x0AF): "ThunderX2",
    (0x46, 0x001): "A64FX",
    (0x48, 0xD01): "TaiShan-v110",
    (0xC0, 0xAC3): "Ampere-1",
    (0xC0, 0xAC4): "Ampere-1a",
}


def online(root: pathlib.Path) -> frozenset[int]:
    """Return the numbers of the CPUs that run, or nothing if that can't be told."""
    listed = kernel.id_set(kernel.text(root / _DIRECTORY / "online"))
    if listed is not None:
        return listed
    numbers = (block.get("processor", "") for block in _cpuinfo(root))
    return frozenset(int(number) for number in numbers if number.isdecimal())


def allowed(root: pathlib.Path) -> frozenset[int] | None:
    """Return the CPUs in this process's affinity mask, or None if unknown.

    That of the main thread, whoever asks: an affinity that some other thread has
    given itself says nothing about the host.
    """
    status = kernel.fields(root / "proc/self/status")
    return kernel.id_set(status.get("Cpus_allowed_list"))


def info(root: pathlib.Path, machine: str, cpus: frozenset[int]) -> dict[str, object]:
    """Return what NodeInventory.cpu_info holds.

    :param machine: the architecture, as uname says it
    :param cpus: the CPUs that run
    """
    blocks = _cpuinfo(root)
    merged = {key: value for block in reversed(blocks) for key, value in block.items()}
    vendor, model = _identity(root, merged)
    return {
        "arch": machine,
        "model": model,
        "vendor": vendor,
        "topology": _topology(root, cpus),
        "features": _features(blocks),
    }


def _cpuinfo(root: pathlib.Path) -> list[dict[str, str]]:
    """Return /proc/cpuinfo, one mapping for each block."""
    blocks: list[dict[str, str]] = []
    content = kernel.text(root / "proc/cpuinfo") or ""
    for chunk in re.split(r"\n\s*\n", content):
        pairs = (line.partition(":") for line in chunk.splitlines())
        block = {name.strip(): value.strip() for name, colon, value in pairs if colon}
        if block:
            blocks.append(block)
    return blocks


def _identity(root: pathlib.Path, fields: dict[str, str]) -> tuple[str, str]:
    """Return vendor and model; "unknown" where nothing tells."""
    vendor = fields.get("vendor_id") or fields.get("mvendorid")
    model = fields.get("model name") or fields.get("Model Name") or fields.get("uarch")
    implementer, part = _hex(fields, "CPU implementer"), _hex(fields, "CPU part")
    if implementer is not None:
        vendor = vendor or _ARM_IMPLEMENTERS.get(implementer, f"{implementer:#04x}")
        if part is not None:
            model = model or _ARM_PARTS.get((implementer, part))
            model = model or _compatible(root) or f"part {part:#05x}"
    # POWER calls its model "cpu".
    model = model or fields.get("cpu") or _compatible(root)
    return vendor or "unknown", model or "unknown"


def _hex(fields: dict[str, str], name: str) -> int | None:
    try:
        return int(fields[name], 16)
    except (KeyError, ValueError):
        return None


def _compatible(root: pathlib.Path) -> str | None:
    """Return the CPU's name in the device tree, such as "arm,cortex-a72"."""
    for path in sorted((root / "proc/device-tree/cpus").glob("cpu@*/compatible")):
        found = kernel.text(path)
        if found:
            return found.split("\0")[0]
    return None


def _features(blocks: Iterable[dict[str, str]]) -> list[str]:
    """Return the flags that all CPUs have, so that work may run on any of them."""
    lines = (
        block.get("flags") or block.get("Features") or block.get("isa")
        for block in blocks
    )
    sets = [frozenset(line.split()) for line in lines if line]
    return sorted(frozenset.intersection(*sets)) if sets else []


def _topology(root: pathlib.Path, cpus: frozenset[int]) -> dict[str, int]:
    """Return sockets, cores of a socket and threads of a core.

    Where sockets or cores differ (big and little ones) the largest counts. Without
    the kernel's word each CPU is taken for a core of one socket.
    """
    sockets: dict[int, set[str]] = {}
    threads: dict[tuple[int, str], int] = {}
    for number in sorted(cpus):
        directory = root / _DIRECTORY / f"cpu{number}/topology"
        siblings = kernel.text(directory / "thread_siblings_list") or str(number)
        # It is -1 for all of them where the firmware doesn't say, as on ARM boards.
        socket = kernel.integer(directory / "physical_package_id") or 0
        sockets.setdefault(socket, set()).add(siblings)
        threads[socket, siblings] = threads.get((socket, siblings), 0) + 1
    return {
        "sockets": len(sockets) or 1,
        "cores": max(map(len, sockets.values()), default=1),
        "threads": max(threads.values(), default=1),
    }
