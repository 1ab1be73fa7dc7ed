"""Compute nodes that go to another host, under their id and uuid, with their usage.

Two ways: a host was renamed and takes its nodes along as its agent says hello; and a
node that several agents can manage turned up at another one. Either is one transaction
that changes nothing but whose the node is. Generations rise, so that whoever held it
must read it again before it writes.

There is never a second live row of one host and name: where the new host has a row of
that name, that one stays and the other is left where it is.

A node that came without a uuid, from Juno, is known by one that was derived. Elsewhere
it would not be found by that of its source, so the agent that has it tells the latter
once, by adopting it from itself.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import logging
from typing import Any

from oslo_db import exception as oslo_exc
from oslo_utils import uuidutils
import sqlalchemy as sa

from conductor.db import allocations
from conductor.db import grants
from conductor.db import left_behind
from conductor.db import limits
from conductor.db import models
from conductor.db import nodes
from conductor.db import retry
from conductor.db import rows
from conductor.db import services
from conductor.db import types
from musterbook import errors
from musterbook import names
from musterbook.context import Grant
from objects import service as service_obj

LOG = logging.getLogger(__name__)

_T = models.compute_nodes


@dataclasses.dataclass(frozen=True)
class Claim:
    """That a host was renamed, as its agent says, and what was found out about it.

    :ivar host: the former name
    :ivar incarnation: the one last granted under that name when its process was found
        to be gone; None: none ever, or the service was deleted
    :ivar uuids: of the nodes that the agent had under that name
    """

    host: str
    incarnation: int | None
    uuids: frozenset[str]

    def settle(self, connection: sa.Connection, host: str) -> None:
        """Give the nodes to the host, unless it has nodes already.

        A host with nodes of its own wasn't renamed: somebody brought another one's
        state to it.

        :raises GrantConflict: a process was granted the former name meanwhile
        """
        binary = service_obj.COMPUTE_BINARY
        former = services.find(connection, self.host, binary, lock=True)
        incarnation = None if former is None else former["incarnation"]
        if incarnation != self.incarnation:
            raise grants.GrantConflict
        if nodes.by_host(connection, host):
            return
        for found in nodes.by_host(connection, self.host):
            node = rows.node(found)
            if node["uuid"] in self.uuids:
                _give(connection, node, self.host, {"host": host})


class NodeMoveStore:
    """Whose a node is, and who gets it; any thread may call any method."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def nodes_of(self, host: str, uuids: Sequence[str]) -> list[tuple[str, str]]:
        """Return uuid and name of the host's live nodes among these uuids, by id."""
        wanted = set(uuids)

        def work(connection: sa.Connection) -> list[tuple[str, str]]:
            found = [rows.node(row) for row in nodes.by_host(connection, host)]
            return [
                (node["uuid"], node["hypervisor_hostname"])
                for node in sorted(found, key=lambda node: int(node["id"]))
                if node["uuid"] in wanted
            ]

        return retry.read(self._engine, work) if limits.storable(host) else []

    def hosts_of(self, uuids: Sequence[str]) -> list[tuple[str, str | None]]:
        """Return each uuid with the host of its live node; None: there is none."""
        found = nodes.NodeReader(self._engine).compute_nodes_by_uuids(uuids)
        hosts = {row["uuid"]: row["host"] for row in found}
        return [(uuid, hosts.get(uuid)) for uuid in uuids]

    def adopt(self, grant: Grant, uuid: str, name: str, formerly: str) -> None:
        """Give a live node that another agent managed to the grant's host.

        Nothing is done if it has it already. If no node has the uuid and formerly is
        the grant's host itself, its node of this name gets it, in place of a uuid that
        was only derived; if it has none, the one that left_behind finds.

        :param formerly: the host that the decision was based on
        :raises ComputeNodeMoved: another host has it by now
        :raises ComputeNodeNotFound: no live node has this uuid
        :raises ComputeNodeExists: the host has another live node of this name, or a
            deleted one has the uuid
        :raises Superseded: the grant isn't the current one
        :raises InvalidInput: which node is meant can't be told (left_behind)
        """
        missing = errors.ComputeNodeNotFound(what=f"uuid {uuid}")
        exists = errors.ComputeNodeExists(host=grant.host, hypervisor_hostname=name)
        if not limits.storable(uuid):
            raise missing

        def work(connection: sa.Connection) -> None:
            grants.hold(connection, grant, service_obj.COMPUTE_BINARY)
            found = _lock(connection, uuid)
            if found is None and _same(grant.host, formerly):
                _adopt_by_name(connection, uuid, name, grant.host)
                return
            found = found or _lock_legacy(connection, uuid)
            if found is None:
                raise missing
            if _same(found["host"], grant.host):
                return
            check_owner(formerly, found)
            taken = nodes.find_by_identity(connection, grant.host, name)
            if taken is not None:
                raise exists
            values = {"host": grant.host, "hypervisor_hostname": name}
            _give(connection, found, formerly, values)

        try:
            retry.run(self._engine, work)
        except oslo_exc.DBDuplicateEntry:
            raise exists from None


def check_owner(host: str, found: rows.Stored) -> None:
    """Return if a stored node is of this host.

    Not Superseded: the process that asks may well be the granted one, and has to go on.

    :raises ComputeNodeMoved: it is another's
    """
    if not _same(found["host"], host):
        raise errors.ComputeNodeMoved(uuid=found["uuid"], host=found["host"])


def _same(one: object, other: str) -> bool:
    return isinstance(one, str) and names.fold(one) == names.fold(other)


def _lock(connection: sa.Connection, uuid: str) -> rows.Stored | None:
    query = sa.select(_T).where(_T.c.uuid == uuid.lower(), _T.c.deleted == 0)
    return connection.execute(query.with_for_update()).mappings().first()


def _lock_legacy(connection: sa.Connection, uuid: str) -> rows.Stored | None:
    """Return the row without a stored uuid, host and uuid filled in; it is locked."""
    row_id = rows.find_legacy(connection, _T, uuid.lower())
    if row_id is None:
        return None
    bare = sa.select(_T.c.id).where(_T.c.id == row_id, models.live(_T))
    if connection.execute(bare.with_for_update()).first() is None:
        return None
    return nodes.find_by_id(connection, row_id)


def _adopt_by_name(connection: sa.Connection, uuid: str, name: str, host: str) -> None:
    """Let a host have, under a new uuid, its node of this name or the one left behind.

    :raises ComputeNodeNotFound, ComputeNodeExists, InvalidInput: as adopt
    """
    if uuidutils.is_uuid_like(uuid):
        found = nodes.find_by_identity(connection, host, name)
        if found is not None:
            if _identify(connection, found, host, uuid.lower()):
                return
            raise errors.ComputeNodeExists(host=host, hypervisor_hostname=name)
        if _fetch(connection, uuid.lower(), name, host):
            return
    raise errors.ComputeNodeNotFound(what=f"uuid {uuid}")


def _identify(
    connection: sa.Connection, node: rows.Stored, host: str, uuid: str
) -> bool:
    """Give a host's node the uuid of its source; return whether that could be done.

    Only in place of a derived one: any other may be another machine's.

    :param node: as found by its identity
    """
    query = sa.select(_T).where(_T.c.id == node["id"], models.live(_T))
    found = connection.execute(query.with_for_update()).mappings().first()
    if found is None or not (found["host"] is None or _same(found["host"], host)):
        return False
    derived = rows.legacy_uuid(_T.name, found["id"], found["created_at"])
    if found["uuid"] not in (None, derived):
        return False
    _give(connection, {**found, "uuid": uuid}, host, {"host": node["host"]})
    allocations.follow(connection, found["id"], derived, uuid)
    LOG.info(
        "Compute node %s (id %s) of host %s: its uuid, %s, is its source's %s now",
        found["hypervisor_hostname"],
        found["id"],
        host,
        derived,
        uuid,
    )
    return True


def _fetch(connection: sa.Connection, uuid: str, name: str, host: str) -> bool:
    """Give a host the row that a node left elsewhere; return whether there is one."""
    left = left_behind.find(connection, host, name)
    if left is None:
        return False
    formerly = left["formerly"]
    values = {"host": host, "hypervisor_hostname": name}
    _give(connection, {**left, "uuid": uuid}, formerly, values)
    derived = rows.legacy_uuid(_T.name, left["id"], left["created_at"])
    allocations.follow(connection, left["id"], derived, uuid)
    LOG.warning(
        "Compute node %s (id %s), which host %s had since Juno and never reported, is "
        "host %s's: its uuid, %s, is its source's %s now",
        name,
        left["id"],
        formerly,
        host,
        derived,
        uuid,
    )
    return True


def _give(
    connection: sa.Connection,
    node: rows.Stored,
    formerly: str,
    values: Mapping[str, Any],
) -> None:
    """Change whose a live node is, if it is still formerly's; its usage stays.

    :param node: as read in this transaction, its uuid filled in
    """
    own = {
        "uuid": node["uuid"],
        "service_id": None,
        "deleted": 0,
        "updated_at": rows.instant(),
        "generation": _T.c.generation + 1,
        "inventory_generation": _T.c.inventory_generation + 1,
        "stream_version": None,
    }
    connection.execute(
        _T.update()
        .where(
            _T.c.id == node["id"],
            models.live(_T),
            sa.or_(_T.c.host.is_(None), types.same_name(_T.c.host, formerly)),
        )
        .values({**own, **values})
    )
