"""What an inventory source is, what it says of a node, and how one is loaded."""

import abc
from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
import datetime
from importlib import metadata
import ipaddress
import json
from types import MappingProxyType
from typing import Any
from typing import TypedDict
import uuid as uuidlib

from oslo_config import cfg
from stevedore import driver
from stevedore import exception as stevedore_exception

from musterbook import custom
from musterbook import errors
from musterbook import names

#: Columns that a conductor may be too old to know.
_NEWER = ("booted_at", "custom_resources", "labels")
NAMESPACE = "musterbook.inventory"
OPTION = "[inventory]source"
# The database's INTEGER; a file system in the cloud may claim to be larger.
MAX_INTEGER = 2**31 - 1
#: No boot was before it: a clock that says so was never set.
_FIRST_YEAR = 1970


def canonical(value: object) -> str:
    """Return a JSON value as text that is the same for equal values.

    An audit compares texts, so a source must never say the same in two ways.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """What the workloads of a node use that nobody claimed.

    :param vcpus: CPUs given out to them
    :param memory_mb: memory in MiB, rounded up
    :param local_gb: disk in GiB, rounded up
    :raises InvalidInput: naming the field that holds what can't be stored
    """

    vcpus: int
    memory_mb: int
    local_gb: int

    def __post_init__(self) -> None:
        for field in ("vcpus", "memory_mb", "local_gb"):
            _check_integer(field, getattr(self, field), 0)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NodeInventory:
    """What one reading says of one node; equal readings are equal objects.

    Values that change by themselves (uptime, load, free memory) don't belong here:
    each change is written to the database. In place of the uptime stands the instant
    of the boot, and even that isn't compared: clocks are set.

    :param hypervisor_hostname: the node's name, see musterbook.names
    :param vcpus: CPUs, before any allocation ratio
    :param memory_mb: memory in MiB, rounded down
    :param local_gb: disk in GiB, rounded down
    :param disk_available_least: GiB that could be given out at the very least, or
        None where that isn't known; may be negative
    :param hypervisor_type: what runs the workloads, e.g. "host" or "QEMU"
    :param hypervisor_version: as major * 1000000 + minor * 1000 + patch
    :param cpu_info: JSON object with arch, model, vendor, topology (sockets, cores
        of a socket, threads of a core) and features (a sorted list)
    :param host_ip: IPv4 or IPv6 address under which the node's host is reached
    :param supported_instances: JSON list of [arch, hypervisor type, vm mode]
    :param numa_topology: JSON object {"cells": [{"id", "cpus", "memory_mb"}]}, or
        None when unknown
    :param boot_id: differs from boot to boot of the node's host, or None
    :param booted_at: when that boot was, aware, kept in whole seconds; None where that
        isn't known. Needs the boot_id, and is saved along with it
    :param custom_resources: further countable ones by name, see musterbook.custom
    :param labels: texts that tell nodes apart, by key, see musterbook.custom
    :param used: what workloads use that nobody claimed, None: that can't be told. It
        is asked for once, to confirm or correct the usage that Juno left (see
        docs/usage.md); so here, and only here, values may change by themselves
    :param uuid: the node's own, the same whatever it is called and wherever it shows
        up, or None where there is none: the book then gives it one
    :param roams: whether an agent may take it over from the one that had it, as
        managers of bare metal do; needs the uuid
    :raises InvalidInput: naming the field that holds what can't be stored
    """

    hypervisor_hostname: str
    vcpus: int
    memory_mb: int
    local_gb: int
    disk_available_least: int | None
    hypervisor_type: str
    hypervisor_version: int
    cpu_info: str
    host_ip: str | None
    supported_instances: str
    numa_topology: str | None
    boot_id: str | None
    used: Usage | None = None
    uuid: str | None = None
    roams: bool = False
    booted_at: datetime.datetime | None = dataclasses.field(default=None, compare=False)
    custom_resources: Mapping[str, int] = dataclasses.field(default_factory=dict)
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def columns(self, stored: Mapping[str, object] | None = None) -> dict[str, object]:
        """Return what of it is a column of the node's record that may change.

        :param stored: the record's columns as last seen, None for a new node. Of a
            conductor that is too old for some, these are left out; and the instant of
            a boot that is stored stays, as it moves whenever the clock is set
        """
        found = dataclasses.asdict(self)
        if self.booted_at is not None:
            # As it is stored, and as it goes over the wire.
            found["booted_at"] = self.booted_at.astimezone(datetime.UTC)
        del found["uuid"], found["roams"], found["used"]
        for name in ("custom_resources", "labels"):
            found[name] = found[name] or None
        if stored is None:
            return found
        for name in _NEWER:
            if name not in stored:
                del found[name]
        if self.boot_id == stored.get("boot_id") and stored.get("booted_at"):
            del found["booted_at"]
        return found

    def __post_init__(self) -> None:
        names.check(self.hypervisor_hostname, "hypervisor_hostname")
        for field in ("vcpus", "memory_mb", "local_gb", "hypervisor_version"):
            _check_integer(field, getattr(self, field), 0)
        if self.disk_available_least is not None:
            _check_integer("disk_available_least", self.disk_available_least, None)
        _check_text("hypervisor_type", self.hypervisor_type)
        _check_json("cpu_info", self.cpu_info, dict)
        _check_json("supported_instances", self.supported_instances, list)
        if self.numa_topology is not None:
            _check_json("numa_topology", self.numa_topology, dict)
        if not (self.host_ip is None or _is_address(self.host_ip)):
            raise errors.InvalidInput(field="host_ip", reason="is not an IP address")
        self._check_boot()
        # In one order and nobody else's: what is given may be changed later.
        resources = custom.check_resources(self.custom_resources, "custom_resources")
        object.__setattr__(self, "custom_resources", resources)
        labels = custom.check_labels(self.labels, "labels")
        object.__setattr__(self, "labels", labels)
        if not (self.used is None or isinstance(self.used, Usage)):
            raise errors.InvalidInput(field="used", reason="is not a Usage")
        self._check_own_uuid()

    def _check_boot(self) -> None:
        if self.boot_id is not None:
            _check_text("boot_id", self.boot_id)
        if self.booted_at is not None:
            _check_instant("booted_at", self.booted_at)
            if self.boot_id is None:
                raise errors.InvalidInput(field="booted_at", reason="needs a boot_id")

    def _check_own_uuid(self) -> None:
        if self.uuid is not None:
            _check_uuid("uuid", self.uuid)
        if not isinstance(self.roams, bool):
            raise errors.InvalidInput(field="roams", reason="is not true or false")
        if self.roams and self.uuid is None:
            raise errors.InvalidInput(field="roams", reason="needs a uuid")


class Reading(dict[str, NodeInventory]):
    """The nodes of one reading by name, and what else the source is sure of.

    :param nodes: the nodes
    :ivar gone: names of nodes that it knows to be gone for good. The agent deletes
        their records; one that is merely left out it keeps
    :ivar one_machine: whether its one node is the machine that the agent runs on, and
        stays the same node whatever it is called
    """

    def __init__(
        self,
        nodes: Mapping[str, NodeInventory] = MappingProxyType({}),
        *,
        gone: Iterable[str] = (),
        one_machine: bool = False,
    ) -> None:
        super().__init__(nodes)
        self.gone = frozenset(gone)
        self.one_machine = one_machine


class InventorySource(abc.ABC):
    """Says what nodes there are and what each of them has.

    Built with the configuration alone, by load(); reads nothing until read().
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        """Take what is needed out of ``conf``.

        :raises ConfigurationError: naming the option that can't be used
        """
        self.conf = conf

    @abc.abstractmethod
    def read(self) -> Mapping[str, NodeInventory]:
        """Return every node by its name, as it is now.

        May block: the caller bounds it (see bounded.BoundedReader) and never runs
        two at once. While nothing changes, two readings are equal. A source that
        can't tell what there is must raise. A node that is left out keeps its record;
        a source that knows it to be gone says so in a Reading.

        :raises InventoryUnavailable: when it can't be said right now
        """

    def close(self) -> None:
        """Let go of what is held and end a read() that waits, soon.

        Called once, from any thread, also while read() runs; nothing is read
        afterwards. Does nothing unless overridden.
        """
        return


def load(conf: cfg.ConfigOpts) -> InventorySource:
    """Return the source that ``[inventory]source`` names.

    :raises ConfigurationError: when there is none of that name, when it can't be
        imported, or from the source itself
    """
    name = conf.inventory.source
    try:
        found: Any = driver.DriverManager(
            NAMESPACE, name, on_missing_entrypoints_callback=None
        ).driver
    except stevedore_exception.NoMatches:
        # Asked without loading them: one that can't be imported is still known.
        known = ", ".join(sorted(metadata.entry_points(group=NAMESPACE).names))
        raise errors.ConfigurationError(
            option=OPTION, reason=f"there is no source {name!a}; known are: {known}"
        ) from None
    except Exception as exc:  # importing foreign code can raise anything
        raise errors.ConfigurationError(
            option=OPTION, reason=f"source {name!a} can't be loaded: {describe(exc)}"
        ) from exc
    if not (isinstance(found, type) and issubclass(found, InventorySource)):
        raise errors.ConfigurationError(
            option=OPTION, reason=f"source {name!a} isn't an InventorySource"
        )
    return found(conf)


def my_ip(conf: cfg.ConfigOpts) -> str | None:
    """Return the option my_ip, None when it is left out.

    :raises ConfigurationError: when it isn't an IP address
    """
    text: str | None = conf.my_ip
    if text is not None and not _is_address(text):
        raise errors.ConfigurationError(
            option="my_ip", reason=f"{text!a} is not an IP address"
        )
    return text


class Configured(TypedDict):
    """What of a node the operator says."""

    custom_resources: dict[str, int]
    labels: dict[str, str]


def configured(
    conf: cfg.ConfigOpts,
    resources: Mapping[str, int] = MappingProxyType({}),
    labels: Mapping[str, str] = MappingProxyType({}),
) -> Configured:
    """Return the custom resources and labels of a node, as a NodeInventory takes them.

    Those of ``[inventory]`` as they are now, which a reload may change, and beside or
    in place of them what the source knows better.
    """
    return {
        "custom_resources": {**conf.inventory.custom_resources, **resources},
        "labels": {**conf.inventory.labels, **labels},
    }


def check(nodes: object) -> Reading:
    """Return what read() gave if it keeps its promise.

    :raises InvalidInput: naming the node and what is wrong with it
    """
    if not isinstance(nodes, Mapping):
        raise errors.InvalidInput(field="nodes", reason="is not a mapping")
    checked: dict[str, NodeInventory] = {}
    seen: dict[str, str] = {}
    for name, node in nodes.items():
        if not isinstance(node, NodeInventory):
            raise errors.InvalidInput(
                field=f"node {name!a}", reason="is not a NodeInventory"
            )
        if name != node.hypervisor_hostname:
            raise errors.InvalidInput(
                field=f"node {name!a}",
                reason=f"has the hypervisor_hostname {node.hypervisor_hostname}",
            )
        other = seen.setdefault(names.fold(name), name)
        if other != name:
            raise errors.InvalidInput(
                field=f"node {name}", reason=f"has the same name as node {other}"
            )
        checked[name] = node
    _check_distinct(checked)
    if not isinstance(nodes, Reading):
        return Reading(checked)
    for name in nodes.gone:
        if names.fold(names.check(name, "gone")) in seen:
            raise errors.InvalidInput(
                field="gone", reason=f"has node {name}, which is there"
            )
    if nodes.one_machine and len(checked) > 1:
        raise errors.InvalidInput(
            field="one_machine", reason=f"has {len(checked)} nodes"
        )
    return Reading(checked, gone=nodes.gone, one_machine=nodes.one_machine)


def _check_distinct(nodes: Mapping[str, NodeInventory]) -> None:
    seen: dict[str, str] = {}
    for name, node in nodes.items():
        if node.uuid is not None:
            other = seen.setdefault(node.uuid, name)
            if other != name:
                raise errors.InvalidInput(
                    field=f"node {name}", reason=f"has the same uuid as node {other}"
                )


def describe(exc: BaseException) -> str:
    """Return one line that says what was raised."""
    text = errors.one_line(str(exc))
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


def _check_integer(field: str, value: object, least: int | None) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise errors.InvalidInput(field=field, reason="is not a whole number")
    if least is not None and value < least:
        raise errors.InvalidInput(field=field, reason=f"is {value}, less than {least}")
    if abs(value) > MAX_INTEGER:
        raise errors.InvalidInput(field=field, reason=f"is beyond {MAX_INTEGER}")


def _check_text(field: str, value: object) -> None:
    if not isinstance(value, str):
        raise errors.InvalidInput(field=field, reason="is not text")
    if not value or len(value) > names.MAX_LENGTH:
        raise errors.InvalidInput(
            field=field, reason=f"must have 1 to {names.MAX_LENGTH} characters"
        )


def _check_instant(field: str, value: object) -> None:
    if not isinstance(value, datetime.datetime) or value.tzinfo is None:
        raise errors.InvalidInput(field=field, reason="is not an instant with its zone")
    if value.year < _FIRST_YEAR:
        raise errors.InvalidInput(
            field=field, reason=f"is {value.isoformat()}, before {_FIRST_YEAR}"
        )


def _check_uuid(field: str, value: object) -> None:
    """Return if it is a uuid as the book stores it: lower case, with hyphens."""
    try:
        fits = isinstance(value, str) and str(uuidlib.UUID(value)) == value
    except ValueError:
        fits = False
    if not fits:
        raise errors.InvalidInput(
            field=field, reason="is not a uuid in lower case with hyphens"
        )


def _check_json(field: str, value: object, shape: type) -> None:
    kind = "an object" if shape is dict else "a list"
    try:
        fits = isinstance(value, str) and isinstance(json.loads(value), shape)
    except (ValueError, RecursionError):
        fits = False
    if not fits:
        raise errors.InvalidInput(field=field, reason=f"is not the JSON of {kind}")


def _is_address(value: object) -> bool:
    """Tell whether it is an address that other hosts understand (no zone)."""
    try:
        return isinstance(value, str) and "%" not in str(ipaddress.ip_address(value))
    except ValueError:
        return False
