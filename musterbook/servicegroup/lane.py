"""A thread for calls that may never come back.

No client below tooz can be trusted to end a call: ZooKeeper's get() waits without
limit for a server that is gone, a file group on a hung file system can't even be
killed. The caller waits here for as long as it has agreed to; a call that takes
longer keeps its thread, and the lane is given up with whatever it was using.
"""

from collections.abc import Callable
from concurrent import futures
import dataclasses
import queue
import threading
from typing import Any
from typing import Generic
from typing import Protocol
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Stuck(Exception):
    """A call took longer than its limit, or was queued behind one that did."""


class AnyLane(Protocol[R_co]):
    """What a driver needs of a lane; Lane says what each means."""

    @property
    def alive(self) -> bool:
        """Whether its thread still runs."""

    def call(self, function: Callable[[R_co], T], limit: float) -> T:
        """Run function(resource) and return its result."""

    def give_up(self) -> None:
        """Take no more calls."""

    def stop(self, limit: float) -> bool:
        """Let the resource go; return whether that has ended."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Task(Generic[R]):
    function: Callable[[R], Any]
    future: futures.Future[Any]


class Lane(Generic[R]):
    """Runs calls one after another, each with the lane's own resource.

    The resource is made by the lane's thread before the first call (and again
    before the next one when making it failed), and let go by it at the end: what
    is used in one thread only needs no lock, whichever threads call.

    The thread is a daemon, on purpose and as an exception to the rule: Python
    joins the others at exit, and one that hangs in a backend would then keep the
    process from ending. An orderly end is stop(), which does join it.

    :param name: of the thread
    :param make: returns the resource
    :param let_go: releases it; must not fail
    """

    def __init__(
        self, name: str, make: Callable[[], R], let_go: Callable[[R], None]
    ) -> None:
        self._make = make
        self._let_go = let_go
        self._given_up = False
        self._closed = False
        self._queue_lock = threading.Lock()
        self._queue: queue.SimpleQueue[_Task[R] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    @property
    def usable(self) -> bool:
        """Whether it takes calls."""
        return not self._closed

    def call(self, function: Callable[[R], T], limit: float) -> T:
        """Run function(resource) and return its result; from any thread.

        :param limit: seconds to wait, including for earlier calls
        :raises Stuck: it didn't come back in time; the lane has to be given up
        """
        future: futures.Future[T] = futures.Future()
        with self._queue_lock:
            if self._closed:
                raise Stuck
            self._queue.put(_Task(function, future))
        # Not result(timeout): the call's own TimeoutError would look like ours.
        futures.wait([future], timeout=limit)
        if not future.done():
            raise Stuck
        return future.result()

    def give_up(self) -> None:
        """Take no more calls and fail those that wait; never blocks.

        The thread ends by itself once the call that hangs has come back.
        """
        self._given_up = True
        with self._queue_lock:
            self._closed = True
        while True:
            try:
                task = self._queue.get_nowait()
            except queue.Empty:
                break
            if task is not None:
                task.future.set_exception(Stuck())
        self._queue.put(None)

    def stop(self, limit: float) -> bool:
        """Finish what was asked, let the resource go, and join the thread.

        :param limit: seconds to wait; then the lane is given up
        :returns: whether the thread has ended
        """
        with self._queue_lock:
            self._closed = True
            self._queue.put(None)
        self._thread.join(limit)
        if self._thread.is_alive():
            self.give_up()
        return not self._thread.is_alive()

    def _run(self) -> None:
        resource: R | None = None
        while (task := self._queue.get()) is not None:
            try:
                if self._given_up:
                    raise Stuck
                if resource is None:
                    resource = self._make()
                result = task.function(resource)
            except BaseException as exc:  # noqa: BLE001 - belongs to the caller
                task.future.set_exception(exc)
            else:
                task.future.set_result(result)
            # A caller's result must not live until the next call.
            del task
        if resource is not None:
            self._let_go(resource)
