"""Nodes that are made up in a JSON file, with faults on demand.

docs/inventory.md describes the file. It is read anew at each reading, so that
changing it is changing the hardware. Made for tests, demonstrations and load; an
agent with this source behaves as with any other.
"""

from collections.abc import Mapping
import datetime
import json
import math
import pathlib
import threading
from typing import Any

from oslo_config import cfg

from compute_agent.inventory import source
from musterbook import errors
from musterbook import names

OPTION = "[inventory_fake]file"
# How often a blocked reading looks whether the file still says so.
POLL_SECONDS = 0.05

_REQUIRED = ("vcpus", "memory_mb", "local_gb")
# Given as JSON values in the file, stored as canonical JSON text.
_STRUCTURED: dict[str, type] = {
    "cpu_info": dict,
    "numa_topology": dict,
    "supported_instances": list,
}
_DEFAULTS: dict[str, object] = {
    "disk_available_least": None,
    "hypervisor_type": "fake",
    "hypervisor_version": 1_000_000,
    "cpu_info": {
        "arch": "x86_64",
        "model": "fake",
        "vendor": "fake",
        "topology": {"sockets": 1, "cores": 1, "threads": 1},
        "features": [],
    },
    "host_ip": None,
    "supported_instances": [["x86_64", "fake", "hvm"]],
    "numa_topology": None,
    "boot_id": None,
    "used": None,
    "uuid": None,
    "roams": False,
    "booted_at": None,
    "custom_resources": {},
    "labels": {},
}
_KEYS = ("fault", "gone", "nodes", "one_machine", "steps")
#: What a step may change; "readings" says for how many of them it holds.
_STEP_KEYS = ("fault", "gone", "nodes", "readings")


class FakeInventory(source.InventorySource):
    """Reports the nodes of the file that ``[inventory_fake]file`` names.

    :raises ConfigurationError: when the option is missing or my_ip is wrong
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(conf)
        self._path = self._file(conf)
        self._my_ip = source.my_ip(conf)
        self._closed = threading.Event()
        self._script = _Script()

    def read(self) -> Mapping[str, source.NodeInventory]:
        """Return the file's nodes, after the fault that it asks for.

        :raises InventoryUnavailable: naming the field that can't be used; or for
            the fault "not-ready"; or when closed while waiting
        :raises RuntimeError: for the fault "raise"
        """
        self._script.next()
        content = self._load_after_fault()
        nodes = content.get("nodes")
        if not isinstance(nodes, dict):
            raise _unavailable("nodes: is missing or not an object")
        found = {name: self._node(name, fields) for name, fields in nodes.items()}
        gone, one_machine = content.get("gone", []), content.get("one_machine", False)
        if not isinstance(gone, list):
            raise _unavailable("gone: is not a list of names")
        if not isinstance(one_machine, bool):
            raise _unavailable("one_machine: is not true or false")
        try:
            for name in gone:
                names.check(name, "gone")
            return source.check(
                source.Reading(found, gone=gone, one_machine=one_machine)
            )
        except (errors.InvalidInput, errors.InvalidName) as exc:
            raise _unavailable(exc.message) from None

    def close(self) -> None:
        """End a reading that is slow or blocked."""
        self._closed.set()

    def _file(self, conf: cfg.ConfigOpts) -> pathlib.Path:
        if not conf.inventory_fake.file:
            raise errors.ConfigurationError(
                option=OPTION, reason="is needed by the inventory source 'fake'"
            )
        return pathlib.Path(conf.inventory_fake.file)

    def _load_after_fault(self) -> dict[str, Any]:
        content = self._script.apply(self._load())
        fault, seconds = _parse_fault(content.get("fault"))
        while fault == "block":
            self._wait(POLL_SECONDS)
            content = self._script.apply(self._load())
            fault, seconds = _parse_fault(content.get("fault"))
        if fault == "slow":
            self._wait(seconds)
        if fault == "raise":
            # Not one of ours on purpose: stands for a bug in a source.
            raise RuntimeError("the file asks for a failure")
        if fault == "not-ready":
            raise _unavailable("is not ready, as its file asks")
        return content

    def _wait(self, seconds: float) -> None:
        if self._closed.wait(seconds):
            raise _unavailable("was closed")

    def _load(self) -> dict[str, Any]:
        try:
            content = json.loads(
                self._path.read_bytes(), object_pairs_hook=_without_duplicates
            )
        except OSError as exc:
            raise _unavailable(f"can't read {self._path}: {exc.strerror}") from None
        except (ValueError, RecursionError) as exc:
            reason = errors.one_line(str(exc))
            raise _unavailable(f"{self._path} is not JSON: {reason}") from None
        if not isinstance(content, dict):
            raise _unavailable(f"{self._path} doesn't hold a JSON object")
        for key in content.keys() - set(_KEYS):
            raise _unavailable(f"{key!a}: is unknown; known are: {', '.join(_KEYS)}")
        return content

    def _node(self, name: str, fields: object) -> source.NodeInventory:
        where = f"node {name!a}"
        fields = _checked_keys(where, fields)
        values = {**_DEFAULTS, "host_ip": self._my_ip, **fields}
        for key, shape in _STRUCTURED.items():
            if values[key] is not None:
                if not isinstance(values[key], shape):
                    kind = "an object" if shape is dict else "a list"
                    raise _unavailable(f"{where}: {key}: is not {kind}")
                values[key] = source.canonical(values[key])
        values["used"] = _usage(where, values["used"])
        values["booted_at"] = _instant(where, values["booted_at"])
        for key in ("custom_resources", "labels"):
            if not isinstance(values[key], dict):
                raise _unavailable(f"{where}: {key}: is not an object")
        values |= source.configured(
            self.conf, values["custom_resources"], values["labels"]
        )
        try:
            return source.NodeInventory(hypervisor_hostname=name, **values)
        except (errors.InvalidInput, errors.InvalidName) as exc:
            raise _unavailable(f"{where}: {exc.message}") from None


class _Script:
    """Which of a file's steps a reading meets.

    The first step comes with the first reading of a file, and with the first one after
    the file's content has changed; the last one stays. Only one thread reads.
    """

    def __init__(self) -> None:
        self._content: dict[str, Any] = {}
        self._readings = 0

    def next(self) -> None:
        """Go on: a reading begins."""
        self._readings += 1

    def apply(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return the file's content as the step of this reading changes it."""
        if content != self._content:
            self._content = content
            self._readings = 1
        steps = content.get("steps", [])
        if not isinstance(steps, list):
            raise _unavailable("steps: is not a list of objects")
        met = 0
        for number, step in enumerate(steps):
            met += _readings_of(number, step)
            if self._readings <= met or number == len(steps) - 1:
                return _changed(content, step, f"steps: number {number}")
        return content


def _readings_of(number: int, step: object) -> int:
    """Return for how many readings a step holds, once it is found to be one."""
    where = f"steps: number {number}"
    if not isinstance(step, dict):
        raise _unavailable(f"{where}: is not an object")
    for key in sorted(step.keys() - set(_STEP_KEYS)):
        raise _unavailable(
            f"{where}: {key!a}: is unknown; known are: {', '.join(_STEP_KEYS)}"
        )
    count = step.get("readings", 1)
    if type(count) is not int or count < 1:
        raise _unavailable(f"{where}: readings: is not a number above 0")
    return count


def _changed(
    content: dict[str, Any], step: dict[str, Any], where: str
) -> dict[str, Any]:
    """Return the content with a step's keys; of nodes, field by field."""
    changed = content | {key: step[key] for key in ("fault", "gone") if key in step}
    nodes, changes = content.get("nodes"), step.get("nodes", {})
    if not isinstance(changes, dict):
        raise _unavailable(f"{where}: nodes: is not an object")
    if isinstance(nodes, dict):
        merged = {
            name: {**nodes.get(name, {}), **fields}
            if isinstance(fields, dict)
            else fields
            for name, fields in changes.items()
        }
        # null takes a node away.
        nodes = {n: f for n, f in {**nodes, **merged}.items() if f is not None}
        changed["nodes"] = nodes
    return changed


def _instant(where: str, text: object) -> datetime.datetime | None:
    """Return a node's booted_at as the file says it, "2026-01-02T03:04:05Z"."""
    if text is None:
        return None
    try:
        found = datetime.datetime.fromisoformat(str(text))
    except ValueError:
        raise _unavailable(
            f"{where}: booted_at: is not an instant such as 2026-01-02T03:04:05Z"
        ) from None
    return found.replace(microsecond=0)


def _checked_keys(where: str, fields: object) -> dict[str, Any]:
    """Return a node's fields, once all are known and none is missing."""
    if not isinstance(fields, dict):
        raise _unavailable(f"{where}: is not an object")
    known = (*_REQUIRED, *_DEFAULTS)
    for key in sorted(fields):
        if key not in known:
            raise _unavailable(f"{where}: {key!a}: is unknown")
    for key in _REQUIRED:
        if key not in fields:
            raise _unavailable(f"{where}: {key}: is missing")
    return fields


def _usage(where: str, used: object) -> source.Usage | None:
    """Return a node's usage as the file says it."""
    if used is None:
        return None
    if not isinstance(used, dict) or used.keys() != set(_REQUIRED):
        raise _unavailable(f"{where}: used: must have exactly {', '.join(_REQUIRED)}")
    try:
        return source.Usage(**used)
    except errors.InvalidInput as exc:
        raise _unavailable(f"{where}: used: {exc.message}") from None


def _parse_fault(fault: object) -> tuple[str | None, float]:
    """Return a fault's kind and its seconds."""
    if fault is None or fault in ("raise", "block", "not-ready"):
        return fault, 0.0
    if isinstance(fault, str) and fault.startswith("slow:"):
        try:
            seconds = float(fault.removeprefix("slow:"))
        except ValueError:
            seconds = math.nan
        if 0.0 <= seconds <= threading.TIMEOUT_MAX:
            return "slow", seconds
    raise _unavailable(
        "fault: is not one of null, slow:SECONDS, raise, block, not-ready"
    )


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Refuse what JSON would silently resolve: a node that is there twice."""
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!a} is there twice")
    return result


def _unavailable(reason: str) -> errors.InventoryUnavailable:
    return errors.InventoryUnavailable(source="fake", reason=reason)
