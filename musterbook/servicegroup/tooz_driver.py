"""The group driver over tooz: bounded in time, with errors of ours only."""

from collections.abc import Callable
import contextlib
import dataclasses
import datetime
import logging
import math
import threading
import time
from typing import Any
from typing import TypeVar

from tooz import coordination

from musterbook import errors
from musterbook.servicegroup import clients
from musterbook.servicegroup import driver
from musterbook.servicegroup import failures
from musterbook.servicegroup import lane
from musterbook.servicegroup import sightings
from musterbook.servicegroup import traits
from musterbook.servicegroup import url as group_url

LOG = logging.getLogger(__name__)

T = TypeVar("T")

# Calls that hang at the same time, each with a thread of its own, before further
# ones are refused at once. Only a hung file system or a client's bug gets here.
MAX_STUCK = 8
# A beat is recent for this part of the member timeout.
_RECENT = 2


@dataclasses.dataclass
class _Session:
    """A started coordinator and the groups that it, and no earlier one, joined.

    :ivar beaten: when it last beat, as it does when it starts, if that has worked;
        monotonic
    """

    coordinator: coordination.CoordinationDriver
    beaten: float
    joined: set[str] = dataclasses.field(default_factory=set)


#: Makes a lane of a name, and of what makes and lets go its resource.
LaneMaker = Callable[
    [str, Callable[[], _Session], Callable[[_Session], None]],
    lane.AnyLane[_Session],
]


class ToozDriver(driver.GroupDriver):
    """One member's, or one reader's, connection to a group backend.

    Calls come from any thread and run one after another in a thread of the
    driver. A call that isn't back in time raises GroupUnavailable, its thread and
    coordinator are given up (nothing can end them), and the next call starts
    with new ones, as member of nothing until join().

    :param url: where the group is
    :param member: this member's name, ``host#incarnation`` for an agent
    :param call_timeout: seconds that any call may take
    :param option: the option that an error in the URL is blamed on
    :param make_lane: makes where calls run; None: a thread of this driver's own
    :param make_coordinator: makes tooz's part of a member; None: with a connection of
        its own
    :raises ConfigurationError: the backend's client isn't installed
    """

    def __init__(
        self,
        url: group_url.GroupURL,
        member: str,
        call_timeout: float = 3.0,
        *,
        option: str = "servicegroup_tooz_url",
        make_lane: LaneMaker | None = None,
        make_coordinator: clients.Factory | None = None,
    ) -> None:
        self.traits = traits.TRAITS[url.scheme]
        self._url = url
        self._member = member
        self._call_timeout = call_timeout
        self._make_coordinator = make_coordinator or clients.factory(url, option)
        self._make_lane: LaneMaker = make_lane or lane.Lane
        self._lane: lane.AnyLane[_Session] | None = None
        self._stuck: list[lane.AnyLane[_Session]] = []
        self._lane_lock = threading.Lock()
        self._sightings = sightings.Sightings()

    @property
    def member(self) -> str:
        """The name that this one joins groups under."""
        return self._member

    @property
    def member_timeout(self) -> float:
        """Seconds of silence after which the backend drops a member."""
        return self._url.member_timeout

    def start(self) -> None:
        """Connect; every other call does so too when need be."""
        self._call(lambda session: None)

    def stop(self) -> None:
        """Disconnect within call_timeout; a member that joined expires."""
        with self._lane_lock:
            old, self._lane = self._lane, None
        if old is not None and not old.stop(self._call_timeout):
            LOG.warning("%s did not disconnect; its thread hangs", self._url.label)

    def join(self, group: str) -> None:
        """Become a member of the group, also when the backend says one is."""

        def work(session: _Session) -> None:
            coordinator, name = session.coordinator, group.encode()
            # On redis and memcached an expired beat makes readers drop a member
            # that has just joined; on etcd the lease is renewed here. Who found out
            # by a beat that it has to join needs no other.
            if time.monotonic() - session.beaten > self.member_timeout / _RECENT:
                self._beat(session)
            try:
                self._enter(coordinator, name)
            except coordination.GroupNotCreated:
                # Rare, and so not asked for first: after a fault all join at once.
                with contextlib.suppress(coordination.GroupAlreadyExist):
                    self._get(coordinator.create_group(name))
                self._enter(coordinator, name)
            session.joined.add(group)

        self._call(work, group)

    def leave(self, group: str) -> None:
        """Leave the group; leaving what one is not in is no error."""

        def work(session: _Session) -> None:
            session.joined.discard(group)
            with contextlib.suppress(
                coordination.MemberNotJoined, coordination.GroupNotCreated
            ):
                self._get(session.coordinator.leave_group(group.encode()))

        self._call(work, group)

    def beat(self) -> None:
        """Tell the backend that this member lives."""
        self._call(self._beat)

    def is_visible(self, group: str) -> bool:
        """Return whether others see this member in the group right now.

        False as well when this connection is newer than the membership.
        """

        def work(session: _Session) -> bool:
            coordinator, name = session.coordinator, group.encode()
            if group not in session.joined:
                return False
            try:
                self._get(
                    coordinator.get_member_capabilities(name, self._member.encode())
                )
            except coordination.MemberNotJoined:
                return False
            return True

        return self._call(work, group)

    def get_all(self, group: str) -> frozenset[str]:
        """Return the names of all members; never empty because of an error."""

        def work(session: _Session) -> frozenset[str]:
            members = self._get(session.coordinator.get_members(group.encode()))
            return frozenset(m.decode(errors="replace") for m in members)

        found = self._call(work, group)
        self._sightings.note(group, found)
        return found

    def get_updated_time(self, group: str, member: str) -> datetime.datetime | None:
        """Read the group and return when the member was last found in it.

        :returns: by this process's clock (UTC); None if this driver hasn't seen the
            member for a day
        """
        self.get_all(group)
        return self._sightings.last(group, member)

    # -- how calls run -----------------------------------------------------------

    def _call(self, work: Callable[[_Session], T], group: str = "") -> T:
        current = self._get_lane()
        try:
            return current.call(work, self._call_timeout)
        except lane.Stuck:
            self._give_up(current)
            raise self._unavailable(
                f"no answer within {self._call_timeout:g} s"
            ) from None
        except coordination.GroupNotCreated:
            raise errors.GroupVanished(backend=self._url.label, group=group) from None
        except Exception as exc:  # noqa: BLE001 - clients raise whatever they like
            refusal = failures.refusal(exc)
            if refusal is not None:
                raise errors.GroupRefused(
                    backend=self._url.label, reason=refusal
                ) from None
            raise self._unavailable(failures.describe(exc)) from None

    def _get_lane(self) -> lane.AnyLane[_Session]:
        with self._lane_lock:
            if self._lane is None:
                self._stuck = [old for old in self._stuck if old.alive]
                if len(self._stuck) >= MAX_STUCK:
                    raise self._unavailable(
                        f"{len(self._stuck)} earlier calls have not come back"
                    )
                self._lane = self._make_lane(
                    f"group-{self._url.scheme}", self._connect, self._disconnect
                )
            return self._lane

    def _give_up(self, stuck: lane.AnyLane[_Session]) -> None:
        with self._lane_lock:
            if self._lane is stuck:
                self._lane = None
                self._stuck.append(stuck)
        stuck.give_up()

    def _unavailable(self, reason: str) -> errors.GroupUnavailable:
        return errors.GroupUnavailable(
            backend=self._url.label, reason=self._url.scrub(reason)
        )

    # -- what runs in the lane's thread ------------------------------------------

    def _connect(self) -> _Session:
        coordinator = self._make_coordinator(self._member.encode())
        began = time.monotonic()
        try:
            # Without tooz's heart: its thread goes on beating, without an error,
            # for a member that the backend has dropped.
            coordinator.start(start_heart=False)
        except BaseException:
            clients.let_go(coordinator)
            raise
        return _Session(coordinator, began)

    def _enter(self, coordinator: coordination.CoordinationDriver, name: bytes) -> None:
        """Join a group that there is."""
        try:
            self._get(coordinator.join_group(name))
        except coordination.MemberAlreadyExist:
            # An earlier coordinator's entry, bound to a lease or session that nobody
            # keeps alive: it must be replaced, not believed.
            with contextlib.suppress(coordination.MemberNotJoined):
                self._get(coordinator.leave_group(name))
            self._get(coordinator.join_group(name))

    def _beat(self, session: _Session) -> None:
        began, session.beaten = time.monotonic(), -math.inf
        session.coordinator.heartbeat()
        session.beaten = began

    def _disconnect(self, session: _Session) -> None:
        clients.let_go(session.coordinator)

    def _get(self, result: coordination.CoordAsyncResult[Any]) -> Any:
        # A little less than the caller waits: kazoo's wait then ends in time, and
        # its connection, which mends itself, needn't be given up.
        return result.get(timeout=self._call_timeout * 0.9)
