"""The answer to the fleet question: what is stored, under what is known now.

The stored state is the last verdict. Whether it holds is a matter of the whole
fleet (is there a leader, can it see the group) and is laid over it here.
"""

from collections.abc import Sequence
import datetime
from typing import Any

from conductor.db import liveness
from musterbook.servicegroup import verdict

#: Causes of `down` that nobody has to observe: the operator or the host said so.
_SAID = frozenset({verdict.Cause.FORCED_DOWN.value, verdict.Cause.GOODBYE.value})


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


def _overlay(columns: dict[str, list[Any]], outlook: liveness.Outlook) -> None:
    freeze = _freeze(outlook)
    for index, state in enumerate(columns["state"]):
        if state is None:
            columns["state"][index] = verdict.State.UNKNOWN.value
            columns["state_cause"][index] = verdict.Cause.NEVER_GRANTED.value
        elif columns["forced_down"][index]:
            # The operator's word holds at once, before the leader has written it.
            columns["state"][index] = verdict.State.DOWN.value
            columns["state_cause"][index] = verdict.Cause.FORCED_DOWN.value
        elif freeze is not None and columns["state_cause"][index] not in _SAID:
            columns["state"][index] = verdict.State.UNKNOWN.value
            cause, since, evidence = freeze
            columns["state_cause"][index] = cause
            columns["state_since"][index] = since
            columns["state_evidence"][index] = evidence


def _freeze(
    outlook: liveness.Outlook,
) -> tuple[str, datetime.datetime | None, str | None] | None:
    """Return why (cause, since, evidence) verdicts can't be relied upon, if so."""
    if not outlook.lease_fresh:
        age = outlook.lease_age
        seen = "no leader yet" if age is None else f"no leader for {age:.0f} s"
        return verdict.Cause.NO_LEADER.value, None, seen
    # Every host is in one zone until there are aggregates: any freeze is everyone's.
    for _, cause, since, evidence in outlook.freezes:
        return cause, since, evidence
    return None


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime.datetime) else value
