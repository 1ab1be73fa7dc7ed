"""What the hollow hosts of a process share: threads and connections."""

from collections.abc import Callable
import functools
import itertools
import pathlib

from oslo_config import cfg

from compute_agent import agent
from compute_agent import manager
from compute_agent import rpcapi
from compute_agent.hollow import inventory
from compute_agent.hollow import loops
from compute_agent.hollow import wheel
from compute_agent.inventory import source as inventory_source
from musterbook import errors
from musterbook import rpc
from musterbook.servicegroup import db_driver
from musterbook.servicegroup import driver as group_driver
from objects import base

#: Hosts for which one thread beats, over one connection. A turn takes about a
#: millisecond and comes every three seconds.
_HOSTS_PER_ROAD = 250
#: Hosts whose queues are read over one connection.
_HOSTS_PER_SERVER = 250
#: Threads for audits: what can't be saved is tried again in one, for as long as that
#: takes. And for looks, which ask a conductor.
_AUDIT_THREADS = 16
_LOOK_THREADS = 4

MakeDriver = Callable[[str, db_driver.Ways], group_driver.GroupDriver]


class Machinery:
    """Made and stopped once by the process's owner; any thread may use it between.

    :param transport: the process's transport
    :param make_road: returns what makes the drivers of some of the hosts, which share
        a thread and a connection
    :param hosts: how many there will be
    :param beat_interval: returns the seconds between two beats, as configured now
    """

    def __init__(
        self,
        transport: rpc.Transport,
        make_road: Callable[[], MakeDriver],
        hosts: int,
        beat_interval: Callable[[], float],
    ) -> None:
        self.beat_interval = beat_interval
        roads = range(-(-hosts // _HOSTS_PER_ROAD))
        self._roads = [(make_road(), wheel.Wheel(f"beats-{n}", 1)) for n in roads]
        self._next_road = itertools.cycle(self._roads)
        self._servers = [
            rpc.SharedServer(transport, rpcapi.TOPIC, f"hollow-{n}")
            for n in range(-(-hosts // _HOSTS_PER_SERVER))
        ]
        self._next_server = itertools.cycle(self._servers)
        self.audits = wheel.Wheel("audits", _AUDIT_THREADS)
        self.looks = wheel.Wheel("looks", _LOOK_THREADS)

    def start(self) -> None:
        """Connect to the broker, which was there just now.

        :raises ConfigurationError: the broker refuses
        """
        for server in self._servers:
            server.start()

    def stop(self) -> None:
        """End all threads; every host has stopped, or is left behind."""
        for server in self._servers:
            server.stop()
        for turns in (self.audits, self.looks, *(turns for _, turns in self._roads)):
            turns.stop()

    def next_road(self) -> tuple[MakeDriver, wheel.Wheel]:
        """Return where one more host beats."""
        return next(self._next_road)

    def next_server(self) -> rpc.SharedServer:
        """Return by what one more host is asked."""
        return next(self._next_server)


class HollowAgent(agent.Agent):
    """The real agent of one host on shared machinery.

    :param on_end: told, in any thread, why it serves no longer
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        transport: rpc.Transport,
        machinery: Machinery,
        host: str,
        on_end: "Callable[[HollowAgent, errors.MusterbookError], None]",
    ) -> None:
        road, beats = machinery.next_road()
        super().__init__(conf, transport, road, machinery.beat_interval, host)
        self.host = host
        self._shared_server = machinery.next_server()
        self._on_end = on_end
        self._make_heart = functools.partial(loops.HollowBeat, beats)
        self._make_verifier = functools.partial(loops.HollowVerifier, machinery.looks)
        self._make_audits = functools.partial(loops.HollowAudits, machinery.audits)
        self._make_watchdog = functools.partial(loops.HollowWatchdog, machinery.looks)

    def fail(self, reason: errors.MusterbookError) -> None:
        """End this host; the others go on."""
        self._on_end(self, reason)

    def _state_folder(self) -> pathlib.Path:
        return super()._state_folder() / "hollow" / self._host

    def _say_shortened(self, what: str | None) -> None:
        """Leave it to the process, which says it once for all hosts."""

    def _make_source(self) -> inventory_source.InventorySource:
        return inventory.HollowInventory(self._conf, self._host)

    def _make_server(
        self, host: str, endpoint: manager.ComputeManager
    ) -> rpc.AnyServer:
        return self._shared_server.seat(
            host, [endpoint], rpc.ContextSerializer(base.ObjectSerializer())
        )

    def _wait_for_servers(self) -> bool:
        return not self._stopping.is_set()  # done once for all hosts
