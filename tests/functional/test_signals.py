"""SIGINT and SIGTERM at any moment of a command's life."""

from collections.abc import Callable
import pathlib
import signal
import time

import psutil
import pytest

from tests import util
from tests.functional import lab

SIGNALS = [signal.SIGINT, signal.SIGTERM]
#: Seconds from the first line of ours; the start takes two to four.
MOMENTS = [0.0, 0.05, 0.2, 0.5, 0.9, 1.3, 1.7, 2.2, 3.0]


def guarded(run: lab.Process) -> bool:
    """Return whether the process has a handler for SIGTERM.

    Before that it is Python that starts, where the default action is all there is.
    """
    status = pathlib.Path(f"/proc/{run.popen.pid}/status").read_text()
    (caught,) = [line.split()[1] for line in status.splitlines() if "SigCgt" in line]
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def ends_quietly(run: lab.Process, number: signal.Signals, code: int = 0) -> None:
    run.send(number)
    sent = time.monotonic()
    assert run.wait() == code, run.errors()
    # The promise is 5 s; the rest is for a busy machine.
    assert time.monotonic() - sent < 10
    assert "Traceback" not in run.errors()


@pytest.fixture
def start(tmp_path: pathlib.Path) -> Callable[..., lab.Process]:
    def started(module: str, *arguments: str) -> lab.Process:
        run = lab.Process(tmp_path, "run", module, *arguments)
        try:
            util.wait_until(lambda: guarded(run), what="the handlers")
        except BaseException:
            run.kill()
            raise
        return run

    return started


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_standalone_that_starts(
    tmp_path: pathlib.Path,
    start: Callable[..., lab.Process],
    moment: float,
    number: signal.Signals,
) -> None:
    run = start("musterbook.standalone", "--state-dir", str(tmp_path / "state"))
    time.sleep(moment)  # the moment is what is tested
    try:
        ends_quietly(run, number)
        assert run.errors() == ""
    finally:
        run.kill()


def configured(folder: pathlib.Path) -> str:
    """Return the configuration file of daemons that wait for their broker."""
    path = folder / "daemon.conf"
    path.write_text(
        "[DEFAULT]\nhost = h1\ntransport_url = rabbit://u:p@127.0.0.1:1/\n"
        f"servicegroup_tooz_url = file://{folder}/groups\n"
        f"[database]\nconnection = sqlite:///{folder}/some.sqlite\n"
        "[inventory]\nsource = host\n"
    )
    made = lab.Process(
        folder, "sync", "conductor.manage", "--config-file", str(path), "db", "sync"
    )
    assert made.wait() == 0, made.errors()
    return str(path)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("module", ["conductor.main", "compute_agent.main"])
@pytest.mark.parametrize("moment", MOMENTS[::3])
def test_a_daemon_that_starts(
    tmp_path: pathlib.Path,
    start: Callable[..., lab.Process],
    moment: float,
    module: str,
    number: signal.Signals,
) -> None:
    run = start(module, "--config-file", configured(tmp_path))
    time.sleep(moment)  # the moment is what is tested
    workers = run.children()
    try:
        ends_quietly(run, number)
        assert not [worker for worker in workers if worker.is_running()]
    finally:
        run.kill()


@pytest.mark.parametrize("rounds", [6, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.timeout(600)
def test_a_conductor_that_forks(
    tmp_path: pathlib.Path, start: Callable[..., lab.Process], rounds: int
) -> None:
    """A worker that was forked a moment ago can't take a signal yet."""
    config = configured(tmp_path)
    for number in range(rounds):
        run = start("conductor.main", "--config-file", config)
        process = psutil.Process(run.popen.pid)
        try:
            # It is cotyledon's second thread that forks.
            util.wait_until(lambda p=process: p.num_threads() > 1, what="the thread")  # type: ignore[misc]  # a default binds it
            time.sleep(0.15 * number / rounds)  # the moment is what is tested
            ends_quietly(run, SIGNALS[number % 2])
            assert not process.is_running()
        finally:
            run.kill()


def test_a_command_that_was_not_done_says_so(
    start: Callable[..., lab.Process],
) -> None:
    run = start("conductor.manage", "db", "version")
    ends_quietly(run, signal.SIGINT, 130)
    assert run.errors() == ""


@pytest.mark.parametrize("number", SIGNALS)
def test_signals_while_it_stops_change_nothing(
    tmp_path: pathlib.Path, start: Callable[..., lab.Process], number: signal.Signals
) -> None:
    run = start("musterbook.standalone", "--state-dir", str(tmp_path / "state"))
    try:
        util.wait_until(lambda: "state=up" in run.output())
        run.send(number)
        while run.popen.poll() is None:
            run.send(number)
            time.sleep(0.005)
        assert run.wait() == 0
        assert run.errors() == ""
    finally:
        run.kill()
