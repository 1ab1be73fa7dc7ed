"""Calls that have waited in a server for longer than their callers do."""

from collections.abc import Callable
import logging
import threading
import time

LOG = logging.getLogger(__name__)

#: A call that waited for less (seconds) says that the server keeps up again.
_PROMPT = 0.5


class Backlog:
    """Says which calls nobody waits for any more, and when that began and ended.

    Any thread. Both sides measure durations by clocks of their own; the call's time on
    the way isn't counted.

    :param server: the server's name, for the log
    """

    def __init__(
        self, server: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._server = server
        self._clock = clock
        self._lock = threading.Lock()
        self._dropped = 0
        self._began = 0.0

    def take(self, waited: float, patience: object) -> bool:
        """Return whether to run a call.

        :param waited: seconds since it arrived here
        :param patience: seconds that its caller waits, as it came over the wire;
            anything but a positive number: it didn't say
        """
        if not isinstance(patience, int | float) or patience <= 0 or waited < patience:
            if waited < _PROMPT:
                self._prompt()
            return True
        with self._lock:
            self._dropped += 1
            if self._dropped > 1:
                return False
            self._began = self._clock()
        LOG.warning(
            "Server %s can't keep up: a call waited %.1f s for a thread, its caller "
            "%.1f s for the answer; it is dropped, as are others like it",
            self._server,
            waited,
            patience,
        )
        return False

    def _prompt(self) -> None:
        if not self._dropped:
            return
        with self._lock:
            dropped, self._dropped = self._dropped, 0
            seconds = self._clock() - self._began
        if dropped:
            LOG.warning(
                "Server %s keeps up again; %d calls were dropped in %.0f s",
                self._server,
                dropped,
                seconds,
            )
