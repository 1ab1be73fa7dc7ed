"""Making usage the sum of allocations again where older code left something else.

A conductor of a release that knew no allocations may create again, or let a peer of
version 1.0 write, a node that is booked already. The rule is booking.mend().
"""

from collections.abc import Callable
from collections.abc import Iterator
import functools
from typing import Any
from typing import NamedTuple
from typing import TypeVar

import sqlalchemy as sa

from conductor.db import allocations
from conductor.db import audit
from conductor.db import booking
from conductor.db import custom_usage
from conductor.db import limits
from conductor.db import models
from conductor.db import retry
from conductor.db import rows
from conductor.db import usage
from musterbook import errors

_T = models.compute_nodes
_PAGE = 100
_Mended = TypeVar("_Mended")
_LOCK = sa.select(_T.c.id).where(_T.c.id == sa.bindparam("id")).with_for_update()


class Mended(NamedTuple):
    """A node whose usage was, or would be, mended.

    :ivar problem: why it wasn't; None: it was
    """

    id: int
    host: str | None
    name: str | None
    was: booking.Amounts
    used: booking.Amounts
    problem: str | None = None


class MendedCustom(NamedTuple):
    """A node whose custom_used was, or would be, written anew.

    :ivar was, used: JSON texts
    """

    id: int
    was: str | None
    used: str | None


def mend_custom(engine: sa.Engine, *, dry_run: bool = False) -> Iterator[MendedCustom]:
    """Let custom_used of all live nodes be what is allocated, as mend() does."""
    return _each(engine, _with_custom, lambda n: _one_custom(engine, n, dry_run))


def _with_custom(after: int, connection: sa.Connection) -> list[int]:
    query = audit.with_custom((after,)).with_only_columns(_T.c.id).limit(_PAGE)
    return list(connection.execute(query).scalars())


def _one_custom(engine: sa.Engine, node_id: int, dry_run: bool) -> MendedCustom | None:
    """Look without a lock first: hardly a node is wrong."""

    def write(connection: sa.Connection) -> custom_usage.Sum | None:
        connection.execute(_LOCK, {"id": node_id})
        return custom_usage.mend(connection, node_id, write=True)

    found = retry.read(engine, lambda c: custom_usage.mend(c, node_id, write=False))
    if found is not None and not dry_run:
        found = retry.run(engine, write)
    return None if found is None else MendedCustom(node_id, found.used, found.text)


def mend(engine: sa.Engine, *, dry_run: bool = False) -> Iterator[Mended]:
    """Mend all live nodes whose usage isn't the sum, each in its own transaction.

    :param dry_run: write nothing, lock nothing
    :raises DatabaseBusy: one lost against others again and again; run it again
    """
    return _each(engine, _page, lambda node_id: _one(engine, node_id, dry_run))


def _each(
    engine: sa.Engine,
    page: Callable[[int, sa.Connection], list[int]],
    mend_one: Callable[[int], _Mended | None],
) -> Iterator[_Mended]:
    """Go through nodes by id, and tell of those that were mended.

    :param page: returns the next ids after one
    """
    after = 0
    while True:
        ids = retry.read(engine, functools.partial(page, after))
        for node_id in ids:
            mended = mend_one(node_id)
            if mended is not None:
                yield mended
        if len(ids) < _PAGE:
            return
        after = ids[-1]


def _page(after: int, connection: sa.Connection) -> list[int]:
    query = audit.not_the_sum((after,)).with_only_columns(_T.c.id).limit(_PAGE)
    return list(connection.execute(query).scalars())


def _one(engine: sa.Engine, node_id: int, dry_run: bool) -> Mended | None:
    if dry_run:
        return retry.read(engine, lambda c: _mend(c, node_id, write=False))
    return retry.run(engine, lambda c: _mend(c, node_id, write=True))


def _mend(connection: sa.Connection, node_id: int, *, write: bool) -> Mended | None:
    query = sa.select(_T).where(_T.c.id == node_id, models.live(_T))
    if write:
        query = query.with_for_update()
    found = connection.execute(query).mappings().first()
    if found is None or found["booking"] == booking.Booking.NONE:
        return None  # it is as it should be, or migrated like others
    stored: dict[str, Any] = {**found}
    book = allocations.of_node(connection, node_id)
    outcome = booking.mend(stored, book)
    was, used = (
        booking.Amounts(*(row[resource.used] for resource in usage.RESOURCES))
        for row in (stored, outcome.columns)
    )
    told = Mended(node_id, found["host"], found["hypervisor_hostname"], was, used)
    try:
        limits.check(_T, outcome.columns)
        limits.check(models.allocations, outcome.legacy._asdict())
    except errors.InvalidInput as exc:
        return told._replace(problem=exc.message)
    if write:
        uuid = found["uuid"] or rows.legacy_uuid(_T.name, node_id, found["created_at"])
        allocations.write(connection, node_id, uuid, book, outcome)
        connection.execute(
            _T.update()
            .where(_T.c.id == node_id)
            .values(
                {
                    **outcome.columns,
                    "generation": _T.c.generation + 1,
                    "stream_version": None,
                }
            )
        )
    return told
