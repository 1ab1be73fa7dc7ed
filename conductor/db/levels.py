"""The service levels of the agents that run: how old the oldest one is."""

from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from conductor.db import models
from conductor.db import retry
from conductor.db import types
from musterbook import names

_S = models.services
_PAGE = 1000
#: 0 where the level is an earlier process's: who was granted since didn't say.
_LEVEL = sa.case(
    (
        sa.func.coalesce(_S.c.version_incarnation, 0)
        == sa.func.coalesce(_S.c.incarnation, 0),
        _S.c.version,
    ),
    else_=0,
)


def _running(binary: str) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of a service that has been seen and may be running.

    A host that is known to be down says nothing of what is spoken now: it counts
    again with its next hello or beat.
    """
    # A verdict of an earlier incarnation says nothing of the one that is granted now.
    current = sa.func.coalesce(_S.c.state_incarnation, 0) == sa.func.coalesce(
        _S.c.incarnation, 0
    )
    return [
        models.live(_S),
        _S.c.binary == binary,
        _S.c.forced_down == sa.false(),
        _S.c.goodbye_at.is_(None),
        sa.or_(sa.func.coalesce(_S.c.state, "") != "down", sa.not_(current)),
        sa.or_(
            _S.c.incarnation.is_not(None),
            _S.c.last_seen_up.is_not(None),
            _S.c.state.is_not(None),
        ),
    ]


def _page(
    engine: sa.Engine, query: sa.Select[Any]
) -> list[tuple[int, str | None, int]]:
    return retry.read(
        engine, lambda c: [(r.id, r.host, r.version) for r in c.execute(query)]
    )


class LevelStore:
    """Reads service levels; any thread may call any method."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def lowest_level(self, binary: str) -> int | None:
        """Return the lowest level that runs, None if nothing does."""
        query = sa.select(sa.func.min(_LEVEL)).where(*_running(binary))
        found: int | None = retry.read(
            self._engine, lambda c: c.execute(query).scalar()
        )
        return found

    def reached(self, binary: str, level: int, hosts: Sequence[str]) -> list[str]:
        """Return those of these hosts that run with this level or a higher one."""
        folded = sorted({names.fold(host) for host in hosts})
        query = sa.select(_S.c.host).where(
            types.folded(_S.c.host).in_(folded), level <= _LEVEL, *_running(binary)
        )
        return retry.read(self._engine, lambda c: list(c.execute(query).scalars()))

    def holding_back(self, binary: str, level: int) -> Iterator[tuple[str | None, int]]:
        """Return the hosts that run with a lower level, by id, with theirs."""
        last = 0
        while True:
            query = (
                sa.select(_S.c.id, _S.c.host, _LEVEL.label("version"))
                .where(_S.c.id > last, level > _LEVEL, *_running(binary))
                .order_by(_S.c.id)
                .limit(_PAGE)
            )
            page = _page(self._engine, query)
            yield from ((host, version) for _, host, version in page)
            if len(page) < _PAGE:
                return
            last = page[-1][0]
