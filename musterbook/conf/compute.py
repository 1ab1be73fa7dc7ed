"""[DEFAULT] and [inventory*]: what a compute agent reports and how often."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from oslo_config import cfg
from oslo_config import types

from musterbook import custom
from musterbook import errors

# What the database's INTEGER holds.
MAX_INTEGER = 2**31 - 1


class _Custom(types.Dict):
    """What musterbook.custom allows, as name:value pairs.

    :param check: checks all of them, and names what it refuses
    :param value: type of the values
    :param what: for the samples
    """

    def __init__(
        self,
        check: Callable[[object, str], dict[str, Any]],
        value: types.ConfigType,
        what: str,
    ) -> None:
        super().__init__(value_type=value, type_name=what)
        self._check = check

    def __call__(self, value: object) -> dict[str, Any]:
        try:
            return self._check(super().__call__(value), "it")
        except errors.InvalidInput as exc:
            raise ValueError(exc.reason) from None


OPTS = [
    cfg.StrOpt(
        "my_ip",
        help="Address under which this host is reached, reported as host_ip. Left "
        "out: the address of the interface with the default route.",
    ),
    cfg.FloatOpt(
        "update_resources_interval",
        mutable=True,
        default=12.0,
        min=0.1,
        max=86400.0,
        help="Seconds between two audits of the inventory. At most half of "
        "stalled_after; a larger value is shortened to that, which the agent's log "
        "says. A larger value finds hot-plugged resources later; an audit "
        "that finds no change writes nothing.",
    ),
    cfg.FloatOpt(
        "stalled_after",
        mutable=True,
        default=25.0,
        min=0.0,
        max=86400.0,
        help="Seconds without progress (the inventory source doesn't answer or fails, "
        "no audit begins, all threads that serve are stuck) after which an agent says "
        "that it is stalled: its host is suspect, and not offered, until it goes on. "
        "At least 1; 0 never says so. Audits come at least twice in this time, "
        "whatever update_resources_interval is, and [inventory]timeout must be at most "
        "half of it. A larger value forgives slower sources and offers a host that "
        "hangs for longer.",
    ),
    cfg.FloatOpt(
        "verify_interval",
        mutable=True,
        default=600.0,
        min=1.0,
        max=86400.0,
        help="Seconds between two looks of an agent whether it still has its host and "
        "its nodes are still in the book as it knows them, shortened by up to half at "
        "random. A larger value asks the conductors less and finds what others "
        "changed behind the agent's back later.",
    ),
    cfg.IntOpt(
        "reserved_host_memory_mb",
        mutable=True,
        default=512,
        min=0,
        max=MAX_INTEGER,
        help="Memory held back for the host, in MiB. Counted as used on each node.",
    ),
    cfg.IntOpt(
        "reserved_host_disk_mb",
        mutable=True,
        default=0,
        min=0,
        max=MAX_INTEGER,
        help="Disk held back for the host, in MiB; rounded up to whole GiB, so that "
        "500 holds back 1 GiB. Counted as used on each node.",
    ),
    cfg.IntOpt(
        "reserved_host_cpus",
        mutable=True,
        default=0,
        min=0,
        max=MAX_INTEGER,
        help="CPUs held back for the host. Counted as used on each node.",
    ),
    cfg.FloatOpt(
        "cpu_allocation_ratio",
        mutable=True,
        min=0.0,
        max=1000.0,
        help="Virtual CPUs on offer per real one, at least 0.01. Set: stored at each "
        "audit. Unset or 0.0: initial_cpu_allocation_ratio at creation, then what is "
        "stored.",
    ),
    cfg.FloatOpt(
        "ram_allocation_ratio",
        mutable=True,
        min=0.0,
        max=1000.0,
        help="Memory on offer per real memory; as cpu_allocation_ratio.",
    ),
    cfg.FloatOpt(
        "disk_allocation_ratio",
        mutable=True,
        min=0.0,
        max=1000.0,
        help="Disk on offer per real disk; as cpu_allocation_ratio.",
    ),
    cfg.FloatOpt(
        "initial_cpu_allocation_ratio",
        mutable=True,
        default=4.0,
        min=0.01,
        max=1000.0,
        help="cpu_allocation_ratio of a node that is created without one.",
    ),
    cfg.FloatOpt(
        "initial_ram_allocation_ratio",
        mutable=True,
        default=1.0,
        min=0.01,
        max=1000.0,
        help="ram_allocation_ratio of a node that is created without one.",
    ),
    cfg.FloatOpt(
        "initial_disk_allocation_ratio",
        mutable=True,
        default=1.0,
        min=0.01,
        max=1000.0,
        help="disk_allocation_ratio of a node that is created without one.",
    ),
]

INVENTORY_OPTS = [
    cfg.StrOpt(
        "source",
        default="host",
        help="Inventory source: the name of an entry point in the group "
        "musterbook.inventory. 'host' is the machine the agent runs on, 'libvirt' "
        "asks libvirt for what its hypervisor has, 'fake' reads made-up nodes from a "
        "file.",
    ),
    cfg.FloatOpt(
        "timeout",
        mutable=True,
        default=10.0,
        min=0.1,
        max=3600.0,
        help="Seconds a source may take for one reading, at most half of "
        "stalled_after, unless that is 0. A larger value forgives slow hypervisors "
        "and notices hung ones later.",
    ),
    cfg.Opt(
        "custom_resources",
        type=_Custom(custom.check_resources, types.Integer(), "custom resources"),
        mutable=True,
        default={},
        help="Countable resources of each node that the source doesn't see, such as "
        "CUSTOM_GPU:4,CUSTOM_LICENCE:10. A name is CUSTOM_ and then characters out of "
        "A-Z 0-9 _; amounts are 0 to 2147483647; at most 64 names.",
    ),
    cfg.Opt(
        "labels",
        type=_Custom(custom.check_labels, types.String(), "labels"),
        mutable=True,
        default={},
        help="Texts that tell nodes apart and that nobody counts, such as "
        "rack:r1,site:north, the same for each node of this agent. A key has 1 to 63 "
        "characters out of A-Z a-z 0-9 . _ / -, a value 1 to 255 of printable ASCII, "
        "commas excepted; at most 64 labels.",
    ),
]

HOST_OPTS = [
    cfg.StrOpt(
        "disk_path",
        help="A path on the file system whose size is reported as local_gb. Left "
        "out: state_path.",
    ),
]

LIBVIRT_OPTS = [
    cfg.StrOpt(
        "uri",
        default="qemu:///system",
        help="Which hypervisor the source 'libvirt' asks: a URI of libvirt's. It is "
        "opened for reading only.",
    ),
    cfg.StrOpt(
        "storage_pool",
        help="Name of the storage pool whose size is reported as local_gb. Left out: "
        "the sum of all active pools of kinds that are this machine's own.",
    ),
    cfg.BoolOpt(
        "use_host_uuid",
        default=False,
        help="Report the machine's own uuid, as libvirt has it, for the node. Only "
        "where every machine has another one: vendors are known to ship many with the "
        "same, and then only one of them gets a record.",
    ),
]

FAKE_OPTS = [
    cfg.StrOpt(
        "file",
        help="JSON file with the nodes of the 'fake' source, read anew at each "
        "audit; docs/inventory.md describes it.",
    ),
]

GROUPS: list[tuple[str | None, Sequence[cfg.Opt]]] = [
    (None, OPTS),
    ("inventory", INVENTORY_OPTS),
    ("inventory_host", HOST_OPTS),
    ("inventory_libvirt", LIBVIRT_OPTS),
    ("inventory_fake", FAKE_OPTS),
]
