"""What only the leader may write, by its lease: verdicts and freezes.

Time is the database's clock and nobody else's.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import datetime
from typing import Any

import sqlalchemy as sa

from conductor.db import leases
from conductor.db import limits
from conductor.db import models
from conductor.db import retry
from conductor.db import services
from conductor.db import types
from musterbook import errors
from musterbook import names

_L = models.leases
_S = models.services
_F = models.freezes
_H = models.transitions
_BATCH = 500
_CAUSE = 255
#: State and cause of a host that is held for flapping, and the cause that ends it.
_HELD = ("suspect", "flapping")
_RESET = "flapping-reset"
#: Most characters of evidence: fits the column whatever they are.
_EVIDENCE = 16_000


@dataclasses.dataclass(frozen=True)
class GrantedRow:
    """What the verdict needs to know about one service.

    :ivar incarnation: None: no agent of the host ever said hello
    :ivar beat_at: of such a service, when it beat last, or was created if it never did;
        of a granted one, when this incarnation beat last through a conductor, None if
        it never did: then the group tells
    :ivar beat_age: seconds since then, by the database's clock
    :ivar registered_only: it never beat
    """

    service_id: int
    host: str
    incarnation: int | None
    said_goodbye: bool
    stalled: str | None
    forced_down: bool
    state: str | None
    state_cause: str | None
    state_incarnation: int | None
    state_evidence: str | None
    beat_at: datetime.datetime | None = None
    beat_age: float | None = None
    registered_only: bool = False


@dataclasses.dataclass(frozen=True)
class Unsettled:
    """The services about which there may be something to decide, and a check.

    :ivar rows: those that aren't up for the plainest of reasons
    :ivar count: how many others there are
    :ivar ids: the sum of their ids
    :ivar incarnations: the sum of their incarnations
    """

    rows: list[GrantedRow]
    count: int
    ids: int
    incarnations: int


@dataclasses.dataclass(frozen=True)
class Transition:
    """A change of one service's state.

    :ivar previous: the state it was decided from; with previous_cause and
        previous_incarnation the whole verdict
    :ivar incarnation: the granted one it was decided about; None: there is none
    """

    service_id: int
    host: str
    previous: str | None
    previous_cause: str | None
    previous_incarnation: int | None
    state: str
    cause: str
    evidence: str | None
    actor: str
    incarnation: int | None


@dataclasses.dataclass(frozen=True)
class PastTransition:
    """A transition out of the history.

    :ivar age: seconds since it was written, on the database's clock
    """

    host: str
    state: str
    cause: str | None
    age: float


@dataclasses.dataclass(frozen=True)
class BeatRow:
    """When a granted process beat last.

    :ivar at: by the database's clock, as is the age
    :ivar age: seconds since then
    """

    host: str
    incarnation: int
    at: datetime.datetime
    age: float


@dataclasses.dataclass(frozen=True)
class Outlook:
    """How far the stored verdicts can be believed.

    :ivar lease_age: seconds since a look at the fleet, after which the lease was
        renewed; None: never taken
    :ivar freezes: scope ('' is the fleet, else a zone), cause, since, evidence
    """

    lease_fresh: bool
    lease_age: float | None
    freezes: list[tuple[str, str, datetime.datetime, str | None]]


class VerdictStore:
    """Lease, verdicts and freezes; any thread may call any method."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def outlook(self, name: str) -> Outlook:
        """Return whether a leader looks, and what is frozen."""
        query = (
            sa.select(
                types.now(),
                _L.c.renewed_at,
                _L.c.expires_at > types.now(),
                _F.c.scope,
                _F.c.cause,
                _F.c.since,
                _F.c.evidence,
            )
            .select_from(_L.outerjoin(_F, sa.true()))
            .where(_L.c.name == name)
            .order_by(_F.c.scope)
        )
        found = retry.read(self._engine, lambda c: c.execute(query).all())
        if not found:
            # No leader ever, so nobody who could have frozen anything.
            return Outlook(lease_fresh=False, lease_age=None, freezes=[])
        now, renewed_at, fresh = found[0][:3]
        age = (now - renewed_at).total_seconds()
        # A lease out of the future runs for as long as the clock was set back.
        fresh = bool(fresh) and age >= -leases.SET_BACK
        freezes = [tuple(row[3:]) for row in found if row[3] is not None]
        return Outlook(lease_fresh=fresh, lease_age=max(0.0, age), freezes=freezes)

    # -- verdicts ------------------------------------------------------------------

    def granted(self, binary: str, lately: float = 0.0) -> list[GrantedRow]:
        """Return the live services that ever had a grant, by id, then legacy ones.

        Those are who never said hello, and beat or were judged at some time. Who was
        only taken over from Juno's shape isn't among them: nobody has seen it.

        :param lately: also legacy ones that were created in the last so many seconds
        """
        query = _granted_query(binary, lately)
        found = retry.read(self._engine, lambda c: c.execute(query).all())
        return without_twins([_granted_row(*row) for row in found])

    def unsettled(self, binary: str, lately: float = 0.0) -> Unsettled:
        """Return those of granted() that aren't settled, and sums over those that are.

        Among them may be a legacy row of a host that has a settled one.

        Settled is who is up, in the group, with the granted incarnation, and neither
        stalled, forced down nor gone. Nothing more is known of such a row than its id,
        host and incarnation, so that the sums tell whether the settled are those that
        they were: ids of new rows are higher than those of old ones.

        :param lately: as of granted()
        """
        rows = _granted_query(binary, lately).where(_SETTLED == 0)
        sums = sa.select(
            sa.func.count(), sa.func.sum(_S.c.id), sa.func.sum(_S.c.incarnation)
        ).where(_S.c.binary == binary, models.live(_S), _SETTLED == 1)
        found, (count, ids, incarnations) = retry.read(
            self._engine, lambda c: (c.execute(rows).all(), c.execute(sums).one())
        )
        return Unsettled(
            [_granted_row(*row) for row in found],
            int(count),
            int(ids or 0),
            int(incarnations or 0),
        )

    def beats(self, binary: str) -> list[BeatRow]:
        """Return the last beat of each granted process that beats through a conductor.

        By id of its service; whoever said goodbye isn't among them.
        """
        query = (
            sa.select(_S.c.host, _S.c.incarnation, _S.c.last_seen_up, types.now())
            .where(
                _S.c.binary == binary,
                models.live(_S),
                _S.c.beat_incarnation == _S.c.incarnation,
                _S.c.last_seen_up.is_not(None),
                _S.c.goodbye_at.is_(None),
            )
            .order_by(_S.c.id)
        )
        found = retry.read(self._engine, lambda c: c.execute(query).all())
        return [
            BeatRow(host, incarnation, at, (now - at).total_seconds())
            for host, incarnation, at, now in found
        ]

    def recent(self, binary: str, seconds: float) -> list[PastTransition]:
        """Return the transitions of so many last seconds, of live services, in order.

        Only of services whose state changed in that time: of a fleet that is quiet,
        nothing of a long history is read.
        """
        query = (
            sa.select(_S.c.host, _H.c.state, _H.c.cause, _H.c.at, types.now())
            .select_from(_S.join(_H, _H.c.service_id == _S.c.id))
            .where(
                _S.c.binary == binary,
                _S.c.state_since > types.later(-seconds),
                models.live(_S),
                _H.c.at > types.later(-seconds),
            )
            .order_by(_H.c.id)
        )
        found = retry.read(self._engine, lambda c: c.execute(query).all())
        return [
            PastTransition(host, state, cause, max(0.0, (now - at).total_seconds()))
            for host, state, cause, at, now in found
        ]

    def reset_flapping(self, host: str, binary: str, actor: str) -> None:
        """End a host's hold for flapping; the leader takes it up at its next look.

        A host that isn't held is left alone.

        :param actor: who says so, for the history
        :raises ServiceNotFound: there is no such service
        """

        def work(connection: sa.Connection) -> None:
            row = services.find(connection, host, binary, lock=True)
            if row is None:
                raise errors.ServiceNotFound(what=f"host {host} and binary {binary}")
            if (row["state"], row["state_cause"]) != _HELD:
                return
            _write_transitions(
                connection,
                [
                    Transition(
                        service_id=row["id"],
                        host=row["host"],
                        previous=row["state"],
                        previous_cause=row["state_cause"],
                        previous_incarnation=row["state_incarnation"],
                        state=row["state"],
                        cause=_RESET,
                        evidence="reset by an operator; the leader looks at it next",
                        actor=actor,
                        incarnation=row["incarnation"],
                    )
                ],
            )

        retry.run(self._engine, work)

    def write(
        self,
        name: str,
        owner: str,
        term: int,
        transitions: Sequence[Transition],
        freezes: Mapping[str, tuple[str, str | None]] | None,
    ) -> bool:
        """Write verdicts and the set of freezes, if the lease is ours in this term.

        All in one transaction. A transition is left out, in the history too, when
        its service has another incarnation or another verdict (state, cause and
        incarnation) than it was decided from: somebody else wrote since, or this
        did and runs again after a lost answer. The next look decides anew.

        :param freezes: scope to cause and evidence, replacing the stored set (those
            that stay keep their since); None leaves them alone
        :returns: False: the lease isn't ours, nothing was written. With nothing to
            write it isn't looked at
        """
        if not transitions and freezes is None:
            return True

        def work(connection: sa.Connection) -> bool:
            if not leases.holds(connection, name, owner, term):
                return False
            for start in range(0, len(transitions), _BATCH):
                _write_transitions(connection, transitions[start : start + _BATCH])
            if freezes is not None:
                _replace_freezes(connection, freezes, term)
            return True

        return retry.run(self._engine, work)


_SETTLED = sa.case(
    (
        sa.and_(
            _S.c.state == "up",
            _S.c.state_cause == "in-group",
            _S.c.state_incarnation == _S.c.incarnation,
            _S.c.goodbye_at.is_(None),
            _S.c.stalled_reason.is_(None),
            _S.c.forced_down.is_(False),
        ),
        1,
    ),
    else_=0,
)


def _granted_query(binary: str, lately: float) -> sa.Select[Any]:
    never = _S.c.incarnation.is_(None)
    own = _S.c.beat_incarnation == _S.c.incarnation
    beat = sa.case(
        (never, sa.func.coalesce(_S.c.last_seen_up, _S.c.created_at)),
        (own, _S.c.last_seen_up),
        else_=sa.null(),
    )
    return (
        sa.select(
            _S.c.id,
            _S.c.host,
            _S.c.incarnation,
            _S.c.goodbye_at.is_not(None),
            _S.c.stalled_reason,
            _S.c.forced_down,
            _S.c.state,
            _S.c.state_cause,
            _S.c.state_incarnation,
            _S.c.state_evidence,
            beat,
            sa.case((sa.or_(never, own), types.now()), else_=sa.null()),
            _S.c.last_seen_up.is_not(None),
        )
        .where(
            _S.c.binary == binary,
            models.live(_S),
            sa.or_(
                _S.c.incarnation.is_not(None),
                sa.and_(_S.c.host.is_not(None), _has_been_seen(lately)),
            ),
        )
        .order_by(_S.c.id)
    )


def without_twins(
    rows: list[GrantedRow], known: Iterable[GrantedRow] = ()
) -> list[GrantedRow]:
    """Return the granted rows, then the legacy ones of other hosts, one of each.

    A very old row may stand beside the one that was granted; see services.find.

    :param known: further rows, whose hosts count as well if they were granted
    """
    granted = [row for row in rows if row.incarnation is not None]
    if len(granted) == len(rows):
        return granted
    taken = {names.fold(row.host) for row in granted}
    taken |= {names.fold(row.host) for row in known if row.incarnation is not None}
    for row in rows:
        if row.incarnation is None and names.fold(row.host) not in taken:
            taken.add(names.fold(row.host))
            granted.append(row)
    return granted


def _has_been_seen(lately: float) -> sa.ColumnElement[bool]:
    created = _S.c.created_at > types.later(-lately) if lately else sa.false()
    return sa.or_(_S.c.last_seen_up.is_not(None), _S.c.state.is_not(None), created)


def _granted_row(
    service_id: int,
    host: str,
    incarnation: int | None,
    said_goodbye: bool,
    stalled: str | None,
    forced_down: bool,
    state: str | None,
    cause: str | None,
    state_incarnation: int | None,
    evidence: str | None,
    beat_at: datetime.datetime | None,
    now: datetime.datetime | None,
    has_beaten: bool,
) -> GrantedRow:
    age = None
    if beat_at is not None and now is not None:
        age = (now - beat_at).total_seconds()
    return GrantedRow(
        service_id,
        host,
        incarnation,
        bool(said_goodbye),
        stalled,
        bool(forced_down),
        state,
        cause,
        state_incarnation,
        evidence,
        beat_at,
        age,
        beat_at is not None and not has_beaten,
    )


def _write_transitions(
    connection: sa.Connection, transitions: Sequence[Transition]
) -> None:
    query = (
        sa.select(
            _S.c.id,
            _S.c.incarnation,
            _S.c.state,
            _S.c.state_cause,
            _S.c.state_incarnation,
            _S.c.host,
            _S.c.binary,
        )
        .where(_S.c.id.in_([t.service_id for t in transitions]), models.live(_S))
        .order_by(_S.c.id)
        .with_for_update()
    )
    stored = {row.id: row for row in connection.execute(query)}
    updates, history = [], []
    for wanted in transitions:
        row = stored.get(wanted.service_id)
        if row is None or row.incarnation != wanted.incarnation:
            continue
        before = (row.state, row.state_cause, row.state_incarnation)
        if before != (
            wanted.previous,
            wanted.previous_cause,
            wanted.previous_incarnation,
        ):
            continue
        verdict: dict[str, Any] = {
            "state": wanted.state,
            "cause": limits.clip(wanted.cause, _CAUSE),
            "evidence": limits.clip(wanted.evidence or "", _EVIDENCE) or None,
            "actor": limits.clip(wanted.actor, _CAUSE),
            "incarnation": wanted.incarnation,
        }
        updates.append({f"b_{k}": v for k, v in verdict.items()} | {"b_id": row.id})
        history.append(
            verdict
            | {"service_id": row.id, "host": row.host, "binary": row.binary}
            | {"previous": wanted.previous}
        )
    if updates:
        connection.execute(_SET_STATE, updates)
        connection.execute(_ADD_HISTORY, history)


_SET_STATE = (
    _S.update()
    .where(_S.c.id == sa.bindparam("b_id"))
    .values(
        state=sa.bindparam("b_state"),
        state_cause=sa.bindparam("b_cause"),
        state_evidence=sa.bindparam("b_evidence"),
        state_actor=sa.bindparam("b_actor"),
        state_incarnation=sa.bindparam("b_incarnation"),
        state_since=types.now(),
        stream_version=None,
    )
)
_ADD_HISTORY = models.transitions.insert().values(
    {"at": types.now()}
    | {
        name: sa.bindparam(name)
        for name in (
            "service_id", "host", "binary", "previous", "state", "cause", "evidence",
            "actor", "incarnation",
        )
    }
)  # fmt: skip


def _replace_freezes(
    connection: sa.Connection,
    wanted: Mapping[str, tuple[str, str | None]],
    term: int,
) -> None:
    """Make the stored set this one; what is the same already isn't written."""
    stored = {row.scope: row for row in connection.execute(sa.select(_F))}
    gone = sorted(stored.keys() - wanted.keys())
    if gone:
        connection.execute(_F.delete().where(_F.c.scope.in_(gone)))
    for scope, (cause, evidence) in wanted.items():
        values: dict[str, Any] = {
            "cause": limits.clip(cause, _CAUSE),
            "evidence": limits.clip(evidence or "", _EVIDENCE) or None,
        }
        old = stored.get(scope)
        if old is None:
            new = values | {"scope": scope, "since": types.now(), "term": term}
            connection.execute(_F.insert().values(new))
        elif (old.cause, old.evidence) != (values["cause"], values["evidence"]):
            change = _F.update().where(_F.c.scope == scope)
            connection.execute(change.values(values | {"term": term}))
