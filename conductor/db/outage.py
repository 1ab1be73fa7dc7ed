"""Whether the database answers: what one call found out, all others know at once.

A server that is stopped fails every call within milliseconds. One that is frozen, or
behind a network that swallows everything, holds each call until the limit of its
statement; without what is here, as many calls as a conductor has threads would wait
for it, and not even a ping would be answered. So once the database was seen lost, or
silent with calls waiting for it, further calls are refused at once, apart from one
every now and then that tries.

One that answers slowly isn't lost, and would take all threads as well: calls wait for
a place at work for a short time only, and the longer that takes the fewer may wait.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
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
#: than a lock is waited for (5 s, see engine), which is an answer too. What takes
#: longer than that doesn't end an outage either: of a slow database some answers come
#: all the time, and each would end one and let the next begin.
SILENCE = 6.0
#: The same while CALLS are waiting.
SILENCE_WHEN_FULL = 2.0
#: Seconds from the beginning of an outage in which calls wait for its end rather than
#: being refused, so that a restart is a delay, and seconds that a call waits for a
#: place while there is none; and how many may wait.
PATIENCE = 3.0
WAITERS = 16
#: Seconds that the first of those who wait for a place has waited when more than
#: WAITERS may no longer: until then it is a burst.
BURST = 0.5
#: Seconds without a refusal after which the database isn't called slow any more.
_CALM = 10.0
#: Seconds between two calls that try; longer with each one that hangs.
_TRY_EVERY = 0.5
#: A schema that is being made fails one table and serves another: it counts as whole
#: when no fault was seen for so many seconds.
_SHAPE_SECONDS = 3.0
_STEP = 0.1
_SILENT = "it does not answer"
_FULL = "too many calls are at work in it"


@dataclasses.dataclass
class _Crowd:
    """A time in which calls are refused because too many are at work."""

    since: float
    last: float
    refused: int = 1


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
        self._waiting: dict[int, float] = {}  # since when, first come first
        self._crowd: _Crowd | None = None
        self._heard = clock()
        self._since: float | None = None
        self._patient_until = 0.0
        self._tried = 0.0
        self._shape_fault: float | None = None
        self._reasons: list[str] = []
        self._denied: set[str] = set()

    @contextlib.contextmanager
    def call(self, *, urgent: bool = False) -> Iterator[None]:
        """Count as a call at work while in it.

        :param urgent: take a place though all are taken
        :raises DatabaseUnavailable: the database is lost; it was not asked
        :raises DatabaseBusy: no place became free; it was not asked
        """
        token = self._enter(urgent)
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
            if self._since is None or asked < self._since or now - asked >= SILENCE:
                return
            fault = self._shape_fault
            if fault is None or now - fault >= _SHAPE_SECONDS:
                self._end(now)

    def failed(self, reason: str, asked: float | None = None) -> None:
        """Note that the database can't be reached, or lets nobody in.

        :param reason: for people, without secrets
        :param asked: at which instant what failed was begun; if the database has
            answered since, this comes late from an outage that is over
        """
        with self._changed:
            if self._since is None and asked is not None and asked < self._heard:
                return
            self._shape_fault = None
            self._begin(self._clock(), reason)

    def misses_tables(self, reason: str) -> None:
        """Note that the database answers and lacks what this code needs."""
        with self._changed:
            self._shape_fault = self._clock()
            self._begin(self._shape_fault, reason)

    def denied(self, reason: str) -> None:
        """Note that the database answers and doesn't let its user do something.

        :param reason: for people; told once
        """
        with self._changed:
            if reason in self._denied:
                return
            self._denied.add(reason)
        LOG.error("The database answers, but %s; calls that need it fail", reason)

    # -- all with the lock held ----------------------------------------------------

    def _enter(self, urgent: bool) -> int:
        with self._changed:
            token = next(self._tokens)
            try:
                while True:
                    now = self._clock()
                    self._listen(now)
                    if self._admits(token, now, urgent):
                        break
                    self._wait(token, now)
            finally:
                self._waiting.pop(token, None)
                # There may be a place for another one.
                self._changed.notify()
            self._running[token] = now
            if self._since is not None:
                self._tried = now
            self._calm_down(now)
            return token

    def _listen(self, now: float) -> None:
        """Begin an outage when nobody has had an answer for too long."""
        if not (self._gated and self._running) or self._since is not None:
            return
        silent = now - max(self._heard, min(self._running.values()))
        full = len(self._running) >= CALLS
        if silent >= (SILENCE_WHEN_FULL if full else SILENCE):
            self._begin(now, _SILENT, silent=True)

    def _admits(self, token: int, now: float, urgent: bool) -> bool:
        if not self._gated:
            return True
        if not urgent and not self._has_place(token):
            return False
        if self._since is None or self._shape_fault is not None:
            return True
        hanging = sum(began >= self._since for began in self._running.values())
        return now - self._tried >= _TRY_EVERY * (1 + hanging)

    def _has_place(self, token: int) -> bool:
        """Tell whether one is free, for who waits before who comes."""
        first = token in self._waiting or not self._waiting
        return first and len(self._running) < CALLS

    def _wait(self, token: int, now: float) -> None:
        """Wait a moment, or refuse."""
        came = self._waiting.setdefault(token, now)
        over = token in itertools.islice(self._waiting, WAITERS, None)
        if self._since is not None:
            if over or now >= self._patient_until:
                raise errors.DatabaseUnavailable(reason=self._reasons[-1])
        elif now - came >= PATIENCE or (over and now - self._first_came() >= BURST):
            self._note_refusal(now)
            raise errors.DatabaseBusy(reason=_FULL)
        self._changed.wait(_STEP)

    def _first_came(self) -> float:
        return next(iter(self._waiting.values()))

    def _note_refusal(self, now: float) -> None:
        if self._crowd is None:
            LOG.warning(
                "The database is slow: %d calls are at work in it, further ones fail",
                len(self._running),
            )
            self._crowd = _Crowd(now, now)
        else:
            self._crowd.last = now
            self._crowd.refused += 1

    def _calm_down(self, now: float) -> None:
        crowd = self._crowd
        if crowd is not None and now - crowd.last >= _CALM and self._since is None:
            LOG.warning(
                "The database keeps up again; %d calls failed in %.0f s",
                crowd.refused,
                crowd.last - crowd.since,
            )
            self._crowd = None

    def _begin(self, now: float, reason: str, *, silent: bool = False) -> None:
        first = self._since is None
        if first:
            self._since = self._tried = now
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
#: By the dialect, which is made with an engine and shared by those with other options.
_known: "weakref.WeakKeyDictionary[sa.Dialect, Outage]" = weakref.WeakKeyDictionary()


def of(engine: sa.Engine) -> Outage:
    """Return what this process knows of an engine's database; any thread."""
    with _lock:
        found = _known.get(engine.dialect)
        if found is None:
            gated = engine.dialect.name != "sqlite"
            found = _known[engine.dialect] = Outage(gated=gated)
        return found
