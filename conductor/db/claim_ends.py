"""What becomes of claims: confirmed, released, expired, forgotten.

Locks are taken in the order lease, nodes by id, allocations by id.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from conductor.db import allocations
from conductor.db import claim_nodes
from conductor.db import leases
from conductor.db import models
from conductor.db import retry
from conductor.db import types
from musterbook import errors

_A = models.allocations
_IS_CLAIM = _A.c.kind == allocations.CLAIM
_BY_UUID = sa.select(_A).where(_A.c.uuid == sa.bindparam("uuid"))
_UNEXPIRED = sa.or_(_A.c.expires_at.is_(None), _A.c.expires_at > types.now())
_CONFIRM = (
    _A.update()
    .where(
        _A.c.uuid == sa.bindparam("claim"),
        _IS_CLAIM,
        _A.c.state == allocations.HELD,
        _A.c.replaces.is_(None),
        _UNEXPIRED,
    )
    .values(state=allocations.CONFIRMED, confirmed_at=types.now(), attempt=None)
)
_EXPIRED = (
    _IS_CLAIM,
    _A.c.state == allocations.HELD,
    _A.c.expires_at <= types.now(),
)


class ClaimEnds:
    """Confirms, releases and tidies up; any thread may call any method.

    :param tell: told of the hosts of whose nodes claims have ended, after the commit
    """

    def __init__(
        self, engine: sa.Engine, tell: Callable[[Iterable[str]], None]
    ) -> None:
        self._engine = engine
        self._tell = tell

    def confirm(self, uuid: str) -> None:
        """Keep a claim: it is held, and by the database's clock not yet expired.

        Of a move, what it takes over from is released in the same transaction. Again
        changes nothing.

        :raises ClaimNotFound: no claim has this uuid
        :raises ClaimGone: it was released, or is expired
        """
        done = retry.run(
            self._engine,
            lambda c: c.execute(_CONFIRM, {"claim": uuid}).rowcount,
        )
        if not done:
            self._tell(retry.run(self._engine, lambda c: _confirm(c, uuid)))

    def release(
        self, uuid: str, owner: str | None = None, attempt: str | None = None
    ) -> None:
        """Give a claim back; again, or of one that is gone, changes nothing.

        A uuid that isn't known is from now on: a claim under it that is still on its
        way books nothing.

        :param owner: noted with a uuid that isn't known
        :param attempt: only if the claim was answered to this call and to no other;
            None: in any case
        :raises ClaimConflict: the uuid is not a claim's
        """
        hosts = retry.run(
            self._engine,
            lambda c: _release(c, uuid, owner, attempt),
            again_on_duplicate=True,
        )
        self._tell(hosts)

    def expire(self, name: str, owner: str, term: int, limit: int = 200) -> list[str]:
        """Give back claims that weren't confirmed in time; return their uuids.

        :param name, owner, term: of the lease that the caller must hold: else nothing
            is done
        :param limit: at most so many
        """
        query = (
            sa.select(_A.c.id, _A.c.node_id)
            .where(*_EXPIRED)
            .order_by(_A.c.expires_at)
            .limit(limit)
        )
        found = retry.read(self._engine, lambda c: c.execute(query).all())
        if not found:
            return []
        ids = [row.id for row in found]
        nodes = {row.node_id for row in found}

        def work(connection: sa.Connection) -> tuple[list[str], set[str]]:
            if not leases.holds(connection, name, owner, term):
                return [], set()
            locked = claim_nodes.lock(connection, nodes)
            rows = _locked(connection, _A.c.id.in_(ids), *_EXPIRED)
            hosts = _finish(connection, locked, rows, allocations.EXPIRED)
            return [row["uuid"] for row in rows], hosts

        uuids, hosts = retry.run(self._engine, work)
        self._tell(hosts)
        return uuids

    def forget(
        self, name: str, owner: str, term: int, seconds: float, limit: int = 500
    ) -> int:
        """Delete claims that ended longer ago than so; return how many.

        Until then a late message about them finds that they are gone.

        :param name, owner, term: as of expire()
        """
        query = (
            sa.select(_A.c.id)
            .where(
                _IS_CLAIM,
                sa.not_(allocations.IS_LIVE),
                _A.c.finished_at < types.later(-seconds),
            )
            .order_by(_A.c.finished_at)
            .limit(limit)
        )
        ids = retry.read(self._engine, lambda c: list(c.execute(query).scalars()))
        if not ids:
            return 0

        def work(connection: sa.Connection) -> int:
            if not leases.holds(connection, name, owner, term):
                return 0
            # Nothing brings a finished one back, so that nothing has to be locked.
            gone = _A.delete().where(_A.c.id.in_(ids), sa.not_(allocations.IS_LIVE))
            return connection.execute(gone).rowcount

        return retry.run(self._engine, work)


def _find(connection: sa.Connection, uuid: str) -> sa.RowMapping | None:
    """Return a claim's row, without a lock."""
    found = connection.execute(_BY_UUID, {"uuid": uuid}).mappings().first()
    if found is not None and found["kind"] != allocations.CLAIM:
        text = "the uuid is not a claim's"
        raise errors.ClaimConflict(
            uuid=uuid, reasons=[{"reason": "conflict", "message": text}]
        )
    return found


def _locked(
    connection: sa.Connection, *conditions: sa.ColumnElement[bool]
) -> Sequence[sa.RowMapping]:
    query = sa.select(_A).where(*conditions).order_by(_A.c.id).with_for_update()
    return connection.execute(query).mappings().all()


def _finish(
    connection: sa.Connection,
    nodes: list[dict[str, Any]],
    claims: Sequence[sa.RowMapping],
    state: str,
) -> set[str]:
    """End live claims that are locked, as are their nodes, and count them out.

    :return: the hosts of these nodes
    """
    if not claims:
        return set()
    changes = claim_nodes.Changes(nodes)
    for row in claims:
        changes.add(row["node_id"], claim_nodes.amounts(row), -1)
    ended = _A.update().where(_A.c.id.in_([row["id"] for row in claims]))
    connection.execute(ended.values(state=state, finished_at=types.now()))
    changes.write(connection)
    return {node["host"] for node in nodes if node["host"] is not None}


def _release(
    connection: sa.Connection, uuid: str, owner: str | None, attempt: str | None
) -> set[str]:
    found = _find(connection, uuid)
    if found is None:
        connection.execute(
            _A.insert().values(
                uuid=uuid,
                node_id=None,
                kind=allocations.CLAIM,
                state=allocations.RELEASED,
                owner=owner,
                created_at=types.now(),
                finished_at=types.now(),
            )
        )
        return set()
    if found["state"] not in allocations.LIVE:
        return set()
    nodes = claim_nodes.lock(connection, [found["node_id"]])
    wanted = [_A.c.uuid == uuid, allocations.IS_LIVE]
    if attempt is not None:
        wanted.append(_A.c.attempt == attempt)
    live = _locked(connection, *wanted)
    return _finish(connection, nodes, live, allocations.RELEASED)


def _confirm(connection: sa.Connection, uuid: str) -> set[str]:
    """Confirm, be it a move, or say why there is nothing to confirm."""
    found = _find(connection, uuid)
    if found is None:
        raise errors.ClaimNotFound(uuid=uuid)
    both, nodes = [found], []
    if found["replaces"] is not None:
        former = _find(connection, found["replaces"])
        both += [] if former is None else [former]
        ids = {row["node_id"] for row in both if row["node_id"] is not None}
        nodes = claim_nodes.lock(connection, ids)
    rows = {
        row["uuid"]: row
        for row in _locked(connection, _A.c.id.in_([row["id"] for row in both]))
    }
    if _judge(rows.get(uuid), connection, uuid):
        return set()
    change = _A.update().where(_A.c.uuid == uuid)
    connection.execute(
        change.values(
            state=allocations.CONFIRMED, confirmed_at=types.now(), attempt=None
        )
    )
    old = rows.get(found["replaces"])
    if old is not None and old["state"] in allocations.LIVE:
        return _finish(connection, nodes, [old], allocations.RELEASED)
    return set()


def _judge(
    row: sa.RowMapping | None, connection: sa.Connection, uuid: str = ""
) -> bool:
    """Return whether a claim is confirmed already; False: it can be.

    :raises ClaimNotFound, ClaimGone: it can't
    """
    if row is None:
        raise errors.ClaimNotFound(uuid=uuid)
    if row["state"] == allocations.CONFIRMED:
        return True
    if row["state"] != allocations.HELD:
        raise errors.ClaimGone(uuid=row["uuid"], state=row["state"])
    late = row["expires_at"] is not None and (
        row["expires_at"] <= claim_nodes.instant(connection)
    )
    if late:
        raise errors.ClaimGone(uuid=row["uuid"], state=allocations.EXPIRED)
    return False
