"""Removing soft-deleted rows for good: musterbook-manage db purge.

Nodes with their allocations first, then the services that no node refers to any more.
In batches by id, each in a transaction of its own. Nothing live is touched: every batch
looks again under its locks.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import datetime
from typing import Any

from oslo_db import exception as oslo_exc
import sqlalchemy as sa

from conductor.db import allocations
from conductor.db import models
from conductor.db import retry

_T = models.compute_nodes
_S = models.services
_BATCH = 500
#: Of MySQL's calendar.
_FIRST_DATE = datetime.datetime(1000, 1, 1, tzinfo=datetime.UTC)


@dataclasses.dataclass(frozen=True)
class Kept:
    """A soft-deleted row that has to stay.

    :ivar table: "compute_nodes" or "services"
    """

    table: str
    id: int
    name: str | None
    reason: str


@dataclasses.dataclass(frozen=True)
class Batch:
    """What one transaction came to.

    :ivar table: "compute_nodes" or "services"
    :ivar purged: rows removed, or that would be
    :ivar ended: uuids of claims that were live and were released with their nodes, or
        would be
    """

    table: str
    purged: int = 0
    kept: Sequence[Kept] = ()
    ended: Sequence[str] = ()


class _Referred(Exception):
    """Another table, not one of ours, refers to a row by a foreign key."""


def purge(
    engine: sa.Engine,
    *,
    before: datetime.datetime | None = None,
    max_count: int | None = None,
    dry_run: bool = False,
) -> Iterator[Batch]:
    """Remove soft-deleted rows and tell each batch once it's committed.

    :param before: only what was deleted earlier; of rows that don't say when, what
        was changed, or else made, earlier; rows without any date only without this,
        and 0000-00-00 is none
    :param max_count: end after so many rows
    :param dry_run: remove nothing; what other tables refer to isn't foreseen
    :raises DatabaseBusy: a batch lost against others again and again; run it again
    """
    allowed = max_count
    for table, condition in (
        (_T, _purgeable(_T, before)),
        (_S, sa.and_(_purgeable(_S, before), ~_needed(before, dry_run))),
    ):
        after = 0
        while allowed is None or allowed > 0:
            size = _BATCH if allowed is None else min(_BATCH, allowed)
            query = _ids(table, condition, after, size)
            ids = _scalars(engine, query)
            if not ids:
                break
            after = ids[-1]
            batch = (
                Batch(table.name, len(ids), ended=_live_claims(engine, table, ids))
                if dry_run
                else _remove(engine, table, condition, ids)
            )
            if allowed is not None:
                allowed -= batch.purged
            yield batch
    yield from _kept_services(engine, before)


def remaining(
    engine: sa.Engine, before: datetime.datetime | None, *, foresee: bool = False
) -> dict[str, int]:
    """Return how many rows are to be purged, by table.

    Counted are services that a live node refers to as well: something is wrong.

    :param foresee: count services that can go once the nodes have gone
    """
    services = sa.and_(
        _purgeable(_S, before), sa.or_(~_needed(before, foresee), _referred_to())
    )

    def work(connection: sa.Connection) -> dict[str, int]:
        return {
            table.name: connection.scalar(
                sa.select(sa.func.count()).select_from(table).where(condition)
            )
            or 0
            for table, condition in ((_T, _purgeable(_T, before)), (_S, services))
        }

    return retry.read(engine, work)


def _purgeable(
    table: sa.Table, before: datetime.datetime | None
) -> sa.ColumnElement[bool]:
    deleted = sa.not_(models.live(table))
    if before is None:
        return deleted
    # MySQL's '0000-00-00' is earlier than everything, and no date.
    dates = (
        sa.case((column >= _FIRST_DATE, column))
        for column in (table.c.deleted_at, table.c.updated_at, table.c.created_at)
    )
    return sa.and_(deleted, sa.func.coalesce(*dates) < before)


def _needed(before: datetime.datetime | None, dry_run: bool) -> sa.ColumnElement[bool]:
    """Return the condition that a node, live or not, still refers to a service.

    Only the service tells which host such a node belongs to.

    :param dry_run: the nodes that would be purged are still there
    """
    refers: sa.ColumnElement[bool] = _T.c.service_id == _S.c.id
    if dry_run:
        refers = sa.and_(refers, sa.not_(_surely(_purgeable(_T, before))))
    return sa.exists(sa.select(_T.c.id).where(refers).correlate(_S))


def _referred_to() -> sa.ColumnElement[bool]:
    """Return the condition that a live node refers to a service."""
    refers = sa.and_(_T.c.service_id == _S.c.id, models.live(_T))
    return sa.exists(sa.select(_T.c.id).where(refers).correlate(_S))


def _surely(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """Return the condition with NULL, of a row without a date, as false."""
    return sa.func.coalesce(condition, sa.false())


def _ids(
    table: sa.Table, condition: sa.ColumnElement[bool], after: int, size: int
) -> sa.Select[int]:
    return (
        sa.select(table.c.id)
        .where(table.c.id > after, condition)
        .order_by(table.c.id)
        .limit(size)
    )


def _remove(
    engine: sa.Engine,
    table: sa.Table,
    condition: sa.ColumnElement[bool],
    ids: Sequence[int],
) -> Batch:
    def work(connection: sa.Connection, some: Sequence[int]) -> tuple[int, list[str]]:
        lock = sa.select(table.c.id).where(table.c.id.in_(some)).order_by(table.c.id)
        connection.execute(lock.with_for_update()).all()
        # By now, under the locks: a creator may have revived one of them.
        again = sa.select(table.c.id).where(table.c.id.in_(some), condition)
        still = list(connection.execute(again).scalars())
        ended = allocations.remove(connection, still) if table is _T else []
        try:
            connection.execute(table.delete().where(table.c.id.in_(still)))
        except oslo_exc.DBReferenceError:
            raise _Referred from None
        return len(still), ended

    def remove(some: Sequence[int]) -> tuple[int, list[str]]:
        return retry.run(engine, lambda c: work(c, some))

    try:
        purged, ended = remove(ids)
        return Batch(table.name, purged, ended=ended)
    except _Referred:
        purged, kept, ended = 0, [], []
        for one in ids:
            try:
                gone, more = remove([one])
                purged += gone
                ended += more
            except _Referred:
                reason = "a table that is not ours refers to it"
                kept.append(Kept(table.name, one, _name(engine, table, one), reason))
        return Batch(table.name, purged, kept, ended)


def _live_claims(engine: sa.Engine, table: sa.Table, ids: Sequence[int]) -> list[str]:
    if table is not _T:
        return []
    return retry.read(engine, lambda c: allocations.live_claims(c, ids))


def _scalars(engine: sa.Engine, query: sa.Select[int]) -> list[int]:
    return retry.read(engine, lambda c: list(c.execute(query).scalars()))


def _rows(engine: sa.Engine, query: sa.Select[Any]) -> Sequence[Any]:
    return retry.read(engine, lambda c: c.execute(query).all())


def _name(engine: sa.Engine, table: sa.Table, row_id: int) -> str | None:
    column: Any = _T.c.hypervisor_hostname if table is _T else _S.c.host
    query = sa.select(column).where(table.c.id == row_id)
    found: str | None = retry.read(engine, lambda c: c.execute(query).scalar())
    return found


def _kept_services(
    engine: sa.Engine, before: datetime.datetime | None
) -> Iterator[Batch]:
    """Tell the services that are old enough and that a live node refers to."""
    after = 0
    while True:
        query = (
            sa.select(_S.c.id, _S.c.host)
            .where(_S.c.id > after, _purgeable(_S, before), _referred_to())
            .order_by(_S.c.id)
            .limit(_BATCH)
        )
        page = _rows(engine, query)
        if not page:
            return
        after = page[-1].id
        reason = "a live compute node refers to it; db online_data_migrations"
        yield Batch(
            _S.name, 0, [Kept(_S.name, row.id, row.host, reason) for row in page]
        )
