"""Faults of backends, networks, agents and leaders under a fleet: nobody is down.

In the gate all that a backend can suffer comes one after the other on one fleet of five
agents, with the times of the labs. The slow tests have five agents and 50 hollow ones
for each fault, the times of production and the numbers that are promised: all are up
again within a member timeout and two beats, and the backend is asked at most twice as
much meanwhile as while nothing happens.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
import pathlib
import shutil
import time

import fasteners
import pytest

from tests import bad_network
from tests import group_servers
from tests import process
from tests import servers
from tests import util
from tests.functional import faults
from tests.functional import lab as labs
from tests.functional import outages

#: Seconds that the machine and the reader may add to a promise.
SLACK = 2.0
#: What a backend is asked in the busiest interval of a beat while all come back, at
#: most, as a multiple of what it is asked while nothing happens.
MOST_LOAD = 2.0
HOLLOW = 50
KINDS: dict[str, type[process.Server]] = {
    kind.kind: kind
    for kind in (
        servers.Redis,
        group_servers.ZooKeeper,
        group_servers.Etcd,
        group_servers.Memcached,
    )
}


@dataclasses.dataclass(frozen=True)
class Fault:
    """Something that happens to a fleet.

    :ivar happen: lets it happen for some seconds, until all are back within others
    :ivar seconds: that it lasts where its promise is tested
    :ivar short: and in the gate
    :ivar everywhere: whether every backend has to stand it, not Redis alone
    """

    happen: Callable[[faults.Fleet, float, float], faults.Outcome]
    seconds: float
    short: float
    everywhere: bool = False


def restarted(fleet: faults.Fleet, seconds: float, limit: float) -> faults.Outcome:
    server = fleet.backend
    assert server is not None
    return fleet.go("restarted", server.kill, server.start, seconds, limit)


def restarted_empty(
    fleet: faults.Fleet, seconds: float, limit: float
) -> faults.Outcome:
    server = fleet.backend
    assert server is not None

    def start() -> None:
        server.restart(empty=True)

    return fleet.go("restarted empty", server.kill, start, seconds, limit)


def frozen(fleet: faults.Fleet, seconds: float, limit: float) -> faults.Outcome:
    server = fleet.backend
    assert server is not None
    return fleet.go("frozen", server.freeze, server.thaw, seconds, limit)


def unreachable(fleet: faults.Fleet, seconds: float, limit: float) -> faults.Outcome:
    network = fleet.network
    assert network is not None
    return fleet.go("unreachable", network.be_away, network.be_back, seconds, limit)


def bad_connections(
    fleet: faults.Fleet, seconds: float, limit: float
) -> faults.Outcome:
    """Stall a tenth of the segments for a second and reset a hundredth."""
    network = fleet.network
    assert network is not None
    outcome = fleet.go(
        "bad connections",
        lambda: network.be_bad(0.1, 0.01),
        lambda: network.be_bad(0.0, 0.0),
        seconds,
        limit,
    )
    print(f"{network.stalls} segments stalled, {network.resets} connections reset")
    assert network.stalls > 5
    return outcome


def agent_frozen(fleet: faults.Fleet, seconds: float, limit: float) -> faults.Outcome:
    agent = fleet.lab.process("node-b")
    began = time.monotonic()
    outcome = fleet.go("agent frozen", agent.freeze, agent.thaw, seconds, limit)
    # It was missed, at least where it was away for longer than a member timeout.
    told = {s.states["node-b"][0] for s in fleet.reader.samples(began)}
    assert told == {"up", "suspect"}
    return outcome


def leader_cut_off(fleet: faults.Fleet, seconds: float, limit: float) -> faults.Outcome:
    """Cut the leader's connections to the group and to the database."""
    assert fleet.links

    def cut() -> None:
        for link in fleet.links:
            link.be_away()

    def mend() -> None:
        second = fleet.lab.process("c2")
        util.wait_until(
            lambda: "Leading with term 2" in second.errors(),
            outages.BUSY,
            "another leader",
        )
        for link in fleet.links:
            link.be_back()

    outcome = fleet.go("leader cut off", cut, mend, seconds, limit)
    first = fleet.lab.process("c1")
    util.wait_until(
        lambda: "No longer leading" in first.errors(), outages.BUSY, "its step down"
    )
    return outcome


def leader_killed(fleet: faults.Fleet, seconds: float, limit: float) -> faults.Outcome:
    leader, other = sorted(("c1", "c2"), key=fleet.term, reverse=True)
    term = fleet.term(leader)
    outcome = fleet.go(
        "leader killed", lambda: fleet.lose(leader), seconds=seconds, limit=limit
    )
    assert fleet.term(other) > term
    return outcome


def all_restarted(fleet: faults.Fleet, seconds: float, limit: float) -> faults.Outcome:
    """Kill all agents and start them again, as after a loss of power."""

    def kill() -> None:
        for agent in fleet.agents():
            agent.kill()

    def start() -> None:
        """Start them; what a process needs until it serves is not the group's."""
        fleet.start_agents()
        for agent in fleet.agents():
            if agent.err.stem == "hollow":
                outages.wait_said([agent], "hosts serve", 2)
            else:
                outages.wait_said([agent], "serving as incarnation 2", 1)

    return fleet.go("all restarted", kill, start, seconds, limit)


FAULTS = {
    fault.happen.__name__: fault
    for fault in (
        Fault(restarted, 2.0, 0.5, everywhere=True),
        Fault(restarted_empty, 2.0, 0.5, everywhere=True),
        Fault(frozen, 25.0, 3.0, everywhere=True),
        Fault(unreachable, 60.0, 3.0),
        Fault(bad_connections, 60.0, 3.0),
        Fault(agent_frozen, 30.0, 3.0),
        Fault(leader_cut_off, 30.0, 1.0),
        Fault(leader_killed, 0.0, 0.0),
        Fault(all_restarted, 0.0, 0.0, everywhere=True),
    )
}


class CutLab(labs.Lab):
    """A lab whose first conductor comes to group and database by links of its own."""

    links: tuple[bad_network.BadNetwork, ...] = ()

    def start_conductor(self, name: str = "c1") -> labs.Process:
        if name != "c1" or not self.links:
            return super().start_conductor(name)
        whole = self.group, self.database
        group, database = self.links
        self.group = through(self.group, group)
        self.database = through(self.database, database)
        try:
            return super().start_conductor(name)
        finally:
            self.group, self.database = whole


def port_of(url: str) -> int:
    return int(url.partition("127.0.0.1:")[2].partition("/")[0].partition("?")[0])


def through(url: str, network: bad_network.BadNetwork) -> str:
    """Return the URL of the same by way of a network."""
    return url.replace(f"127.0.0.1:{port_of(url)}", f"127.0.0.1:{network.port}")


@contextlib.contextmanager
def fleet_on(
    kind: str,
    folder: pathlib.Path,
    rabbit: str,
    database: str,
    own_server: process.Starter,
    hollow: int,
) -> Iterator[faults.Fleet]:
    """Give a running fleet; its backend is reached by way of a bad network."""
    options = {"persistent": True} if kind == "redis" else {}
    server = own_server(KINDS[kind], **options)
    with contextlib.ExitStack() as stack:

        def network(port: int) -> bad_network.BadNetwork:
            made = bad_network.BadNetwork(port)
            stack.callback(made.close)
            return made

        whole = network(server.port)
        lab = CutLab(folder, rabbit, through(server.lease(0), whole), database)
        fleet = faults.Fleet(lab, hollow, server, whole)
        lab.links = (network(server.port), network(port_of(database)))
        fleet.links = list(lab.links)
        stack.enter_context(labs.opened(lab))
        yield stack.enter_context(fleet.running())


@pytest.fixture
def production(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in faults.PRODUCTION.items():
        monkeypatch.setattr(labs, name, value)
    monkeypatch.setattr(labs.Lab, "lease_interval", 5.0)


# -- in the gate ---------------------------------------------------------------------


@pytest.mark.timeout(900)
def test_one_fault_after_the_other_on_redis(
    tmp_path: pathlib.Path,
    rabbit_url: str,
    mariadb_url: str,
    own_server: process.Starter,
) -> None:
    with fleet_on("redis", tmp_path, rabbit_url, mariadb_url, own_server, 0) as fleet:
        fleet.measure(5)
        for fault in FAULTS.values():
            fault.happen(fleet, fault.short, outages.BUSY)
        print("killed:", fleet.kill_one("node-e"))


class Directory:
    """A group in files, ill-treated."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._away = path.with_suffix(".away")
        self._lock = fasteners.InterProcessLock(path / ".driver_lock")

    def lose(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)

    def freeze(self) -> None:
        assert self._lock.acquire(blocking=True, timeout=30)

    def thaw(self) -> None:
        self._lock.release()

    def go_away(self) -> None:
        self._path.rename(self._away)
        self._path.write_text("where a directory was")

    def come_back(self) -> None:
        self._path.unlink()
        self._away.rename(self._path)


@pytest.mark.timeout(900)
def test_one_fault_after_the_other_in_files(
    tmp_path: pathlib.Path, rabbit_url: str, sqlite_url: str
) -> None:
    path = tmp_path / "groups"
    lab = labs.Lab(tmp_path, rabbit_url, f"file://{path}", sqlite_url)
    fleet = faults.Fleet(lab, 0)
    with labs.opened(lab), fleet.running():
        directory = Directory(path)
        fleet.go("frozen", directory.freeze, directory.thaw, 3.0)
        fleet.go("away", directory.go_away, directory.come_back, 3.0)
        fleet.go("lost", directory.lose)
        # No agent is frozen here: who is missed three times is held for a minute.
        for fault in (leader_killed, all_restarted):
            fault(fleet, FAULTS[fault.__name__].short, outages.BUSY)
        print("killed:", fleet.kill_one("node-e"))


# -- with the numbers that are promised ----------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind in KINDS
        for name, fault in FAULTS.items()
        if (kind == "redis" or fault.everywhere)
        and (kind, name) != ("memcached", "restarted")  # a restart empties it
    ],
)
def test_all_are_back_and_none_was_down(
    kind: str,
    name: str,
    production: None,
    tmp_path: pathlib.Path,
    rabbit_url: str,
    mariadb_url: str,
    own_server: process.Starter,
) -> None:
    fault = FAULTS[name]
    with fleet_on(kind, tmp_path, rabbit_url, mariadb_url, own_server, HOLLOW) as fleet:
        fleet.measure(6)
        outcome = fault.happen(fleet, fault.seconds, fleet.allowed + SLACK)
        print(f"FIGURES {kind} {name} {outcome} load {faults.labs_load()}")
        assert outcome.load is not None
        assert outcome.load <= MOST_LOAD


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("hollow", [0, 50, 500])
def test_a_killed_host_is_found_as_soon_among_many(
    hollow: int,
    production: None,
    tmp_path: pathlib.Path,
    rabbit_url: str,
    mariadb_url: str,
    own_server: process.Starter,
) -> None:
    with fleet_on(
        "redis", tmp_path, rabbit_url, mariadb_url, own_server, hollow
    ) as fleet:
        suspect, down = fleet.kill_one("node-e")
        print(
            f"FIGURES killed among {hollow + 5}: suspect {suspect:.1f} s, "
            f"down {down:.1f} s, load {faults.labs_load()}"
        )
        assert suspect <= labs.MEMBER_TIMEOUT + SLACK
        assert down <= labs.SERVICE_DOWN_TIME + SLACK
