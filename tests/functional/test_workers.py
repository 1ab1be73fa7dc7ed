"""A conductor's main process and its workers: killed, frozen, refused, told to stop."""

from collections.abc import Iterator
import pathlib
import signal
import socket
import time
from urllib import parse

import psutil
import pytest

from musterbook import context
from tests import util
from tests.functional import lab as labs
from tests.functional import load as loads

#: What a machine may be late by that others use, too; the promises are without it.
SLACK = 5.0


@pytest.fixture
def lab(
    tmp_path: pathlib.Path, rabbit_url: str, redis_url: str, mariadb_url: str
) -> Iterator[labs.Lab]:
    made = labs.Lab(tmp_path, rabbit_url, redis_url, mariadb_url)
    made.workers = 2
    with labs.opened(made):
        made.sync()
        yield made


def serving(lab: labs.Lab, name: str = "c1") -> labs.Process:
    """Start a conductor and return it when both of its workers serve."""
    run = lab.start_conductor(name)
    wait_serving(lab, name)
    return run


def wait_serving(lab: labs.Lab, name: str = "c1", workers: int = 2) -> None:
    queue = f"conductor.{name}"
    util.wait_until(lambda: labs.consumers(lab.rabbit, queue) == workers, 60, queue)


def calls(lab: labs.Lab, timeout: float = 20.0) -> loads.Load:
    asking = context.service_context()
    return loads.Load(lambda: lab.conductor.get_fleet(asking, timeout=timeout))


def sockets(process: psutil.Process) -> set[str]:
    """Return the kernel's names of a process's TCP sockets."""
    inodes = set()
    for path in pathlib.Path(f"/proc/{process.pid}/net").glob("tcp*"):
        inodes |= {line.split()[9] for line in path.read_text().splitlines()[1:]}
    held = set()
    for link in pathlib.Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            name = str(link.readlink())
        except FileNotFoundError:
            continue
        if name.startswith("socket:[") and name[8:-1] in inodes:
            held.add(name)
    return held


def leads(run: labs.Process) -> bool:
    return "Leading with term" in run.errors()


def test_no_connection_is_older_than_its_worker(lab: labs.Lab) -> None:
    run = serving(lab)
    main = psutil.Process(run.popen.pid)
    one, two = run.children()
    with calls(lab) as load:
        load.wait_answers(40)
        # It supervises, and has nothing that could be inherited.
        assert sockets(main) == set()
        assert sockets(one)
        assert sockets(two)
        assert not sockets(one) & sockets(two)
    assert run.stop() == 0
    assert not psutil.pid_exists(one.pid)
    assert not psutil.pid_exists(two.pid)


def test_a_killed_worker_is_replaced_while_the_others_serve(lab: labs.Lab) -> None:
    run = serving(lab)
    one, two = run.children()
    with calls(lab, timeout=5.0) as load:
        load.wait_answers(20)
        one.kill()
        killed = time.monotonic()
        util.wait_until(lambda: {one.pid, two.pid} < before_and_after(run, one), 10)
        assert time.monotonic() - killed < 1 + SLACK
        load.wait_answers(20)
        wait_serving(lab)
        load.wait_answers(20)
        assert two.is_running()
    # Those in hand, of which each caller had one at most.
    assert len(load.failed()) <= 8
    assert all(done.began <= killed for done in load.failed())
    assert "was killed by SIGKILL, another one is started" in run.errors()
    assert run.stop() == 0
    assert "Traceback" not in run.errors()


def before_and_after(run: labs.Process, gone: psutil.Process) -> set[int]:
    """Return the pids of the workers that run, and of one that did."""
    found = {child.pid for child in run.children()} - {gone.pid}
    return found | {gone.pid} if len(found) == 2 else set()


def test_without_a_main_process_the_workers_leave_in_order(lab: labs.Lab) -> None:
    run = serving(lab)
    util.wait_until(lambda: leads(run), what="a leader")
    workers = run.children()
    other = serving(lab, "c2")
    with calls(lab) as load:
        load.wait_answers(20)
        run.send(signal.SIGKILL)
        killed = time.monotonic()
        psutil.wait_procs(workers, 30)
        assert not [worker for worker in workers if worker.is_running()]
        assert time.monotonic() - killed < 3 + SLACK
        util.wait_until(lambda: leads(other), what="another leader")
        load.wait_answers(20)
    assert load.failed() == []
    assert load.slowest() < 3 + SLACK
    assert f"The main process {run.popen.pid} is gone" in run.errors()
    assert "Traceback" not in run.errors()
    assert other.stop() == 0


def test_a_frozen_worker_keeps_nobody_waiting_for_ever(lab: labs.Lab) -> None:
    path = pathlib.Path(lab.config("c1", {"host": "c1"}))
    # The broker gives up on a peer that is silent for twice this time.
    more = "\n[oslo_messaging_rabbit]\nheartbeat_timeout_threshold = 4\n"
    path.write_text(path.read_text() + more)
    run = lab.run("conductor.main", "--config-file", str(path), name="c1")
    wait_serving(lab)
    one, _ = run.children()
    with calls(lab, timeout=4.0) as load:
        load.wait_answers(20)
        one.suspend()
        try:
            # The other one goes on, with what the broker gives to it.
            load.wait_answers(20)
            assert load.slowest() < 4 + SLACK
            wait_serving(lab, workers=1)
            before = len(load.failed())
            since = time.monotonic()
            load.wait_answers(40)
            late = [done for done in load.failed()[before:] if done.began > since]
            assert late == []
        finally:
            one.resume()
        load.wait_answers(20)
        wait_serving(lab)
        load.wait_answers(20)
    assert run.stop() == 0


def test_a_frozen_worker_does_not_keep_the_stop_from_ending(lab: labs.Lab) -> None:
    config = lab.config("c1", {"host": "c1", "graceful_shutdown_timeout": 2})
    run = lab.run("conductor.main", "--config-file", config, name="c1")
    wait_serving(lab)
    one, two = run.children()
    one.suspend()
    run.send(signal.SIGTERM)
    sent = time.monotonic()
    assert run.wait() == 0
    assert time.monotonic() - sent < 2 + 2 + SLACK
    assert not psutil.pid_exists(one.pid)
    assert not psutil.pid_exists(two.pid)
    assert "Killing workers that don't end" in run.errors()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_or_many_end_it_cleanly(
    lab: labs.Lab, number: signal.Signals
) -> None:
    run = serving(lab)
    workers = run.children()
    util.wait_until(lambda: leads(run), what="a leader")
    run.send(number)
    sent = time.monotonic()
    while run.popen.poll() is None and time.monotonic() - sent < 30:
        time.sleep(0.02)
        run.send(signal.SIGTERM)
        run.send(number)
    assert run.wait() == 0
    assert time.monotonic() - sent < 5 + SLACK
    assert not [worker for worker in workers if worker.is_running()]
    assert "Traceback" not in run.errors()
    # Nothing is left of them that would keep another one from leading.
    other = lab.start_conductor("c2")
    util.wait_until(lambda: leads(other), what="a leader")


def test_ctrl_c_in_a_terminal_reaches_the_workers_too(lab: labs.Lab) -> None:
    run = serving(lab)
    for worker in run.children():
        worker.send_signal(signal.SIGINT)
    run.send(signal.SIGINT)
    assert run.wait() == 0
    assert "Traceback" not in run.errors()


def test_a_worker_told_to_end_is_replaced(lab: labs.Lab) -> None:
    run = serving(lab)
    one, two = run.children()
    with calls(lab) as load:
        load.wait_answers(20)
        one.terminate()
        util.wait_until(lambda: {one.pid, two.pid} < before_and_after(run, one), 30)
        wait_serving(lab)
        load.wait_answers(20)
    assert load.failed() == []
    assert run.stop() == 0


def test_what_a_worker_can_not_use_ends_all_with_one_line(lab: labs.Lab) -> None:
    parts = parse.urlsplit(lab.rabbit)
    host = parts.netloc.rpartition("@")[2]
    wrong = parse.urlunsplit(parts._replace(netloc=f"guest:CANARY@{host}"))
    config = lab.config("c1", {"host": "c1", "transport_url": wrong})
    run = lab.run("conductor.main", "--config-file", config, name="c1")
    assert run.wait(60) == 2
    said = [line for line in run.errors().splitlines() if "transport_url" in line]
    assert len(said) == 1, run.errors()
    assert run.errors().splitlines()[-1] == said[0]
    assert "CANARY" not in run.errors()
    assert "Traceback" not in run.errors()


def test_a_bad_option_is_refused_before_there_are_workers(lab: labs.Lab) -> None:
    for values, named in (
        ({"host": "c1", "transport_url": "rabit://h/"}, "transport_url"),
        ({"host": "c1", "servicegroup_tooz_url": "nowhere://h"}, "servicegroup"),
    ):
        config = lab.config("c1", values)
        run = lab.run("conductor.main", "--config-file", config, name="c1")
        assert run.wait(60) == 2
        assert named in run.errors().splitlines()[-1]
        assert "Traceback" not in run.errors()


@pytest.mark.parametrize("workers", ["0", "-1", "65", "many"])
def test_a_senseless_number_of_workers(lab: labs.Lab, workers: str) -> None:
    path = pathlib.Path(lab.config("c1", {"host": "c1"}))
    path.write_text(path.read_text().replace("workers = 2", f"workers = {workers}"))
    run = lab.run("conductor.main", "--config-file", str(path), name="c1")
    assert run.wait(60) == 2
    assert "[conductor]workers" in run.errors().splitlines()[-1]


def test_ready_is_told_by_one_worker_when_it_serves(
    lab: labs.Lab, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "notify.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        run = lab.start_conductor("c1")
        assert manager.recv(512) == b"READY=1"
        assert labs.consumers(lab.rabbit, "conductor.c1") is not None
        wait_serving(lab)
        manager.settimeout(1)
        with pytest.raises(TimeoutError):
            manager.recv(512)
    assert run.stop() == 0
