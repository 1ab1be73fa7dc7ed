"""When a reader last found a member in a group, on the reader's own clock.

No backend can be asked for it in a way that two machines understand: Redis and
memcached know how long a beat still counts, ZooKeeper and etcd keep sessions and
leases, a file has another machine's time. So the reader remembers what it saw.
"""

from collections.abc import Callable
import dataclasses
import datetime
import threading

#: How long those who left are remembered.
KEPT = datetime.timedelta(days=1)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


@dataclasses.dataclass
class _Group:
    members: frozenset[str]
    read_at: datetime.datetime
    gone: dict[str, datetime.datetime] = dataclasses.field(default_factory=dict)


class Sightings:
    """What was read of groups, and when; from any thread.

    :param now: the wall clock, aware
    """

    def __init__(self, now: Callable[[], datetime.datetime] = _now) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._groups: dict[str, _Group] = {}

    def note(self, group: str, members: frozenset[str]) -> None:
        """Take in who was found in the group just now."""
        now = self._now()
        with self._lock:
            known = self._groups.setdefault(group, _Group(members, now))
            for member in known.members - members:
                known.gone[member] = known.read_at
            for member in known.gone.keys() & members:
                del known.gone[member]
            forgotten = [m for m, last in known.gone.items() if now - last > KEPT]
            for member in forgotten:
                del known.gone[member]
            known.members, known.read_at = members, now

    def last(self, group: str, member: str) -> datetime.datetime | None:
        """Return when the member was last found; None: not within a day."""
        with self._lock:
            known = self._groups.get(group)
            if known is None:
                return None
            if member in known.members:
                return known.read_at
            return known.gone.get(member)
