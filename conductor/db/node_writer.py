"""The store's half for compute nodes: writing."""

from collections.abc import Mapping
import json
import logging
from typing import Any
import uuid as uuidlib

from oslo_db import exception as oslo_exc
import sqlalchemy as sa

from conductor.db import allocations
from conductor.db import booking
from conductor.db import former_nodes
from conductor.db import grants
from conductor.db import limits
from conductor.db import models
from conductor.db import node_moves
from conductor.db import node_update
from conductor.db import nodes
from conductor.db import retry
from conductor.db import rows
from conductor.db import types
from conductor.db import usage
from musterbook import errors
from musterbook import names
from musterbook.context import Grant
from objects import service as service_obj
from objects import store

LOG = logging.getLogger(__name__)

_T = models.compute_nodes
_S = models.services
#: Never a caller's to write. service_id is only read, from version 1.0's create.
_OWN_COLUMNS = frozenset(
    {
        "id", "created_at", "updated_at", "deleted_at", "deleted", "generation",
        "inventory_generation", "stream_version", "service_id", "booking",
        "custom_used",
    }
)  # fmt: skip
_IDENTITY = ("host", "hypervisor_hostname")
#: What a new row holds where the caller says nothing; a revived row is reset to it.
_BLANK = {
    column.name: None
    for column in _T.c
    if column.nullable and column.name not in _OWN_COLUMNS | {"uuid"}
} | {"hypervisor_type": "", "hypervisor_version": 0, "cpu_info": ""}


class NodeWriter:
    """Writes compute nodes; any thread may call any method."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def compute_node_create(
        self,
        values: store.Row,
        grant: Grant | None = None,
        *,
        writes_usage: bool = False,
    ) -> store.Row:
        """Insert a node and return its whole row.

        A soft-deleted node of the same uuid, or else an orphan or a soft-deleted node
        of the same identity, comes back under its id and uuid, with its allocations.
        Creating again what was created under the same uuid (an answer was lost)
        returns it.

        :param grant: the caller's; None: it isn't an agent
        :param writes_usage: the caller, of version 1.0, may set used amounts
        :raises Superseded: the grant isn't the current one
        :raises ComputeNodeExists: a live one, be it of Juno's shape, has the identity
        :raises InvalidInput: a value doesn't fit, host or name are missing, or the
            host isn't the grant's
        """
        writable = _writable(values, writes_usage)
        return retry.run(
            self._engine,
            lambda c: _create(c, writable, values.get("service_id"), grant),
            again_on_duplicate=True,
        )

    def compute_node_update(
        self,
        node_id: int,
        values: store.Row,
        inventory_generation: int | None,
        grant: Grant | None = None,
        *,
        writes_usage: bool = False,
    ) -> store.Row:
        """Change a live node and return the columns that the store itself set.

        Returned are updated_at, inventory_generation if it rose, the amounts that
        followed, usage_confirmed if it may have changed, and host, service_id and
        uuid of a row of Juno's shape.

        :param values: column to new value; usage follows reserved amounts, free
            amounts follow both
        :param inventory_generation: capacity is only changed if this is the stored
            one; other values always are
        :param grant: the caller's; None: it isn't an agent
        :param writes_usage: the caller, of version 1.0, may set used amounts; the
            legacy allocation follows
        :raises ComputeNodeNotFound: no live node has this id
        :raises Superseded: the grant isn't the current one
        :raises ComputeNodeMoved: the node is another host's than the grant's
        :raises InventoryChanged: the stored inventory generation is another
        :raises ComputeNodeExists: another live node has the new identity
        :raises InvalidInput: a value doesn't fit, the uuid is among them, or the
            node's new host isn't the grant's, or it has none
        """
        limits.refuse_uuid(values)
        writable = _writable(values, writes_usage)
        if grant is not None and "host" in writable:
            _check_host(grant, writable["host"])
        if not limits.countable(node_id):
            raise errors.ComputeNodeNotFound(what=f"id {node_id}")
        change = _Change(node_id, writable, inventory_generation, grant)
        try:
            return change.apply(self._engine)
        except oslo_exc.DBDuplicateEntry:
            raise _exists(change.identity) from None

    def compute_node_confirm_usage(
        self, node_id: int, used: Mapping[str, int], grant: Grant | None = None
    ) -> store.Row:
        """Let the legacy allocation hold what really runs there, as confirmed.

        If there is nothing to confirm (any more), nothing changes. Returned are the
        columns that the store set: usage_confirmed, and all that follows.

        :param used: what uses the node that nobody has claimed: vcpus, memory_mb,
            local_gb
        :param grant: the caller's; None: it isn't an agent
        :raises ComputeNodeNotFound: no live node has this id
        :raises Superseded: the grant isn't the current one
        :raises ComputeNodeMoved: the node is another host's than the grant's
        :raises ComputeNodeExists: it is of Juno's shape, and another live node has
            the host and name that would be stored
        :raises InvalidInput: an amount is missing, unknown, or doesn't fit, or the
            node has no host
        """
        told = booking.amounts(used)
        if not limits.countable(node_id):
            raise errors.ComputeNodeNotFound(what=f"id {node_id}")
        change = _Change(node_id, {}, None, grant, told)
        try:
            answer = retry.run(self._engine, change.look_further)
        except oslo_exc.DBDuplicateEntry:
            raise _exists(change.identity) from None
        if change.was is not None:
            LOG.info(
                "Compute node %s (%s on host %s): usage that nobody claimed is %s, "
                "its agent says; booked until now: %s",
                node_id,
                change.identity["hypervisor_hostname"],
                change.identity["host"],
                told,
                change.was,
            )
        return answer

    def compute_node_destroy(
        self,
        node_id: int,
        host: str | None,
        grant: Grant | None = None,
        *,
        force: bool = False,
    ) -> None:
        """Soft-delete a live node, if host is given only while it's that host's.

        :param grant: the caller's; None: it isn't an agent
        :param force: also one that is in use
        :raises ComputeNodeNotFound: it is gone, or another host has it now
        :raises ComputeNodeInUse: more of it is used than what is reserved
        :raises Superseded: the grant isn't the current one
        :raises ComputeNodeMoved: the node is another host's than the grant's
        :raises InvalidInput: the node has no host
        """
        missing = errors.ComputeNodeNotFound(
            what=f"id {node_id}" if host is None else f"id {node_id} and host {host}"
        )
        if not limits.countable(node_id):
            raise missing
        if host is not None and not limits.storable(host):
            raise missing

        def work(connection: sa.Connection) -> None:
            if grant is not None:
                grants.hold(connection, grant, service_obj.COMPUTE_BINARY)
            found = _lock(connection, node_id)
            owner = None if found is None else found["host"]
            ours = host is None or (
                owner is not None and names.fold(owner) == names.fold(host)
            )
            if found is None or not ours:
                raise missing
            if grant is not None:
                _check_owner(grant, found)
            used = _in_use(connection, found)
            if used and not force:
                raise errors.ComputeNodeInUse(what=f"id {node_id}", used=used)
            uuid = found["uuid"] or rows.legacy_uuid(
                _T.name, node_id, found["created_at"]
            )
            values: dict[str, Any] = {
                "uuid": uuid,
                "deleted": _T.c.id,
                "deleted_at": rows.instant(),
                "generation": _T.c.generation + 1,
                "stream_version": None,
            }
            if owner is not None:  # by which it comes back
                values |= {"host": owner, "service_id": None}
            connection.execute(_T.update().where(_T.c.id == node_id).values(values))

        retry.run(self._engine, work)


# -- create ------------------------------------------------------------------------


def _create(
    connection: sa.Connection,
    values: dict[str, Any],
    service_id: int | None,
    grant: Grant | None,
) -> dict[str, Any]:
    """Insert or revive, unless the identity is taken. Locks service, then node."""
    if values.get("host") is None and service_id is not None:
        values = values | {"host": _host_of(connection, service_id)}
    identity = {field: values.get(field) for field in _IDENTITY}
    for field, value in identity.items():
        if not value:
            raise errors.InvalidInput(field=field, reason="can't be empty")
    if grant is not None:
        grants.hold(connection, grant, service_obj.COMPUTE_BINARY)
        _check_host(grant, identity["host"])
    taken = _taken(connection, str(identity["host"]), str(identity[_IDENTITY[1]]))
    if taken is not None:
        if taken["uuid"] is not None and taken["uuid"] == values.get("uuid"):
            return nodes.find_by_id(connection, taken["id"])
        raise _exists(identity)
    old = (
        former_nodes.deleted_of_uuid(connection, values)
        or former_nodes.orphan(connection, values)
        or former_nodes.deleted_of_identity(connection, values)
    )
    if old is None:
        return _insert(connection, values, identity)
    return _revive(connection, old, values)


def _insert(
    connection: sa.Connection, values: dict[str, Any], identity: Mapping[str, Any]
) -> dict[str, Any]:
    blank = _BLANK | {"uuid": str(uuidlib.uuid4()), "deleted": 0}
    row = usage.at_creation(blank | values) | {"booking": booking.Booking.CONFIRMED}
    _refuse_known_uuid(connection, row["uuid"], identity)
    book = booking.Book()
    booked = booking.settle(row, row, book, usage.USED & values.keys())
    limits.check(_T, booked.columns)
    row |= booked.columns | {"created_at": rows.instant()}
    node_id = rows.inserted_id(connection.execute(_T.insert().values(row)))
    allocations.write(connection, node_id, row["uuid"], book, booked)
    return nodes.find_by_id(connection, node_id)


def _refuse_known_uuid(
    connection: sa.Connection, uuid: str, identity: Mapping[str, Any]
) -> None:
    """Tell a uuid that is in use from a race for the identity, which is retried."""
    if former_nodes.id_of_uuid(connection, uuid) is not None:
        raise _exists(identity)


def _taken(connection: sa.Connection, host: str, name: str) -> rows.Stored | None:
    """Return the live row that has the identity, and keep it from coming up.

    The unique key guards rows with a host. Rows of Juno's shape are guarded by the
    lock on the host's service, which whoever fills in their host takes as well.
    """
    _lock_services(connection, host)
    return nodes.find_by_identity(connection, host, name)


def _lock_services(connection: sa.Connection, host: str) -> None:
    connection.execute(
        sa.select(_S.c.id)
        .where(
            types.same_name(_S.c.host, host),
            _S.c.binary == service_obj.COMPUTE_BINARY,
            models.live(_S),
        )
        .order_by(_S.c.id)
        .with_for_update()
    ).all()


def _host_of(connection: sa.Connection, service_id: object) -> str:
    """Return the host of a peer that only knows its service (version 1.0)."""
    if limits.countable(service_id):
        query = sa.select(_S.c.host).where(_S.c.id == service_id, models.live(_S))
        host = connection.execute(query).scalar()
        if host is not None:
            return str(host)
    raise errors.InvalidInput(field="service_id", reason="is no live service's")


def _revive(
    connection: sa.Connection, old: rows.Stored, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Bring a locked row back with its allocations.

    Whoever used the node before it was deleted may use it still.
    """
    uuid = old["uuid"] or rows.legacy_uuid(_T.name, old["id"], old["created_at"])
    new = usage.at_creation(_BLANK | dict(values))
    book = allocations.of_node(connection, old["id"])
    booked = booking.settle({**old}, new, book, usage.USED & values.keys())
    limits.check(_T, booked.columns)
    row = (
        new
        | booked.columns
        | {
            "uuid": uuid,
            "service_id": None,
            "deleted": 0,
            "deleted_at": None,
            "updated_at": rows.instant(),
            # Who still holds the old row must read again before it writes.
            "generation": _T.c.generation + 1,
            "inventory_generation": _T.c.inventory_generation + 1,
            "stream_version": None,
        }
    )
    connection.execute(_T.update().where(_T.c.id == old["id"]).values(row))
    allocations.write(connection, old["id"], uuid, book, booked)
    return nodes.find_by_id(connection, old["id"])


# -- update ------------------------------------------------------------------------


class _Change:
    """One update of one node; each step may run several times."""

    def __init__(
        self,
        node_id: int,
        values: dict[str, Any],
        generation: int | None,
        grant: Grant | None,
        told: booking.Amounts | None = None,
    ) -> None:
        self.node_id = node_id
        self.values = values
        self.told = told
        self.was: booking.Amounts | None = None  # what was corrected or confirmed
        capacity = bool(node_update.CAPACITY & values.keys())
        self.generation = generation if capacity else None
        self.grant = grant
        self.identity: dict[str, Any] = {n: values.get(n) for n in _IDENTITY}

    def apply(self, engine: sa.Engine) -> dict[str, Any]:
        """Do it in one UPDATE; look further only when no row matched.

        Or when allocations have to follow.
        """
        if usage.USED & self.values.keys():
            return retry.run(engine, self._guard_and_look)
        owner = node_update.Owner.HOSTED
        conditions: dict[str, Any] = {}
        if self.grant is not None:
            owner = node_update.Owner.GRANTED
            conditions = grants.parameters(self.grant, service_obj.COMPUTE_BINARY)
        returning = engine.dialect.update_returning
        plan = self._plan({}, owner, returning)

        def update(connection: sa.Connection) -> dict[str, Any] | None:
            return self._update(plan, connection, {}, conditions)

        def work(connection: sa.Connection) -> dict[str, Any]:
            self._guard_identity(connection)
            answer = update(connection)
            return answer if answer is not None else self.look_further(connection)

        if any(self.identity.values()) or not plan.in_one:
            return retry.run(engine, work)
        answer = retry.single(engine, update)
        return answer if answer is not None else retry.run(engine, self.look_further)

    def _guard_and_look(self, connection: sa.Connection) -> dict[str, Any]:
        self._guard_identity(connection)
        return self.look_further(connection)

    def _plan(
        self, own: Mapping[str, Any], owner: node_update.Owner, returning: bool
    ) -> node_update.Plan:
        return node_update.plan(
            node_update.Shape(
                names=frozenset(self.values.keys() - own.keys()),
                own=frozenset({"updated_at", *own}),
                checked=self.generation is not None,
                owner=owner,
                returning=returning,
            )
        )

    def _update(
        self,
        plan: node_update.Plan,
        connection: sa.Connection,
        own: dict[str, Any],
        conditions: Mapping[str, Any],
    ) -> dict[str, Any] | None:
        """Update the row if it meets the conditions; return what the store set.

        :param own: further columns that the store sets
        """
        answer = {"updated_at": rows.instant()} | own
        known = {}
        if self.generation is not None:
            conditions = {**conditions, "expected": self.generation}
            known = {"inventory_generation": self.generation + 1}
        values = self.values | answer
        found = plan.run(connection, self.node_id, values, conditions)
        return None if found is None else answer | found | known

    def _guard_identity(self, connection: sa.Connection) -> None:
        """Refuse an identity that a live row of Juno's shape has."""
        if not any(self.identity.values()):
            return
        query = sa.select(_T.c.host, _T.c.hypervisor_hostname).where(
            _T.c.id == self.node_id
        )
        stored = connection.execute(query).mappings().first()
        if stored is None:
            return
        self.identity = {n: self.values.get(n, stored[n]) for n in _IDENTITY}
        if all(self.identity.values()):
            host, name = self.identity["host"], self.identity["hypervisor_hostname"]
            _lock_services(connection, host)
            other = nodes.find_legacy(connection, host, name)
            if other is not None and other["id"] != self.node_id:
                raise _exists(self.identity)

    def look_further(self, connection: sa.Connection) -> dict[str, Any]:
        """Say why no row matched, or take a row over and book its usage."""
        if self.grant is not None:
            grants.hold(connection, self.grant, service_obj.COMPUTE_BINARY)
        found = _lock(connection, self.node_id)
        if found is None:
            raise errors.ComputeNodeNotFound(what=f"id {self.node_id}")
        if self.grant is not None:
            _check_owner(self.grant, found)
        stored = found["inventory_generation"]
        if self.generation is not None and stored != self.generation:
            raise errors.InventoryChanged(
                what=f"compute node {self.node_id}",
                expected=self.generation,
                found=stored,
            )
        own: dict[str, Any] = {}
        host = self.values.get("host", found["host"])
        self.identity = {
            "host": host,
            "hypervisor_hostname": self.values.get(
                "hypervisor_hostname", found["hypervisor_hostname"]
            ),
        }
        uuid = found["uuid"]
        if uuid is None:
            uuid = rows.legacy_uuid(_T.name, self.node_id, found["created_at"])
            own["uuid"] = uuid
        own |= self._book(connection, found, uuid)
        if host is not None:
            own |= {"host": host, "service_id": None}
        if self.told is not None and found["booking"] == booking.Booking.CONFIRMED:
            return rows.with_usage_confirmed(own)
        # Of a node without a service the host isn't known; its values still are.
        returning = connection.dialect.update_returning
        plan = self._plan(own, node_update.Owner.ANY, returning)
        answer = self._update(plan, connection, own, {})
        assert answer is not None
        return rows.with_usage_confirmed(answer)

    def _book(
        self, connection: sa.Connection, found: rows.Stored, uuid: str
    ) -> dict[str, int]:
        """Book the usage of a locked row; return the columns to store.

        :raises InvalidInput: an amount doesn't fit
        """
        book = allocations.of_node(connection, self.node_id)
        stored = {**found}
        new = stored | self.values
        booked = booking.settle(stored, new, book, usage.USED & self.values.keys())
        if self.told is not None:
            self.was = None
            if booked.columns["booking"] != booking.Booking.CONFIRMED:
                self.was = booked.legacy
                booked = booking.confirm(new, self.told, book)
        limits.check(_T, booked.columns)
        allocations.write(connection, self.node_id, uuid, book, booked)
        return booked.columns


def _lock(connection: sa.Connection, node_id: int) -> rows.Stored | None:
    """Return a live row with its derived host, locked; its service before it."""
    query = (
        sa.select(nodes.OWNER.c.host)
        .select_from(_T.join(nodes.OWNER, nodes.OWNER.c.id == _T.c.service_id))
        .where(_T.c.id == node_id, _T.c.host.is_(None), models.live(nodes.OWNER))
    )
    owner: str | None = connection.execute(query).scalar()
    if owner is not None:
        _lock_services(connection, owner)
    locked = sa.select(_T).where(_T.c.id == node_id, models.live(_T)).with_for_update()
    found = connection.execute(locked).mappings().first()
    if found is None:
        return None
    return {**found, "host": found["host"] if found["host"] is not None else owner}


def _in_use(connection: sa.Connection, found: rows.Stored) -> str:
    """Return what of a locked node is in use, '' for nothing."""
    claims = allocations.claimed(connection, found["id"])
    told = [f"{claims} claims"] if claims else []
    used = usage.beyond_reserved(found)
    return ", ".join([*told, used] if used else told)


def _check_host(grant: Grant, host: object) -> None:
    """Return if a node's host is the one that was granted.

    Not Superseded: the process may well be the granted one, and has to go on.
    """
    if not isinstance(host, str) or names.fold(host) != names.fold(grant.host):
        raise errors.InvalidInput(
            field="host", reason=f"is not {grant.host}, which the caller was granted"
        )


def _check_owner(grant: Grant, found: rows.Stored) -> None:
    """Return if a stored node is of the host that was granted."""
    if found["host"] is None:
        _check_host(grant, None)  # it belongs to nobody until it is resolved
    node_moves.check_owner(grant.host, found)


def _exists(identity: Mapping[str, Any]) -> errors.ComputeNodeExists:
    return errors.ComputeNodeExists(
        host=identity.get("host"),
        hypervisor_hostname=identity.get("hypervisor_hostname"),
    )


def _writable(values: store.Row, writes_usage: bool) -> dict[str, Any]:
    """Return what a caller may set, in the form in which it is stored.

    :raises InvalidInput: a value doesn't fit, or usage isn't the caller's to write
    """
    writable = {n: v for n, v in values.items() if n not in _OWN_COLUMNS}
    follows = (usage.USED | usage.FREE) & writable.keys()
    if follows and not writes_usage:
        raise errors.InvalidInput(
            field=min(follows),
            reason="is the conductor's to write: usage is the sum of allocations",
        )
    for name in usage.FREE & follows:
        del writable[name]
    if isinstance(writable.get("stats"), Mapping):
        writable["stats"] = json.dumps(dict(writable["stats"]), sort_keys=True)
    for name, check in rows.CUSTOM.items():
        if writable.get(name) is not None:
            checked = check(writable[name], name)
            writable[name] = json.dumps(checked) if checked else None
    if "cpu_info" in writable and writable["cpu_info"] is None:
        writable["cpu_info"] = ""
    if isinstance(writable.get("uuid"), str):
        writable["uuid"] = writable["uuid"].lower()
    limits.check(_T, writable)
    return writable
