"""The answer to the fleet question: what is stored, under what is known now.

The stored state is the last verdict. Whether it holds is a matter of the whole
fleet (is there a leader, can it see the group) and is laid over it here.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import datetime
from typing import Any

from conductor.db import liveness
from musterbook import errors
from musterbook.servicegroup import verdict


def check_age(
    outlook: liveness.Outlook, frozen_for: float | None, max_age: float
) -> None:
    """Refuse to answer with verdicts that are older than the caller allows.

    Of them all: whose verdict needs nobody who looks (forced down, said goodbye) can be
    read without an age.

    :param frozen_for: seconds since the oldest freeze began, None without one
    :param max_age: seconds
    :raises LivenessUnknown: they are
    """
    age = outlook.lease_age
    if age is None:
        raise errors.LivenessUnknown(reason="no leader has ever looked")
    if age > max_age:
        raise errors.LivenessUnknown(
            reason=f"no leader has looked for {age:.0f} s, {max_age:g} s are allowed"
        )
    if outlook.freezes and frozen_for is not None and frozen_for > max_age:
        causes = ", ".join(sorted({cause for _, cause, *_ in outlook.freezes}))
        raise errors.LivenessUnknown(
            reason=f"verdicts have been frozen for {frozen_for:.0f} s ({causes}), and "
            f"{max_age:g} s are allowed"
        )


def answer(
    rows: liveness.Fleet,
    outlook: liveness.Outlook,
    columns: Sequence[str] | None,
) -> dict[str, Any]:
    """Return the fleet by column.

    ``state`` is the verdict that may be relied upon (`unknown` when nobody has
    looked), ``last_state`` the one that was last decided.

    :param columns: names of the columns wanted, None for all; unknown ones are left
        out, so that a newer client can ask an older conductor
    """
    by_name: dict[str, list[Any]] = {
        name: [row[index] for row in rows.rows] for index, name in enumerate(rows.names)
    }
    by_name["last_state"] = list(by_name["state"])
    _overlay(by_name, outlook)
    wanted = by_name.keys() if columns is None else [c for c in columns if c in by_name]
    return {
        "columns": {name: [_plain(v) for v in by_name[name]] for name in wanted},
        "lease_age": outlook.lease_age,
    }


@dataclasses.dataclass(frozen=True)
class _Told:
    """What is answered in place of the stored verdict; named as the columns are.

    :ivar state_since: None when it isn't known
    """

    state: str
    state_cause: str
    state_since: datetime.datetime | None
    state_evidence: str | None


def _overlay(columns: dict[str, list[Any]], outlook: liveness.Outlook) -> None:
    freeze = _freeze(outlook)
    for index, values in enumerate(zip(*(columns[n] for n in _GROUNDS), strict=True)):
        told = _tell(dict(zip(_GROUNDS, values, strict=True)), freeze)
        if told is not None:
            for field in dataclasses.fields(told):
                columns[field.name][index] = getattr(told, field.name)


def _tell(row: Mapping[str, Any], freeze: _Told | None) -> _Told | None:
    """Return what is told of a host instead of its stored verdict, None for that.

    What the operator or the host itself has said needs nobody who looks, and holds
    at once, before the leader has written it. It is read from where it was said: a
    stored verdict may be of an incarnation, or of an order, that is over.
    """
    incarnation = row["incarnation"]
    current = row["state_incarnation"] == incarnation
    if row["forced_down"]:
        stored = row["state_cause"] == verdict.Cause.FORCED_DOWN
        return None if stored else _said(verdict.Cause.FORCED_DOWN, _BY_OPERATOR)
    if incarnation is None:
        return _NEVER_GRANTED if row["state"] is None else freeze
    if row["said_goodbye"]:
        stored = current and row["state_cause"] == verdict.Cause.GOODBYE
        evidence = f"{row['host']}#{incarnation} said goodbye"
        return None if stored else _said(verdict.Cause.GOODBYE, evidence)
    if freeze is not None or current:
        return freeze
    return _Told(
        verdict.State.SUSPECT.value,
        verdict.Cause.NOT_YET_JOINED.value,
        None,
        f"{row['host']}#{incarnation} was granted, nobody has looked for it yet",
    )


_GROUNDS = (
    "host", "state", "state_cause", "forced_down", "said_goodbye", "incarnation",
    "state_incarnation",
)  # fmt: skip
_BY_OPERATOR = "forced down by an operator"
_NEVER_GRANTED = _Told(
    verdict.State.UNKNOWN.value, verdict.Cause.NEVER_GRANTED.value, None, None
)


def _said(cause: verdict.Cause, evidence: str) -> _Told:
    return _Told(verdict.State.DOWN.value, cause.value, None, evidence)


def _freeze(outlook: liveness.Outlook) -> _Told | None:
    """Return why verdicts can't be relied upon, if so."""
    unknown = verdict.State.UNKNOWN.value
    if not outlook.lease_fresh:
        age = outlook.lease_age
        seen = "no leader yet" if age is None else f"no leader for {age:.0f} s"
        return _Told(unknown, verdict.Cause.NO_LEADER.value, None, seen)
    # Every host is in one zone until there are aggregates: any freeze is everyone's.
    for _, cause, since, evidence in outlook.freezes:
        return _Told(unknown, cause, since, evidence)
    return None


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime.datetime) else value
