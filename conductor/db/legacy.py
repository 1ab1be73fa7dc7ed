"""Rows of Juno's shape that are left, and the rule for what becomes of each.

A row is left until its host is stored, nothing points to a service any more, and its
usage is booked.
Its derived identity is its own host, or else that of its service, and its name.
The rule, for the live rows that share a derived identity:

* one survives: the row whose host is stored already; else, of those whose service
  lives, the oldest, which is the one that readers find; else, of those whose service
  was deleted, the one of the newest service
* a survivor whose service was deleted is adopted by the host's live compute service;
  if the host has none, it is soft-deleted as well
* all others are soft-deleted, with host and uuid stored, so that they can be found;
  what they say is used is nobody's, the survivor's row says it as well

A row whose host can't be derived, or whose host or name is no text, is left as it is,
and named.
"""

from collections.abc import Iterable
import dataclasses
import datetime
import enum

import sqlalchemy as sa

from conductor.db import booking
from conductor.db import models
from musterbook import names

_T = models.compute_nodes
_S = models.services

#: What stands where a database's bytes couldn't be read.
_NO_TEXT = "\N{REPLACEMENT CHARACTER}"

NODES_LEFT = sa.and_(
    models.live(_T),
    sa.or_(
        _T.c.host.is_(None),
        _T.c.service_id.is_not(None),
        _T.c.uuid.is_(None),
        _T.c.deleted.is_(None),
        _T.c.booking == int(booking.Booking.NONE),
    ),
)
SERVICES_LEFT = sa.and_(models.live(_S), _S.c.uuid.is_(None))


class Owner(enum.IntEnum):
    """What has become of the service that a row belongs to."""

    LIVE = 0
    DELETED = 1
    GONE = 2


class Action(enum.Enum):
    """What is done with a row."""

    MIGRATE = "migrated"
    DELETE = "resolved"
    NOTHING = "stuck"


@dataclasses.dataclass(frozen=True)
class Node:
    """A live row, with what its service tells.

    :ivar host: as stored
    :ivar owner: of service_id; GONE as well if that is None
    :ivar owner_host: of the service's row, be it deleted; None: it has none either
    :ivar deleted: as stored, 0 or None
    """

    id: int
    name: str | None
    host: str | None
    service_id: int | None
    owner: Owner = Owner.GONE
    owner_host: str | None = None
    uuid: str | None = None
    created_at: datetime.datetime | None = None
    deleted: int | None = 0

    @property
    def derived_host(self) -> str | None:
        """The host that it belongs to or belonged to; None: nothing tells."""
        return self.host or self.owner_host or None

    @property
    def identity(self) -> tuple[str, str] | None:
        """Host and name in the form in which names are compared, if both are known."""
        if self.derived_host is None or self.name is None:
            return None
        return names.fold(self.derived_host), names.fold(self.name)

    @property
    def rank(self) -> tuple[int, int, int]:
        """Sorts rows of one identity, the survivor first."""
        if self.host:
            return 0, int(self.deleted is None), self.id
        if self.owner is Owner.LIVE:
            return 1, 0, self.id
        return 2, -(self.service_id or 0), -self.id


@dataclasses.dataclass(frozen=True)
class Decision:
    """What becomes of a row.

    :ivar reason: for people; None: there is nothing to say
    :ivar survivor: the id of the row that it gives way to, if it does
    """

    action: Action
    reason: str | None = None
    survivor: int | None = None


def decide(node: Node, same: Iterable[Node], serving: bool) -> Decision:
    """Return what becomes of a row that is left.

    :param same: the live rows with its derived identity, it may be among them
    :param serving: whether its derived host has a live compute service
    """
    obstacle = _obstacle(node)
    if obstacle is not None:
        return Decision(Action.NOTHING, obstacle)
    survivor = min([node, *same], key=lambda other: other.rank)
    if node.identity is not None and survivor.id != node.id:
        return Decision(
            Action.DELETE,
            f"compute node {survivor.id} has its host and name",
            survivor.id,
        )
    if node.host or node.owner is Owner.LIVE:
        return Decision(Action.MIGRATE)
    was = f"its service {node.service_id} was deleted"
    if serving:
        return Decision(Action.MIGRATE, f"{was}, the host's new one adopts it")
    return Decision(Action.DELETE, f"{was}, and the host has no other")


def _obstacle(node: Node) -> str | None:
    """Return why nothing can be done about a row, if nothing can."""
    if _NO_TEXT in f"{node.derived_host}{node.name}":
        return "its host or its name holds bytes that are no text"
    if node.host:
        return None
    if node.service_id is None:
        return "it has neither a host nor a service"
    if node.owner is Owner.GONE:
        return f"its service {node.service_id} is gone"
    if not node.owner_host:
        return f"its service {node.service_id} has no host"
    if node.owner is Owner.DELETED and node.name is None:
        return (
            f"its service {node.service_id} was deleted, and without a name nothing "
            "tells whether another node took its place"
        )
    return None
