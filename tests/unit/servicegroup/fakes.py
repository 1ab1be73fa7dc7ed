"""A group driver in memory whose faults a test switches on."""

from collections.abc import Callable
import threading

from musterbook import errors
from musterbook.servicegroup import driver
from musterbook.servicegroup import traits


class FakeDriver(driver.GroupDriver):
    """One member of one group; counts what is done to it."""

    traits = traits.TRAITS["redis"]
    member_timeout = 10.0

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.note: Callable[[str], None] = lambda call: None
        self.fail: dict[str, list[Exception]] = {}
        self.members: set[str] = set()
        self.blocked = threading.Event()
        self.free = threading.Event()
        self.free.set()

    def _do(self, name: str) -> None:
        self.calls.append(name)
        self.note(name)
        if not self.free.is_set():
            self.blocked.set()
            self.free.wait(60)
        if self.fail.get(name):
            raise self.fail[name].pop(0)

    def start(self) -> None:
        self._do("start")

    def stop(self) -> None:
        self._do("stop")

    def join(self, group: str) -> None:
        self._do("join")
        self.members.add(group)

    def leave(self, group: str) -> None:
        self._do("leave")
        self.members.discard(group)

    def beat(self) -> None:
        self._do("beat")

    def is_visible(self, group: str) -> bool:
        self._do("is_visible")
        return group in self.members

    def get_all(self, group: str) -> frozenset[str]:
        self._do("get_all")
        return frozenset({"me#1"} if group in self.members else ())


def unavailable() -> errors.GroupUnavailable:
    return errors.GroupUnavailable(backend="fake", reason="switched off")


def vanished() -> errors.GroupVanished:
    return errors.GroupVanished(backend="fake", group="compute")
