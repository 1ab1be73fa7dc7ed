"""The loops of an agent as jobs of a wheel; what each turn does is the real agent's."""

from collections.abc import Callable
import random
import threading
import time
from typing import Any

from oslo_config import cfg

from compute_agent import audits
from compute_agent import verifier
from compute_agent import watchdog
from compute_agent.hollow import wheel
from musterbook.servicegroup import beat

#: Seconds that the end of a loop waits for a turn in hand.
_END_SECONDS = 10.0
#: Seconds between two looks of a watchdog: thousands share a process.
_WATCH_SECONDS = 5.0
#: As compute_agent.audits: seconds between two looks whether an audit is wanted.
_WANTED_STEP = 1.0


class HollowBeat(beat.Beat):
    """A Beat without a thread.

    What a member finds after a fault it finds in its own turn, and turns are spread
    over the interval: in place of the jitter of a rejoin, which would hold a thread.

    :param turns: the wheel that gives it its turns
    """

    def __init__(self, turns: wheel.Wheel, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._turns = turns
        self._job: wheel.Job | None = None

    def start(self) -> None:
        """Begin."""
        self._job = self._turns.add(self._turn)

    def stop(self, timeout: float = _END_SECONDS) -> bool:
        """Leave the group; return whether no turn runs any more."""
        self._stopping = True
        job, self._job = self._job, None
        if job is None:
            return True
        ended = job.end(timeout)
        if ended:
            self._pulse.leave()
        return ended

    def _turn(self) -> float | None:
        return None if self._stopping else self._pulse.turn()

    def _kick(self) -> None:
        if self._job is not None:
            self._job.kick()

    def _wait(self, seconds: float) -> bool:
        return self._stopping


class HollowVerifier(verifier.Verifier):
    """A Verifier without a thread.

    :param turns: the wheel that gives it its turns
    """

    def __init__(self, turns: wheel.Wheel, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._turns = turns
        self._job: wheel.Job | None = None

    def start(self) -> None:
        """Begin with a look."""
        self._job = self._turns.add(self._turn)

    def stop(self) -> None:
        """End."""
        self._stopping = True
        if self._job is not None:
            self._job.end(_END_SECONDS)

    def _want(self) -> None:
        if self._job is not None:
            self._job.kick()


class HollowAudits(audits.Audits):
    """Audits without a timer of their own.

    :param turns: the wheel that gives it its turns
    """

    def __init__(
        self,
        turns: wheel.Wheel,
        conf: cfg.ConfigOpts,
        audit: Callable[[], None],
        wanted: threading.Event,
    ) -> None:
        super().__init__(conf, audit, wanted)
        self._turns = turns
        self._job: wheel.Job | None = None
        self._due = 0.0

    def set_interval(self, interval: float) -> None:
        """Begin, or go on, with so many seconds between two audits."""
        if self._stopped or interval == self._interval:
            return
        self._interval = interval
        self._due = time.monotonic() + random.uniform(0, interval)  # noqa: S311  # no secret
        if self._job is None:
            self._job = self._turns.add(self._turn, min(interval, _WANTED_STEP))

    def stop(self) -> None:
        """End; an audit in hand is waited for."""
        self._stopped = True
        if self._job is not None:
            self._job.end(_END_SECONDS)

    def _turn(self) -> float | None:
        if self._stopped:
            return None
        now = time.monotonic()
        if now >= self._due:
            self._due = now + self._interval
            self._audit()
        elif self._wanted.is_set():
            self._audit()
        return max(min(self._due - time.monotonic(), _WANTED_STEP), 0.0)


class HollowWatchdog(watchdog.Watchdog):
    """A Watchdog without a thread.

    :param turns: the wheel that gives it its turns
    """

    def __init__(self, turns: wheel.Wheel, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._turns = turns
        self._seconds = _WATCH_SECONDS
        self._job: wheel.Job | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._before = time.monotonic()
        self._job = self._turns.add(self._turn, self._seconds)

    def stop(self) -> None:
        """End."""
        self._stopping.set()
        if self._job is not None:
            self._job.end(_END_SECONDS)

    def _turn(self) -> float | None:
        if self._stopping.is_set():
            return None
        self._look()
        return self._seconds
