"""Telling agents of what others claimed on their nodes, when there is time for it.

Nothing depends on it: a cast that is lost or never sent leaves an agent with what it
read before, until it reads again. So it is done in a thread of its own, for each host
once in a while, and what is too much is left out.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import threading

from oslo_log import log as logging

from musterbook import errors

LOG = logging.getLogger(__name__)

#: Seconds for which hosts are gathered: many claims of a host are one cast.
_GATHER = 1.0
#: Casts of one turn, and so of a second: each has the agent read its nodes again.
_PER_TURN = 50
#: Hosts that may wait; those beyond aren't told.
MOST_WAITING = 2000


class Teller:
    """Casts to agents, in the thread ``claim-casts``.

    tell() may be called from any thread and never waits; start() and stop() belong to
    the process's main line.

    :param knowing: returns those of some hosts whose agents run and understand the
        cast; may ask the database
    :param cast: tells one host; AgentNotAsked if the broker can't be reached
    """

    def __init__(
        self,
        knowing: Callable[[Sequence[str]], Iterable[str]],
        cast: Callable[[str], None],
        gather: float = _GATHER,
    ) -> None:
        self._knowing = knowing
        self._cast = cast
        self._gather = gather
        self._lock = threading.Lock()  # guards the hosts
        self._waiting: dict[str, None] = {}
        self._wanted = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="claim-casts")

    def tell(self, hosts: Iterable[str]) -> None:
        """Have these hosts told soon."""
        with self._lock:
            for host in hosts:
                if len(self._waiting) >= MOST_WAITING:
                    break
                self._waiting[host] = None
        self._wanted.set()

    def start(self) -> None:
        """Begin to tell."""
        self._thread.start()

    def stop(self) -> None:
        """End; who waits isn't told."""
        self._stopping.set()
        self._wanted.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wanted.wait()
            if self._stopping.wait(self._gather):
                return
            hosts = self._take()
            try:
                self._turn(hosts)
            except errors.MusterbookError as exc:
                LOG.debug("%s hosts aren't told of claims: %s", len(hosts), exc.message)
            except Exception:
                LOG.exception("%s hosts aren't told of claims", len(hosts))

    def _take(self) -> list[str]:
        with self._lock:
            hosts = list(self._waiting)[:_PER_TURN]
            for host in hosts:
                del self._waiting[host]
            if not self._waiting:
                self._wanted.clear()
        return hosts

    def _turn(self, hosts: Sequence[str]) -> None:
        for host in self._knowing(hosts):
            if self._stopping.is_set():
                return
            self._cast(host)
