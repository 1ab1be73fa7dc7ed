"""What is odd about the rows of a database at today's shape: musterbook-manage.

Only reads, in pages by id, so that memory stays flat and no statement holds the
database up. Each page sees the database as it is at that moment; agents may save
meanwhile.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
from typing import Any

import sqlalchemy as sa

from conductor.db import allocations
from conductor.db import booking
from conductor.db import custom_usage
from conductor.db import legacy
from conductor.db import models
from conductor.db import nodes
from conductor.db import retry
from conductor.db import types
from conductor.db import usage
from objects import service as service_obj

_T = models.compute_nodes
_S = models.services
_A = models.allocations
#: The service that service_id names, live or not.
_ANY = models.services.alias("any_owner")
_PAGE = 1000

#: The last row's key, in the order of the query.
_Key = tuple[int, ...]
_Rows = Collection[Mapping[str, Any]]
_Judge = Callable[[sa.Connection, _Rows], _Rows]


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of finding.

    :ivar meaning: a heading for people
    :ivar remedy: what they can do
    :ivar select: returns the query, in order of key, of the rows behind a key
    :ivar key: the columns of the key
    :ivar fault: False: it is told for information, nothing is wrong
    :ivar judge: looks at what the query brought, and returns the findings among it;
        None: all of it
    """

    name: str
    meaning: str
    remedy: str
    select: Callable[[_Key], sa.Select[Any]]
    key: tuple[str, ...] = ("id",)
    first: _Key = (0,)
    fault: bool = True
    judge: _Judge | None = None


# -- queries -----------------------------------------------------------------------

_HOST = sa.func.coalesce(_T.c.host, nodes.OWNER.c.host)
_WITH_OWNER = _T.outerjoin(nodes.OWNER, nodes.IS_OWNER)
_NODE = (_T.c.id, _HOST.label("host"), _T.c.hypervisor_hostname, _T.c.service_id)
_SERVICE = (_S.c.id, _S.c.host, _S.c.binary)
_HAS_HOST = sa.and_(_S.c.host.is_not(None), _S.c.host != "")


def _live_nodes(key: _Key, *conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    return (
        sa.select(*_NODE)
        .select_from(_WITH_OWNER)
        .where(_T.c.id > key[0], models.live(_T), *conditions)
        .order_by(_T.c.id)
    )


def _live_services(key: _Key, *conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    return (
        sa.select(*_SERVICE)
        .where(_S.c.id > key[0], models.live(_S), *conditions)
        .order_by(_S.c.id)
    )


def _orphans(key: _Key) -> sa.Select[Any]:
    """Return nodes without a host whose service is deleted or gone."""
    state = sa.case((_ANY.c.id.is_(None), "gone"), else_="deleted").label("service")
    name = _T.c.hypervisor_hostname
    return (
        sa.select(_T.c.id, _ANY.c.host, name, _T.c.service_id, state)
        .select_from(_T.outerjoin(_ANY, _ANY.c.id == _T.c.service_id))
        .where(
            _T.c.id > key[0],
            _T.c.host.is_(None),
            models.live(_T),
            sa.or_(_ANY.c.id.is_(None), sa.not_(models.live(_ANY))),
        )
        .order_by(_T.c.id)
    )


def _duplicates(key: _Key) -> sa.Select[Any]:
    """Return the live nodes that share their derived host and name, side by side."""
    # SQLite's collation doesn't reach through coalesce, hence lower() everywhere.
    identity = [sa.func.lower(_HOST), sa.func.lower(_T.c.hypervisor_hostname)]
    counted = (
        sa.select(
            *_NODE,
            sa.func.count().over(partition_by=identity).label("rows"),
            sa.func.min(_T.c.id).over(partition_by=identity).label("oldest"),
        )
        .select_from(_WITH_OWNER)
        .where(
            models.live(_T), _HOST.is_not(None), _T.c.hypervisor_hostname.is_not(None)
        )
        .subquery()
    )
    oldest, last = counted.c.oldest, counted.c.id
    behind = sa.or_(oldest > key[0], sa.and_(oldest == key[0], last > key[1]))
    names = ("id", "host", "hypervisor_hostname", "service_id", "oldest")
    return (
        sa.select(*(counted.c[name] for name in names))
        .where(counted.c.rows > 1, behind)
        .order_by(oldest, last)
    )


def _without_service(key: _Key) -> sa.Select[Any]:
    serving = sa.exists().where(
        types.same_name(_S.c.host, _T.c.host),
        _S.c.binary == service_obj.COMPUTE_BINARY,
        models.live(_S),
    )
    # An owner is a live service, of whichever binary: Juno's reading.
    return _live_nodes(key, _T.c.host.is_not(None), ~serving)


def _without_nodes(key: _Key) -> sa.Select[Any]:
    detached = sa.exists().where(types.same_name(_T.c.host, _S.c.host), models.live(_T))
    owned = sa.exists().where(
        _T.c.service_id == _S.c.id, _T.c.host.is_(None), models.live(_T)
    )
    return _live_services(
        key,
        _S.c.binary == service_obj.COMPUTE_BINARY,
        _HAS_HOST,
        ~detached,
        ~owned,
    )


def _allocated(name: str) -> sa.ScalarSelect[int]:
    total = sa.func.coalesce(sa.func.sum(_A.c[name]), 0)
    query = sa.select(sa.cast(total, sa.BigInteger))
    return query.where(_A.c.node_id == _T.c.id, allocations.IS_LIVE).scalar_subquery()


def not_the_sum(key: _Key) -> sa.Select[Any]:
    """Return booked nodes whose usage isn't what is reserved and allocated."""
    sums = {
        resource.used: usage.STORED[resource.reserved] + _allocated(name)
        for resource, name in zip(usage.RESOURCES, booking.Amounts._fields, strict=True)
    }
    told = [
        column
        for name, booked in sums.items()
        for column in (_T.c[name], booked.label(f"{name.removesuffix('_used')}_booked"))
    ]
    wrong = sa.or_(*(_T.c[name] != booked for name, booked in sums.items()))
    booked = _T.c.booking != int(booking.Booking.NONE)
    return _live_nodes(key, booked, wrong).add_columns(*told)


def with_custom(key: _Key) -> sa.Select[Any]:
    """Return the nodes with any custom resources, which may be wrong or right."""
    return _live_nodes(key, custom_usage.ANY)


def _unconfirmed(key: _Key) -> sa.Select[Any]:
    held = sa.and_(
        _A.c.node_id == _T.c.id,
        _A.c.kind == allocations.LEGACY,
        _A.c.state == allocations.HELD,
    )
    amounts = [_A.c[name] for name in booking.Amounts._fields]
    return (
        sa.select(*_NODE[:3], *amounts)
        .select_from(_WITH_OWNER.join(_A, held))
        .where(_T.c.id > key[0], models.live(_T))
        .order_by(_T.c.id)
    )


KINDS: tuple[Kind, ...] = (
    Kind(
        "orphans",
        "nodes without a host whose service is deleted or gone",
        "db online_data_migrations resolves those whose service's row is still there",
        _orphans,
    ),
    Kind(
        "duplicates",
        "live nodes that share host and name with an older one (oldest)",
        "db online_data_migrations keeps one of each; of those it calls stuck "
        "somebody decides, see docs/upgrading.md",
        _duplicates,
        key=("oldest", "id"),
        first=(0, 0),
    ),
    Kind(
        "legacy_nodes",
        "nodes of Juno's shape: host not stored, service_id still there, or usage not "
        "booked in allocations",
        "db online_data_migrations migrates them; of those it calls stuck somebody "
        "decides, see docs/upgrading.md",
        lambda key: _live_nodes(key, legacy.NODES_LEFT),
    ),
    Kind(
        "legacy_services",
        "services of Juno's shape: uuid not stored",
        "db online_data_migrations migrates them",
        lambda key: _live_services(key, _S.c.uuid.is_(None)),
    ),
    Kind(
        "services_without_host",
        "services whose host is NULL or empty: nobody can be asked there",
        "soft-delete them once no node refers to them",
        lambda key: _live_services(key, sa.not_(_HAS_HOST)),
    ),
    Kind(
        "nodes_without_name",
        "nodes whose hypervisor_hostname is NULL: no agent can find them",
        "soft-delete them once their agent has created a node with a name",
        lambda key: _live_nodes(key, _T.c.hypervisor_hostname.is_(None)),
    ),
    Kind(
        "nodes_without_service",
        "nodes whose host has no live compute service",
        "start the host's agent, or if the host is gone for good, node delete UUID",
        _without_service,
    ),
    Kind(
        "services_without_nodes",
        "compute services whose host has no live node",
        "look at the agent's log, or delete the service if the host is gone for good",
        _without_nodes,
    ),
    Kind(
        "usage_not_the_sum",
        "nodes whose usage isn't what is reserved and allocated (booked)",
        "replace conductors of an older release, which book nothing; then db "
        "online_data_migrations mends them",
        not_the_sum,
    ),
    Kind(
        "custom_usage_not_the_sum",
        "nodes whose custom_used isn't what is allocated (booked), or with a JSON text "
        "of custom resources that can't be read",
        "db online_data_migrations writes custom_used anew; an agent its node's "
        "custom_resources; of an allocation's text somebody decides, or releases it",
        with_custom,
        judge=custom_usage.findings,
    ),
    Kind(
        "unconfirmed_usage",
        "usage that an agent has still to confirm: left by Juno, or written by an "
        "agent of object version 1.0",
        "nothing, if the node's inventory source can't tell what runs there",
        _unconfirmed,
        fault=False,
    ),
)


def findings(
    engine: sa.Engine,
) -> Iterator[tuple[Kind, Iterator[Mapping[str, Any]]]]:
    """Return every kind with its findings one by one: JSON values by name."""
    for kind in KINDS:
        yield kind, _find(engine, kind)


def _find(engine: sa.Engine, kind: Kind) -> Iterator[Mapping[str, Any]]:
    key: _Key = kind.first
    while True:
        page = _page(engine, kind.select(key).limit(_PAGE))
        yield from _judged(engine, kind, page)
        if len(page) < _PAGE:
            return
        key = tuple(page[-1][name] for name in kind.key)


def _judged(engine: sa.Engine, kind: Kind, page: _Rows) -> _Rows:
    judge = kind.judge
    if judge is None or not page:
        return page
    return retry.read(engine, lambda c: judge(c, page))


def _page(engine: sa.Engine, query: sa.Select[Any]) -> list[Mapping[str, Any]]:
    return retry.read(
        engine, lambda c: [{**row} for row in c.execute(query).mappings()]
    )
