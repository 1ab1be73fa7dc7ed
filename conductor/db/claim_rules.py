"""Which candidate a claim gets, and why not: the rule, without a database.

A node offers floor((total - reserved) * ratio) of a resource, and never more of it to
one claim than it has in total. Amounts are whole numbers; who asks for a part of a unit
asks for the next whole one.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import fractions
import functools
import json
from typing import Any

from oslo_log import log as logging

from conductor.db import limits
from conductor.db import usage

LOG = logging.getLogger(__name__)

#: Where each resource's ratio stands, and what counts where there is none: a node
#: whose agent never reported one isn't overcommitted.
RATIOS: Mapping[str, str] = {
    "vcpus": "cpu_allocation_ratio",
    "memory_mb": "ram_allocation_ratio",
    "local_gb": "disk_allocation_ratio",
}
NO_RATIO = 1.0
#: The resources that every node has.
RESOURCES = tuple(resource.capacity for resource in usage.RESOURCES)
#: JSON objects of a node: what else it has, and what is allocated of that.
CUSTOM_COLUMNS = ("custom_resources", "custom_used")


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """One claim that is asked for.

    :ivar uuid: chosen by who asks: the same again is the same claim
    :ivar resources: name to amount, all of them above 0; None: those of the claim
        that it replaces
    :ivar candidates: uuids of nodes, the best one first
    :ivar owner: whose it is, in the asker's words
    :ivar seconds: until it must be confirmed
    :ivar replaces: of a move: the claim that it takes over from
    :ivar attempt: of an agent: this call's own uuid
    """

    uuid: str
    resources: Mapping[str, int] | None
    candidates: tuple[str, ...]
    owner: str | None
    seconds: float
    replaces: str | None = None
    attempt: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Reason:
    """Why a node isn't a claim's.

    :ivar node: None: it isn't about a node
    :ivar reason: one of a fixed set of words
    :ivar resource: which one there isn't enough of; None: it isn't for that
    """

    node: str | None
    reason: str
    message: str
    resource: str | None = None
    requested: int | None = None
    free: int | None = None
    capacity: int | None = None

    def facts(self) -> dict[str, Any]:
        """Return what is told of it, as JSON values."""
        found = {field: getattr(self, field) for field in self.__slots__}
        return {name: value for name, value in found.items() if value is not None}


@dataclasses.dataclass(slots=True)
class Room:
    """What a locked node has, and what is left of it; used up by choose().

    :ivar total: name to amount, of the resources that it has
    :ivar capacity: what may be claimed of each
    :ivar free: what is left of that; below 0 where less is offered than before
    :ivar hindrances: word and message: why nothing of it may be claimed at all
    """

    uuid: str
    total: Mapping[str, int]
    capacity: Mapping[str, int]
    free: dict[str, int]
    hindrances: Sequence[tuple[str, str]] = ()

    def fits(self, resources: Mapping[str, int]) -> bool:
        """Tell whether a claim may have these now."""
        if self.hindrances:
            return False
        for name, amount in resources.items():
            if amount > self.free.get(name, 0) or amount > self.total[name]:
                return False
        return True

    def take(self, resources: Mapping[str, int]) -> None:
        """Note that a claim has them from now on."""
        for name, amount in resources.items():
            self.free[name] -= amount

    def give_back(self, resources: Mapping[str, int]) -> None:
        """Take it back."""
        for name, amount in resources.items():
            self.free[name] += amount

    def lacks(self, resources: Mapping[str, int]) -> list[str]:
        """Return the names of those of which there isn't enough."""
        free, total = self.free, self.total
        return [
            name
            for name, amount in resources.items()
            if amount > free.get(name, 0) or amount > total[name]
        ]

    def reason(self, name: str, amount: int) -> Reason:
        """Return why a claim can't have so much of a resource, with its numbers."""
        if name not in self.total:
            text = f"there is no {name}: {amount} requested"
            return Reason(self.uuid, "no-such-resource", text, name, amount, 0, 0)
        total, free = self.total[name], max(0, self.free[name])
        told = (name, amount, free, self.capacity[name])
        if amount > total:
            text = f"{name}: {amount} requested, the node has {total} in all"
            return Reason(self.uuid, "larger-than-node", text, *told)
        text = f"{name}: {amount} requested, {free} free of {self.capacity[name]}"
        return Reason(self.uuid, "no-room", text, *told)


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """What became of a request.

    :ivar node: the uuid of the node that it gets; None: none
    :ivar fitting: the uuid of the node that has room for it; other than ``node`` in a
        group of which another one got none
    :ivar hopeless: why it gets none, whatever the nodes have
    """

    request: Request
    node: str | None
    fitting: str | None
    hopeless: Reason | None = None


def choose(
    requests: Iterable[Request],
    rooms: Mapping[str, Room],
    *,
    atomic: bool = False,
    hopeless: Mapping[str, Reason] | None = None,
) -> list[Choice]:
    """Give each request, in order, the first of its candidates that has room for it.

    What a request gets is not there for those that come after it. There is no second
    thought: a request that would fit if an earlier one had gone elsewhere gets nothing.
    Why one gets nothing is for claim_reasons, as nodes are locked meanwhile.

    :param rooms: by uuid; used up
    :param atomic: all of them or none
    :param hopeless: requests that get nothing, by uuid, and why
    """
    choices = [_choose(request, rooms, hopeless or {}) for request in requests]
    if not atomic or all(choice.node is not None for choice in choices):
        return choices
    for choice in choices:
        if choice.node is not None:
            rooms[choice.node].give_back(choice.request.resources or {})
    return [dataclasses.replace(choice, node=None) for choice in choices]


def _choose(
    request: Request, rooms: Mapping[str, Room], hopeless: Mapping[str, Reason]
) -> Choice:
    if request.uuid in hopeless:
        return Choice(request, None, None, hopeless[request.uuid])
    resources = request.resources or {}
    for uuid in request.candidates:
        room = rooms.get(uuid)
        if room is not None and room.fits(resources):
            room.take(resources)
            return Choice(request, uuid, uuid)
    return Choice(request, None, None)


def capacity(total: int, reserved: int, ratio: float | None) -> int:
    """Return how much of a resource may be claimed in all, never less than 0.

    The ratio counts as the decimal number that it is written as: 100 at 1.15 offer
    115, although the nearest binary number to 1.15 is below it. Rounded down.
    """
    available = max(0, total) - max(0, reserved)
    if available <= 0:
        return 0
    if ratio != 1.0:
        top, bottom = _exactly(NO_RATIO if ratio is None else ratio)
        available = available * top // bottom
    # Usage, which has the reserved amount in it, must fit its column.
    return min(available, limits.LARGEST - max(0, reserved))


@functools.lru_cache(1024)
def _exactly(ratio: float) -> tuple[int, int]:
    if not ratio > 0:
        return 0, 1
    exact = fractions.Fraction(repr(float(ratio)))
    return exact.numerator, exact.denominator


def counts(text: str | None) -> dict[str, int]:
    """Return the amounts in a stored JSON object; what is no amount is left out."""
    if not text:
        return {}
    found = _parsed(text)
    if not _are_amounts(found):
        _complain(text)
    if not isinstance(found, dict):
        return {}
    return {name: n for name, n in found.items() if type(n) is int and n >= 0}


def readable(text: str | None) -> bool:
    """Return whether all of a stored JSON object are amounts; so is one of nothing."""
    return not text or _are_amounts(_parsed(text))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _are_amounts(found: Any) -> bool:
    return isinstance(found, dict) and all(
        type(n) is int and n >= 0 for n in found.values()
    )


@functools.lru_cache(256)
def _complain(text: str) -> None:
    # Remembered, and so said once.
    LOG.warning(
        "What is stored of custom resources can't be read: %s; musterbook-manage db "
        "check says where it stands",
        ascii(text)[:80],
    )


def room_of(row: Mapping[str, Any], hindrances: Sequence[tuple[str, str]] = ()) -> Room:
    """Return what a stored node has room for.

    :param row: its uuid, and the columns of the resources, their ratios, and
        CUSTOM_COLUMNS
    """
    custom, custom_used = (counts(row[name]) for name in CUSTOM_COLUMNS)
    total: dict[str, int] = {}
    offered: dict[str, int] = {}
    free: dict[str, int] = {}
    for resource in usage.RESOURCES:
        name = resource.capacity
        reserved = row[resource.reserved]
        total[name] = max(0, row[name])
        offered[name] = capacity(row[name], reserved, row[RATIOS[name]])
        # Less than what is reserved can't be used: it was written by mistake.
        free[name] = offered[name] - max(0, row[resource.used] - reserved)
    known = readable(row["custom_used"])
    for name, amount in custom.items():
        total[name] = offered[name] = amount
        # Of what is used nobody knows how much, nothing is given out.
        free[name] = amount - custom_used.get(name, 0) if known else 0
    return Room(row["uuid"], total, offered, free, hindrances)
