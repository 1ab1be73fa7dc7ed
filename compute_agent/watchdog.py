"""Telling the conductor that the working loop stands still, and that it goes on.

A thread of its own watches the loop's marks (compute_agent.progress), as the loop
itself can't tell. What it has to say it says until a conductor has heard it.
"""

from collections.abc import Callable
import logging
import re
import threading
import time

from compute_agent import progress
from compute_agent import tenure
from conductor import rpcapi as conductor_rpcapi
from musterbook import backoff
from musterbook import errors

LOG = logging.getLogger(__name__)

#: Seconds between two looks.
TURN = 1.0
#: A turn that comes so many seconds late was frozen, with the whole process.
_FROZEN = 1.0
#: Seconds a conductor may take to hear it; also a stop may wait for it.
_CALL_SECONDS = 5.0
_FIRST_PAUSE = 1.0
_MOST_PAUSE = 10.0
#: Seconds after which a call that nobody answered can't be run any more, a late one by
#: a conductor whose database is slow included: a statement takes 30 s at most.
SETTLED = 60.0
#: Seconds between two reasons for one standstill.
_NEXT_REASON = 60.0
_NUMBER = re.compile(r"\d+(\.\d+)?")


class Watchdog:
    """Watches one loop and speaks for it.

    start() and stop() belong to the agent, once; repeat() to any thread; all else
    happens in the thread named ``watchdog``.

    :param conductor: whom to tell
    :param held: the grant
    :param marks: of the loop
    :param full_since: since when all threads that serve are busy, None while one isn't
    :param on_refused: called when the grant isn't known or is another's: looks into it
    """

    def __init__(
        self,
        conductor: conductor_rpcapi.ConductorAPI,
        held: tenure.Tenure,
        marks: progress.Progress,
        full_since: Callable[[], float | None],
        on_refused: Callable[[], None],
    ) -> None:
        self._speaker = Speaker(
            lambda reason: conductor.stalled(
                held.context, reason, timeout=_CALL_SECONDS
            ),
            on_refused,
            lambda: held.grant.incarnation,
        )
        self._marks = marks
        self._full_since = full_since
        self._stopping = threading.Event()
        self._seconds = TURN
        self._before = time.monotonic()  # when the last turn ended
        self._thread = threading.Thread(target=self._run, name="watchdog")

    def start(self) -> None:
        """Begin to watch."""
        self._before = time.monotonic()
        self._thread.start()

    def repeat(self) -> None:
        """Say again what was said last: the database may have lost it."""
        self._speaker.repeat()

    def stop(self) -> None:
        """End; returns when a call in hand has ended."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._seconds):
            self._look()

    def _look(self) -> None:
        # Only the wait counts: what was said may have taken long to be heard.
        late = time.monotonic() - self._before - self._seconds
        if late > _FROZEN:
            self._marks.excuse(late)
        reason = self._marks.standstill(self._full_since())
        self._speaker.turn(reason, time.monotonic())
        self._before = time.monotonic()


class Speaker:
    """Says a reason until it is heard, and None when it is over; reads no clock.

    :param say: tells a conductor, or raises MusterbookError
    :param on_refused: called when that says that the grant is no good
    :param incarnation: returns the granted one; a new one starts without a reason
    """

    def __init__(
        self,
        say: Callable[[str | None], None],
        on_refused: Callable[[], None],
        incarnation: Callable[[], int],
    ) -> None:
        self._say = say
        self._on_refused = on_refused
        self._incarnation = incarnation
        self._number = incarnation()
        self._reason: str | None = None  # as we want it known
        self._since = self._chosen = 0.0
        self._heard: str | None = None  # as the conductor has it
        self._pauses = backoff.Backoff(_FIRST_PAUSE, _MOST_PAUSE)
        self._next = 0.0
        # A call without an answer may still be run, after those that follow it.
        self._unanswered = False
        self._again_at: float | None = None
        self._repeat = threading.Event()

    def repeat(self) -> None:
        """Say it again at the next turn; any thread."""
        self._repeat.set()

    def turn(self, reason: str | None, now: float) -> None:
        """Take in how the loop is, and say what there is to be said.

        :param reason: why it stands still, None while it doesn't
        :param now: monotonic seconds
        """
        number = self._incarnation()
        if number != self._number:
            self._number, self._heard, self._next = number, None, 0.0
        self._choose(reason, now)
        due = self._again_at is not None and now >= self._again_at
        if self._repeat.is_set() or due:
            self._repeat.clear()
            self._again_at = None
            self._tell(now)
        elif self._reason != self._heard and now >= self._next:
            self._tell(now)

    def _choose(self, reason: str | None, now: float) -> None:
        """Keep to the first reason while it stays the same but for its numbers."""
        if reason is None and self._reason is not None:
            LOG.warning("Working again after %.0f s", now - self._since)
        elif reason is not None and self._reason is None:
            LOG.warning("Stalled: %s; the host is suspect until it goes on", reason)
            self._since = now
        elif (
            reason is None
            or self._reason is None
            or _NUMBER.sub("", reason) == _NUMBER.sub("", self._reason)
            or now - self._chosen < _NEXT_REASON
        ):
            return
        self._reason, self._chosen = reason, now
        self._pauses = backoff.Backoff(_FIRST_PAUSE, _MOST_PAUSE)
        self._next = 0.0

    def _tell(self, now: float) -> None:
        try:
            self._say(self._reason)
        except (errors.Superseded, errors.GrantForgotten) as exc:
            LOG.debug("Nobody hears that we are stalled: %s", exc.message)
            self._on_refused()
            self._next = now + self._pauses.pause()
        except errors.MusterbookError as exc:
            LOG.debug("Not heard whether we are stalled: %s", exc.message)
            self._unanswered = True
            self._next = now + self._pauses.pause()
            self._heard = _NOT_KNOWN
        except Exception:
            LOG.exception("Not heard whether we are stalled, trying again")
            self._next = now + self._pauses.pause()
            self._heard = _NOT_KNOWN
        else:
            self._heard = self._reason
            if self._unanswered:
                self._unanswered = False
                self._again_at = now + SETTLED


#: What the conductor has, after a call without an answer: equal to no reason.
_NOT_KNOWN = "\0"
