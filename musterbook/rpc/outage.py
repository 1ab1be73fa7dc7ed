"""What the log says while the broker is lost: begin, new reasons, end; each once."""

from collections.abc import Callable
import logging
import random
import threading
import time

LOG = logging.getLogger(__name__)


class Outage:
    """The parties of a process that miss the broker; any thread may tell.

    It begins when the first of them loses the broker and ends when none misses it any
    more: their threads notice both at different moments.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._missing: set[object] = set()
        self._began = 0.0
        self._reasons: set[str] = set()

    def lost(self, party: object, address: str, reason: str) -> None:
        """Note that a party misses the broker.

        :param party: the same object in back()
        :param address: host and port
        :param reason: a few words that follow the address; no secret
        """
        with self._lock:
            first = not self._missing
            self._missing.add(party)
            if not first and reason not in self._reasons:
                LOG.error("The message broker is still lost: %s: %s", address, reason)
            self._reasons.add(reason)
            if first:
                self._began = self._clock()
                LOG.error(
                    "The message broker is lost: %s: %s. Trying again until it is back",
                    address,
                    reason,
                )

    def back(self, party: object) -> None:
        """Note that a party doesn't miss the broker any more."""
        with self._lock:
            if party not in self._missing:
                return
            self._missing.remove(party)
            if not self._missing:
                self._reasons.clear()
                LOG.warning(
                    "The message broker is back, after %.0f s",
                    self._clock() - self._began,
                )

    def forget(self, party: object) -> None:
        """Note that a party has ended, which is no end of the outage."""
        with self._lock:
            self._missing.discard(party)
            if not self._missing:
                self._reasons.clear()

    def misses(self, party: object) -> bool:
        """Return whether a party misses the broker."""
        return party in self._missing


class Pauses:
    """Seconds before each attempt to connect again: growing, and spread at random.

    The first one is spread as well: a whole fleet loses its broker at one moment, and
    a broker that is back at once would get all of it in the same second. One thread
    uses it.

    :param first: seconds before the second attempt, less the spread
    :param step: seconds by which it grows with each further one
    :param most: seconds to which it grows
    :param splay: up to so many seconds are added to each, at random
    """

    def __init__(
        self,
        first: float,
        step: float,
        most: float,
        splay: float,
        rng: random.Random | None = None,
    ) -> None:
        self._first = first
        self._step = step
        self._most = most
        self._splay = splay
        self._rng = rng or random.Random()  # noqa: S311  # no secret depends on it
        self._attempts = 0

    def next(self) -> float:
        """Return the seconds before the next attempt."""
        grown = self._first + (self._attempts - 1) * self._step
        least = min(grown, self._most) if self._attempts else 0.0
        self._attempts += 1
        return least + self._rng.uniform(0, self._splay)

    def reset(self) -> None:
        """Begin anew: an attempt was successful."""
        self._attempts = 0
