"""Whether anything of a node may be claimed, by what is known of its host.

What is stored about a host is the leader's last verdict. It holds while somebody
looks: when nobody does, or what is seen isn't believed, hosts that were up may be
claimed for a while yet, so that a change of leaders doesn't stop the fleet.
"""

from collections.abc import Iterable
from collections.abc import Mapping
import datetime
import json
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from conductor.db import leases
from conductor.db import liveness
from conductor.db import models
from conductor.db import types
from musterbook import names
from objects import service as service_obj

_S = models.services
_L = models.leases
_F = models.freezes

#: Read as one JSON array: the driver describes each column of an answer in Python.
_PACKED: dict[str, sa.ColumnElement[Any]] = {
    "id": _S.c.id,
    "host": _S.c.host,
    "is_old": _S.c.deleted.is_(None),
    "disabled": _S.c.disabled,
    "disabled_reason": _S.c.disabled_reason,
    "forced_down": _S.c.forced_down,
    "incarnation": _S.c.incarnation,
    "said_goodbye": _S.c.goodbye_at.is_not(None),
    "stalled_reason": _S.c.stalled_reason,
    "state": _S.c.state,
    "state_cause": _S.c.state_cause,
    "state_incarnation": _S.c.state_incarnation,
}
_QUERY = sa.select(
    types.as_json(*_PACKED.values()).label("packed"),
    types.now().label("now"),
    *(
        sa.select(column)
        .where(_L.c.name == liveness.LEASE)
        .scalar_subquery()
        .label(label)
        for column, label in (
            (_L.c.renewed_at, "looked_at"),
            (_L.c.expires_at, "lease_ends"),
        )
    ),
    # Every host is in one zone until there are aggregates: any freeze is its.
    sa.select(sa.func.min(_F.c.cause)).scalar_subquery().label("freeze"),
    sa.select(sa.func.min(_F.c.since)).scalar_subquery().label("frozen_since"),
).where(
    types.folded(_S.c.host).in_(sa.bindparam("hosts", expanding=True)),
    _S.c.binary == service_obj.COMPUTE_BINARY,
    models.live(_S),
)
#: A word, and a sentence with what was found.
Hindrance = tuple[str, str]


class Ground(NamedTuple):
    """What is known of a host, as of one instant of the database's clock.

    :ivar now: that instant
    :ivar unknown: seconds for which nobody has been able to tell who lives, and why;
        None: somebody can
    """

    disabled: bool
    disabled_reason: str | None
    forced_down: bool
    incarnation: int | None
    said_goodbye: bool
    stalled_reason: str | None
    state: str | None
    state_cause: str | None
    state_incarnation: int | None
    now: datetime.datetime
    unknown: tuple[float, str] | None


def read(connection: sa.Connection, hosts: Iterable[str]) -> dict[str, Ground]:
    """Return what is known of hosts that have a service, by their folded names."""
    folded = sorted({names.fold(host) for host in hosts})
    if not folded:
        return {}
    best: dict[str, tuple[dict[str, Any], Any]] = {}
    for row in connection.execute(_QUERY, {"hosts": folded}):
        service = dict(zip(_PACKED, json.loads(row.packed), strict=True))
        key = names.fold(service["host"])
        other = best.get(key)
        # A very old row may stand beside the new one; see services.find.
        if other is None or _rank(service) < _rank(other[0]):
            best[key] = service, row
    return {key: _ground(*both) for key, both in best.items()}


def _rank(service: Mapping[str, Any]) -> tuple[bool, int]:
    return bool(service["is_old"]), int(service["id"])


def _ground(service: Mapping[str, Any], row: Any) -> Ground:
    return Ground(
        disabled=bool(service["disabled"]),
        disabled_reason=service["disabled_reason"],
        forced_down=bool(service["forced_down"]),
        incarnation=service["incarnation"],
        said_goodbye=bool(service["said_goodbye"]),
        stalled_reason=service["stalled_reason"],
        state=service["state"],
        state_cause=service["state_cause"],
        state_incarnation=service["state_incarnation"],
        now=row.now,
        unknown=_unknown(row),
    )


def _unknown(row: Any) -> tuple[float, str] | None:
    """Return for how long nobody has been able to tell, and why.

    The lease's end says nothing of that: who takes it may not get to look.
    """
    if row.lease_ends is None:
        return float("inf"), "there has been no leader yet"
    age = (row.now - row.looked_at).total_seconds()
    if age < -leases.SET_BACK:
        return float("inf"), "the database's clock was set back since the last look"
    lasts = (row.lease_ends - row.looked_at).total_seconds()
    if age >= lasts:
        return age, "no leader looks"
    # It is renewed after a look, in a third of its time. Who takes it after another one
    # hasn't looked yet, so that it lasts longer than the look is old.
    found = [(age, "the leader doesn't get to look")] if 2 * age > lasts else []
    if row.freeze is not None:
        frozen = max(0.0, (row.now - row.frozen_since).total_seconds())
        found.append((frozen, f"verdicts are frozen ({row.freeze})"))
    return max(found, default=None)


def hindrances(ground: Ground | None, unknown_after: float) -> list[Hindrance]:
    """Return all that keeps a host's nodes from being claimed.

    :param ground: None: the host has no service
    :param unknown_after: seconds for which a host that was up may be claimed while
        nobody can tell
    """
    if ground is None:
        return [("no-service", "its host has no compute service")]
    found: list[Hindrance] = []
    if ground.disabled:
        why = f": {ground.disabled_reason}" if ground.disabled_reason else ""
        found.append(("disabled", f"its host is disabled{why}"))
    if ground.stalled_reason is not None:
        found.append(("stalled", f"its agent is stalled: {ground.stalled_reason}"))
    state = _state(ground, unknown_after)
    if state is not None:
        found.append(state)
    return found


def _state(ground: Ground, unknown_after: float) -> Hindrance | None:
    """Return what is wrong with the state; first what needs nobody who looks."""
    if ground.forced_down:
        return "forced-down", "its host is forced down by an operator"
    if ground.said_goodbye:
        return "down", "its host is down: its agent said goodbye"
    if ground.incarnation is None and ground.state is None:
        return "unknown", "the state of its host is unknown: no agent ever said hello"
    if ground.incarnation is not None and (
        ground.state_incarnation != ground.incarnation
    ):
        return "suspect", "its host is suspect: its agent has just started"
    if ground.state != "up":
        return str(ground.state), (
            f"the state of its host is {ground.state} ({ground.state_cause})"
        )
    if ground.unknown is not None and ground.unknown[0] > unknown_after:
        seconds, why = ground.unknown
        since = "" if seconds == float("inf") else f" for {seconds:.0f} s"
        return "unknown", f"the state of its host is unknown{since}: {why}"
    return None


def by_host(
    grounds: Mapping[str, Ground], host: str, unknown_after: float
) -> list[Hindrance]:
    """Return the hindrances of a host, by what read() found."""
    return hindrances(grounds.get(names.fold(host)), unknown_after)
