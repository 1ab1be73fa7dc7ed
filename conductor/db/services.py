"""The store's half for services."""

from typing import Any
import uuid as uuidlib

from oslo_db import exception as oslo_exc
import sqlalchemy as sa

from conductor.db import limits
from conductor.db import models
from conductor.db import retry
from conductor.db import rows
from conductor.db import types
from musterbook import errors
from musterbook import names
from objects import store

_T = models.services
_N = models.compute_nodes
#: Never a caller's to write: the store's, the grant's and the verdict's.
_OWN_COLUMNS = frozenset(
    {
        "id", "created_at", "updated_at", "deleted_at", "deleted", "last_seen_up",
        "incarnation", "secret_hash", "process_uuid", "boot_id", "release",
        "version", "version_incarnation", "goodbye_at", "stalled_reason", "state",
        "state_incarnation", "state_since", "state_cause", "state_evidence",
        "state_actor", "stream_version", "beat_incarnation",
    }
)  # fmt: skip
_SECRET = "secret_hash"  # noqa: S105  # a column's name
_COLUMNS = [column for column in _T.c if column.name != _SECRET]


class ServiceStore:
    """Records of services; any thread may call any method."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def service_get(
        self,
        *,
        id: int | None = None,  # noqa: A002  # the column's name
        uuid: str | None = None,
    ) -> store.Row:
        """Return the live service with this id or uuid; ServiceNotFound."""
        what = f"id {id}" if id is not None else f"uuid {uuid}"
        missing = errors.ServiceNotFound(what=what)

        def work(connection: sa.Connection) -> dict[str, Any]:
            row_id = id
            if row_id is None:
                assert uuid is not None
                row_id = _id_of(connection, uuid)
            found = _live(connection, _T.c.id == row_id)
            if row_id is None or found is None:
                raise missing
            return rows.service(found)

        if not (limits.countable(id) if id is not None else limits.storable(uuid)):
            raise missing
        return retry.read(self._engine, work)

    def service_get_by_host_and_binary(self, host: str, binary: str) -> store.Row:
        """Return the live service of this host and binary; ServiceNotFound."""
        missing = errors.ServiceNotFound(what=f"host {host} and binary {binary}")
        if not (limits.storable(host) and limits.storable(binary)):
            raise missing
        found = retry.read(self._engine, lambda c: find(c, host, binary))
        if found is None:
            raise missing
        return rows.service(found)

    def service_create(self, values: store.Row) -> store.Row:
        """Insert a service and return its whole row.

        :raises ServiceExists: a live one has this host and binary (or topic)
        :raises InvalidInput: a value doesn't fit
        """
        writable = _writable(values)
        writable.setdefault("uuid", str(uuidlib.uuid4()))
        fixed = {
            "report_count": 0,
            "disabled": False,
            "forced_down": False,
            "created_at": rows.instant(),
            "deleted": 0,
        }
        exists = errors.ServiceExists(
            host=writable.get("host"), binary=writable.get("binary")
        )

        def work(connection: sa.Connection) -> dict[str, Any]:
            host, binary = writable.get("host"), writable.get("binary")
            twin = find(connection, host, binary) if host and binary else None
            if twin is not None and twin["uuid"] != writable["uuid"]:
                raise exists
            if twin is None:
                key = connection.execute(_T.insert().values(fixed | writable))
                twin = _live(connection, _T.c.id == rows.inserted_id(key))
            assert twin is not None
            return rows.service(twin)

        try:
            return retry.run(self._engine, work)
        except oslo_exc.DBDuplicateEntry:
            raise exists from None

    def service_update(self, service_id: int, values: store.Row) -> store.Row:
        """Change a live service, return the columns the store itself set.

        A report count that rises is a beat of the db driver: when it came is noted
        by the database's clock, then and at no other time.

        :raises ServiceNotFound: there is no live one with this id
        :raises ServiceExists: another live one has the new host and binary
        :raises InvalidInput: a value doesn't fit, the uuid is among them, or the host
            is to change while nodes of Juno's shape have it only through the service
        """
        limits.refuse_uuid(values)
        missing = errors.ServiceNotFound(what=f"id {service_id}")
        writable = _writable(values)
        if not limits.countable(service_id):
            raise missing
        own = {"updated_at": rows.instant()}
        statement = (
            _T.update()
            .where(_T.c.id == service_id, models.live(_T))
            .ordered_values(*_beat(writable), *(own | writable).items())
        )

        def work(connection: sa.Connection) -> int:
            if "host" in writable:
                _keep_host(connection, service_id, writable["host"])
            return connection.execute(statement).rowcount

        try:
            matched = retry.run(self._engine, work)
        except oslo_exc.DBDuplicateEntry:
            raise errors.ServiceExists(
                host=writable.get("host"), binary=writable.get("binary")
            ) from None
        if not matched:
            raise missing
        return own

    def service_destroy(self, service_id: int) -> None:
        """Soft-delete a live service; ServiceNotFound."""
        statement = (
            _T.update()
            .where(_T.c.id == service_id, models.live(_T))
            .values(deleted=_T.c.id, deleted_at=rows.instant(), stream_version=None)
        )
        if not limits.countable(service_id) or not retry.run(
            self._engine, lambda c: c.execute(statement).rowcount
        ):
            raise errors.ServiceNotFound(what=f"id {service_id}")

    def services(
        self,
        *,
        host: str | None = None,
        topic: str | None = None,
        binary: str | None = None,
        disabled: bool | None = None,
    ) -> list[store.Row]:
        """Return the live services that match all the given values, by id."""
        if not all(limits.storable(v) for v in (host, topic, binary) if v is not None):
            return []
        query = sa.select(*_COLUMNS).where(models.live(_T)).order_by(_T.c.id)
        if host is not None:
            query = query.where(types.same_name(_T.c.host, host))
        if topic is not None:
            query = query.where(_T.c.topic == topic)
        if binary is not None:
            query = query.where(_T.c.binary == binary)
        if disabled is not None:
            is_disabled = sa.func.coalesce(_T.c.disabled, sa.false())
            query = query.where(is_disabled == sa.literal(bool(disabled)))
        return retry.read(
            self._engine,
            lambda c: [rows.service(row) for row in c.execute(query).mappings()],
        )


def find(
    connection: sa.Connection,
    host: str,
    binary: str,
    *,
    lock: bool = False,
    secret: bool = False,
) -> rows.Stored | None:
    """Return the stored row of the live service of this host and binary.

    Very old rows have NULL in ``deleted``, which their unique key doesn't guard:
    of several the row with a 0 counts, then the oldest.

    :param lock: until the transaction ends; the row then has the secret's hash
    :param secret: it has that without a lock
    """
    query = sa.select(*_T.c if lock or secret else _COLUMNS).where(
        types.same_name(_T.c.host, host), _T.c.binary == binary, models.live(_T)
    )
    if lock:
        query = query.with_for_update()
    found = connection.execute(query).mappings().all()
    return min(found, key=lambda r: (r["deleted"] is None, r["id"]), default=None)


def by_ids(connection: sa.Connection, ids: list[int]) -> dict[int, dict[str, Any]]:
    """Return the live services with these ids, by id."""
    query = sa.select(*_COLUMNS).where(_T.c.id.in_(ids), models.live(_T))
    found = connection.execute(query).mappings()
    return {row["id"]: rows.service(row) for row in found}


def _keep_host(connection: sa.Connection, service_id: int, host: str | None) -> None:
    """Refuse another host for a service that nodes of Juno's shape have theirs from.

    Theirs would change as well, unguarded: another node may have it already.

    :raises InvalidInput: there are such nodes
    """
    query = sa.select(_T.c.host).where(_T.c.id == service_id, models.live(_T))
    stored = connection.execute(query.with_for_update()).scalar()
    if stored is None or (host and names.fold(stored) == names.fold(host)):
        return
    theirs = sa.select(_N.c.id).where(
        _N.c.service_id == service_id, _N.c.host.is_(None), models.live(_N)
    )
    if connection.execute(theirs.limit(1)).first() is not None:
        raise errors.InvalidInput(
            field="host",
            reason=f"can't change while nodes of Juno's shape have {stored} from the "
            "service; run musterbook-manage db online_data_migrations first",
        )


def _live(
    connection: sa.Connection, condition: sa.ColumnElement[bool]
) -> rows.Stored | None:
    query = sa.select(*_COLUMNS).where(condition, models.live(_T))
    return connection.execute(query).mappings().first()


def _id_of(connection: sa.Connection, uuid: str) -> int | None:
    uuid = uuid.lower()
    query = sa.select(_T.c.id).where(_T.c.uuid == uuid)
    found: int | None = connection.execute(query).scalar()
    if found is None:
        found = rows.find_legacy(connection, _T, uuid)
    if found is None:  # unless it has got its uuid in between
        found = connection.execute(query).scalar()
    return found


def _beat(writable: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return what the store sets besides, before the values: MySQL's SET reads on.

    Beats of a fleet are no changes of it: they leave the difference stream alone.
    """
    own: dict[str, Any] = {"deleted": 0}
    if writable.keys() - {"report_count"}:
        own["stream_version"] = None
    if writable.get("report_count") is not None:
        rises = _T.c.report_count < writable["report_count"]
        own["last_seen_up"] = sa.case((rises, types.now()), else_=_T.c.last_seen_up)
    return list(own.items())


def _writable(values: store.Row) -> dict[str, Any]:
    writable = {n: v for n, v in values.items() if n not in _OWN_COLUMNS}
    limits.check(_T, writable)
    return writable
