"""What a node's usage is made of: the rule, without a database.

Usage is what is reserved for the host plus all live allocations of the node, for each
resource. What the conductor didn't book itself (usage that Juno left, or that an agent
of object version 1.0 reports) stands in one *legacy* allocation of the node:

* a row that was never booked has used minus reserved in it, never less than 0
* Juno counted the host's reserved memory and disk as used, but said nowhere how much
  that was, and it knew no reserved CPUs. So when an agent of ours first reports the
  node, the allocation gives up the memory and disk that are reserved from then on.
  Later changes of what is reserved change usage.
* an agent of version 1.0 writes usage, and the allocation follows
* an agent of ours confirms it, or corrects it, once
"""

from collections.abc import Collection
from collections.abc import Mapping
import enum
from typing import Any
from typing import NamedTuple

from conductor.db import limits
from conductor.db import usage
from musterbook import errors


class Booking(enum.IntEnum):
    """How far a node's usage is booked in allocations; stored as a number."""

    #: Of Juno's shape, or written by code that knew no allocations.
    NONE = 0
    #: Booked; no agent of ours has reported the node since.
    UNREPORTED = 1
    #: Booked; no agent has confirmed the legacy allocation.
    UNCONFIRMED = 2
    #: Booked, and there is nothing to confirm.
    CONFIRMED = 3


class Amounts(NamedTuple):
    """Amounts of the resources, in the order of usage.RESOURCES."""

    vcpus: int = 0
    memory_mb: int = 0
    local_gb: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{name} {amount}" for name, amount in self._asdict().items())


class Book(NamedTuple):
    """The live allocations of a node.

    :ivar legacy: what its legacy allocation holds; None: it has none
    :ivar confirmed: whether an agent has confirmed that
    :ivar others: the sum of all others
    """

    legacy: Amounts | None = None
    confirmed: bool = False
    others: Amounts = Amounts()


class Outcome(NamedTuple):
    """What a change comes to.

    :ivar legacy: of the legacy allocation from now on; nothing in it: it is released
    :ivar columns: used and free amounts, and ``booking``
    """

    legacy: Amounts
    confirmed: bool
    columns: dict[str, int]


def amounts(used: object) -> Amounts:
    """Return amounts that came over the wire.

    :raises InvalidInput: one is missing, unknown or no amount that can be stored
    """
    given = dict(used) if isinstance(used, Mapping) else {}
    if given.keys() != set(Amounts._fields):
        known = ", ".join(Amounts._fields)
        raise errors.InvalidInput(field="used", reason=f"must have exactly {known}")
    for name, amount in given.items():
        if not limits.countable(amount) or amount < 0:
            raise errors.InvalidInput(field=f"used {name}", reason="is not an amount")
    return Amounts(**given)


#: Juno's usage included what was reserved of these.
_RESERVED_IN_JUNO = ("memory_mb_used", "local_gb_used")
#: Agents of ours report them, Juno's don't know them.
RATIOS = ("cpu_allocation_ratio", "ram_allocation_ratio", "disk_allocation_ratio")


def settle(
    stored: Mapping[str, Any],
    new: Mapping[str, Any],
    book: Book,
    written: Collection[str] = (),
) -> Outcome:
    """Return what a node's usage and legacy allocation are after a change.

    :param stored: the row so far
    :param new: the row from now on; its usage counts only where it is written
    :param book: its allocations so far
    :param written: the usage columns that the caller, of version 1.0, writes itself
    """
    legacy = _opening(stored, book) if book.legacy is None else book.legacy
    confirmed = book.confirmed and not written
    first_report = not (_reported(stored) or book.confirmed) and _reported(new)
    held = []
    for amount, other, resource in zip(
        legacy, book.others, usage.RESOURCES, strict=True
    ):
        reserved = new[resource.reserved]
        if resource.used in written:
            amount = max(0, new[resource.used] - reserved - other)
        elif first_report and resource.used in _RESERVED_IN_JUNO:
            amount = max(0, amount - max(0, reserved))
        held.append(amount)
    return _outcome(new, Amounts(*held), book.others, confirmed)


def confirm(stored: Mapping[str, Any], told: Amounts, book: Book) -> Outcome:
    """Return what they are once an agent has told what really runs there."""
    return _outcome(stored, told, book.others, True)


def mend(stored: Mapping[str, Any], book: Book) -> Outcome:
    """Return what they are where usage isn't the sum: older code wrote one of them.

    An agent of version 1.0 writes usage, so its number counts, and the legacy
    allocation follows. An agent of ours doesn't: the allocations count.
    """
    written = () if _reported(stored) else [r.used for r in usage.RESOURCES]
    return settle(stored, stored, book, written)


def _opening(stored: Mapping[str, Any], book: Book) -> Amounts:
    """Return what nobody has booked of a row's usage."""
    if stored["booking"] != Booking.NONE:
        return Amounts()
    return Amounts(
        *(
            max(0, stored[resource.used] - stored[resource.reserved] - other)
            for resource, other in zip(usage.RESOURCES, book.others, strict=True)
        )
    )


def _reported(row: Mapping[str, Any]) -> bool:
    """Tell whether an agent of ours has said what the node reserves."""
    ratios = any(row[name] is not None for name in RATIOS)
    return ratios or any(row[resource.reserved] for resource in usage.RESOURCES)


def _outcome(
    row: Mapping[str, Any], legacy: Amounts, others: Amounts, confirmed: bool
) -> Outcome:
    columns = {}
    for amount, other, resource in zip(legacy, others, usage.RESOURCES, strict=True):
        used = row[resource.reserved] + other + amount
        columns[resource.used] = used
        if resource.free is not None:
            columns[resource.free] = row[resource.capacity] - used
    if confirmed or not any(legacy):
        booking = Booking.CONFIRMED
    else:
        booking = Booking.UNCONFIRMED if _reported(row) else Booking.UNREPORTED
    return Outcome(legacy, confirmed, columns | {"booking": int(booking)})
