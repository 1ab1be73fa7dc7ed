"""Asking silent hosts over RPC: the second signal before a host is down."""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import threading
import time

from oslo_log import log as logging

from musterbook import errors
from musterbook.servicegroup import ping as ping_rules

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True)
class _Record:
    """What came of asking one incarnation; see ping.Replies."""

    incarnation: int
    asked: float
    answered: float | None = None
    unanswered: float | None = None
    not_asked: float | None = None


class Pinger:
    """Pings hosts side by side, at most one ping per host at a time.

    The leader's thread calls everything; answers arrive in threads named ``ping``,
    of which there are as many as there are hosts to ask, up to a bound: a silent host
    takes one for the whole time-out, and a rack that died is to be asked at once.
    They end when nobody waits.

    :param ask: asks a host's agent and returns the incarnation that answers;
        bounded in time. Raises AgentUnavailable when it was asked and nobody
        answered; any other error (AgentNotAsked too) is neither answer nor silence
    :param on_answer: told of each host that answers with the incarnation it was
        asked for (the leader asks only hosts that are missing in the group)
    :param workers: most pings, and threads, at the same time
    """

    def __init__(
        self,
        ask: Callable[[str], int],
        on_answer: Callable[[str, int], None],
        workers: int,
    ) -> None:
        self._ask = ask
        self._on_answer = on_answer
        self._workers = workers
        self._lock = threading.Lock()  # guards all that follows
        self._stopped = False
        self._working = 0
        self._waiting: dict[str, int] = {}
        self._in_flight: set[str] = set()
        self._records: dict[str, _Record] = {}

    def ping(self, hosts: Mapping[str, int]) -> None:
        """Ask these hosts (by granted incarnation) next, in this order.

        Who still waits from an earlier call and isn't among them is not asked: the
        order of what waits is always the newest.
        """
        with self._lock:
            if self._stopped:
                return
            self._waiting = {
                host: incarnation
                for host, incarnation in hosts.items()
                if host not in self._in_flight
            }
            new = min(len(self._waiting), self._workers - self._working)
            self._working += new
        for started in range(new):
            try:
                threading.Thread(target=self._work, name="ping").start()
            except RuntimeError:
                # The machine allows no more: those that run go on, and the next look
                # asks again.
                LOG.warning("Only %d of %d more pings at a time", started, new)
                with self._lock:
                    self._working -= new - started
                break

    def replies(self, granted: Mapping[str, int]) -> ping_rules.Replies:
        """Return what came of asking, on the monotonic clock.

        :param granted: every host's incarnation; what is known of others is
            forgotten
        """
        with self._lock:
            self._records = {
                host: record
                for host, record in self._records.items()
                if granted.get(host) == record.incarnation
            }
            found = list(self._records.items())
            return ping_rules.Replies(
                asked={h: r.asked for h, r in found},
                answered={h: r.answered for h, r in found if r.answered is not None},
                unanswered={
                    h: r.unanswered for h, r in found if r.unanswered is not None
                },
                not_asked={h: r.not_asked for h, r in found if r.not_asked is not None},
            )

    def forget(self) -> None:
        """Forget all answers: a new leadership begins."""
        with self._lock:
            self._records.clear()

    def stop(self) -> None:
        """End; pings in flight end by their own limit, which the process waits for."""
        with self._lock:
            self._stopped = True
            self._waiting.clear()

    # -- in the threads -----------------------------------------------------

    def _work(self) -> None:
        """Ask whoever waits until nobody does."""
        while (taken := self._take()) is not None:
            host, incarnation, asked = taken
            answers = self._one(host, incarnation)
            self._note(host, incarnation, asked, answers)
            if answers:
                self._tell(host, incarnation)

    def _take(self) -> tuple[str, int, float] | None:
        with self._lock:
            if not self._waiting:
                self._working -= 1
                return None
            host = next(iter(self._waiting))
            incarnation = self._waiting.pop(host)
            self._in_flight.add(host)
            now = time.monotonic()
            self._record(host, incarnation, now).asked = now
        return host, incarnation, now

    def _one(self, host: str, incarnation: int) -> bool | None:
        """Return whether the incarnation answers, None when this can't be told."""
        try:
            return self._ask(host) == incarnation
        except errors.AgentNotAsked as exc:
            LOG.debug("Host %s: %s", host, exc.message)
        except errors.AgentUnavailable:
            return False
        except errors.MusterbookError as exc:
            LOG.warning("Host %s answers a ping with an error: %s", host, exc.message)
        except Exception:
            LOG.exception("Ping of host %s failed unexpectedly", host)
        return None

    def _note(
        self, host: str, incarnation: int, asked: float, answers: bool | None
    ) -> None:
        with self._lock:
            self._in_flight.discard(host)
            record = self._record(host, incarnation, asked)
            # Not when it ended: the host may have gone while it was being asked.
            record.unanswered = asked if answers is False else None
            if answers:
                record.answered = time.monotonic()
            if answers is None:
                record.not_asked = time.monotonic()

    def _record(self, host: str, incarnation: int, now: float) -> _Record:
        """Return the host's record, a new one for another incarnation; locked."""
        found = self._records.get(host)
        if found is None or found.incarnation != incarnation:
            found = self._records[host] = _Record(incarnation, now)
        return found

    def _tell(self, host: str, incarnation: int) -> None:
        try:
            self._on_answer(host, incarnation)
        except Exception:
            LOG.exception("Host %s answers, and telling so failed unexpectedly", host)
