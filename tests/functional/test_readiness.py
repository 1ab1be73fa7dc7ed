"""What systemd is told, and when: by a socket in its place."""

from collections.abc import Iterator
import pathlib
import socket
import struct
import time

import psutil
import pytest

from musterbook import context
from tests import util
from tests.functional import lab as lab_module


class Manager:
    """A socket where the service manager's would be.

    :ivar heard: each message, with the pid of the process that sent it
    """

    def __init__(self, folder: pathlib.Path, name: str) -> None:
        self.path = str(folder / f"{name}.sock")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(self.path)
        self.heard: list[tuple[bytes, int]] = []

    def listen(self, seconds: float = 0.0) -> bool:
        """Take what has come, or comes within that time; return whether any did."""
        self._socket.settimeout(seconds or 0.001)
        size = socket.CMSG_SPACE(struct.calcsize("3i"))
        try:
            message, ancillary, *_ = self._socket.recvmsg(512, size)
        except TimeoutError:
            return False
        ((_, _, credentials),) = ancillary
        self.heard.append((message, struct.unpack("3i", credentials)[0]))
        return True

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


@pytest.fixture
def lab(
    tmp_path: pathlib.Path, rabbit_url: str, redis_url: str, mariadb_url: str
) -> Iterator[lab_module.Lab]:
    made = lab_module.Lab(tmp_path, rabbit_url, redis_url, mariadb_url)
    with lab_module.opened(made):
        yield made


@pytest.fixture
def managers(tmp_path: pathlib.Path) -> Iterator[tuple[Manager, Manager]]:
    made = Manager(tmp_path, "conductor"), Manager(tmp_path, "compute")
    yield made
    for manager in made:
        manager.close()


def check_served(lab: lab_module.Lab, queue: str) -> None:
    """Check that a queue is there already, and that somebody takes from it soon.

    What is sent to a queue waits in it; the driver begins to take in its own thread.
    """
    assert lab_module.consumers(lab.rabbit, queue) is not None
    util.wait_until(lambda: lab_module.consumers(lab.rabbit, queue) == 1)


def test_ready_is_told_once_and_only_when_serving(
    lab: lab_module.Lab,
    managers: tuple[Manager, Manager],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_conductor, of_compute = managers
    lab.sync()

    monkeypatch.setenv("NOTIFY_SOCKET", of_compute.path)
    compute = lab.start_agent("node1")
    util.wait_until(lambda: "Waiting for a conductor" in compute.errors(), 30)
    assert not of_compute.listen(1.0), of_compute.heard

    monkeypatch.setenv("NOTIFY_SOCKET", of_conductor.path)
    conductor = lab.start_conductor("c1")
    assert of_conductor.listen(60.0)
    check_served(lab, "conductor.c1")
    lab.conductor.ping(context.service_context(), timeout=5.0)

    assert of_compute.listen(60.0)
    check_served(lab, "compute.node1")

    # From the process that serves: NotifyAccess=all and =main.
    family = psutil.Process(conductor.popen.pid).children(recursive=True)
    assert of_conductor.heard[0][0] == b"READY=1"
    assert of_conductor.heard[0][1] in {
        conductor.popen.pid,
        *(child.pid for child in family),
    }
    assert of_compute.heard == [(b"READY=1", compute.popen.pid)]

    assert compute.stop() == 0
    assert conductor.stop() == 0
    for manager in managers:
        while manager.listen():
            pass
        assert [text for text, _ in manager.heard].count(b"READY=1") == 1


def test_a_daemon_that_cannot_start_is_never_ready(
    lab: lab_module.Lab,
    managers: tuple[Manager, Manager],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The exit code tells the manager whether another try makes sense."""
    of_conductor, _ = managers
    monkeypatch.setenv("NOTIFY_SOCKET", of_conductor.path)
    config = lab.config("bad", {"host": "bad", "report_interval": 60})
    refused = lab.run("conductor.main", "--config-file", config, name="bad")
    assert refused.wait(60) == 2
    assert not of_conductor.listen(), of_conductor.heard


def test_stopped_while_waiting_is_a_clean_end(
    lab: lab_module.Lab,
    managers: tuple[Manager, Manager],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, of_compute = managers
    monkeypatch.setenv("NOTIFY_SOCKET", of_compute.path)
    compute = lab.start_agent("node1")
    util.wait_until(lambda: "Waiting for a conductor" in compute.errors(), 30)
    began = time.monotonic()
    assert compute.stop() == 0
    assert time.monotonic() - began < 20
    assert not of_compute.listen(), of_compute.heard
