"""One member's beats, a turn at a time: beat, look whether one is seen, rejoin.

tooz loses members for good and tells nobody (9.1: a member that was silent for
longer than its timeout never reappears, and its heartbeats go on without an
error). So every turn checks, and joins again within the same turn.
"""

from collections.abc import Callable
import contextlib
import dataclasses
import logging
import random
import threading

from musterbook import backoff
from musterbook import errors
from musterbook.servicegroup import driver as group_driver

LOG = logging.getLogger(__name__)

# The pauses before a first join is tried again: half a second at first, ten at most.
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 10.0
# A rejoin is put off by up to this share of the interval: what one member finds
# after a fault, all do.
JITTER = 0.25
# After a fault that others have had as well it is by up to this many intervals, as a
# pause between two turns, and so are failing beats when the member timeout is over.
SPREAD = 0.5


@dataclasses.dataclass(frozen=True)
class Status:
    """What the last turn left.

    :ivar joined: a member of the group, as far as is known
    :ivar age: seconds since the last turn in which all was well; None before one
    :ivar error: what went wrong in the last turn, None if nothing did
    :ivar refused: that it was the backend, which refuses the user or the password
    """

    joined: bool
    age: float | None
    error: str | None
    refused: errors.GroupRefused | None = None


class Pulse:
    """The beats of one member; all but status() and rejoin() from one thread.

    :param make_driver: returns the member's driver, unconnected
    :param group: to be a member of
    :param interval: seconds between two turns
    :param rng: source of jitter
    :param clock: monotonic seconds
    :param wait: waits as many seconds, or returns True at once when stopping
    """

    def __init__(
        self,
        make_driver: Callable[[], group_driver.GroupDriver],
        group: str,
        interval: float,
        *,
        rng: random.Random,
        clock: Callable[[], float],
        wait: Callable[[float], bool],
        on_rejoin: Callable[[], None] | None = None,
    ) -> None:
        self._on_rejoin = on_rejoin
        self.joined = threading.Event()
        self._make_driver = make_driver
        self._group = group
        self._interval = interval
        self._rng = rng
        self._pauses = backoff.Backoff(FIRST_PAUSE, LONGEST_PAUSE, rng)
        self._clock = clock
        self._wait = wait
        self._driver: group_driver.GroupDriver | None = None
        self._former: group_driver.GroupDriver | None = None
        self._renamed = threading.Event()
        self._was_member = False
        self._asked = threading.Event()
        # When to join, and why, where that is put off; None: nothing is.
        self._put_off: tuple[float, str] | None = None
        self._failures = 0
        self._fault_since = 0.0
        self._last_good: float | None = None
        self._error: str | None = None
        self._refused: errors.GroupRefused | None = None

    def set_interval(self, interval: float) -> None:
        """Change the seconds between two turns; from any thread."""
        self._interval = interval

    def turn(self) -> float:
        """Do one beat and all that it takes; never fails.

        :returns: seconds to wait before the next
        """
        began = self._clock()
        early = self._put_off_for(began)
        if early > 0:
            return early
        try:
            rejoined = self._beat()
        except Exception as exc:  # noqa: BLE001 - the beat must survive anything
            self._put_off = None
            self._failed(exc, began)
        else:
            if self._put_off is not None:
                return self._put_off_for(self._clock())
            self._succeeded(rejoined, began)
        return self._pause(self._clock() - began)

    def rejoin(self) -> None:
        """Make the next turn join again whatever is seen; from any thread."""
        self._asked.set()

    def rename(self) -> None:
        """Make the next turn join under the name that make_driver uses from now on.

        The membership under the former name is given up after that. From any thread.
        """
        self._renamed.set()

    def status(self) -> Status:
        """Return what the last turn left; from any thread."""
        last = self._last_good
        return Status(
            joined=self.joined.is_set(),
            age=None if last is None else self._clock() - last,
            error=self._error,
            refused=self._refused,
        )

    def leave(self) -> None:
        """Leave the group and disconnect; never fails, takes two calls' time."""
        driver, self._driver = self._driver, None
        self.joined.clear()
        self._give_up_former()
        if driver is not None:
            self._give_up(driver)

    def _give_up(self, driver: group_driver.GroupDriver) -> None:
        try:
            driver.leave(self._group)
        except Exception as exc:  # noqa: BLE001 - nothing may keep a stop from ending
            LOG.warning(
                "Could not leave group %s, the membership expires: %s",
                self._group,
                exc,
            )
        with contextlib.suppress(Exception):
            driver.stop()

    def _give_up_former(self) -> None:
        former, self._former = self._former, None
        if former is not None:
            self._give_up(former)

    def _part_from_name(self) -> None:
        """Keep the connection of the former name until the new one has joined."""
        renamed = self._make_driver()  # not connected
        if self._driver is not None and self._driver.member == renamed.member:
            # Made after the name had changed, before we were told so: leaving by it
            # would take back the membership of the new name.
            return
        self._give_up_former()
        self._former, self._driver = self._driver, None
        self.joined.clear()

    def _beat(self) -> str | None:
        """Return why the group was joined, None if there was no need."""
        if self._renamed.is_set():
            self._renamed.clear()
            self._part_from_name()
        driver = self._connected()
        late, self._put_off = self._put_off, None
        reason = late[1] if late else self._reason_to_join(driver)
        if reason is None:
            reason = self._look(driver)
            if reason is None:
                return None
            if self._failures:
                # Others have found the same, after the same fault.
                self.joined.clear()
                wait = self._rng.uniform(0, self._interval * SPREAD)
                self._put_off = self._clock() + wait, reason
                return None
        self.joined.clear()
        # Cleared before the join: one that is asked for during it counts anew.
        self._asked.clear()
        if (
            self._was_member
            and late is None
            and self._wait(self._rng.uniform(0, self._jitter()))
        ):
            return None  # stopping
        driver.join(self._group)
        if self._former is not None:
            reason = "it was granted another name"
            self._give_up_former()
        return reason

    def _look(self, driver: group_driver.GroupDriver) -> str | None:
        """Beat; return why the group has to be joined, None if there is no need."""
        try:
            driver.beat()
            if driver.is_visible(self._group):
                return None
        except errors.GroupVanished:
            return "the backend had lost the group"
        return "it was no longer seen in the group"

    def _put_off_for(self, now: float) -> float:
        """Return for how many seconds a join is still put off, 0 where none is."""
        return 0.0 if self._put_off is None else max(self._put_off[0] - now, 0.0)

    def _connected(self) -> group_driver.GroupDriver:
        if self._driver is None:
            driver = self._make_driver()
            try:
                driver.start()
            except BaseException:
                with contextlib.suppress(Exception):
                    driver.stop()
                raise
            self._driver = driver
        return self._driver

    def _reason_to_join(self, driver: group_driver.GroupDriver) -> str | None:
        if not self._was_member:
            return "it is new"
        if self._asked.is_set():
            if not driver.traits.visibility_check:
                return "it was asked to"
            # The beat that follows sees for itself; who asked may have looked
            # before this member had joined.
            self._asked.clear()
        if not self.joined.is_set():
            return "it had fallen out of the group"
        silent = self._silent()
        if silent > driver.member_timeout and not driver.traits.late_beat_counts:
            # It may still look like a member, until the first reader looks.
            return f"its last beat was {silent:.0f} s ago"
        return None

    def _silent(self) -> float:
        return self._clock() - (self._last_good or 0.0)

    def _is_given_up(self) -> bool:
        """Return whether nobody believes in beats of it that the server still has."""
        driver = self._driver
        return (
            driver is not None
            and driver.traits.keeps_what_it_is_sent
            and self._silent() > driver.member_timeout
        )

    def _jitter(self) -> float:
        return self._interval * JITTER

    def _failed(self, exc: Exception, began: float) -> None:
        self._failures += 1
        expected = isinstance(exc, errors.MusterbookError)
        self._refused = exc if isinstance(exc, errors.GroupRefused) else None
        self._error = str(exc) if expected else f"{type(exc).__name__}: {exc}"
        if self._failures == 1:
            self._fault_since = began
            LOG.warning(
                "Group %s: beat failed, trying again until it works: %s",
                self._group,
                self._error,
                exc_info=None if expected else exc,
            )

    def _succeeded(self, rejoined: str | None, began: float) -> None:
        failures, self._failures = self._failures, 0
        took = f" after {self._clock() - self._fault_since:.1f} s" if failures else ""
        if rejoined is not None and self._was_member:
            LOG.warning(
                "Joined again: group %s%s, because %s", self._group, took, rejoined
            )
            if self._on_rejoin is not None:
                self._on_rejoin()
        elif rejoined is not None:
            LOG.info("Joined group %s%s", self._group, took)
        elif failures:
            LOG.warning("Group %s: beats work again%s", self._group, took)
        self._was_member = True
        self._error = self._refused = None
        # When the turn began: the backend may have taken the beat at once and
        # been slow to say so.
        self._last_good = began
        self.joined.set()

    def _pause(self, spent: float) -> float:
        if self._failures and not self._was_member:
            return self._pauses.pause()
        if self._failures and spent > self._interval / 2 and self._is_given_up():
            # A server that hangs gets to all that it was sent, in the end.
            return self._interval * self._rng.uniform(1, 1 + SPREAD)
        # While beats fail there is a pause even when each takes its full time.
        shortest = self._interval / 4 if self._failures else 0.0
        return max(self._interval - spent, shortest)
