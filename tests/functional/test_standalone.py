"""musterbook-standalone as a person or a script runs it."""

from collections.abc import Iterator
import contextlib
import json
import os
import pathlib
import platform
import pty
import select
import shlex
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from typing import Any

import psutil
import pytest
from rich import console as rich_console

from musterbook import errors
from musterbook import fleetview
from musterbook import standalone as standalone_module
from tests import util
from tests.functional import lab

#: Seconds the start may take; the promise is 5, the rest is for a busy machine.
START = 30.0


class Standalone:
    """Runs of the command on one state directory."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.runs: list[lab.Process] = []

    def start(self, *arguments: str) -> lab.Process:
        """Start the command."""
        made = lab.Process(
            self.folder,
            f"run{len(self.runs)}",
            "musterbook.standalone",
            *("--state-dir", str(self.state), *arguments),
        )
        self.runs.append(made)
        return made

    def wait_up(self, run: lab.Process) -> dict[str, str]:
        """Return the plain line of the node once it is up, as words."""
        return util.wait_until(lambda: self._up_line(run), START, "a node that is up")

    def _up_line(self, run: lab.Process) -> dict[str, str]:
        assert run.popen.poll() is None, run.errors()
        for line in run.output().splitlines():
            words = dict(word.partition("=")[::2] for word in shlex.split(line))
            if words.get("state") == "up":
                return words
        return {}

    def identity(self) -> list[tuple[int, str]]:
        """Return the ids and uuids of the nodes in the file."""
        with sqlite3.connect(self.state / "musterbook.sqlite") as connection:
            return connection.execute(
                "SELECT id, uuid FROM compute_nodes WHERE deleted = 0"
            ).fetchall()

    def log(self) -> str:
        """Return the log."""
        return (self.state / "musterbook.log").read_text()


@pytest.fixture
def standalone(tmp_path: pathlib.Path) -> Iterator[Standalone]:
    made = Standalone(tmp_path)
    yield made
    for run in made.runs:
        run.kill()
        print(run.output(), run.errors())


def test_this_machine_is_shown_alive(standalone: Standalone) -> None:
    run = standalone.start("--host", "a-test-host")
    words = standalone.wait_up(run)
    assert words["host"] == words["node"] == "a-test-host"
    assert int(words["vcpus"]) <= len(os.sched_getaffinity(0))
    assert int(words["vcpus"]) >= 1
    assert 0 < int(words["memory_mb"]) <= psutil.virtual_memory().total // 2**20
    disk = shutil.disk_usage(standalone.state).total // 2**30
    assert int(words["disk_gb"]) == disk
    assert words["arch"] == platform.machine()
    assert words["cpu"] in pathlib.Path("/proc/cpuinfo").read_text()
    addresses = {
        address.address.partition("%")[0]
        for interface in psutil.net_if_addrs().values()
        for address in interface
    }
    assert words["address"] in addresses
    assert "Next: " in run.output()
    assert "docs/operators.md" in run.output()
    assert (pathlib.Path(__file__).parents[2] / "docs/operators.md").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_soon_and_finds_the_same_node_again(
    standalone: Standalone, number: signal.Signals
) -> None:
    first = standalone.start()
    shown = standalone.wait_up(first)
    identity = standalone.identity()
    assert len(identity) == 1
    first.send(number)
    sent = time.monotonic()
    assert first.wait() == 0
    # Ctrl-C promises 3 s; the rest is for a busy machine.
    assert time.monotonic() - sent < 8
    assert first.errors() == ""
    assert "Traceback" not in standalone.log()
    assert standalone.wait_up(standalone.start()) == shown
    assert standalone.identity() == identity


def test_killed_it_comes_back_as_the_same_node(standalone: Standalone) -> None:
    first = standalone.start()
    standalone.wait_up(first)
    identity = standalone.identity()
    first.kill()
    began = time.monotonic()
    standalone.wait_up(standalone.start())
    # No waiting for the killed one's lease (15 s) or membership (10 s).
    assert time.monotonic() - began < 12
    assert standalone.identity() == identity


def test_two_on_one_database_have_one_leader(
    tmp_path: pathlib.Path, mariadb_url: str
) -> None:
    config = tmp_path / "shared.conf"
    config.write_text(
        f"[DEFAULT]\nservicegroup_tooz_url = file://{tmp_path}/groups\n"
        f"[database]\nconnection = {mariadb_url}\n"
    )
    books = [Standalone(tmp_path / name) for name in ("a", "b")]
    try:
        for book in books:
            book.folder.mkdir()
            run = book.start(f"--host={book.folder.name}", "--config-file", str(config))
            book.wait_up(run)
        said = [book.log().count("Leading with term") for book in books]
        assert said == [1, 0]
        # Killed, the leader leads again at once: nobody else took its lease.
        books[0].runs[0].kill()
        books[0].start("--host=a", "--config-file", str(config))
        util.wait_until(lambda: "Leading with term 2" in books[0].log(), 12)
        assert "Leading with term" not in books[1].log()
    finally:
        for book in books:
            for run in book.runs:
                run.kill()
                print(run.output(), run.errors())


ODD = "my state #1 100% $HOME ?x &é"


@pytest.mark.parametrize("spelled", ["--state-dir", "--state-dir="])
def test_a_directory_of_any_name(tmp_path: pathlib.Path, spelled: str) -> None:
    state = tmp_path / ODD
    words = [spelled, str(state)] if spelled[-1] != "=" else [f"{spelled}{state}"]
    run = lab.Process(tmp_path, "run", "musterbook.standalone", *words)
    try:
        util.wait_until(lambda: "state=up" in run.output(), START)
        assert run.stop() == 0
        assert run.errors() == ""
    finally:
        run.kill()
    assert {path.name for path in tmp_path.iterdir()} == {ODD, "run.out", "run.err"}
    found = {path.name for path in state.iterdir()}
    assert {"musterbook.sqlite", "musterbook.log", "groups"} <= found


def test_two_on_one_directory(standalone: Standalone) -> None:
    first = standalone.start()
    standalone.wait_up(first)
    second = standalone.start()
    assert second.wait() == 2
    (line,) = second.errors().splitlines()
    assert "state-dir" in line
    assert "in use" in line
    assert first.popen.poll() is None


def test_the_agents_calls_go_over_rpc(standalone: Standalone) -> None:
    run = standalone.start("--debug")
    standalone.wait_up(run)
    log = standalone.log().splitlines()
    asked = {line.rpartition(" asks: ")[2] for line in log if " asks: " in line}
    # All of it came over RPC, and nothing of it is a service record.
    assert asked == {
        f"hello of {socket.gethostname()}",
        "ComputeNode.get_by_host_and_nodename",
        "ComputeNode.create",
    }


def test_a_live_table_on_a_terminal(standalone: Standalone) -> None:
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "140"}
    run = subprocess.Popen(
        [
            *(sys.executable, "-m", "musterbook.standalone"),
            *("--state-dir", str(standalone.state)),
        ],
        cwd=lab.ROOT,
        env=environment,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    screen = Screen(leader)
    try:
        util.wait_until(lambda: "\x1b[1;32mup" in screen.text(), START, "up, in green")
        assert "vCPUs" in screen.text()
        assert "Next: " in screen.text()
        run.send_signal(signal.SIGINT)
        util.wait_until(lambda: screen.text() and run.poll() is not None, START)
        assert run.returncode == 0
        assert "Traceback" not in screen.text()
    finally:
        run.kill()
        run.wait(30)
        os.close(leader)


# A closed terminal sends SIGHUP to those it controls.
OWNS_ITS_TERMINAL = """
import fcntl, runpy, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
runpy.run_module("musterbook.standalone", run_name="__main__", alter_sys=True)
"""


def test_it_ends_with_its_terminal(standalone: Standalone) -> None:
    leader, follower = pty.openpty()
    run = subprocess.Popen(
        [
            *(sys.executable, "-c", OWNS_ITS_TERMINAL),
            *("--state-dir", str(standalone.state)),
        ],
        cwd=lab.ROOT,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    screen = Screen(leader)
    try:
        util.wait_until(lambda: "vCPUs" in screen.text(), START)
        os.close(leader)
        util.wait_until(lambda: run.poll() is not None, 30, "the end")
    finally:
        run.kill()
        run.wait(30)
    assert "Stopping on SIGHUP" in standalone.log()
    assert "Traceback" not in standalone.log()


def test_the_view_says_when_answers_stop_and_come(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gone = errors.ConductorUnavailable(method="get_fleet", seconds=2)
    empty: object = {"columns": {name: [] for name in fleetview.COLUMNS}}
    answers: list[object] = [gone, gone, empty, gone, empty]

    class Conductor:
        def get_fleet(self, *_: object, **__: object) -> object:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    made: Any = Conductor()
    view = standalone_module.View(made, rich_console.Console())
    for _ in range(5):
        view._ask()
    said = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert said == ["The view has no answer", "The view has answers again"] * 2


class Screen:
    """What a process wrote to a pseudo-terminal."""

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._seen = b""

    def text(self) -> str:
        """Read what is there and return all that was written so far."""
        while select.select([self._leader], [], [], 0)[0]:
            try:
                read = os.read(self._leader, 65536)
            except OSError:  # the process closed its end
                break
            if not read:
                break
            self._seen += read
        return self._seen.decode(errors="replace")


def test_more_nodes_and_a_change(standalone: Standalone) -> None:
    nodes = standalone.folder / "nodes.json"
    node = {"vcpus": 8, "memory_mb": 1024, "local_gb": 10}
    nodes.write_text(json.dumps({"nodes": {"n1": node, "n2": node}}))
    config = standalone.folder / "more.conf"
    config.write_text(
        "[DEFAULT]\nupdate_resources_interval = 0.5\n"
        f"[inventory]\nsource = fake\n[inventory_fake]\nfile = {nodes}\n"
    )
    run = standalone.start("--config-file", str(config))
    util.wait_until(lambda: run.output().count("state=up") == 2, START)
    nodes.write_text(json.dumps({"nodes": {"n1": {**node, "memory_mb": 2048}}}))
    util.wait_until(
        lambda: "node=n1 state=up vcpus=8 memory_mb=2048" in run.output(), START
    )


def test_libvirts_machine_is_a_node(
    standalone: Standalone, libvirt_bindings: Any
) -> None:
    """The test driver's machine, with what the operator says of it."""
    config = standalone.folder / "libvirt.conf"
    config.write_text(
        "[inventory]\nsource = libvirt\ncustom_resources = CUSTOM_GPU:4\n"
        "labels = rack:r1\n[inventory_libvirt]\nuri = test:///default\n"
    )
    run = standalone.start("--config-file", str(config))
    util.wait_until(
        lambda: "node=vm state=up vcpus=16 memory_mb=3072" in run.output(), START
    )
    path = standalone.state / "musterbook.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as database:
        query = (
            "SELECT hypervisor_type, local_gb, custom_resources, labels,"
            " strftime('%s', booted_at) FROM compute_nodes"
        )
        (row,) = database.execute(query).fetchall()
    assert row[:4] == ("TEST", 100, '{"CUSTOM_GPU": 4}', '{"rack": "r1"}')
    assert abs(int(row[4]) - psutil.boot_time()) < 5
    run.send(signal.SIGTERM)
    assert run.popen.wait(60) == 0
    assert "libvirt: " not in run.errors()  # it says nothing by itself
    assert "Traceback" not in run.errors()
