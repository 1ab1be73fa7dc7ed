"""What becomes of a running fleet when its broker does."""

from collections.abc import Callable
from collections.abc import Iterator
import pathlib
import shutil
import signal
import threading
import time

import pytest
import sqlalchemy as sa

from conductor import rpcapi
from musterbook import context
from musterbook import errors
from objects import compute_node
from tests import conftest
from tests import process
from tests import proxy as proxies
from tests import servers
from tests import util
from tests.functional import lab as labs

CTXT = context.service_context()
LOST = "The message broker is lost"
BACK = "The message broker is back"
#: Seconds after the end of an outage in which all has to be well again.
WELL = 15.0
#: Seconds that a call may take by default.
PATIENT = 60.0


class World:
    """A fleet, its broker, and the link between the two."""

    def __init__(self, lab: labs.Lab, broker: servers.RabbitMQ, link: proxies.Proxy):
        self.lab = lab
        self.broker = broker
        self.link = link
        self.memory = labs.NODE["memory_mb"]
        # The daemons get no other than the default time limit for calls: what ends in
        # time must not do so by a short one.
        lab.response_timeout = None
        lab.start_conductor("c1")
        lab.start_conductor("c2")
        lab.start_agent("web1")
        lab.start_agent("web2")
        for node in ("web1", "web2"):
            lab.wait_state(node, "up", timeout=60)

    def counts(self, text: str) -> list[int]:
        """Return how often each process has logged a text."""
        return [process.errors().count(text) for process in self.lab.processes]

    def change(self) -> None:
        """Give the nodes another inventory."""
        self.memory += 1024
        for name in ("web1", "web2"):
            nodes = {name: {**labs.NODE, "memory_mb": self.memory}}
            self.lab.write_nodes(name, nodes)

    def rows(self) -> list[tuple[str, int, int]]:
        """Return host, memory and free memory of each row of the database."""
        engine = sa.create_engine(self.lab.database)
        query = "SELECT host, memory_mb, free_ram_mb FROM compute_nodes ORDER BY host"
        with engine.connect() as connection:
            found = connection.execute(sa.text(query)).all()
        engine.dispose()
        return [tuple(row) for row in found]

    def well(self) -> bool:
        """Return whether calls are answered and the book has what the agents have."""
        try:
            self.lab.conductor.ping(CTXT, timeout=2)
        except errors.ConductorUnavailable:
            return False
        free = self.memory - 512
        return self.rows() == [
            ("web1", self.memory, free),
            ("web2", self.memory, free),
        ]


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory, keeper_address: pathlib.Path
) -> Iterator[World]:
    folder = process.make_folder()
    broker = servers.RabbitMQ(folder)
    link = None
    try:
        with conftest.missing_server_skips():
            broker.start()
        link = proxies.Proxy(broker.port)
        with (
            conftest.leased(keeper_address, "mariadb") as database,
            conftest.leased(keeper_address, "redis") as group,
        ):
            url = f"rabbit://guest:guest@127.0.0.1:{link.port}/lease_0"
            lab = labs.Lab(tmp_path_factory.mktemp("lab"), url, group, database)
            with labs.opened(lab):
                lab.sync()
                yield World(lab, broker, link)
    finally:
        broker.close()
        if link is not None:
            link.close()
        shutil.rmtree(folder, ignore_errors=True)


def outage(
    world: World,
    begin: Callable[[], object],
    end: Callable[[], object],
    seconds: float,
    *,
    told: bool = True,
    timeout: float = 5.0,
) -> None:
    """Let an outage happen and check that nothing is lost by it.

    :param seconds: how long it lasts
    :param told: all processes have to notice
    :param timeout: seconds of each call that a caller makes meanwhile
    """
    assert world.well()
    lost, back = world.counts(LOST), world.counts(BACK)
    history = {host: world.lab.transitions(host) for host in ("web1", "web2")}
    # Two short calls in a row, or a long one that ends with the outage.
    most = 12 if timeout < PATIENT else seconds + WELL
    saver = Saver(world, timeout, most)
    saver.start()
    begin()
    began = time.monotonic()
    world.change()
    time.sleep(max(0.0, seconds - (time.monotonic() - began)))
    end()
    ended = time.monotonic()
    util.wait_until(world.well, 60, "all is well")
    assert time.monotonic() - ended < WELL
    saver.stop()
    for found in world.lab.processes:
        assert found.popen.poll() is None
    # The group did not depend on the broker: nobody was ever shown as anything else.
    assert history == {host: world.lab.transitions(host) for host in history}
    ends = [
        before + (now - was)
        for before, was, now in zip(back, lost, world.counts(LOST), strict=True)
    ]
    util.wait_until(lambda: world.counts(BACK) == ends, WELL, "the end in each log")
    begins = [now - was for was, now in zip(lost, world.counts(LOST), strict=True)]
    assert all(count <= 1 for count in begins)
    if told:
        assert begins == [1, 1, 1, 1]


class Saver(threading.Thread):
    """Saves a rising number all the time, as an agent would its usage.

    :param timeout: seconds of each call
    :param most: seconds that a save may take
    """

    def __init__(self, world: World, timeout: float, most: float) -> None:
        super().__init__(name="saver")
        self._conductor = rpcapi.ConductorAPI(world.lab.transport, timeout)
        self._most = most
        self._end = threading.Event()
        self._number = 0
        self._done = 0
        self._slowest = 0.0
        self._faults: list[Exception] = []

    def run(self) -> None:
        while not self._end.wait(0.1):
            self._number += 1
            started = time.monotonic()
            try:
                self._save()
            except errors.ConductorUnavailable:
                pass  # it is reported; it may have been done
            except Exception as exc:  # noqa: BLE001  told by stop()
                self._faults.append(exc)
            else:
                self._done = self._number
            self._slowest = max(self._slowest, time.monotonic() - started)

    def stop(self) -> None:
        """End it and check that each save was done or reported, and in time."""
        before = self._done
        util.wait_until(lambda: self._done > before + 2, WELL, "saves")
        self._end.set()
        self.join()
        assert not self._faults
        assert self._slowest < self._most
        assert self._read().running_vms == self._done == self._number

    def _read(self) -> compute_node.ComputeNode:
        versions = {"ComputeNode": "1.2", "Service": "1.1"}
        found: compute_node.ComputeNode = self._conductor.object_class_action_versions(
            CTXT,
            "ComputeNode",
            "get_by_host_and_nodename",
            versions,
            ["web1", "web1"],
            {},
        )
        return found

    def _save(self) -> None:
        node = self._read()
        node.running_vms = self._number
        self._conductor.object_action(CTXT, node, "save", [], {})


def test_stopped_and_started(world: World) -> None:
    outage(world, world.broker.stop, world.broker.start, 6, timeout=PATIENT)


def test_killed_and_started(world: World) -> None:
    outage(world, world.broker.kill, world.broker.start, 2, timeout=PATIENT)


def test_started_empty(world: World) -> None:
    def start_empty() -> None:
        world.broker.restart(empty=True)

    outage(world, world.broker.kill, start_empty, 2)


def test_frozen(world: World) -> None:
    outage(world, world.broker.freeze, world.broker.thaw, 6, told=False)


@pytest.mark.slow
def test_frozen_for_long(world: World) -> None:
    outage(world, world.broker.freeze, world.broker.thaw, 25, told=False)


def test_link_held_up(world: World) -> None:
    outage(world, world.link.hold, world.link.go_on, 6, told=False)


@pytest.mark.slow
def test_link_held_up_for_long(world: World) -> None:
    outage(world, world.link.hold, world.link.go_on, 25, told=False)


def test_out_of_memory(world: World) -> None:
    def limit(share: str) -> None:
        world.broker.control("set_vm_memory_high_watermark", share)

    # An alarm ends a call in 5 s, and this one lasts longer.
    outage(
        world,
        lambda: limit("0.0000001"),
        lambda: limit("0.4"),
        12,
        told=False,
        timeout=PATIENT,
    )


@pytest.mark.slow
def test_out_of_memory_for_long(world: World) -> None:
    def limit(share: str) -> None:
        world.broker.control("set_vm_memory_high_watermark", share)

    outage(world, lambda: limit("0.0000001"), lambda: limit("0.4"), 30, told=False)


def test_virtual_host_deleted(world: World) -> None:
    def give_back() -> None:
        world.broker.control("add_vhost", "lease_0")
        rights = (".*", ".*", ".*")
        world.broker.control("set_permissions", "-p", "lease_0", "guest", *rights)

    outage(world, lambda: world.broker.control("delete_vhost", "lease_0"), give_back, 8)


@pytest.mark.parametrize("kind", ["frozen", "gone"])
def test_daemons_stop_without_a_broker(world: World, kind: str) -> None:
    extra = [world.lab.start_conductor("c9"), world.lab.start_agent("web9")]
    world.lab.wait_state("web9", "up", timeout=60)
    begin, end = {
        "frozen": (world.broker.freeze, world.broker.thaw),
        "gone": (world.broker.stop, world.broker.start),
    }[kind]
    begin()
    try:
        for process_ in extra:
            process_.send(signal.SIGTERM)
        started = time.monotonic()
        # A goodbye that nobody answers takes 5 s, the end of the connections a few.
        assert [process_.wait(30) for process_ in extra] == [0, 0]
        assert time.monotonic() - started < 25  # of which 10 s for a busy machine
    finally:
        end()
    assert not any("Traceback" in process_.errors() for process_ in extra)
    del world.lab.processes[-2:]
