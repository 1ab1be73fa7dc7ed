"""Custom resources of which what is used isn't what is allocated: found and mended.

They are JSON texts, which the databases don't add up, so this does it, a page of nodes
at a time. One statement reads a node and its allocations: they are of one instant.
"""

from collections.abc import Collection
from collections.abc import Mapping
import dataclasses
import json
from typing import Any

import sqlalchemy as sa

from conductor.db import allocations
from conductor.db import claim_rules
from conductor.db import models

_N = models.compute_nodes
_A = models.allocations
_HAS_ALLOCATIONS = sa.exists().where(
    _A.c.node_id == _N.c.id, _A.c.custom.is_not(None), allocations.IS_LIVE
)
#: Of nodes with something to add up, or to read.
ANY = sa.or_(
    _N.c.custom_used.is_not(None), _N.c.custom_resources.is_not(None), _HAS_ALLOCATIONS
)
_READ = sa.select(
    _N.c.id, _N.c.custom_resources, _N.c.custom_used, _A.c.uuid, _A.c.custom
).select_from(
    _N.outerjoin(
        _A,
        sa.and_(_A.c.node_id == _N.c.id, _A.c.custom.is_not(None), allocations.IS_LIVE),
    )
)


@dataclasses.dataclass
class Sum:
    """What is wrong with a node, if anything.

    :ivar used: as it is stored
    :ivar booked: what its live allocations hold, as far as they can be read
    :ivar unreadable: texts that can't be: columns of the node, uuids of allocations
    """

    used: str | None
    booked: dict[str, int] = dataclasses.field(default_factory=dict)
    unreadable: list[str] = dataclasses.field(default_factory=list)

    @property
    def text(self) -> str | None:
        """What should be stored as used."""
        return json.dumps(self.booked, sort_keys=True) if self.booked else None

    @property
    def wrong(self) -> bool:
        """Whether what is stored as used can't be read, or is something else."""
        readable = claim_rules.readable(self.used)
        return not readable or claim_rules.counts(self.used) != self.booked


def sums(connection: sa.Connection, node_ids: Collection[int]) -> dict[int, Sum]:
    """Return what there is of these nodes, by id."""
    query = _READ.where(_N.c.id.in_(sorted(node_ids)))
    found: dict[int, Sum] = {}
    for row in connection.execute(query):
        one = found.get(row.id)
        if one is None:
            one = found[row.id] = Sum(row.custom_used)
            one.unreadable = [
                name
                for name in claim_rules.CUSTOM_COLUMNS
                if not claim_rules.readable(getattr(row, name))
            ]
        if not claim_rules.readable(row.custom):
            one.unreadable.append(f"allocation {row.uuid}")
        for name, amount in claim_rules.counts(row.custom).items():
            if amount:
                one.booked[name] = one.booked.get(name, 0) + amount
    return found


def findings(
    connection: sa.Connection, rows: Collection[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return those of some nodes with which something is wrong, with what it is.

    :param rows: with the ids of nodes
    """
    found = sums(connection, [row["id"] for row in rows])
    return [
        {
            **row,
            "custom_used": one.used,
            "custom_booked": one.text,
            "unreadable": ", ".join(one.unreadable) or None,
        }
        for row in rows
        if (one := found.get(row["id"])) is not None and (one.wrong or one.unreadable)
    ]


def mend(connection: sa.Connection, node_id: int, *, write: bool) -> Sum | None:
    """Let what is used be what is allocated; return what it was, None: it was right.

    :param write: the caller has locked the node; False: only look
    """
    found = sums(connection, [node_id]).get(node_id)
    if found is None or not found.wrong:
        return None
    if write:
        values = {
            "custom_used": found.text,
            "generation": _N.c.generation + 1,
            "stream_version": None,
        }
        change = _N.update().where(_N.c.id == node_id).values(values)
        connection.execute(change)
    return found
