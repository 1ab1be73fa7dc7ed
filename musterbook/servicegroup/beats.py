"""What one observer sees of the beats that the database notes.

No clock is read here, and of the database's only the age of a beat is used: whether a
newer one comes is watched on the observer's own clock, so that no clock that is set
makes a silent host live or a living one silent.
"""

from collections.abc import Mapping
import datetime

from musterbook.servicegroup import verdict


class Beats:
    """The beats that come through conductors, as seen by one leader; for one thread.

    :ivar beating: hosts whose beats come as they should
    :ivar answering: those of them that would answer a ping: all but legacy ones
    """

    def __init__(self) -> None:
        self.beating: frozenset[str] = frozenset()
        self.answering: frozenset[str] = frozenset()
        # By host: its last beat, and since when no newer one has been found.
        self._sights: dict[str, tuple[datetime.datetime, float]] = {}
        self._looked: float | None = None

    def look(
        self, granted: Mapping[str, verdict.Granted], now: float, policy: verdict.Policy
    ) -> set[str]:
        """Take in the beats; return the hosts that have become late.

        After a gap in which nobody looked each gets a full service_down_time anew:
        the database may have been away, and no beat was noted meanwhile.
        """
        gap = self._looked is not None and now - self._looked > policy.member_timeout
        self._looked = now
        known = {} if gap else self._sights
        self._sights = {}
        beating = set()
        answering = set()
        late = set()
        for host, g in granted.items():
            if g.beat is None:
                continue
            seen = known.get(host)
            if seen is None or seen[0] != g.beat.at:
                seen = g.beat.at, now
            self._sights[host] = seen
            expected = not (g.goodbye or g.forced_down)
            if abs(g.beat.age) < policy.beat_late:
                if expected:
                    beating.add(host)
                    if g.incarnation is not None:
                        answering.add(host)
            elif expected and (
                host in self.beating or (host not in known and _was_there(g))
            ):
                late.add(host)
        self.beating = frozenset(beating)
        self.answering = frozenset(answering)
        return late

    def watched_from(self, host: str, now: float) -> float:
        """Return since when no newer beat of a host has come."""
        seen = self._sights.get(host)
        return now if seen is None else seen[1]

    def late(self) -> set[str]:
        """Return the hosts whose beats are late, or have ended."""
        return self._sights.keys() - self.beating


def _was_there(granted: verdict.Granted) -> bool:
    # The former leader may have seen a mass loss by half.
    return granted.stored(verdict.State.UP) or granted.stored(verdict.State.SUSPECT)
