"""Members that use one thread and, where the client allows it, one connection.

For the many hosts of one process (musterbook-hollow): a member of its own thread and
connection costs a process about as much as the rest of a hollow host, and more than
2,000 of them don't work in one process (tooz 9.1). What is sent is the same.
"""

from collections.abc import Callable
import threading
from typing import TypeVar

from musterbook.servicegroup import clients
from musterbook.servicegroup import driver
from musterbook.servicegroup import lane
from musterbook.servicegroup import tooz_driver
from musterbook.servicegroup import url as group_url

T = TypeVar("T")
S = TypeVar("S")


class Road:
    """Makes drivers whose calls run one after another in one thread.

    Any thread may use it and its drivers. A call that doesn't come back costs all of
    them their thread and their connections; the next call of each starts anew.

    :param url: where the group is
    :param option: the option that an error in the URL is blamed on
    :raises ConfigurationError: the backend's client isn't installed
    """

    def __init__(
        self, url: group_url.GroupURL, option: str = "servicegroup_tooz_url"
    ) -> None:
        self._url = url
        self._option = option
        self._lock = threading.Lock()  # guards what follows
        self._seats = 0
        self._lane: lane.Lane[None] | None = None
        self._coordinators = self._new_coordinators()

    def driver(self, member: str) -> driver.GroupDriver:
        """Return an unconnected driver of a member."""
        return tooz_driver.ToozDriver(
            self._url,
            member,
            make_lane=lambda _name, make, let_go: _Seat(self, make, let_go),
            make_coordinator=lambda name: self._coordinators(name),
        )

    def take(self) -> "lane.Lane[None]":
        """Return the thread to use, for one more until give_back()."""
        with self._lock:
            self._seats += 1
            if self._lane is None or not self._lane.usable:
                name = f"groups-{self._url.scheme}"
                self._lane = lane.Lane(name, lambda: None, lambda _: None)
                # The connection goes with the thread: it may be what hangs.
                self._coordinators = self._new_coordinators()
            return self._lane

    def give_back(self) -> None:
        """Use it no more; the last one ends the thread."""
        with self._lock:
            self._seats -= 1
            if not self._seats and self._lane is not None:
                self._lane.give_up()

    def _new_coordinators(self) -> clients.Factory:
        return clients.factory(self._url, self._option, shared=True)


class _Seat(lane.AnyLane[S]):
    """One driver's part of a road, with a resource of its own."""

    def __init__(
        self, road: Road, make: Callable[[], S], let_go: Callable[[S], None]
    ) -> None:
        self._road = road
        self._make = make
        self._let_go = let_go
        self._resource: S | None = None
        self._lane = road.take()
        self._open = True

    @property
    def alive(self) -> bool:
        return self._lane.alive

    def call(self, function: Callable[[S], T], limit: float) -> T:
        if not self._lane.usable:
            # Another member's call hung, and took what this one had with it.
            self._resource = None
            self._road.give_back()
            self._lane = self._road.take()

        def work(_: None) -> T:
            if self._resource is None:
                self._resource = self._make()
            return function(self._resource)

        return self._lane.call(work, limit)

    def give_up(self) -> None:
        self._lane.give_up()
        self._leave()

    def stop(self, limit: float) -> bool:
        def work(_: None) -> None:
            if self._resource is not None:
                self._let_go(self._resource)

        try:
            self._lane.call(work, limit)
        except lane.Stuck:
            self._lane.give_up()
            return False
        finally:
            self._leave()
        return True

    def _leave(self) -> None:
        if self._open:
            self._open = False
            self._road.give_back()
