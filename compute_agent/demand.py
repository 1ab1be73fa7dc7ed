"""Audits that somebody asks for: many requests, few audits."""

from collections.abc import Mapping
import dataclasses
import threading
import time
from typing import Any

from compute_agent import resource_tracker
from musterbook import errors

#: Requests that wait at the same time; each of them holds a thread that serves.
MOST_WAITING = 8
#: Nodes of each kind, and failures, that an answer names.
_NAMED = 20
#: Seconds that pause() waits at least: whoever asks again and again while nobody is
#: there to save anything causes no more than one try a second.
_LEAST_PAUSE = 1.0


@dataclasses.dataclass(frozen=True)
class Report:
    """How an audit ended.

    :ivar result: what it did; None: it could not
    :ivar error: why it could not
    """

    seconds: float
    result: resource_tracker.AuditResult | None = None
    error: errors.MusterbookError | None = None


class Demand:
    """Who asks gets a ticket; an audit that begins later serves all tickets so far.

    An audit in hand doesn't serve whoever asks now: it may have read the source
    before. So however many ask at once, one audit follows the one in hand, if any.

    ask(), wait() and close() may be called from any thread, begin() and end() by the
    one that audits.

    :ivar wanted: set while somebody has asked and no audit has begun since
    """

    def __init__(self) -> None:
        self.wanted = threading.Event()
        self._changed = threading.Condition()  # guards what follows
        self._asked = 0
        self._begun = 0
        self._served = 0
        self._waiting = 0
        self._closed = False
        self._began_at = 0.0
        self._report: Report | None = None

    def ask(self) -> int:
        """Ask for an audit; return the ticket. Never waits."""
        with self._changed:
            self._asked += 1
            self.wanted.set()
            self._changed.notify_all()
            return self._asked

    def begin(self) -> None:
        """Say that an audit begins, before it reads anything."""
        with self._changed:
            self._begun = self._asked
            self._began_at = time.monotonic()
            self.wanted.clear()

    def end(
        self,
        result: resource_tracker.AuditResult | None,
        error: errors.MusterbookError | None = None,
    ) -> None:
        """Say how it ended."""
        with self._changed:
            took = time.monotonic() - self._began_at
            self._served = self._begun
            self._report = Report(took, result, error)
            self._changed.notify_all()

    def wait(self, ticket: int, seconds: float) -> Report | None:
        """Return how an audit ended that began after the ticket was given.

        :return: None: it didn't end in time, too many wait already, or all is closed
        """
        with self._changed:
            if self._waiting >= MOST_WAITING and self._served < ticket:
                return None
            self._waiting += 1
            try:
                self._changed.wait_for(
                    lambda: self._closed or self._served >= ticket, seconds
                )
            finally:
                self._waiting -= 1
            return self._report if self._served >= ticket else None

    def close(self) -> None:
        """Let nobody wait any longer; there will be no audit."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def pause(self, seconds: float) -> bool:
        """Wait so many seconds, or less when somebody asks; return whether to go on.

        False: it was closed.
        """
        least = min(seconds, _LEAST_PAUSE)
        with self._changed:
            self._changed.wait_for(lambda: self._closed, least)
            self._changed.wait_for(
                lambda: self._closed or self._asked > self._begun, seconds - least
            )
            return not self._closed


def told(report: Report | None) -> dict[str, Any]:
    """Return what a caller of ``audit`` is answered.

    :param report: None: the audit has not ended
    """
    if report is None:
        return {"ended": False}
    answer: dict[str, Any] = {"ended": True, "seconds": round(report.seconds, 3)}
    if report.error is not None:
        answer["error"] = {"code": report.error.code, "message": report.error.message}
    if report.result is not None:
        answer |= _told(dataclasses.asdict(report.result))
    return answer


def _told(done: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Return the numbers of nodes, and the names of those that are news."""
    return {
        "counts": {kind: len(names) for kind, names in done.items()},
        "nodes": {
            kind: list(names[:_NAMED])
            for kind, names in done.items()
            if names and kind not in ("unchanged", "failed")
        },
        "failed": dict(done["failed"][:_NAMED]),
    }
