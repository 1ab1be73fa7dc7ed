"""Growing, jittered pauses between attempts."""

import random


class Backoff:
    """Pauses that double up to a limit, each shortened by up to half at random.

    The jitter spreads a fleet that lost the same peer at the same moment. One
    thread uses an instance, for one wait: the next one begins with a new instance.

    :param first: seconds of the first pause, before jitter
    :param most: seconds that no pause exceeds
    """

    def __init__(self, first: float, most: float, rng: random.Random | None = None):
        self._most = most
        self._rng = rng or random.Random()  # noqa: S311  # no secret depends on it
        self._next = first

    def pause(self) -> float:
        """Return the seconds to wait before the next attempt."""
        pause = self._next
        self._next = min(self._next * 2, self._most)
        return pause * self._rng.uniform(0.5, 1.0)
