"""Whether the working loop gets on: reading the source, saving, serving.

That a process beats says nothing about its work, which another thread does. The loop
leaves marks here, and whoever asks is told when the last one is too old. Waiting for a
conductor or the database is no standstill: they are away, not this agent.
"""

from collections.abc import Callable
import threading
import time

from oslo_config import cfg

from musterbook import errors

#: The lowest value of stalled_after that isn't 0: audits come twice in it.
LEAST_SECONDS = 1.0
#: Seconds that calls may take in addition between two marks of one node's save: five
#: at most, when a node is found and taken over, of resource_tracker.CALL_SECONDS.
CALLS_SECONDS = 50.0


def check(conf: cfg.ConfigOpts) -> None:
    """Refuse a stalled_after that audits can't keep up with.

    An audit comes after half of it at most, and a reading that takes as long as it may
    must end in the other half: else what is allowed would be called stalled.

    :raises ConfigurationError: naming what can't be
    """
    if 0 < conf.stalled_after < LEAST_SECONDS:
        raise errors.ConfigurationError(
            option="stalled_after",
            reason=f"{conf.stalled_after:g} s must be 0 or at least {LEAST_SECONDS:g}",
        )
    timeout = conf.inventory.timeout
    if conf.stalled_after and timeout > conf.stalled_after / 2:
        raise errors.ConfigurationError(
            option="[inventory]timeout",
            reason=f"{timeout:g} s must be at most half of stalled_after, "
            f"{conf.stalled_after:g} s, or a reading that takes as long would be "
            "called stalled; lower it, or raise stalled_after",
        )


def audit_interval(conf: cfg.ConfigOpts) -> float:
    """Return the seconds between two audits: at least two come in stalled_after.

    Else one that isn't due yet could not be told from one that stands still.
    """
    configured = float(conf.update_resources_interval)
    if not conf.stalled_after:
        return configured
    return min(configured, float(conf.stalled_after) / 2)


def shortened(conf: cfg.ConfigOpts) -> str | None:
    """Return what to say if audits come more often than configured, else None."""
    interval = audit_interval(conf)
    if interval == conf.update_resources_interval:
        return None
    return (
        f"update_resources_interval is {conf.update_resources_interval:g} s, but "
        f"audits come every {interval:g} s: half of stalled_after, which is "
        f"{conf.stalled_after:g} s. Raise stalled_after, or set it to 0, for fewer"
    )


class Progress:
    """The marks of one working loop; any thread may call anything.

    :param seconds: without a mark after which the loop stands still; 0: it never does
    :param clock: monotonic seconds
    """

    def __init__(
        self, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards all that follows
        self._seconds = seconds
        self._marked = clock()
        self._reading = False
        self._saving: str | None = None
        self._releasing = False
        self._failure: str | None = None

    def set_seconds(self, seconds: float) -> None:
        """Change the time that may pass without a mark."""
        with self._lock:
            self._seconds = seconds

    def begin(self) -> None:
        """Mark that the loop begins now."""
        with self._lock:
            self._marked = self._clock()

    def reading(self) -> None:
        """Mark nothing: the source is asked now."""
        with self._lock:
            self._reading = True

    def read(self) -> None:
        """Mark that the source has answered."""
        with self._lock:
            self._marked = self._clock()
            self._reading = False
            self._failure = None

    def unreadable(self, reason: str) -> None:
        """Mark nothing: the source has failed, which is no progress."""
        with self._lock:
            self._reading = False
            self._failure = reason

    def saving(self, node: str) -> None:
        """Mark that a node is compared with the book now, and saved."""
        with self._lock:
            self._marked = self._clock()
            self._saving = node

    def saved(self) -> None:
        """Mark that this has ended, well or not: what failed is tried again."""
        with self._lock:
            self._marked = self._clock()
            self._saving = None

    def releasing(self) -> None:
        """Mark that a conductor is asked to release a claim now."""
        with self._lock:
            self._marked = self._clock()
            self._releasing = True

    def released(self) -> None:
        """Mark that this has ended, well or not."""
        with self._lock:
            self._marked = self._clock()
            self._releasing = False

    def excuse(self, seconds: float) -> None:
        """Don't count so many seconds, in which the whole process was frozen."""
        with self._lock:
            self._marked = min(self._marked + seconds, self._clock())

    def standstill(self, full_since: float | None = None) -> str | None:
        """Return why the loop stands still, None while it gets on.

        :param full_since: since when all threads that serve are busy and none of them
            has finished anything, on the same clock
        """
        with self._lock:
            if not self._seconds:
                return None
            now = self._clock()
            for_so_long = f"for {self._seconds:g} s"
            calling = self._saving is not None or self._releasing
            allowed = self._seconds + (CALLS_SECONDS if calling else 0.0)
            if now - self._marked >= allowed:
                return self._describe(for_so_long)
            if full_since is not None and now - full_since >= self._seconds:
                return (
                    f"no call finished {for_so_long}: all threads that serve are busy"
                )
            return None

    def trouble(self, full_since: float | None = None) -> str | None:
        """Return why nothing should be given to the host now, None: it gets on.

        That is a standstill, and already the last reading of the source, if it failed.
        """
        standstill = self.standstill(full_since)
        if standstill is not None:
            return standstill
        with self._lock:
            return self._failure

    def _describe(self, for_so_long: str) -> str:
        if self._saving is not None:
            return f"no end of saving node {self._saving} {for_so_long}"
        if self._releasing:
            return f"no end of releasing a claim {for_so_long}"
        if self._failure is not None:
            return f"no inventory {for_so_long}: {self._failure}"
        if self._reading:
            return f"no inventory {for_so_long}: the source does not answer"
        return f"no audit {for_so_long}"
