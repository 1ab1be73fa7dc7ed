"""An operator's word that a freeze is to end, kept where the leader finds it.

Any conductor takes it; it is told to the leader by the row of the freeze itself, whose
term is then ENDED, which no leader's is. The leader that follows it takes the row away.
"""

import sqlalchemy as sa

from conductor.db import models
from conductor.db import retry
from conductor.db import types
from musterbook.servicegroup import verdict

_F = models.freezes
#: In place of a leader's term, which begins at 1.
ENDED = 0
#: Who looks can't see anybody: there is nothing that could be believed instead.
_BLIND = verdict.Cause.GROUP_UNREACHABLE.value


class ReleaseStore:
    """Words about freezes; any thread may call any method."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def release_freeze(
        self, scope: str | None, actor: str
    ) -> tuple[list[str], list[str]]:
        """Say that a freeze is to end; return the scopes that do, and that can't.

        Those can't of which the leader gets no answer from the group backend.

        :param scope: a zone, "" for the whole fleet's, None for any
        :param actor: who says so, for people
        """

        def work(connection: sa.Connection) -> tuple[list[str], list[str]]:
            query = sa.select(_F.c.scope, _F.c.cause).order_by(_F.c.scope)
            if scope is not None:
                query = query.where(_F.c.scope == scope)
            found = connection.execute(query.with_for_update()).all()
            ends = [row.scope for row in found if row.cause != _BLIND]
            if ends:
                said = f"ended by {actor}; the leader looks at it next"
                connection.execute(
                    _F.update()
                    .where(_F.c.scope.in_(ends))
                    .values(term=ENDED, evidence=said)
                )
            return ends, [row.scope for row in found if row.cause == _BLIND]

        return retry.run(self._engine, work)

    def released(self) -> list[str]:
        """Return the scopes of which an operator says that they are to end."""
        query = sa.select(_F.c.scope).where(_F.c.term == ENDED)
        found = retry.read(self._engine, lambda c: c.execute(query).all())
        return [row.scope for row in found]

    def frozen_for(self) -> float | None:
        """Return the seconds, by the database's clock, of the oldest freeze.

        None: nothing is frozen.
        """
        query = sa.select(sa.func.min(_F.c.since), types.now())
        since, now = retry.read(self._engine, lambda c: c.execute(query).one())
        return None if since is None else max(0.0, (now - since).total_seconds())
