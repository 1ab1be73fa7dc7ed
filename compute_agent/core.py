"""The pure core of the tracker: inventory, claims and policy in, a node out.

No clock, no lock, no call: whoever calls it brings everything with him.
"""

from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
import math
from typing import NamedTuple

from oslo_config import cfg

from compute_agent.inventory import source
from musterbook import errors
from musterbook import names

# The options' bounds: what is stored outside of them nobody has configured.
MIN_RATIO = 0.01
MAX_RATIO = 1000.0
# MySQL's FLOAT gives back six digits: 1/3 is stored as 0.333333.
RATIO_TOLERANCE = 1e-5


@dataclasses.dataclass(frozen=True)
class Ratio:
    """An allocation ratio's options.

    :param configured: None when the option is unset or 0.0
    :param initial: for a node that has none
    """

    configured: float | None
    initial: float

    def in_force(self, stored: object) -> float:
        """Return the ratio to store: configured, else stored, else initial.

        Neither 0 nor anything else that nobody can reckon with is kept.
        """
        if self.configured is not None:
            return self.configured
        return _sane(stored) or self.initial


@dataclasses.dataclass(frozen=True)
class Policy:
    """What the operator holds back and how far hosts are overcommitted.

    Reserved amounts are counted as used; disk in whole GiB, rounded up.
    """

    reserved_vcpus: int
    reserved_memory_mb: int
    reserved_local_gb: int
    cpu: Ratio
    ram: Ratio
    disk: Ratio

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts) -> "Policy":
        """Take the policy out of the checked configuration.

        :raises ConfigurationError: for a ratio too small to reckon with
        """
        return cls(
            reserved_vcpus=conf.reserved_host_cpus,
            reserved_memory_mb=conf.reserved_host_memory_mb,
            reserved_local_gb=-(-conf.reserved_host_disk_mb // 1024),
            cpu=_ratio(conf, "cpu"),
            ram=_ratio(conf, "ram"),
            disk=_ratio(conf, "disk"),
        )


class Amounts(NamedTuple):
    """Amounts of the countable resources: CPUs, MiB, GiB; may be negative."""

    vcpus: int = 0
    memory_mb: int = 0
    local_gb: int = 0


@dataclasses.dataclass(frozen=True)
class Node:
    """What a node's record must be.

    :ivar columns: capacity: what its agent writes, and only it
    :ivar used: what is reserved and all claims; the conductor writes it, by this rule
    :ivar free: what there is minus that, true even when negative; allocation ratios
        have no part in it
    """

    columns: Mapping[str, object]
    used: Amounts
    free: Amounts


def node(
    inventory: source.NodeInventory,
    claims: Iterable[Amounts],
    policy: Policy,
    stored: Mapping[str, object] | None,
) -> Node:
    """Return what the record of a node must be.

    :param inventory: the latest reading
    :param claims: what the live allocations of the node hold, each
    :param stored: the record's columns as last seen, or None for a new node
    """
    reserved = Amounts(
        policy.reserved_vcpus, policy.reserved_memory_mb, policy.reserved_local_gb
    )
    used = Amounts(*map(sum, zip(reserved, *claims, strict=True)))
    there = Amounts(inventory.vcpus, inventory.memory_mb, inventory.local_gb)
    free = Amounts(*(has - uses for has, uses in zip(there, used, strict=True)))
    return Node(capacity(inventory, policy, stored), used, free)


def booted_anew(stored: Mapping[str, object], reading: source.NodeInventory) -> bool:
    """Tell whether a node's host was booted since its record was written."""
    before = stored.get("boot_id")
    known = before is not None and reading.boot_id is not None
    return known and before != reading.boot_id


def capacity(
    inventory: source.NodeInventory,
    policy: Policy,
    stored: Mapping[str, object] | None,
) -> dict[str, object]:
    """Return the capacity columns that the node's record must hold.

    :param inventory: the latest reading
    :param stored: the record's columns as last seen, or None for a new node
    """
    columns = inventory.columns(stored)
    stored = stored or {}
    return {
        **columns,
        "reserved_vcpus": policy.reserved_vcpus,
        "reserved_memory_mb": policy.reserved_memory_mb,
        "reserved_local_gb": policy.reserved_local_gb,
        "cpu_allocation_ratio": policy.cpu.in_force(stored.get("cpu_allocation_ratio")),
        "ram_allocation_ratio": policy.ram.in_force(stored.get("ram_allocation_ratio")),
        "disk_allocation_ratio": policy.disk.in_force(
            stored.get("disk_allocation_ratio")
        ),
    }


def changes(
    stored: Mapping[str, object] | None, wanted: Mapping[str, object]
) -> dict[str, object]:
    """Return what of ``wanted`` has to be saved; nothing when all is as stored.

    A column that ``stored`` doesn't have is unknown and is saved.
    """
    if stored is None:
        return dict(wanted)
    return {
        column: value
        for column, value in wanted.items()
        if column not in stored or not _same(column, stored[column], value)
    }


def _same(column: str, old: object, new: object) -> bool:
    if column == "hypervisor_hostname" and isinstance(old, str):
        # Part of the node's identity, which other case doesn't change.
        return names.fold(old) == names.fold(str(new))
    if isinstance(new, float):
        ratio = _sane(old)
        return ratio is not None and math.isclose(ratio, new, rel_tol=RATIO_TOLERANCE)
    return old == new


def _sane(value: object) -> float | None:
    """Return a stored ratio if it is one; also turns away NaN and booleans."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if MIN_RATIO <= value <= MAX_RATIO else None
    return None


def _ratio(conf: cfg.ConfigOpts, resource: str) -> Ratio:
    option = f"{resource}_allocation_ratio"
    configured = conf[option] or None
    if configured is not None and _sane(configured) is None:
        raise errors.ConfigurationError(
            option=option, reason=f"must be 0.0 or {MIN_RATIO} to {MAX_RATIO:g}"
        )
    return Ratio(configured=configured, initial=conf[f"initial_{option}"])
