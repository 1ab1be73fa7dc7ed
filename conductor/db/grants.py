"""Grants: which process may serve a host, by incarnation and secret."""

from collections.abc import Mapping
import dataclasses
import hashlib
import hmac
from typing import Any
from typing import Protocol
import uuid as uuidlib

import sqlalchemy as sa

from conductor.db import limits
from conductor.db import models
from conductor.db import retry
from conductor.db import rows
from conductor.db import services
from conductor.db import types
from musterbook import errors
from musterbook.context import Grant

_T = models.services
#: What an INTEGER holds at most.
_MOST_BEATS = 2**31 - 1


def parameters(grant: Grant, binary: str) -> dict[str, object]:
    """Return the values of CONDITION's parameters.

    :raises Superseded: it can't be the current grant of any host
    """
    _check_possible(grant)
    return {
        "grant_host": grant.host,
        "grant_binary": binary,
        "grant_incarnation": grant.incarnation,
        "grant_secret_hash": _hash(grant.secret),
    }


def hold(connection: sa.Connection, grant: Grant, binary: str) -> None:
    """Lock the grant's service, and return if the grant is the current one.

    :raises Superseded: it isn't
    :raises GrantForgotten: the database knows nothing of it
    """
    _check_possible(grant)
    query = sa.select(_T.c.secret_hash).where(
        _is_granted(grant.host, binary, grant.incarnation)
    )
    found = connection.execute(query.with_for_update()).scalars().all()
    if not any(_matches(stored, grant.secret) for stored in found):
        raise _judge(connection, grant, binary)


def check(connection: sa.Connection, grant: Grant, binary: str) -> None:
    """Return if the grant is the current one; Superseded, GrantForgotten.

    Locks nothing: another one may be given before the transaction ends.
    """
    _check_possible(grant)
    query = sa.select(_T.c.secret_hash).where(
        _is_granted(grant.host, binary, grant.incarnation)
    )
    found = connection.execute(query).scalars().all()
    if not any(_matches(stored, grant.secret) for stored in found):
        raise _judge(connection, grant, binary)


def _judge(connection: sa.Connection, grant: Grant, binary: str) -> Exception:
    """Return why a grant isn't the current one, from what else is stored.

    Incarnations rise and each is granted once, so that no row at all, a lower number,
    or this one with another secret, can only stand in a database that isn't the one
    that gave the grant: it was replaced, emptied, or set back. A service that an
    operator deleted is still there, marked and with this grant's secret.
    """
    query = sa.select(_T.c.incarnation, _T.c.secret_hash, models.live(_T)).where(
        types.same_name(_T.c.host, grant.host), _T.c.binary == binary
    )
    forgotten = errors.GrantForgotten(host=grant.host, incarnation=grant.incarnation)
    for number, secret_hash, live in connection.execute(query).all():
        ours = _matches(secret_hash, grant.secret)
        if live and ours:
            return forgotten  # the same process, under a number of another time
        if (ours and not live) or (live and (number or 0) > grant.incarnation):
            return _superseded(grant)
    return forgotten


def _check_possible(grant: Grant) -> None:
    if not (limits.storable(grant.host) and limits.countable(grant.incarnation)):
        raise _superseded(grant)


def _superseded(grant: Grant) -> errors.Superseded:
    return errors.Superseded(host=grant.host, incarnation=grant.incarnation)


class GrantConflict(Exception):
    """Somebody was granted since the caller looked: look and decide again."""


@dataclasses.dataclass(frozen=True)
class KnownService:
    """What is stored about who serves a host.

    :ivar host: as stored, which may differ in case from what was asked
    :ivar incarnation: the one granted last; None: none ever
    :ivar up: the leader sees it, and no operator says otherwise
    :ivar down: the leader says so
    """

    host: str
    incarnation: int | None
    process_uuid: str | None
    said_goodbye: bool
    up: bool = False
    down: bool = False
    secret_hash: str | None = dataclasses.field(default=None, repr=False)

    def is_of(self, process_uuid: str, secret: str) -> bool:
        """Return whether it is this process that has the grant.

        The uuid alone proves nothing: logs and errors tell it.
        """
        same = self.process_uuid == process_uuid
        return same and _matches(self.secret_hash, secret)


class Settles(Protocol):
    """What else has to come true with a grant, or not at all."""

    def settle(self, connection: sa.Connection, host: str) -> None:
        """Make it so, for the host that was granted; GrantConflict if it can't be."""


class GrantStore:
    """Reads and writes grants; any thread may call any method.

    The secret is chosen by the agent's process and only its hash is stored; a
    hello that is repeated after a lost answer is recognised by it.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def known(self, host: str, binary: str) -> KnownService | None:
        """Return what is stored about the live service, None if there is none."""
        if not limits.storable(host):
            return None
        found = retry.read(
            self._engine, lambda c: services.find(c, host, binary, secret=True)
        )
        if found is None:
            return None
        return KnownService(
            host=found["host"],
            incarnation=found["incarnation"],
            process_uuid=found["process_uuid"],
            said_goodbye=found["goodbye_at"] is not None,
            up=found["state"] == "up" and not found["forced_down"],
            down=found["state"] == "down" and not found["forced_down"],
            secret_hash=found["secret_hash"],
        )

    def grant(
        self,
        host: str,
        binary: str,
        topic: str,
        process_uuid: str,
        boot_id: str | None,
        release: str | None,
        secret: str,
        expected: int | None,
        had: int | None = None,
        version: int = 0,
        claim: Settles | None = None,
    ) -> int:
        """Grant the next incarnation of a host to a process and return its number.

        Creates the service if there is no live one. The same process and secret
        again get the same number again, and nothing is written.

        :param secret: only its hash is stored
        :param expected: the incarnation that the decision was based on, see known
        :param had: the one as which the process serves already, which was forgotten;
            the new one is higher, and the verdict says that nobody has looked yet
        :param version: the process's service level; 0: it didn't say
        :param claim: settled in the same transaction
        :raises GrantConflict: another one is stored by now, or the claim's evidence
            doesn't hold any more
        :raises InvalidInput: a value doesn't fit its column
        """
        process: dict[str, str | int | None] = {
            "process_uuid": process_uuid,
            "secret_hash": _hash(secret),
            "boot_id": boot_id,
            "release": release,
            "version": version,
        }
        name: dict[str, str | int | None] = {
            "host": host,
            "binary": binary,
            "topic": topic,
        }
        limits.check(_T, process | name)

        def work(connection: sa.Connection) -> int:
            found = services.find(connection, host, binary, lock=True)
            if found is None:
                if expected is not None:
                    raise GrantConflict
                incarnation = _first_grant(connection, name | process, had)
                if claim is not None:
                    claim.settle(connection, host)
                return incarnation
            if found["process_uuid"] == process_uuid and _matches(
                found["secret_hash"], secret
            ):
                return int(found["incarnation"])
            if found["incarnation"] != expected:
                raise GrantConflict
            if claim is not None:
                claim.settle(connection, found["host"])
            return _next_grant(connection, found, process, had)

        return retry.run(self._engine, work, again_on_duplicate=True)

    def verify(self, host: str, binary: str, incarnation: int, secret: str) -> None:
        """Return if this is the granted incarnation; Superseded, GrantForgotten."""
        grant = Grant(host=host, incarnation=incarnation, secret=secret)
        retry.read(self._engine, lambda c: check(c, grant, binary))

    def beat(self, host: str, binary: str, incarnation: int, secret: str) -> None:
        """Note that the granted process lives; Superseded, GrantForgotten.

        One statement, by the database's clock. A beat is no change of the fleet: the
        difference stream and updated_at stay as they are.
        """
        grant = Grant(host=host, incarnation=incarnation, secret=secret)
        _check_possible(grant)
        statement = (
            sa.update(_T)
            .where(
                _is_granted(host, binary, incarnation),
                _T.c.secret_hash == _hash(secret),
            )
            .values(
                report_count=_next_count(),
                last_seen_up=types.now(),
                beat_incarnation=_T.c.incarnation,
            )
        )
        if not retry.single(self._engine, lambda c: c.execute(statement).rowcount):
            raise retry.read(self._engine, lambda c: _judge(c, grant, binary))

    def goodbye(self, host: str, binary: str, incarnation: int, secret: str) -> None:
        """Note that the process leaves; writes it once; Superseded."""
        self._note(
            host,
            binary,
            incarnation,
            secret,
            sa.update(_T)
            .where(_T.c.goodbye_at.is_(None))
            .values(goodbye_at=types.now()),
        )

    def stalled(
        self, host: str, binary: str, incarnation: int, secret: str, reason: str | None
    ) -> None:
        """Note why the process makes no progress, None once it does; Superseded.

        Nothing is written if it's noted already.
        """
        text = None if reason is None else limits.clip(reason, 255)
        differs = (
            _T.c.stalled_reason.is_not(None)
            if text is None
            else sa.func.coalesce(_T.c.stalled_reason, "") != text
        )
        change = sa.update(_T).where(differs).values(stalled_reason=text)
        self._note(host, binary, incarnation, secret, change)

    def _note(
        self, host: str, binary: str, incarnation: int, secret: str, change: sa.Update
    ) -> None:
        """Run the change on the granted service; what doesn't match isn't changed."""
        self.verify(host, binary, incarnation, secret)
        granted = change.where(
            _is_granted(host, binary, incarnation), _T.c.secret_hash == _hash(secret)
        )
        retry.run(self._engine, lambda c: c.execute(granted))


def _next_count() -> sa.ColumnElement[int]:
    """Return the next report_count; from the column's last number on, the first."""
    full = _T.c.report_count >= _MOST_BEATS
    return sa.case((full, 1), else_=_T.c.report_count + 1)


def _is_granted(host: Any, binary: Any, incarnation: Any) -> sa.ColumnElement[bool]:
    return sa.and_(
        types.same_name(_T.c.host, host),
        _T.c.binary == binary,
        _T.c.incarnation == incarnation,
        models.live(_T),
    )


#: The parameter with the grant's host.
HOST = sa.bindparam("grant_host", type_=sa.String())
#: The condition that a grant is the current one, for any statement. It is seen as of
#: the statement's start; a grant is only kept from changing until the end of the
#: transaction by hold(). Its values are those of parameters().
CONDITION = sa.exists().where(
    _is_granted(
        HOST,
        sa.bindparam("grant_binary", type_=sa.String()),
        sa.bindparam("grant_incarnation", type_=sa.Integer()),
    ),
    _T.c.secret_hash == sa.bindparam("grant_secret_hash", type_=sa.String()),
)


def _first_grant(
    connection: sa.Connection, values: dict[str, str | int | None], had: int | None
) -> int:
    """Insert the service as suspect: granted, and not seen in the group yet."""
    incarnation = max(had or 0, _highest(connection, values)) + 1
    verdict = _verdict_at_hello(had)
    result = connection.execute(
        _T.insert().values(
            values
            | {"uuid": str(uuidlib.uuid4()), "created_at": rows.instant()}
            | {"deleted": 0, "report_count": 0, "disabled": False}
            | {"forced_down": False, "incarnation": incarnation}
            | {"version_incarnation": incarnation}
            | {**_state_columns(verdict), "state_incarnation": incarnation}
        )
    )
    about = {"host": values["host"], "binary": values["binary"]}
    _note_verdict(
        connection, verdict, rows.inserted_id(result), about, None, incarnation
    )
    return incarnation


def _highest(connection: sa.Connection, values: dict[str, str | int | None]) -> int:
    """Return the last incarnation of deleted services of this name, 0 if none.

    A process that was granted it may still be in the group.
    """
    query = sa.select(sa.func.max(_T.c.incarnation)).where(
        types.same_name(_T.c.host, values["host"]), _T.c.binary == values["binary"]
    )
    return int(connection.execute(query).scalar() or 0)


def _verdict_at_hello(had: int | None) -> dict[str, str]:
    """Return what is said until the leader has looked.

    Of a process that serves all the while, and had its grant forgotten, nothing that
    makes anybody act.
    """
    if had is None:
        return {"state": "suspect", "cause": "not-yet-joined", "actor": "hello"}
    return {"state": "unknown", "cause": "grant-forgotten", "actor": "hello"}


def _note_verdict(
    connection: sa.Connection,
    verdict: dict[str, str],
    service_id: int,
    about: Mapping[str, object],
    previous: str | None,
    incarnation: int,
) -> None:
    connection.execute(
        models.transitions.insert().values(
            {**verdict, **about}
            | {"service_id": service_id, "at": types.now(), "previous": previous}
            | {"incarnation": incarnation}
        )
    )


def _state_columns(verdict: dict[str, str]) -> dict[str, object]:
    columns = {f"state_{name}": value for name, value in verdict.items()}
    state = columns.pop("state_state")
    return {"state": state, "state_since": types.now(), **columns}


def _next_grant(
    connection: sa.Connection,
    found: rows.Stored,
    process: dict[str, str | int | None],
    had: int | None,
) -> int:
    """Grant the locked service's next incarnation; its verdict is the leader's.

    Unless the process serves already, and isn't to be called suspect until it is seen.
    """
    incarnation = max(int(found["incarnation"] or 0), had or 0) + 1
    verdict: dict[str, object] = {}
    if had is not None:
        said = _verdict_at_hello(had)
        verdict = _state_columns(said) | {"state_incarnation": incarnation}
        about = {"host": found["host"], "binary": found["binary"]}
        _note_verdict(connection, said, found["id"], about, found["state"], incarnation)
    uuid = found["uuid"] or rows.legacy_uuid(_T.name, found["id"], found["created_at"])
    connection.execute(
        _T.update()
        .where(_T.c.id == found["id"])
        .values(
            process
            | {"incarnation": incarnation, "version_incarnation": incarnation}
            | {"goodbye_at": None, "stalled_reason": None}
            | {"uuid": uuid, "deleted": 0, "stream_version": None, **verdict}
        )
    )
    return incarnation


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _matches(stored: str | None, secret: str) -> bool:
    return stored is not None and hmac.compare_digest(stored, _hash(secret))
