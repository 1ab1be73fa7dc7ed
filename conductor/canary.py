"""A member that is there to prove that the group backend keeps members.

When everybody has vanished and nobody answers, the backend may be what is broken. So
the leader puts a member of its own into a group of its own, through a connection of its
own, and looks at each turn whether that one stays.
"""

from collections.abc import Callable
import random

from musterbook import errors
from musterbook.servicegroup import beat
from musterbook.servicegroup import driver as group_driver

#: Not the agents' group: with a member in it, that one could never be seen to vanish.
GROUP = "canary"


class Canary:
    """Joins when it is first wanted, and stays till the end; for one thread.

    :param make_driver: makes an unconnected driver for a member of this name
    :param name: unique among living processes
    :param interval: seconds between two beats
    """

    def __init__(
        self,
        make_driver: Callable[[str], group_driver.GroupDriver],
        name: str,
        interval: float,
    ) -> None:
        self._make_driver = make_driver
        self._member = f"canary-{name}"
        self._interval = interval
        self._beat: beat.Beat | None = None
        self._reader: group_driver.GroupDriver | None = None

    def want(self, wanted: bool) -> None:
        """Join, if it isn't there yet. A cheap call, for each turn."""
        if not wanted or self._beat is not None:
            return
        self._beat = beat.Beat(
            lambda: self._make_driver(self._member),
            GROUP,
            self._interval,
            rng=random.Random(self._member),  # noqa: S311 - jitter
        )
        self._beat.start()

    def look(self, poll: frozenset[str] | errors.GroupError) -> bool | None:
        """Return whether it is in its group; None: it isn't to be, or nobody can tell.

        Bounded in time as the driver's calls are.

        :param poll: what came of the look at the agents' group. If the backend doesn't
            answer it isn't asked again
        """
        if self._beat is None or isinstance(poll, errors.GroupUnavailable):
            return None
        try:
            if self._reader is None:
                self._reader = self._connect()
            found = self._member in self._reader.get_all(GROUP)
        except errors.GroupVanished:
            found = False
        except errors.GroupError:
            return None
        if not found and self._beat.joined.is_set():
            self._beat.rejoin()  # now, rather than at its next beat
        return found

    def stop(self) -> None:
        """Leave; returns within seconds, whatever the backend does."""
        if self._beat is not None:
            self._beat.stop(timeout=3.0)
        if self._reader is not None:
            self._reader.stop()
        self._beat = self._reader = None

    def _connect(self) -> group_driver.GroupDriver:
        made = self._make_driver(f"{self._member}-reader")
        try:
            made.start()
        except BaseException:
            made.stop()  # it has a thread, connected or not
            raise
        return made
