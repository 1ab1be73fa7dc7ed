"""Allocations of compute nodes, as rows: the legacy ones, and what all have.

Whoever writes a node's allocations has locked the node's row, and writes the usage
that they add up to in the same transaction. They stay with a soft-deleted node, which
comes back with them. When it is purged, legacy ones go, and claims are over, which
stays known as long as of others.
"""

from collections.abc import Collection
from collections.abc import Mapping
import datetime
from typing import Any
import uuid as uuidlib

import sqlalchemy as sa

from conductor.db import booking
from conductor.db import limits
from conductor.db import models
from conductor.db import types
from conductor.db import usage

_T = models.allocations
_N = models.compute_nodes
LEGACY = "legacy"
CLAIM = "claim"
HELD, CONFIRMED, RELEASED = "held", "confirmed", "released"
#: Of a claim that nobody confirmed in time.
EXPIRED = "expired"
#: Those that count.
LIVE = (HELD, CONFIRMED)
IS_LIVE = _T.c.state.in_(LIVE)
_AMOUNTS = [_T.c[name] for name in booking.Amounts._fields]
#: What a node's booking depends on.
_BOOKED_COLUMNS = [
    _N.c[name] for name in ("id", "booking", *booking.RATIOS, *usage.AMOUNTS)
]
_NAMESPACE = uuidlib.UUID("0c3a8a53-0f2e-4b0a-8f0f-5f0f4a4f6d27")


def read(
    connection: sa.Connection, node_ids: Collection[int]
) -> dict[int, booking.Book]:
    """Return the Book of each node that has live allocations, by id."""
    sums = [sa.cast(sa.func.sum(column), sa.BigInteger) for column in _AMOUNTS]
    query = (
        sa.select(_T.c.node_id, _T.c.kind, _T.c.state, *sums)
        .where(_T.c.node_id.in_(node_ids), IS_LIVE)
        .group_by(_T.c.node_id, _T.c.kind, _T.c.state)
    )
    found: dict[int, booking.Book] = {}
    for node_id, kind, state, *sums_found in connection.execute(query):
        book = found.get(node_id, booking.Book())
        amounts = booking.Amounts(*map(int, sums_found))
        if kind == LEGACY:
            book = book._replace(legacy=amounts, confirmed=state == CONFIRMED)
        else:
            both = zip(book.others, amounts, strict=True)
            book = book._replace(others=booking.Amounts(*map(sum, both)))
        found[node_id] = book
    return found


def of_node(connection: sa.Connection, node_id: int) -> booking.Book:
    """Return the live allocations of a node."""
    return read(connection, [node_id]).get(node_id, booking.Book())


def write(
    connection: sa.Connection,
    node_id: int,
    node_uuid: str,
    book: booking.Book,
    outcome: booking.Outcome,
) -> None:
    """Store what became of a node's legacy allocation.

    :param book: the allocations as read in this transaction
    :raises InvalidInput: an amount doesn't fit
    """
    limits.check(_T, outcome.legacy._asdict())
    if not any(outcome.legacy):
        if book.legacy is not None:
            release(connection, [node_id])
        return
    if (outcome.legacy, outcome.confirmed) == (book.legacy, book.confirmed):
        return
    row = _row(node_id, node_uuid, outcome)
    del row["created_at"]
    held = _T.update().where(_T.c.uuid == row["uuid"]).values(row)
    # It may have been released before.
    if not connection.execute(held).rowcount:
        connection.execute(_T.insert().values(_row(node_id, node_uuid, outcome)))


def book(connection: sa.Connection, uuids: Mapping[int, str]) -> dict[int, int]:
    """Book the usage of nodes as it is, and return the bookings to store, by id.

    :param uuids: of the nodes, which are locked, by their ids
    """
    books = read(connection, uuids.keys())
    query = sa.select(*_BOOKED_COLUMNS).where(_N.c.id.in_(list(uuids)))
    bookings: dict[int, int] = {}
    new = []
    for stored in connection.execute(query).mappings().all():
        node_id, row = stored["id"], {**stored}
        known = books.get(node_id, booking.Book())
        outcome = booking.settle(row, row, known)
        bookings[node_id] = outcome.columns.pop("booking")
        if any(row[r.used] != outcome.columns[r.used] for r in usage.RESOURCES):
            # Less than nothing was used.
            mend = _N.update().where(_N.c.id == node_id).values(outcome.columns)
            connection.execute(mend)
        if stored["booking"] != booking.Booking.NONE:
            write(connection, node_id, uuids[node_id], known, outcome)
        elif any(outcome.legacy):
            new.append(_row(node_id, uuids[node_id], outcome))
    if new:
        connection.execute(_T.insert(), new)
    return bookings


def release(connection: sa.Connection, node_ids: Collection[int]) -> None:
    """Let go of the legacy allocations of nodes."""
    connection.execute(
        _T.update()
        .where(_T.c.node_id.in_(node_ids), _T.c.kind == LEGACY, IS_LIVE)
        .values(state=RELEASED, finished_at=_instant())
    )


def claimed(connection: sa.Connection, node_id: int) -> int:
    """Return how many live claims a node has."""
    query = sa.select(sa.func.count()).where(
        _T.c.node_id == node_id, _T.c.kind == CLAIM, IS_LIVE
    )
    return int(connection.execute(query).scalar_one())


def follow(connection: sa.Connection, node_id: int, former: str, uuid: str) -> None:
    """Let a node's legacy allocation be found under the node's new uuid."""
    connection.execute(
        _T.update()
        .where(_T.c.node_id == node_id, _T.c.uuid == _legacy(former))
        .values(uuid=_legacy(uuid))
    )


def live_claims(connection: sa.Connection, node_ids: Collection[int]) -> list[str]:
    """Return the uuids of the live claims of nodes."""
    query = sa.select(_T.c.uuid).where(
        _T.c.node_id.in_(node_ids), _T.c.kind == CLAIM, IS_LIVE
    )
    return list(connection.execute(query.order_by(_T.c.id)).scalars())


def remove(connection: sa.Connection, node_ids: Collection[int]) -> list[str]:
    """Remove the allocations of nodes that are deleted for good, and are locked.

    Claims stay, without a node, until they are forgotten: a message about one that
    arrives late must not book it anew.

    :return: the uuids of claims that were live
    """
    of_nodes = _T.c.node_id.in_(node_ids)
    live = live_claims(connection, node_ids)
    if live:
        ended = _T.update().where(of_nodes, _T.c.kind == CLAIM, IS_LIVE)
        connection.execute(ended.values(state=RELEASED, finished_at=types.now()))
    claims = _T.update().where(of_nodes, _T.c.kind == CLAIM)
    connection.execute(claims.values(node_id=None))
    connection.execute(_T.delete().where(of_nodes))
    return live


def _row(node_id: int, node_uuid: str, outcome: booking.Outcome) -> dict[str, Any]:
    """Return a legacy allocation; by its uuid a node never has two."""
    return {
        "uuid": _legacy(node_uuid),
        "node_id": node_id,
        "kind": LEGACY,
        "state": CONFIRMED if outcome.confirmed else HELD,
        **outcome.legacy._asdict(),
        "created_at": _instant(),
        "confirmed_at": _instant() if outcome.confirmed else None,
        "finished_at": None,
    }


def _legacy(node_uuid: str) -> str:
    return str(uuidlib.uuid5(_NAMESPACE, node_uuid))


def _instant() -> datetime.datetime:
    # For people; nothing is decided by it.
    return datetime.datetime.now(datetime.UTC)
