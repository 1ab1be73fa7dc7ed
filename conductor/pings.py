"""Asking silent hosts over RPC: the second signal before a host is down."""

from collections.abc import Callable
from collections.abc import Mapping
from concurrent import futures
import threading
import time

from oslo_log import log as logging

LOG = logging.getLogger(__name__)


class Pinger:
    """Pings hosts side by side, at most one ping per host at a time.

    The leader's thread calls everything; answers arrive in pool threads.

    :param ask: asks a host's agent, returns the incarnation that answers or None
        when nobody does; must be bounded in time
    :param on_answer: told of each host that answers with the incarnation it was
        asked for (the leader asks only hosts that are missing in the group)
    :param workers: pings at the same time
    """

    def __init__(
        self,
        ask: Callable[[str], int | None],
        on_answer: Callable[[str, int], None],
        workers: int,
    ) -> None:
        self._ask = ask
        self._on_answer = on_answer
        self._pool = futures.ThreadPoolExecutor(workers, thread_name_prefix="ping")
        self._answers_lock = threading.Lock()
        self._answered: dict[str, tuple[int, float]] = {}
        self._in_flight: set[str] = set()

    def ping(self, hosts: Mapping[str, int]) -> None:
        """Start a ping of each host (by granted incarnation) not being pinged."""
        with self._answers_lock:
            new = hosts.keys() - self._in_flight
            self._in_flight |= new
        for host in sorted(new):
            self._pool.submit(self._one, host, hosts[host])

    def answered(self, granted: Mapping[str, int]) -> dict[str, float]:
        """Return when each host last answered, on the monotonic clock.

        :param granted: every host's incarnation; answers of others are forgotten
        """
        with self._answers_lock:
            self._answered = {
                host: (incarnation, when)
                for host, (incarnation, when) in self._answered.items()
                if granted.get(host) == incarnation
            }
            return {host: when for host, (_, when) in self._answered.items()}

    def forget(self) -> None:
        """Forget all answers: a new leadership begins."""
        with self._answers_lock:
            self._answered.clear()

    def stop(self) -> None:
        """End; pings in flight end by their own limit and are ignored."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _one(self, host: str, incarnation: int) -> None:
        answers = False
        try:
            answers = self._ask(host) == incarnation
        except Exception:
            LOG.exception("Ping of host %s failed unexpectedly", host)
        finally:
            with self._answers_lock:
                self._in_flight.discard(host)
                if answers:
                    self._answered[host] = (incarnation, time.monotonic())
        if answers:
            self._on_answer(host, incarnation)
