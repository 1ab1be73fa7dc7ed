"""The closed loop: callers that call again as soon as they are answered."""

from collections.abc import Callable
import random
import threading
import time
from typing import Any

Call = Callable[[random.Random], None]


def run(calls: list[Call], *, seconds: float = 0.0, count: int = 0) -> dict[str, Any]:
    """Let one thread for each of ``calls`` call it again and again.

    :param seconds: no call is begun later; or
    :param count: calls to make altogether
    :return: ``calls``, ``seconds`` until the last answer, ``p50_ms``, ``p99_ms``
    :raises Exception: what a call raised, the first one; the others end soon
    """
    crew = [_Caller(call, number) for number, call in enumerate(calls)]
    share = -(-count // len(crew))
    started = time.monotonic()
    deadline = started + seconds
    for caller in crew:
        caller.start(deadline if not count else None, share)
    for caller in crew:
        caller.join()
    took = time.monotonic() - started
    for caller in crew:
        if caller.failure is not None:
            raise caller.failure
    latencies = sorted(took for caller in crew for took in caller.latencies)
    return {
        "calls": len(latencies),
        "seconds": took,
        "p50_ms": percentile(latencies, 0.50) * 1000,
        "p99_ms": percentile(latencies, 0.99) * 1000,
    }


def percentile(ordered: list[float], share: float) -> float:
    """Return the value that this share of the ordered values doesn't exceed."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class _Caller:
    """One thread; the maker starts and joins it, then reads."""

    def __init__(self, call: Call, number: int) -> None:
        self.latencies: list[float] = []
        self.failure: Exception | None = None
        self._call = call
        self._random = random.Random()
        self._number = number

    def start(self, deadline: float | None, share: int) -> None:
        self._thread = threading.Thread(
            target=self._run, args=(deadline, share), name=f"caller-{self._number}"
        )
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _run(self, deadline: float | None, share: int) -> None:
        try:
            before = time.monotonic()
            while before < deadline if deadline else len(self.latencies) < share:
                self._call(self._random)
                after = time.monotonic()
                self.latencies.append(after - before)
                before = after
        except Exception as exc:  # noqa: BLE001  # told by run(), in the maker's thread
            self.failure = exc
