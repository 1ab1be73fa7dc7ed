"""The thread that keeps a process a member of its group."""

from collections.abc import Callable
import logging
import random
import threading
import time

from musterbook.servicegroup import driver as group_driver
from musterbook.servicegroup import pulse

LOG = logging.getLogger(__name__)


class Beat:
    """Joins a group, beats, and joins again when that is lost, until stopped.

    Started and stopped once, by the process's owner and after any fork; the other
    methods may be called from any thread.

    :param make_driver: returns the member's driver, unconnected; called in the
        thread, again after it failed
    :param group: to be a member of
    :param interval: seconds between two beats (see factory.beat_interval)
    :param rng: source of jitter
    :param clock: monotonic seconds
    :param on_rejoin: called in the thread after each join but the first; must return
        at once
    """

    def __init__(
        self,
        make_driver: Callable[[], group_driver.GroupDriver],
        group: str,
        interval: float,
        *,
        rng: random.Random,
        clock: Callable[[], float] = time.monotonic,
        on_rejoin: Callable[[], None] | None = None,
    ) -> None:
        self._pulse = pulse.Pulse(
            make_driver,
            group,
            interval,
            rng=rng,
            clock=clock,
            wait=self._wait,
            on_rejoin=on_rejoin,
        )
        self._stopping = False
        self._kicked = False
        self._wake = threading.Condition()
        # A daemon: when the main thread dies without stop(), the beat must not
        # keep a process that does nothing in the group.
        self._thread = threading.Thread(
            target=self._run, name=f"beat-{group}", daemon=True
        )

    @property
    def joined(self) -> threading.Event:
        """Set while this process is a member, as far as is known."""
        return self._pulse.joined

    def start(self) -> None:
        """Begin; never fails, a first join is tried until it works."""
        self._thread.start()

    def wait_joined(self, timeout: float | None = None) -> bool:
        """Wait for membership and return whether there is one."""
        return self._pulse.joined.wait(timeout)

    def rejoin(self) -> None:
        """Join again now: the conductor doesn't see this member."""
        self._pulse.rejoin()
        self._kick()

    def set_interval(self, interval: float) -> None:
        """Change the seconds between two beats; the next one comes now."""
        self._pulse.set_interval(interval)
        self._kick()

    def rename(self) -> None:
        """Join under the name that make_driver uses from now on, leave as the former.

        Returns at once; the thread does it now.
        """
        self._pulse.rename()
        self._kick()

    def status(self) -> pulse.Status:
        """Return whether all is well, and since when."""
        return self._pulse.status()

    def stop(self, timeout: float = 10.0) -> bool:
        """Leave the group at once, and join the thread.

        :param timeout: seconds; the driver bounds its calls, so three of them
            are enough
        :returns: whether the thread ended in time
        """
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._thread.ident is None:
            return True
        self._thread.join(timeout)
        if self._thread.is_alive():
            LOG.error("Thread %s did not end in %g s", self._thread.name, timeout)
            return False
        return True

    def _kick(self) -> None:
        with self._wake:
            self._kicked = True
            self._wake.notify_all()

    def _run(self) -> None:
        while not self._stopping:
            pause = self._pulse.turn()
            with self._wake:
                self._wake.wait_for(lambda: self._stopping or self._kicked, pause)
                self._kicked = False
        self._pulse.leave()

    def _wait(self, seconds: float) -> bool:
        with self._wake:
            return self._wake.wait_for(lambda: self._stopping, seconds)
