"""The store's half for compute nodes: reading.

Rows of Juno's shape have no host; it is that of the *live* service they belong to.
A node whose service is gone belongs to no host (host None) until it is resolved by
hand or by the online migration: by host it would stand beside its successor.
"""

from collections.abc import Sequence
import json
from typing import Any

import sqlalchemy as sa

from conductor.db import leftovers
from conductor.db import limits
from conductor.db import models
from conductor.db import retry
from conductor.db import rows
from conductor.db import services
from conductor.db import types
from musterbook import errors
from objects import service as service_obj
from objects import store

_T = models.compute_nodes
#: The service that a row of Juno's shape belongs to.
OWNER = models.services.alias("owner")
#: The compute service of a row's host.
_SERVICE = models.services.alias("service")
_BATCH = 500

IS_OWNER = sa.and_(
    _T.c.host.is_(None), OWNER.c.id == _T.c.service_id, models.live(OWNER)
)
_DERIVED = [
    sa.func.coalesce(_T.c.host, OWNER.c.host).label("host")
    if column is _T.c.host
    else column
    for column in _T.c
]
_ALL = sa.select(*_DERIVED).select_from(_T.outerjoin(OWNER, IS_OWNER))
_LIVE = _ALL.where(models.live(_T))

_BY_IDENTITY = sa.select(_T).where(
    types.same_name(_T.c.host, sa.bindparam("host", type_=sa.String())),
    types.same_name(_T.c.hypervisor_hostname, sa.bindparam("name", type_=sa.String())),
    _T.c.deleted == 0,
)
_LEGACY_OF_HOST = (
    sa.select(*_DERIVED)
    .select_from(_T.join(OWNER, IS_OWNER))
    .where(
        types.same_name(OWNER.c.host, sa.bindparam("host", type_=sa.String())),
        models.live(_T),
    )
)
_LEGACY_BY_IDENTITY = _LEGACY_OF_HOST.where(
    types.same_name(_T.c.hypervisor_hostname, sa.bindparam("name", type_=sa.String()))
)
#: Of either shape, as of one instant: between two statements a row may change it.
_OF_EITHER_SHAPE = _BY_IDENTITY.union_all(_LEGACY_BY_IDENTITY)
_BY_HOST = sa.select(_T).where(
    types.same_name(_T.c.host, sa.bindparam("host", type_=sa.String())),
    _T.c.deleted == 0,
)
_BY_HOST_OF_EITHER_SHAPE = _BY_HOST.union_all(_LEGACY_OF_HOST)
#: Of any host. Folded, as PostgreSQL's index has it.
_LEGACY = (
    sa.select(_T.c.id)
    .select_from(_T.join(OWNER, OWNER.c.id == _T.c.service_id))
    .where(
        types.folded(_T.c.host).is_(None),
        OWNER.c.host.is_not(None),
        models.live(OWNER),
        models.live(_T),
    )
)

#: What an object of the service holds.
_SERVICE_COLUMNS = [c for c in _SERVICE.c if c.name in service_obj.Service.fields]
_SERVICE_NAMES = tuple(column.name for column in _SERVICE_COLUMNS)
_NODES_AND_SERVICES = (
    sa.select(
        *_DERIVED,
        sa.case((_SERVICE.c.id.is_not(None), types.as_json(*_SERVICE_COLUMNS))),
        OWNER.c.id,
    )
    .select_from(
        _T.outerjoin(OWNER, IS_OWNER).outerjoin(
            _SERVICE,
            sa.and_(
                types.same_name(_SERVICE.c.host, _T.c.host),
                _SERVICE.c.binary == service_obj.COMPUTE_BINARY,
                models.live(_SERVICE),
            ),
        )
    )
    .where(models.live(_T))
    .order_by(_T.c.id)
)
_NAMES_OF_BOTH = (*(column.name for column in _T.c), "service", "owner_id")


class NodeReader:
    """Reads compute nodes; any thread may call any method."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._leftovers = leftovers.Leftovers(_LEGACY)

    def compute_node_get(
        self,
        *,
        id: int | None = None,  # noqa: A002  # the column's name
        uuid: str | None = None,
    ) -> store.Row:
        """Return the live node with this id or uuid; ComputeNodeNotFound."""
        what = f"id {id}" if id is not None else f"uuid {uuid}"
        missing = errors.ComputeNodeNotFound(what=what)

        def work(connection: sa.Connection) -> rows.Stored | None:
            if id is not None:
                return _first(connection, _LIVE.where(_T.c.id == id))
            assert uuid is not None
            found = _first(connection, _LIVE.where(_T.c.uuid == uuid.lower()))
            if found is not None:
                return found
            legacy = rows.find_legacy(connection, _T, uuid.lower())
            # Without one, once more: it may have got its uuid in between.
            same = (
                _T.c.id == legacy if legacy is not None else _T.c.uuid == uuid.lower()
            )
            return _first(connection, _LIVE.where(same))

        if not (limits.countable(id) if id is not None else limits.storable(uuid)):
            raise missing
        found = retry.read(self._engine, work)
        if found is None:
            raise missing
        return rows.node(found)

    def compute_node_get_by_host_and_nodename(
        self, host: str, nodename: str
    ) -> store.Row:
        """Return the live node of this identity; ComputeNodeNotFound.

        One SELECT; another only if there is no row with its host filled in.
        """
        found = None
        if limits.storable(host) and limits.storable(nodename):
            found = retry.read(
                self._engine, lambda c: find_by_identity(c, host, nodename)
            )
        if found is None:
            raise errors.ComputeNodeNotFound(what=f"host {host} and node {nodename}")
        return rows.node(found)

    def compute_nodes(self, *, with_service: bool = False) -> list[store.Row]:
        """Return all live nodes by id; with_service adds the key ``service``."""
        if with_service:
            return retry.read(self._engine, _with_service)
        return self._list(_LIVE.order_by(_T.c.id))

    def read_service(self, service: Any) -> store.Row:
        """Return the row of the service that compute_nodes gave a node."""
        if isinstance(service, str):
            return rows.listed_service(_SERVICE_NAMES, service)
        found: store.Row = service
        return found

    def compute_nodes_by_host(self, host: str) -> list[store.Row]:
        """Return the live nodes of a host by id.

        One plain SELECT once no row of Juno's shape is left in the database.
        """
        if not limits.storable(host):
            return []

        def work(connection: sa.Connection) -> list[store.Row]:
            found: list[store.Row] = []
            if not self._leftovers.there_are(connection):
                found += rows.nodes(connection.execute(_BY_HOST, {"host": host}))
            if not found:  # nor may one of Juno's shape, just made, be overlooked
                query = _BY_HOST_OF_EITHER_SHAPE
                found += rows.nodes(connection.execute(query, {"host": host}))
            return found

        found = retry.read(self._engine, work)
        return sorted(found, key=lambda row: int(row["id"]))

    def compute_nodes_by_hypervisor(self, pattern: str) -> list[store.Row]:
        """Return the live nodes whose name contains the pattern literally."""
        if not limits.storable(pattern):
            return []
        contains = _T.c.hypervisor_hostname.icontains(pattern, autoescape=True)
        return self._list(_LIVE.where(contains).order_by(_T.c.id))

    def compute_nodes_page(
        self, limit: int | None, marker: int | None
    ) -> list[store.Row]:
        """Return up to limit live nodes with an id above the marker's, by id.

        :raises MarkerNotFound: no live node has the id ``marker``
        :raises InvalidInput: limit is not a count
        """
        if limit is not None and (not limits.countable(limit) or limit < 0):
            raise errors.InvalidInput(field="limit", reason="is not a count")
        if marker is not None and not limits.countable(marker):
            raise errors.MarkerNotFound(marker=marker)

        def work(connection: sa.Connection) -> list[store.Row]:
            query = _LIVE.order_by(_T.c.id).limit(limit)
            if marker is not None:
                at = sa.select(_T.c.id).where(_T.c.id == marker, models.live(_T))
                if connection.execute(at).first() is None:
                    raise errors.MarkerNotFound(marker=marker)
                query = query.where(_T.c.id > marker)
            return list[store.Row](rows.nodes(connection.execute(query)))

        return retry.read(self._engine, work)

    def compute_nodes_by_uuids(self, uuids: Sequence[str]) -> list[store.Row]:
        """Return the live nodes among these uuids by id."""
        wanted = sorted({u.lower() for u in uuids if limits.storable(u)})

        def work(connection: sa.Connection) -> list[store.Row]:
            found = _among(connection, _T.c.uuid, wanted)
            missing = set(wanted) - found.keys()
            if missing:
                legacy = rows.find_legacy_ids(connection, _T, missing)
                found |= _among(connection, _T.c.id, sorted(legacy.values()))
            missing -= found.keys()
            if missing:  # unless one has got its uuid in between
                found |= _among(connection, _T.c.uuid, sorted(missing))
            return sorted(found.values(), key=lambda node: int(node["id"]))

        return retry.read(self._engine, work)

    def _list(self, query: Any, **parameters: Any) -> list[store.Row]:
        return retry.read(
            self._engine,
            lambda c: list[store.Row](rows.nodes(c.execute(query, parameters))),
        )


def find_by_identity(
    connection: sa.Connection, host: str, name: str
) -> rows.Stored | None:
    """Return the stored row of the live node of this identity, of either shape."""
    parameters = {"host": host, "name": name}
    found = connection.execute(_BY_IDENTITY, parameters).mappings().first()
    if found is not None:
        return found
    either = connection.execute(_OF_EITHER_SHAPE, parameters).mappings().all()
    ours = [row for row in either if row["service_id"] is None]
    return min(ours or either, key=lambda row: int(row["id"]), default=None)


def by_host(connection: sa.Connection, host: str) -> list[rows.Stored]:
    """Return the stored rows of a host's live nodes, of either shape."""
    found = connection.execute(_BY_HOST_OF_EITHER_SHAPE, {"host": host})
    return list(found.mappings())


def find_legacy(connection: sa.Connection, host: str, name: str) -> rows.Stored | None:
    """Return the live row of Juno's shape with this derived identity."""
    parameters = {"host": host, "name": name}
    found = connection.execute(_LEGACY_BY_IDENTITY, parameters).mappings().all()
    return min(found, key=lambda row: int(row["id"]), default=None)


def find_by_id(connection: sa.Connection, node_id: int) -> dict[str, Any]:
    """Return the row with this id as the store port describes it."""
    found = _first(connection, _ALL.where(_T.c.id == node_id))
    assert found is not None
    return rows.node(found)


def _first(connection: sa.Connection, query: Any) -> rows.Stored | None:
    found: rows.Stored | None = connection.execute(query).mappings().first()
    return found


def _among(
    connection: sa.Connection, column: sa.Column[Any], values: Sequence[Any]
) -> dict[str, store.Row]:
    """Return the live nodes with one of these values in a column, by uuid."""
    found: dict[str, store.Row] = {}
    for start in range(0, len(values), _BATCH):
        some = _LIVE.where(column.in_(values[start : start + _BATCH]))
        for row in rows.nodes(connection.execute(some)):
            found[row["uuid"]] = row
    return found


def _with_service(connection: sa.Connection) -> list[store.Row]:
    """Return all live nodes with their services, joined on host in one query.

    A service stays the text that it came as until somebody reads it: for an object
    around each of them the collector of garbage takes longer than the whole join.

    The owners of rows of Juno's shape are fetched apart while there are such rows;
    joined in, each row would carry the columns of a second service for ever.
    """
    found: list[dict[str, Any]] = []
    owned: list[tuple[dict[str, Any], int]] = []
    last = None
    for row in connection.execute(_NODES_AND_SERVICES):
        node = dict(zip(_NAMES_OF_BOTH, row, strict=True))
        owner_id = node.pop("owner_id")
        if node["id"] == last:
            # A second service of the host can only be a very old row; which one
            # counts, services.find says. Put in order by the server they'd all be
            # sorted.
            both = found[-1]["service"], node["service"]
            found[-1]["service"] = min(both, key=_rank)
            continue
        last = node["id"]
        found.append(rows.made_node(node))
        if owner_id is not None:
            owned.append((node, owner_id))
    _add_owners(connection, owned)
    return list[store.Row](found)


def _rank(service: str) -> tuple[bool, int]:
    values = dict(zip(_SERVICE_NAMES, json.loads(service), strict=True))
    return values["deleted"] is None, values["id"]


def _add_owners(
    connection: sa.Connection, owned: Sequence[tuple[dict[str, Any], int]]
) -> None:
    ids = sorted({owner_id for _, owner_id in owned})
    known: dict[int, dict[str, Any]] = {}
    for start in range(0, len(ids), _BATCH):
        known |= services.by_ids(connection, ids[start : start + _BATCH])
    for node, owner_id in owned:
        node["service"] = known.get(owner_id)
