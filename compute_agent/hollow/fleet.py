"""The hollow hosts of a process as one part of it."""

from collections.abc import Callable
from collections.abc import Sequence
from concurrent import futures
import threading
import time

from oslo_config import cfg
from oslo_log import log as logging

from compute_agent import beats
from compute_agent.hollow import machinery
from musterbook import daemon
from musterbook import errors
from musterbook import rpc
from musterbook.servicegroup import reach

LOG = logging.getLogger(__name__)

#: Hosts that start, or stop, at the same time.
_STARTS_AT_ONCE = 16
#: Fewer, as a goodbye waits for its answer a second at most.
_STOPS_AT_ONCE = 8
#: Seconds between two looks whether to stop.
_STEP = 0.1


class HollowFleet(daemon.Part):
    """Starts hosts, lets each live its own life, stops all side by side.

    A host that is refused or superseded ends alone; when none is left, so does the
    process.

    :param conf: the checked configuration
    :param make_driver: makes a group connection, to see whether the backend lets us in
    :param made: what the hosts share
    :param hosts: their names
    :param join_rate: hosts that start in a second; 0: as fast as it goes
    :param on_ready: told how many serve, and of how many, when all have been started
    """

    name = "hollow"

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        transport: rpc.Transport,
        make_driver: machinery.MakeDriver,
        made: machinery.Machinery,
        hosts: Sequence[str],
        join_rate: float,
        on_ready: Callable[[int, int], None],
    ) -> None:
        self._conf = conf
        self._transport = transport
        self._make_driver = make_driver
        self._machinery = made
        self._hosts = hosts
        self._join_rate = join_rate
        self._on_ready = on_ready
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # guards what follows
        self._agents: dict[str, machinery.HollowAgent] = {}
        self._last_reason: errors.MusterbookError | None = None
        # Takes out single hosts, each in a thread of its own.
        self._endings: list[threading.Thread] = []

    def start(self) -> None:
        """Start all hosts; returns when each serves or was refused.

        :raises ConfigurationError: the broker or the group backend refuses this process
        """
        if not rpc.wait_for_broker(self._conf, self._stopping):
            return
        reach.attempt(lambda: self._make_driver("hollow#", beats.NO_WAYS))
        self._machinery.start()
        began = time.monotonic()
        with futures.ThreadPoolExecutor(_STARTS_AT_ONCE, "hollow-start") as pool:
            for number, host in enumerate(self._hosts):
                rate = self._join_rate
                due = began + number / rate if rate else began
                if self._stopping.wait(max(due - time.monotonic(), 0.0)):
                    break
                pool.submit(self._start_one, host)
        if self._stopping.is_set():
            return
        serving = len(self._serving())
        LOG.info(
            "%d of %d hosts serve, after %.1f s",
            serving,
            len(self._hosts),
            time.monotonic() - began,
        )
        self._on_ready(serving, len(self._hosts))

    def stop(self) -> None:
        """Stop all hosts side by side, then what they shared."""
        self._stopping.set()
        agents = self._serving()
        with futures.ThreadPoolExecutor(_STOPS_AT_ONCE, "hollow-stop") as pool:
            for agent in agents:
                pool.submit(self._stop_one, agent)
        with self._lock:
            endings, self._endings = self._endings, []
        for thread in endings:
            thread.join()
        self._machinery.stop()

    def reset(self) -> None:
        """Take up the configuration as it is now."""
        for agent in self._serving():
            agent.reset()

    def abandon(self) -> None:
        """Tell callers that their calls are not finished."""
        for agent in self._serving():
            agent.abandon()

    def _serving(self) -> list[machinery.HollowAgent]:
        with self._lock:
            return list(self._agents.values())

    def _start_one(self, host: str) -> None:
        if self._stopping.is_set():
            return
        agent = machinery.HollowAgent(
            self._conf, self._transport, self._machinery, host, self._end_later
        )
        with self._lock:
            self._agents[host] = agent
        if self._stopping.is_set():
            return  # stop() may have looked before
        try:
            agent.start()
        except errors.ConfigurationError as exc:
            self.fail(exc)  # of the process, and so of every host
        except errors.MusterbookError as exc:
            self._end(agent, exc)
        except Exception as exc:
            LOG.exception("Host %s: start failed unexpectedly", host)
            self._end(agent, errors.RemoteFailure(class_name=type(exc).__name__))

    def _end_later(
        self, agent: machinery.HollowAgent, reason: errors.MusterbookError
    ) -> None:
        """Stop a host from one of its own threads."""
        thread = threading.Thread(
            target=self._end, args=(agent, reason), name=f"hollow-end-{agent.host}"
        )
        with self._lock:
            self._endings = [t for t in self._endings if t.is_alive()]
            thread.start()
            self._endings.append(thread)

    def _end(
        self, agent: machinery.HollowAgent, reason: errors.MusterbookError
    ) -> None:
        """Take one host out."""
        with self._lock:
            if self._agents.pop(agent.host, None) is not agent:
                return
            left = len(self._agents)
        LOG.error("Host %s ends: %s", agent.host, reason.message)
        self._stop_one(agent)
        if not left and not self._stopping.is_set():
            self.fail(reason)

    def _stop_one(self, agent: machinery.HollowAgent) -> None:
        try:
            agent.stop()
        except Exception:
            LOG.exception("Host %s: stop failed", agent.host)
