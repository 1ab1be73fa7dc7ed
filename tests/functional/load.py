"""Calls at an even pace from several callers, and what became of each."""

from collections.abc import Callable
import dataclasses
import threading
import time

from musterbook import errors
from tests import util


@dataclasses.dataclass(frozen=True)
class Done:
    """A call that has ended.

    :ivar began: on the monotonic clock
    :ivar seconds: that it took
    :ivar error: what it got instead of an answer
    """

    began: float
    seconds: float
    error: errors.MusterbookError | None


class Load:
    """Callers in threads; a context manager that waits for the last calls.

    :param call: makes one call; bounded in time
    :param rate: calls a second, of all callers together
    :param callers: at the same time
    """

    def __init__(
        self, call: Callable[[], object], rate: float = 20.0, callers: int = 8
    ) -> None:
        self._call = call
        self._pause = callers / rate
        self._lock = threading.Lock()
        self._done: list[Done] = []
        self._end = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name=f"load-{n}", args=(n / rate,))
            for n in range(callers)
        ]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def done(self) -> list[Done]:
        """Return what has ended so far."""
        with self._lock:
            return list(self._done)

    def failed(self) -> list[Done]:
        """Return those without an answer."""
        return [done for done in self.done() if done.error is not None]

    def slowest(self) -> float:
        """Return the seconds of the call that took longest."""
        return max(done.seconds for done in self.done())

    def wait_answers(self, count: int, timeout: float = 60.0) -> None:
        """Wait for so many more answers to calls that begin from now on."""
        now = time.monotonic()

        def enough() -> bool:
            new = [d for d in self.done() if d.began > now and d.error is None]
            return len(new) >= count

        util.wait_until(enough, timeout, f"{count} answers")

    def _run(self, delay: float) -> None:
        due = time.monotonic() + delay
        while not self._end.wait(max(due - time.monotonic(), 0.0)):
            due = max(due + self._pause, time.monotonic())
            self._once()

    def _once(self) -> None:
        began, error = time.monotonic(), None
        try:
            self._call()
        except errors.MusterbookError as exc:
            error = exc
        with self._lock:
            self._done.append(Done(began, time.monotonic() - began, error))
