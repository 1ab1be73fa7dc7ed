"""How much memory there is, and in which NUMA cells."""

import dataclasses
import pathlib

from compute_agent.inventory import kernel


@dataclasses.dataclass(frozen=True)
class Cell:
    """A NUMA node.

    :param cpus: numbers of its CPUs that run
    :param memory: bytes
    :param allowed: whether this process may use its memory (cpuset.mems)
    """

    id: int
    cpus: frozenset[int]
    memory: int
    allowed: bool


def total(root: pathlib.Path) -> int | None:
    """Return the bytes of memory of the machine, None if that can't be told."""
    return kernel.kibibytes(kernel.fields(root / "proc/meminfo").get("MemTotal"))


def cells(root: pathlib.Path) -> list[Cell]:
    """Return the NUMA cells by number; none where the kernel doesn't know any."""
    status = kernel.fields(root / "proc/self/status")
    allowed = kernel.id_set(status.get("Mems_allowed_list"))
    found = []
    for number, path in kernel.numbered(root / "sys/devices/system/node", "node"):
        meminfo = kernel.fields(path / "meminfo")
        cell = Cell(
            id=number,
            cpus=kernel.id_set(kernel.text(path / "cpulist")) or frozenset(),
            memory=kernel.kibibytes(meminfo.get(f"Node {number} MemTotal")) or 0,
            allowed=allowed is None or number in allowed,
        )
        found.append(cell)
    if len(found) == 1:
        # A cell's own figure isn't always steady: on a Linux 6.18 guest it was seen
        # to grow with use while the machine's stayed. The only one has it all.
        found = [dataclasses.replace(found[0], memory=total(root) or 0)]
    return found


def usable(whole: int, found: list[Cell]) -> int:
    """Return the bytes that this process may use out of ``whole``.

    :param found: what cells() returned
    """
    if all(cell.allowed or not cell.memory for cell in found):
        return whole
    return min(whole, sum(cell.memory for cell in found if cell.allowed)) or whole
