"""What a group driver must do, and what it states about itself.

A driver is one connection to a group backend, made by and for one process (after
a fork: a new one). Its calls may come from any thread; each is bounded in time,
whatever the backend does, and fails with an error of ours only.
"""

import abc
import dataclasses
import datetime


@dataclasses.dataclass(frozen=True)
class Traits:
    """What a backend guarantees, as data; the table in the docs is made from it.

    :ivar name: of the backend
    :ivar extra: of this package that installs its client; "" where none is needed
    :ivar visibility_check: a member can ask whether it is in the group
    :ivar check: what asking costs, each beat
    :ivar join: what a join, or leaving, costs
    :ivar read: what reading the group costs
    :ivar clock: whose clock says that a member was silent for too long
    :ivar survives_restart: members outlive a restart of the server with its data
    :ivar notices_dead_server: a beat fails when the server is gone
    :ivar forgets: may lose members or the group while all runs well
    :ivar max_members: advised most members of one group
    :ivar note: the limit that an operator must know
    :ivar keeps_what_it_is_sent: one that hangs gets to all beats that were given up
        (our client for ZooKeeper asks no second time before the first has an answer)
    :ivar late_beat_counts: who can beat and is seen after a member timeout of silence
        is a member to stay; else the first reader may still drop it
    """

    name: str
    extra: str
    visibility_check: bool
    check: str
    join: str
    read: str
    clock: str
    survives_restart: bool
    notices_dead_server: bool
    forgets: bool
    max_members: int
    note: str
    keeps_what_it_is_sent: bool = False
    late_beat_counts: bool = False


class GroupDriver(abc.ABC):
    """One connection to a group backend.

    Every method raises GroupUnavailable when the backend doesn't answer in time
    or refuses, and GroupVanished when it has lost the group.
    """

    traits: Traits

    @property
    @abc.abstractmethod
    def member(self) -> str:
        """The name that this one joins groups under."""

    @property
    @abc.abstractmethod
    def member_timeout(self) -> float:
        """Seconds of silence after which the backend drops a member."""

    @abc.abstractmethod
    def start(self) -> None:
        """Connect."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Disconnect, quietly and in bounded time; a member that joined expires."""

    @abc.abstractmethod
    def join(self, group: str) -> None:
        """Become (or again become) a member of the group, creating it if need be."""

    @abc.abstractmethod
    def leave(self, group: str) -> None:
        """Leave the group; leaving what one is not in is no error."""

    @abc.abstractmethod
    def beat(self) -> None:
        """Tell the backend that this member lives."""

    @abc.abstractmethod
    def is_visible(self, group: str) -> bool:
        """Return whether others see this member in the group right now."""

    @abc.abstractmethod
    def get_all(self, group: str) -> frozenset[str]:
        """Return the names of all members; never empty because of an error."""

    def is_up(self, group: str, member: str) -> bool:
        """Return whether the member is in the group; costs as much as get_all().

        For one question only: conductors answer from what their leader has read.
        """
        return member in self.get_all(group)

    def get_updated_time(self, group: str, member: str) -> datetime.datetime | None:
        """Read the group and return when the member was last known to live.

        :returns: by this process's clock (UTC); None if it isn't known
        """
        return (
            datetime.datetime.now(datetime.UTC) if self.is_up(group, member) else None
        )
