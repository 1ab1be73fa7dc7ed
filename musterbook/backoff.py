"""Growing, jittered pauses between attempts, and waiting by them for a server."""

from collections.abc import Callable
import logging
import random
import threading
import time

LOG = logging.getLogger(__name__)

_FIRST_PAUSE = 0.5
_MOST_PAUSE = 10.0


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


def wait_for_server(
    attempt: Callable[[], str], stopping: threading.Event, waiting: str, done: str
) -> bool:
    """Return True once a server can be used. Any thread.

    Logs when the waiting begins, when its reason changes and when it ends, not each
    attempt.

    :param attempt: returns why the server can't be used now, '' if it can; what it
        raises ends the waiting
    :param stopping: ends the waiting, after the attempt under way
    :param waiting: what a line says before the reason
    :param done: what the last line says before the seconds
    :returns: False: told to stop
    """
    pauses = Backoff(_FIRST_PAUSE, _MOST_PAUSE)
    began, reason = time.monotonic(), ""
    while not stopping.is_set():
        found = attempt()
        if not found:
            if reason:
                LOG.warning("%s, after %.0f s", done, time.monotonic() - began)
            return True
        if found != reason and not stopping.is_set():
            LOG.warning("%s: %s", waiting, found)
        reason = found
        stopping.wait(pauses.pause())
    return False
