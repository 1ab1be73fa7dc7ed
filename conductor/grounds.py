"""What the leader's verdicts are founded on: the stored services, read cheaply.

The whole table is read at first, from time to time, and when in doubt; each second only
those rows about which there may be something to decide, with a check that the others
are what they were. So whoever changes a row, and by whichever means, is noticed.
"""

from collections.abc import Mapping
import dataclasses
import time

from conductor.db import liveness
from musterbook.servicegroup import verdict
from objects import service as service_obj

#: In place of the incarnation of a host that was never granted any: it may be asked,
#: and nobody answers with this number.
LEGACY = 0
#: The zone of every host, within which a mass loss is judged. The database has no
#: column that says where a host stands: neither services nor compute nodes have one,
#: and there are no aggregates. Until it has, the whole fleet is one zone, and
#: mass_loss_threshold is a share of all hosts.
ONE_ZONE = "nova"
#: Seconds after which everything is read though nothing seems to have changed.
FULL_EVERY = 30.0


@dataclasses.dataclass(frozen=True, eq=False)
class Grounds:
    """The services with a grant, by host; the same object while nothing changes.

    :ivar beating: granted members that beat through a conductor
    """

    rows: Mapping[str, liveness.GrantedRow]
    judged: Mapping[str, verdict.Granted]
    incarnations: Mapping[str, int]
    beating: frozenset[str] = frozenset()


class Reader:
    """Reads the grounds; for one thread, the leader's.

    :param store: the liveness records
    """

    def __init__(self, store: liveness.LivenessStore) -> None:
        self._store = store
        self._known: dict[int, liveness.GrantedRow] = {}
        self._found: liveness.Unsettled | None = None  # what made it what it is
        self._grounds: Grounds | None = None
        self._full_at = 0.0

    def doubt(self) -> None:
        """Read everything the next time: it may be another database."""
        self._grounds = None

    def read(self, lately: float) -> Grounds:
        """Return the services as they are stored now.

        :param lately: also legacy ones that were created in the last so many seconds

        :raises DatabaseUnavailable, DatabaseBusy: as the store
        """
        now = time.monotonic()
        if self._grounds is None or now - self._full_at >= FULL_EVERY:
            return self._read_all(now, lately)
        found = self._store.unsettled(service_obj.COMPUTE_BINARY, lately)
        if found == self._found:
            return self._grounds
        known = self._updated(found)
        if known is None:
            return self._read_all(now, lately)
        self._found = found
        return self._take(known)

    def _read_all(self, now: float, lately: float) -> Grounds:
        found = self._store.granted(service_obj.COMPUTE_BINARY, lately)
        self._full_at = now
        self._found = None
        return self._take({row.service_id: row for row in found})

    def _updated(
        self, found: liveness.Unsettled
    ) -> dict[int, liveness.GrantedRow] | None:
        """Return what is stored now, by what was before; None: that doesn't tell."""
        rows = liveness.without_twins(found.rows, self._known.values())
        unsettled = {row.service_id: row for row in rows}
        settled = self._known.keys() - unsettled.keys()
        if len(settled) != found.count or sum(settled) != found.ids:
            return None
        incarnations = sum(self._known[i].incarnation or LEGACY for i in settled)
        if incarnations != found.incarnations:
            return None
        changed = {
            number: row
            for number, row in unsettled.items()
            if self._known.get(number) != row
        }
        for number in settled:
            if not _is_settled(self._known[number]):
                changed[number] = _settle(self._known[number])
        return self._known | changed if changed else self._known

    def _take(self, known: dict[int, liveness.GrantedRow]) -> Grounds:
        if self._grounds is None or (known is not self._known and known != self._known):
            rows = {row.host: row for row in known.values()}
            judged = {host: granted(row) for host, row in rows.items()}
            self._grounds = Grounds(
                rows=rows,
                judged=judged,
                incarnations={h: row.incarnation or LEGACY for h, row in rows.items()},
                beating=frozenset(
                    g.member
                    for g in judged.values()
                    if g.beat is not None and g.incarnation is not None
                ),
            )
        self._known = known
        return self._grounds


def _is_settled(row: liveness.GrantedRow) -> bool:
    """Return what VerdictStore.unsettled() calls settled."""
    return (
        row.state == verdict.State.UP
        and row.state_cause == verdict.Cause.IN_GROUP
        and row.state_incarnation == row.incarnation
        and not row.said_goodbye
        and row.stalled is None
        and not row.forced_down
    )


def _settle(row: liveness.GrantedRow) -> liveness.GrantedRow:
    """Return what a row of which it is only known that it is settled now holds."""
    return dataclasses.replace(
        row,
        said_goodbye=False,
        stalled=None,
        forced_down=False,
        state=verdict.State.UP.value,
        state_cause=verdict.Cause.IN_GROUP.value,
        state_incarnation=row.incarnation,
        state_evidence=None,  # nothing is decided by it
    )


def granted(row: liveness.GrantedRow) -> verdict.Granted:
    """Return what the verdict needs of a row."""
    return verdict.Granted(
        host=row.host,
        incarnation=row.incarnation,
        goodbye=row.said_goodbye,
        stalled=row.stalled,
        forced_down=row.forced_down,
        previous=_previous(row),
        zone=ONE_ZONE,
        beat=_beat(row),
    )


def _beat(row: liveness.GrantedRow) -> verdict.Beat | None:
    if row.beat_at is None or row.beat_age is None:
        return None
    return verdict.Beat(row.beat_at, row.beat_age, row.registered_only)


def _previous(row: liveness.GrantedRow) -> verdict.Verdict | None:
    """Return the stored verdict; None for none, or one that this code doesn't know.

    A row that another release wrote must not keep all others from being judged.
    """
    try:
        return verdict.Verdict(
            state=verdict.State(row.state or ""),
            cause=verdict.Cause(row.state_cause or ""),
            incarnation=row.state_incarnation,
            evidence=row.state_evidence or "",
        )
    except ValueError:
        return None
