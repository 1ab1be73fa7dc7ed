"""Leases: who of many may act, by a row that has to be renewed.

Time is the database's clock, but where the caller's own says that it can't be right.
"""

import datetime
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from conductor.db import models
from conductor.db import retry
from conductor.db import types

_L = models.leases
_MARK = (_L.c.owner, _L.c.term, _L.c.expires_at)
#: Seconds by which the database's clock may go back unnoticed.
SET_BACK = 1.0


class LeaseMark(NamedTuple):
    """What changes whenever a lease is renewed or changes hands."""

    owner: str
    term: int
    expires_at: datetime.datetime


class LeaseStore:
    """Leases; any thread may call any method."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def acquire(
        self,
        name: str,
        owner: str,
        seconds: float,
        looked: bool = True,
        overdue: LeaseMark | None = None,
    ) -> int | None:
        """Take or renew a lease for so many seconds; return its term if it's ours.

        The term rises with each new owner; renewing, also a lease of ours that
        nobody took since it ran out, keeps it. Standing by writes nothing.

        :param owner: unique to this process and start
        :param looked: the fleet was looked at just now: the outlook's age begins anew
        :param overdue: another's lease to take though the database's clock says that
            it still runs, if it is the one that is stored
        """

        def work(connection: sa.Connection) -> int | None:
            found = connection.execute(
                sa.select(*_MARK, _L.c.expires_at > types.now()).where(
                    _L.c.name == name
                )
            ).first()
            fresh: dict[str, Any] = {"expires_at": types.later(seconds)}
            if looked or found is None:
                fresh["renewed_at"] = types.now()
            if found is None:
                first = {"name": name, "owner": owner, "term": 1}
                connection.execute(_L.insert().values(first | fresh))
                return 1
            mark, valid = LeaseMark(*found[:3]), found[3]
            if valid and mark.owner != owner and mark != overdue:
                return None
            term = mark.term + (mark.owner != owner)
            seen = [_L.c.name == name, _L.c.owner == mark.owner, _L.c.term == mark.term]
            if mark.owner != owner:
                seen.append(_L.c.expires_at == mark.expires_at)
            won = connection.execute(
                _L.update().where(*seen).values({"owner": owner, "term": term} | fresh)
            ).rowcount
            return term if won else None

        return retry.run(self._engine, work, again_on_duplicate=True)

    def lease_mark(self, name: str) -> tuple[LeaseMark | None, float]:
        """Return who holds a lease, None if nobody ever did, and the seconds left.

        Seconds by the database's clock; 0 and less: it has run out.
        """
        query = sa.select(*_MARK, types.now()).where(_L.c.name == name)
        found = retry.read(self._engine, lambda c: c.execute(query).first())
        if found is None:
            return None, 0.0
        mark, now = LeaseMark(*found[:3]), found[3]
        return mark, (mark.expires_at - now).total_seconds()

    def release(self, name: str, owner: str, term: int | None = None) -> None:
        """Give a lease up, if it's still this owner's.

        :param term: and of this term; None: whichever, for an owner that is dead
        """
        statement = (
            _L.update()
            .where(_L.c.name == name, _L.c.owner == owner)
            .values(owner="", expires_at=types.now())
        )
        if term is not None:
            statement = statement.where(_L.c.term == term)
        retry.run(self._engine, lambda c: c.execute(statement))


def holds(connection: sa.Connection, name: str, owner: str, term: int) -> bool:
    """Tell whether the lease is ours, and keep it so until the transaction ends."""
    query = (
        sa.select(_L.c.name)
        .where(
            _L.c.name == name,
            _L.c.owner == owner,
            _L.c.term == term,
            _L.c.expires_at > types.now(),
        )
        .with_for_update()
    )
    return connection.execute(query).first() is not None
