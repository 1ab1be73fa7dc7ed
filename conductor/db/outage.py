"""Whether the database answers: what one call found out, all others know at once.

A server that is stopped fails every call within milliseconds. One that is frozen, or
behind a network that swallows everything, holds each call until the limit of its
statement; without what is here, as many calls as a conductor has threads would wait
for it, and not even a ping would be answered. So once the database was seen lost, or
silent with calls waiting for it, further calls are refused at once, apart from one
every now and then that tries.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import itertools
import logging
import threading
import time
import weakref

import sqlalchemy as sa

from musterbook import errors

LOG = logging.getLogger(__name__)

#: Calls that may be at work in the database; of the 64 threads of a conductor's RPC
#: server the rest answers what needs no database.
CALLS = 40
#: Seconds without any answer, while somebody waits for one, that count as lost. Longer
#: than a lock is waited for (5 s, see engine), which is an answer too.
SILENCE = 6.0
#: The same while CALLS are waiting.
SILENCE_WHEN_FULL = 2.0
#: Seconds from the beginning of an outage in which calls wait for its end rather than
#: being refused, so that a restart is a delay; and how many may wait.
PATIENCE = 3.0
WAITERS = 16
#: Seconds between two calls that try; longer with each one that hangs.
_TRY_EVERY = 0.5
#: A schema that is being made fails one table and serves another: it counts as whole
#: when no fault was seen for so many seconds.
_SHAPE_SECONDS = 3.0
_STEP = 0.1
_SILENT = "it does not answer"


class Outage:
    """What a process knows of one database's absence. Any thread may call it.

    :param gated: refuse calls during an outage; not for a file
    :param clock: monotonic seconds
    """

    def __init__(
        self, *, gated: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._gated = gated
        self._clock = clock
        self._changed = threading.Condition()  # guards all that follows
        self._tokens = itertools.count()
        self._running: dict[int, float] = {}
        self._waiting = 0
        self._heard = clock()
        self._since: float | None = None
        self._silent = False
        self._patient_until = 0.0
        self._tried = 0.0
        self._shape_fault: float | None = None
        self._reasons: list[str] = []

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Count as a call at work while in it.

        :raises DatabaseUnavailable: the database is lost; it was not asked
        """
        token = self._enter()
        try:
            yield
        finally:
            with self._changed:
                del self._running[token]
                self._changed.notify()

    def now(self) -> float:
        """Return the clock's seconds, for answered()."""
        return self._clock()

    def answered(self, asked: float) -> None:
        """Note that the database answered what it was asked at that instant."""
        with self._changed:
            self._heard = now = self._clock()
            # What was asked before may have been answered before.
            if self._since is None or (asked < self._since and not self._silent):
                return
            fault = self._shape_fault
            if fault is None or now - fault >= _SHAPE_SECONDS:
                self._end(now)

    def failed(self, reason: str) -> None:
        """Note that the database can't be reached, or lets nobody in.

        :param reason: for people, without secrets
        """
        with self._changed:
            self._shape_fault = None
            self._begin(self._clock(), reason)

    def misses_tables(self, reason: str) -> None:
        """Note that the database answers and lacks what this code needs."""
        with self._changed:
            self._shape_fault = self._clock()
            self._begin(self._shape_fault, reason)

    # -- all with the lock held ----------------------------------------------------

    def _enter(self) -> int:
        with self._changed:
            while True:
                now = self._clock()
                self._listen(now)
                if self._admits(now):
                    break
                self._wait(now)
            token = next(self._tokens)
            self._running[token] = now
            if self._since is not None:
                self._tried = now
            return token

    def _listen(self, now: float) -> None:
        """Begin an outage when nobody has had an answer for too long."""
        if not (self._gated and self._running) or self._since is not None:
            return
        silent = now - max(self._heard, min(self._running.values()))
        full = len(self._running) >= CALLS
        if silent >= (SILENCE_WHEN_FULL if full else SILENCE):
            self._begin(now, _SILENT, silent=True)

    def _admits(self, now: float) -> bool:
        if not self._gated:
            return True
        if len(self._running) >= CALLS:
            return False
        if self._since is None or self._shape_fault is not None:
            return True
        hanging = sum(began >= self._since for began in self._running.values())
        return now - self._tried >= _TRY_EVERY * (1 + hanging)

    def _wait(self, now: float) -> None:
        """Wait a moment, or refuse."""
        if self._since is not None:
            left = self._patient_until - now
            if left <= 0 or self._waiting >= WAITERS:
                raise errors.DatabaseUnavailable(reason=self._reasons[-1])
        self._waiting += 1
        try:
            self._changed.wait(_STEP)
        finally:
            self._waiting -= 1

    def _begin(self, now: float, reason: str, *, silent: bool = False) -> None:
        first = self._since is None
        if first:
            self._since = self._tried = now
            self._silent = silent
            # Who is silent was waited for already.
            self._patient_until = now if silent else now + PATIENCE
            LOG.warning("The database is lost: %s; calls fail until it is back", reason)
        elif reason not in self._reasons:
            LOG.warning("The database is still lost: %s", reason)
        if reason in self._reasons:
            self._reasons.remove(reason)
        self._reasons.append(reason)
        self._changed.notify_all()

    def _end(self, now: float) -> None:
        assert self._since is not None
        LOG.warning("The database is back after %.0f s", now - self._since)
        self._since = self._shape_fault = None
        self._reasons.clear()
        self._changed.notify_all()


_lock = threading.Lock()
_known: "weakref.WeakKeyDictionary[sa.Engine, Outage]" = weakref.WeakKeyDictionary()


def of(engine: sa.Engine) -> Outage:
    """Return what this process knows of an engine's database; any thread."""
    with _lock:
        found = _known.get(engine)
        if found is None:
            gated = engine.dialect.name != "sqlite"
            found = _known[engine] = Outage(gated=gated)
        return found
