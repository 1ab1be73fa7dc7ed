"""Doing for all rows of Juno's shape what a save does for one: musterbook-manage.

In batches by id, each in a transaction of its own, so that an interruption loses
one batch at most. Locks are taken as creators and savers take them, services before
nodes and each by id; the rule itself stands in ``legacy``. A bookmark is an id, not
a row: the row may be gone when the next batch starts.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import time
from typing import Any
from typing import TypeVar

from oslo_db import exception as oslo_exc
import sqlalchemy as sa

from conductor.db import allocations
from conductor.db import booking
from conductor.db import legacy
from conductor.db import models
from conductor.db import retry
from conductor.db import rows
from conductor.db import types
from musterbook import names
from objects import service as service_obj

_R = TypeVar("_R")
_T = models.compute_nodes
_S = models.services
#: The service that service_id names, live or not.
_OWNER = models.services.alias("any_owner")
#: Rows a transaction: more don't make it faster, and savers wait for all of them.
_BATCH = 100
_LONGEST_PAUSE = 0.1


@dataclasses.dataclass(frozen=True)
class Row:
    """A row that is worth a line.

    :ivar outcome: "migrated", "resolved" (soft-deleted) or "stuck"
    """

    outcome: str
    id: int
    name: str | None
    host: str | None
    service_id: int | None
    reason: str


@dataclasses.dataclass(frozen=True)
class Batch:
    """What one transaction came to; all its rows are counted once.

    :ivar table: "compute_nodes" or "services"
    :ivar notable: what isn't just migrated
    """

    table: str
    migrated: int = 0
    resolved: int = 0
    stuck: int = 0
    notable: Sequence[Row] = ()

    @property
    def changed(self) -> int:
        """Rows that were, or would be, written."""
        return self.migrated + self.resolved


def count(engine: sa.Engine) -> dict[str, int]:
    """Return how many live rows of Juno's shape are left, by table."""

    def work(connection: sa.Connection) -> dict[str, int]:
        return {
            table.name: connection.scalar(
                sa.select(sa.func.count()).select_from(table).where(left)
            )
            or 0
            for table, left in ((_T, legacy.NODES_LEFT), (_S, legacy.SERVICES_LEFT))
        }

    return retry.read(engine, work)


def migrate(
    engine: sa.Engine, *, max_count: int | None = None, dry_run: bool = False
) -> Iterator[Batch]:
    """Migrate what is left, nodes first, and tell each batch once it's committed.

    Between batches it leaves the database alone for as long as the last one held its
    locks, for 0.1 s at most.

    :param max_count: end after so many changed rows; what is stuck doesn't count
    :param dry_run: write nothing, lock nothing, tell what would be done
    :raises DatabaseBusy: a batch lost against others again and again; run it again
    """
    allowed = max_count
    for one_batch in (_nodes, _services):
        after = 0
        while allowed is None or allowed > 0:
            size = _BATCH if allowed is None else min(_BATCH, allowed)
            found = one_batch(engine, after, size, dry_run)
            if found is None:
                break
            after, batch, held = found
            yield batch
            if allowed is not None:
                allowed -= batch.changed
            if not dry_run:
                time.sleep(min(held, _LONGEST_PAUSE))  # savers' turn


class _Timed:
    """Runs transactions, and counts how long they were in.

    How long one waited to begin doesn't count: on SQLite it waits there for savers, and
    would leave them alone for that time once more.

    :ivar held: seconds, of the attempts that succeeded
    """

    def __init__(self, engine: sa.Engine) -> None:
        self.held = 0.0
        self._engine = engine

    def run(self, work: Callable[[sa.Connection], _R]) -> _R:
        began = 0.0

        def timed(connection: sa.Connection) -> _R:
            nonlocal began
            began = time.monotonic()
            return work(connection)

        result = retry.run(self._engine, timed)
        self.held += time.monotonic() - began
        return result


# -- compute nodes -----------------------------------------------------------------


def _nodes(
    engine: sa.Engine, after: int, size: int, dry_run: bool
) -> tuple[int, Batch, float] | None:
    """Do the next rows above an id; None: there are none.

    :returns: the last one's id, what it came to, and how many seconds rows were locked
    """
    page = retry.read(engine, lambda c: _page(c, after, size))
    if not page:
        return None
    if dry_run:
        batch = retry.read(engine, lambda c: _decide_all(c, page)[1])
        return page[-1].id, batch, 0.0
    timed = _Timed(engine)
    try:
        batch = timed.run(lambda c: _do(c, page))
    except oslo_exc.DBDuplicateEntry:
        batch = _merged([_one(timed, node) for node in page])
    return page[-1].id, batch, timed.held


def _one(timed: _Timed, node: legacy.Node) -> Batch:
    """Do a single row of a batch in which the unique key refused one."""
    try:
        return timed.run(lambda c: _do(c, [node]))
    except oslo_exc.DBDuplicateEntry:
        reason = "the database takes its host and name for another live node's"
        row = _row(node, legacy.Decision(legacy.Action.NOTHING, reason))
        return Batch(_T.name, stuck=1, notable=[row])


def _do(connection: sa.Connection, page: Sequence[legacy.Node]) -> Batch:
    """Migrate these rows as they are by now. Locks services, then nodes, by id."""
    hosts = _hosts(page)
    # On SQLite the transaction has locked everything, and is to be short.
    if connection.dialect.name != "sqlite":
        _lock(connection, page, hosts)
    ids = [node.id for node in page]
    again = _read(connection, legacy.NODES_LEFT, _T.c.id.in_(ids))
    # Whose service was given another host meanwhile isn't ours yet: nobody keeps
    # creators for that host away. It is left for the next run.
    known = {names.fold(host) for host in hosts}
    ours = [
        node
        for node in again
        if node.derived_host is None or names.fold(node.derived_host) in known
    ]
    decisions, batch = _decide_all(connection, ours)
    _write(connection, decisions)
    return batch


def _decide_all(
    connection: sa.Connection, page: Sequence[legacy.Node]
) -> tuple[list[tuple[legacy.Node, legacy.Decision]], Batch]:
    serving = _serving(connection, _hosts(page))
    same: dict[tuple[str, str], list[legacy.Node]] = {}
    for other in _sharing(connection, page):
        if other.identity is not None:
            same.setdefault(other.identity, []).append(other)
    decisions = [
        (
            node,
            legacy.decide(
                node,
                same.get(node.identity, ()) if node.identity is not None else (),
                names.fold(node.derived_host or "") in serving,
            ),
        )
        for node in page
    ]
    return decisions, _summed(decisions)


def _summed(decisions: Iterable[tuple[legacy.Node, legacy.Decision]]) -> Batch:
    counts = dict.fromkeys(legacy.Action, 0)
    notable = []
    for node, decision in decisions:
        counts[decision.action] += 1
        if decision.reason is not None:
            notable.append(_row(node, decision))
    return Batch(
        _T.name,
        migrated=counts[legacy.Action.MIGRATE],
        resolved=counts[legacy.Action.DELETE],
        stuck=counts[legacy.Action.NOTHING],
        notable=notable,
    )


def _merged(batches: Sequence[Batch]) -> Batch:
    return Batch(
        _T.name,
        migrated=sum(batch.migrated for batch in batches),
        resolved=sum(batch.resolved for batch in batches),
        stuck=sum(batch.stuck for batch in batches),
        notable=[row for batch in batches for row in batch.notable],
    )


def _row(node: legacy.Node, decision: legacy.Decision) -> Row:
    return Row(
        outcome=decision.action.value,
        id=node.id,
        name=node.name,
        host=node.derived_host,
        service_id=node.service_id,
        reason=decision.reason or "",
    )


# -- reading -----------------------------------------------------------------------


def _page(connection: sa.Connection, after: int, size: int) -> list[legacy.Node]:
    return _read(connection, legacy.NODES_LEFT, _T.c.id > after, limit=size)


def _read(
    connection: sa.Connection,
    *conditions: sa.ColumnElement[bool],
    limit: int | None = None,
) -> list[legacy.Node]:
    query = _query(*conditions).limit(limit)
    return [_node(row) for row in connection.execute(query).mappings()]


def _query(*conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    return (
        sa.select(
            _T.c.id,
            _T.c.hypervisor_hostname,
            _T.c.host,
            _T.c.service_id,
            _T.c.uuid,
            _T.c.created_at,
            _T.c.deleted,
            _OWNER.c.id.label("owner_id"),
            _OWNER.c.host.label("owner_host"),
            models.live(_OWNER).label("owner_lives"),
        )
        .select_from(_T.outerjoin(_OWNER, _OWNER.c.id == _T.c.service_id))
        .where(*conditions)
        .order_by(_T.c.id)
    )


def _node(row: rows.Stored) -> legacy.Node:
    if row["owner_id"] is None:
        owner = legacy.Owner.GONE
    else:
        owner = legacy.Owner.LIVE if row["owner_lives"] else legacy.Owner.DELETED
    return legacy.Node(
        id=row["id"],
        name=row["hypervisor_hostname"],
        host=row["host"],
        service_id=row["service_id"],
        owner=owner,
        owner_host=row["owner_host"],
        uuid=row["uuid"],
        created_at=row["created_at"],
        deleted=row["deleted"],
    )


def _hosts(page: Iterable[legacy.Node]) -> list[str]:
    return sorted({node.derived_host for node in page if node.derived_host})


def _among(column: Any, texts: Iterable[str]) -> sa.ColumnElement[bool]:
    """Return the condition that a name is one of these, as names are compared.

    Folded here, not by the server: a hundred expressions instead of one list of
    values cost more than all the rest of a batch.
    """
    # PostgreSQL's lower() knows only ASCII in the locale C; both forms are given.
    folded = {form for text in texts for form in (text.lower(), _ascii_lower(text))}
    return types.folded(column).in_(sorted(folded))


def _ascii_lower(text: str) -> str:
    return "".join(c.lower() if c.isascii() else c for c in text)


def _sharing(
    connection: sa.Connection, page: Sequence[legacy.Node]
) -> list[legacy.Node]:
    """Return the live rows that may have a derived identity of these, and these."""
    pairs = {(node.derived_host, node.name) for node in page if node.identity}
    if not pairs:
        return []
    # Two queries: no database finds an index for both at once.
    parameters = {
        f"{what}{at}": value
        for at, pair in enumerate(pairs)
        for what, value in zip(("host", "name"), pair, strict=True)
    }
    stored = connection.execute(_stored(len(pairs)), parameters).mappings()
    derived = (
        _among(_OWNER.c.host, {str(host) for host, _ in pairs}),
        _among(_T.c.hypervisor_hostname, {str(name) for _, name in pairs}),
        sa.or_(_T.c.host.is_(None), _T.c.host == ""),
    )
    return [
        *(_node(row) for row in stored),
        *_read(connection, models.live(_T), *derived),
    ]


@functools.lru_cache(maxsize=_BATCH)
def _stored(count: int) -> sa.Select[Any]:
    """Return the query of the live rows with one of so many stored identities.

    Pairs, not two lists: of those MariaDB looks up every combination. Kept, for
    building it takes longer than running it.
    """
    return _query(
        models.live(_T),
        sa.or_(
            *(
                sa.and_(
                    types.same_name(_T.c.host, _text(f"host{at}")),
                    types.same_name(_T.c.hypervisor_hostname, _text(f"name{at}")),
                )
                for at in range(count)
            )
        ),
    )


def _text(name: str) -> sa.BindParameter[str]:
    return sa.bindparam(name, type_=sa.String())


def _serving(connection: sa.Connection, hosts: Collection[str]) -> set[str]:
    """Return the hosts, folded, that have a live compute service."""
    if not hosts:
        return set()
    query = sa.select(_S.c.host).where(
        _among(_S.c.host, hosts),
        _S.c.binary == service_obj.COMPUTE_BINARY,
        models.live(_S),
    )
    return {names.fold(host) for host in connection.execute(query).scalars()}


# -- locking and writing -----------------------------------------------------------


def _lock(
    connection: sa.Connection, page: Sequence[legacy.Node], hosts: Collection[str]
) -> None:
    owners = {node.service_id for node in page if node.service_id is not None}
    _lock_services(connection, hosts, owners)
    same = _sharing(connection, page)
    _lock_nodes(connection, {node.id for node in [*page, *same]})


def _lock_services(
    connection: sa.Connection, hosts: Collection[str], owners: Collection[int]
) -> None:
    """Lock the hosts' compute services, as creators do, and the rows' own ones."""
    wanted: list[sa.ColumnElement[bool]] = []
    if owners:
        wanted.append(_S.c.id.in_(owners))
    if hosts:
        compute = _S.c.binary == service_obj.COMPUTE_BINARY
        wanted.append(sa.and_(_among(_S.c.host, hosts), compute))
    if not wanted:
        return
    # The ids first: a lock takes what it passes on the way, in the order of an index.
    ids = set()
    for condition in wanted:
        query = sa.select(_S.c.id).where(condition, models.live(_S))
        ids |= set(connection.execute(query).scalars())
    lock = sa.select(_S.c.id).where(_S.c.id.in_(sorted(ids))).order_by(_S.c.id)
    connection.execute(lock.with_for_update()).all()


def _lock_nodes(connection: sa.Connection, ids: Collection[int]) -> None:
    lock = sa.select(_T.c.id).where(_T.c.id.in_(sorted(ids))).order_by(_T.c.id)
    connection.execute(lock.with_for_update()).all()


def _write(
    connection: sa.Connection,
    decisions: Sequence[tuple[legacy.Node, legacy.Decision]],
) -> None:
    """Write all decisions, few statements for all of them."""
    by_action: dict[legacy.Action, list[legacy.Node]] = {}
    for node, decision in decisions:
        by_action.setdefault(decision.action, []).append(node)
    # First what goes: a survivor may take over its host and name.
    going = by_action.get(legacy.Action.DELETE)
    if going:
        losers = [node.id for node, decision in decisions if decision.survivor]
        allocations.release(connection, losers)
        more = {
            "deleted": _T.c.id,
            "deleted_at": rows.instant(),
            "booking": _bookings(dict.fromkeys(losers, booking.Booking.CONFIRMED)),
        }
        _detach(connection, going, _uuids(going), more)
    staying = by_action.get(legacy.Action.MIGRATE)
    if staying:
        uuids = _uuids(staying)
        more = {
            "deleted": 0,
            "booking": _bookings(allocations.book(connection, uuids)),
        }
        _detach(connection, staying, uuids, more)


def _uuids(nodes: Iterable[legacy.Node]) -> dict[int, str]:
    return {
        node.id: node.uuid or rows.legacy_uuid(_T.name, node.id, node.created_at)
        for node in nodes
    }


def _bookings(by_id: Mapping[int, int]) -> sa.ColumnElement[int]:
    """Return the expression for the rows' bookings; others keep theirs."""
    return sa.case(
        *(
            (_T.c.id.in_([i for i, is_now in by_id.items() if is_now == each]), each)
            for each in map(int, booking.Booking)
        ),
        else_=_T.c.booking,
    )


def _detach(
    connection: sa.Connection,
    nodes: Sequence[legacy.Node],
    uuids: Mapping[int, str],
    more: Mapping[str, Any],
) -> None:
    """Store the rows' hosts and uuids, and let go of their services.

    updated_at stays: it tells when the host reported, and it didn't.
    """
    parameters = {
        f"{what}{n}": value
        for n, node in enumerate(nodes)
        for what, value in (
            ("row", node.id),
            ("host", node.derived_host),
            ("uuid", uuids[node.id]),
        )
    }
    statement = (
        _T.update()
        .where(_T.c.id.in_(list(uuids)), models.live(_T))
        .values(
            {
                "host": _by_row("host", len(nodes)),
                "uuid": _by_row("uuid", len(nodes)),
                "service_id": None,
                "generation": _T.c.generation + 1,
                "stream_version": None,
                **more,
            }
        )
    )
    matched = connection.execute(statement, parameters).rowcount
    assert matched == len(nodes), "the rows are locked"


@functools.lru_cache(maxsize=2 * _BATCH)
def _by_row(what: str, count: int) -> sa.Case[str]:
    """Return the expression for the value of each row, by its id; kept as _stored."""
    return sa.case(
        *(
            (
                _T.c.id == sa.bindparam(f"row{at}", type_=sa.Integer()),
                _text(f"{what}{at}"),
            )
            for at in range(count)
        )
    )


# -- services ----------------------------------------------------------------------


def _services(
    engine: sa.Engine, after: int, size: int, dry_run: bool
) -> tuple[int, Batch, float] | None:
    """Store the uuids of the next services above an id; as _nodes."""
    query = (
        sa.select(_S.c.id, _S.c.created_at)
        .where(legacy.SERVICES_LEFT, _S.c.id > after)
        .order_by(_S.c.id)
        .limit(size)
    )
    page = retry.read(engine, lambda c: c.execute(query).all())
    if not page:
        return None
    if dry_run:
        return page[-1].id, Batch(_S.name, migrated=len(page)), 0.0
    ids = [row.id for row in page]

    def work(connection: sa.Connection) -> int:
        lock = sa.select(_S.c.id, _S.c.created_at).where(
            _S.c.id.in_(ids), legacy.SERVICES_LEFT
        )
        found = connection.execute(lock.order_by(_S.c.id).with_for_update()).all()
        if found:
            uuids = {
                row.id: rows.legacy_uuid(_S.name, row.id, row.created_at)
                for row in found
            }
            connection.execute(
                _S.update()
                .where(_S.c.id.in_(list(uuids)))
                .values(uuid=sa.case(uuids, value=_S.c.id), stream_version=None)
            )
        return len(found)

    timed = _Timed(engine)
    return ids[-1], Batch(_S.name, migrated=timed.run(work)), timed.held
