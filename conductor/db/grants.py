"""Grants: which process may serve a host, by incarnation and secret."""

import dataclasses
import hashlib
import hmac
from typing import Any
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
    """
    _check_possible(grant)
    query = sa.select(_T.c.secret_hash).where(
        _is_granted(grant.host, binary, grant.incarnation)
    )
    found = connection.execute(query.with_for_update()).scalars().all()
    if not any(_matches(stored, grant.secret) for stored in found):
        raise _superseded(grant)


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
    """

    host: str
    incarnation: int | None
    process_uuid: str | None
    said_goodbye: bool


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
        found = retry.read(self._engine, lambda c: services.find(c, host, binary))
        if found is None:
            return None
        return KnownService(
            host=found["host"],
            incarnation=found["incarnation"],
            process_uuid=found["process_uuid"],
            said_goodbye=found["goodbye_at"] is not None,
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
    ) -> int:
        """Grant the next incarnation of a host to a process and return its number.

        Creates the service if there is no live one. The same process and secret
        again get the same number again, and nothing is written.

        :param secret: only its hash is stored
        :param expected: the incarnation that the decision was based on, see known
        :raises GrantConflict: another one is stored by now
        :raises InvalidInput: a value doesn't fit its column
        """
        process: dict[str, str | None] = {
            "process_uuid": process_uuid,
            "secret_hash": _hash(secret),
            "boot_id": boot_id,
            "release": release,
        }
        name: dict[str, str | None] = {"host": host, "binary": binary, "topic": topic}
        limits.check(_T, process | name)

        def work(connection: sa.Connection) -> int:
            found = services.find(connection, host, binary, lock=True)
            if found is None:
                if expected is not None:
                    raise GrantConflict
                return _first_grant(connection, name | process)
            if found["process_uuid"] == process_uuid and _matches(
                found["secret_hash"], secret
            ):
                return int(found["incarnation"])
            if found["incarnation"] != expected:
                raise GrantConflict
            return _next_grant(connection, found, process)

        return retry.run(self._engine, work, again_on_duplicate=True)

    def verify(self, host: str, binary: str, incarnation: int, secret: str) -> None:
        """Return if this is the granted incarnation; Superseded."""
        query = sa.select(_T.c.secret_hash).where(
            _is_granted(host, binary, incarnation)
        )
        found: list[str | None] = []
        if limits.storable(host) and limits.countable(incarnation):
            found = retry.read(self._engine, lambda c: list(c.execute(query).scalars()))
        if not any(_matches(stored, secret) for stored in found):
            raise errors.Superseded(host=host, incarnation=incarnation)

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


def _first_grant(connection: sa.Connection, values: dict[str, str | None]) -> int:
    """Insert the service as suspect: granted, and not seen in the group yet."""
    verdict = {"state": "suspect", "cause": "not-yet-joined", "actor": "hello"}
    result = connection.execute(
        _T.insert().values(
            values
            | {"uuid": str(uuidlib.uuid4()), "created_at": rows.instant()}
            | {"deleted": 0, "report_count": 0, "disabled": False}
            | {"forced_down": False, "incarnation": 1, **_state_columns(verdict)}
            | {"state_incarnation": 1}
        )
    )
    connection.execute(
        models.transitions.insert().values(
            verdict
            | {"service_id": rows.inserted_id(result), "at": types.now()}
            | {"host": values["host"], "binary": values["binary"], "incarnation": 1}
        )
    )
    return 1


def _state_columns(verdict: dict[str, str]) -> dict[str, object]:
    columns = {f"state_{name}": value for name, value in verdict.items()}
    state = columns.pop("state_state")
    return {"state": state, "state_since": types.now(), **columns}


def _next_grant(
    connection: sa.Connection, found: rows.Stored, process: dict[str, str | None]
) -> int:
    """Grant the locked service's next incarnation; its verdict is the leader's."""
    incarnation = int(found["incarnation"] or 0) + 1
    uuid = found["uuid"] or rows.legacy_uuid(_T.name, found["id"], found["created_at"])
    connection.execute(
        _T.update()
        .where(_T.c.id == found["id"])
        .values(
            process
            | {"incarnation": incarnation, "goodbye_at": None, "stalled_reason": None}
            | {"uuid": uuid, "deleted": 0, "stream_version": None}
        )
    )
    return incarnation


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _matches(stored: str | None, secret: str) -> bool:
    return stored is not None and hmac.compare_digest(stored, _hash(secret))
