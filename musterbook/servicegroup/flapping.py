"""Hosts that expire and come back again and again, and for how long they are held.

A host that was missed and returned LIMIT times within WINDOW is held suspect from its
return on, longer with each further one. Nothing here reads a clock; all instants are
seconds on one observer's monotonic clock. What a former observer has counted is
replayed from the stored transitions, which are all that is kept.
"""

from collections.abc import Iterable
import dataclasses

#: Returns within WINDOW seconds that make a host a flapping one.
LIMIT = 3
WINDOW = 900.0
#: Seconds of the first hold; each further return within WINDOW doubles it.
FIRST_HOLD = 60.0
MOST_HOLD = 300.0


@dataclasses.dataclass(frozen=True)
class Hold:
    """A host is held suspect.

    :ivar returns: how often it came back within WINDOW
    :ivar until: when the hold ends
    :ivar seconds: how long it is as a whole
    """

    returns: int
    until: float
    seconds: float

    def describe(self) -> str:
        """Return what an operator is told; the same for as long as it lasts."""
        return (
            f"left it and came back {self.returns} times within {WINDOW / 60:.0f} min: "
            f"held suspect for {self.seconds:.0f} s from its return on"
        )


def hold_seconds(returns: int) -> float:
    """Return for how long a host is held after so many returns within WINDOW."""
    if returns < LIMIT:
        return 0.0
    doubled = min(returns - LIMIT, 10)  # more would overflow some day
    return min(FIRST_HOLD * 2.0**doubled, MOST_HOLD)


class Ledger:
    """Who expired and returned, and when; for one thread.

    Holds only hosts that did so lately: a quiet fleet costs nothing.
    """

    def __init__(self) -> None:
        self._expired: set[str] = set()
        self._returns: dict[str, list[float]] = {}
        self._until: dict[str, Hold] = {}

    def hosts(self) -> Iterable[str]:
        """Return the hosts of which something is known."""
        return self._expired | self._returns.keys()

    def expire(self, host: str) -> None:
        """Note that a host is missing, and was said to be."""
        self._expired.add(host)

    def excuse(self, host: str) -> None:
        """Note that a host is missing for a reason: it or an operator has said so."""
        self._expired.discard(host)

    def come_back(self, host: str, now: float) -> None:
        """Note that a host is there; it counts if it had expired before."""
        if host not in self._expired:
            return
        self._expired.discard(host)
        lately = [t for t in self._returns.get(host, ()) if now - t < WINDOW]
        lately.append(now)
        self._returns[host] = lately
        seconds = hold_seconds(len(lately))
        if seconds:
            self._until[host] = Hold(len(lately), now + seconds, seconds)

    def hold(self, host: str, now: float) -> Hold | None:
        """Return how a host is held, None if it isn't."""
        held = self._until.get(host)
        return held if held is not None and now < held.until else None

    def next_end(self, now: float | None) -> float:
        """Return when the next hold ends, infinity if there is none.

        :param now: None: any that was begun may go on
        """
        ends = (
            held.until
            for held in self._until.values()
            if now is None or now < held.until
        )
        return min(ends, default=float("inf"))

    def forget(self, host: str) -> None:
        """Begin anew with a host: an operator says so, or it isn't one any more."""
        self._expired.discard(host)
        self._returns.pop(host, None)
        self._until.pop(host, None)

    def prune(self, now: float) -> None:
        """Forget returns that are too old to count, and holds that are over."""
        old = [h for h, times in self._returns.items() if now - times[-1] >= WINDOW]
        for host in old:
            self._returns.pop(host)
            self._until.pop(host, None)
