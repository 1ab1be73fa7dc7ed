"""Beats through the conductor, which the database stamps: servicegroup_driver db.

There is no group and no connection: a member is who has beaten lately. Everything goes
by what the process has anyway, its way to a conductor, so that this room needs neither
RPC nor a database.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import dataclasses
import datetime

from musterbook import errors
from musterbook.servicegroup import driver
from musterbook.servicegroup import traits

_BACKEND = "db (beats through the conductor)"


@dataclasses.dataclass(frozen=True)
class Seen:
    """The last beat of a member.

    :ivar at: when it came, by the database's clock
    :ivar age: seconds since then, both ends by that clock
    """

    at: datetime.datetime
    age: float


@dataclasses.dataclass(frozen=True)
class Ways:
    """What leads to the records of beats; bounded in time, errors are ours.

    :ivar beat: notes that this process lives, in so many seconds at most; an answer
        that comes later is of no use and is dropped
    :ivar read: returns the last beats by member, in so many seconds at most
    """

    beat: Callable[[float], None]
    read: Callable[[float], Mapping[str, Seen]]


@dataclasses.dataclass(frozen=True)
class Times:
    """In seconds.

    :ivar member_timeout: without a beat, after which a member beats anew
    :ivar service_down_time: for which a beat counts
    :ivar call_timeout: that a beat may take, less than between two
    """

    member_timeout: float
    service_down_time: float
    call_timeout: float


class DbDriver(driver.GroupDriver):
    """One member, or a reader, of the only group that there is; any thread.

    A caller that waits for each beat before it begins the next (see beat.Beat) has one
    at a time on its way, however slow the other side is.

    :param ways: to a conductor, or to its records
    :param member: ``host#incarnation`` of an agent
    :param times: returns the times as configured now
    """

    traits = traits.DB

    def __init__(
        self,
        ways: Ways,
        member: str,
        times: Callable[[], Times],
    ) -> None:
        self._ways = ways
        self._member = member
        self._times = times

    @property
    def member(self) -> str:
        """The name of this process among the granted ones."""
        return self._member

    @property
    def member_timeout(self) -> float:
        """Seconds without a beat that count as a break."""
        return self._times().member_timeout

    def start(self) -> None:
        """Do nothing: there is no connection of its own."""

    def stop(self) -> None:
        """Do nothing; the beats end, and count for a while."""

    def join(self, group: str) -> None:
        """Beat: who beats is there."""
        self.beat()

    def leave(self, group: str) -> None:
        """Do nothing: the goodbye has told the conductor."""

    def beat(self) -> None:
        """Have this process's life noted.

        :raises GroupUnavailable: not in time, or the conductor refuses
        """
        with _translated():
            self._ways.beat(self._times().call_timeout)

    def is_visible(self, group: str) -> bool:
        """Return True: a beat that was answered is stored."""
        return True

    def get_all(self, group: str) -> frozenset[str]:
        """Return who has beaten within service_down_time, by the database's clock."""
        counts = self._times().service_down_time
        return frozenset(
            member for member, seen in self._read().items() if abs(seen.age) <= counts
        )

    def get_updated_time(self, group: str, member: str) -> datetime.datetime | None:
        """Return when the member beat last, by the database's clock; None: never."""
        seen = self._read().get(member)
        return None if seen is None else seen.at

    def _read(self) -> Mapping[str, Seen]:
        with _translated():
            return self._ways.read(self._times().call_timeout)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Turn errors of the way into those of a group."""
    try:
        yield
    except errors.GroupError:
        raise
    except errors.MusterbookError as exc:
        raise errors.GroupUnavailable(backend=_BACKEND, reason=exc.message) from exc
