"""The process runner, as processes that get real signals."""

import pathlib
import signal
import subprocess
import sys
import textwrap
import time

from oslo_service import service
import pytest

from musterbook import daemon
from musterbook import errors
from tests import util

ROOT = pathlib.Path(__file__).parents[2]
PROLOGUE = """
import os, sys, threading, time
from musterbook import daemon, errors

class Part(daemon.Part):
    def __init__(self, name, start=None, stop=None):
        self.name, self._start, self._stop = name, start, stop
    def start(self):
        print("start", self.name, flush=True)
        if self._start: self._start()
    def stop(self):
        print("stop", self.name, flush=True)
        if self._stop: self._stop()
        print("stopped", self.name, flush=True)
    def reset(self):
        print("reset", self.name, flush=True)
    def abandon(self):
        print("abandon", self.name, flush=True)

told = threading.Event()
"""


class Child:
    """A Python process that runs a Process of parts."""

    def __init__(self, folder: pathlib.Path, body: str) -> None:
        self.out = folder / "out"
        script = folder / "child.py"
        script.write_text(PROLOGUE + textwrap.dedent(body))
        with self.out.open("wb") as out:
            self.popen = subprocess.Popen(
                [sys.executable, str(script)],
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={"PYTHONPATH": str(ROOT)},
            )

    def lines(self) -> list[str]:
        return self.out.read_text().splitlines()

    def wait_line(self, line: str) -> None:
        util.wait_until(lambda: line in self.lines(), what=line)

    def end(self, number: signal.Signals) -> int:
        self.popen.send_signal(number)
        return self.popen.wait(30)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stages_start_in_order_and_stop_backwards(
    tmp_path: pathlib.Path, number: signal.Signals
) -> None:
    child = Child(
        tmp_path,
        """
        stages = [[Part("a"), Part("b")], [Part("c")]]
        sys.exit(daemon.Process(stages, 10).run())
        """,
    )
    child.wait_line("start c")
    assert child.end(number) == 0
    lines = child.lines()
    assert lines[:5] == ["start a", "start b", "start c", "stop c", "stopped c"]
    assert sorted(lines[5:]) == ["stop a", "stop b", "stopped a", "stopped b"]


def test_parts_of_a_stage_stop_in_parallel(tmp_path: pathlib.Path) -> None:
    child = Child(
        tmp_path,
        """
        together = threading.Barrier(2, timeout=20)
        stages = [[Part("a", stop=together.wait), Part("b", stop=together.wait)]]
        sys.exit(daemon.Process(stages, 30).run())
        """,
    )
    child.wait_line("start b")
    assert child.end(signal.SIGTERM) == 0
    assert {"stopped a", "stopped b"} <= set(child.lines())


def test_a_part_that_waits_at_start_can_be_stopped(tmp_path: pathlib.Path) -> None:
    child = Child(
        tmp_path,
        """
        stages = [[Part("a", start=told.wait, stop=told.set), Part("b")]]
        sys.exit(daemon.Process(stages, 30).run())
        """,
    )
    child.wait_line("start a")
    assert child.end(signal.SIGTERM) == 0
    assert "start b" not in child.lines()


def test_a_part_that_never_stops_is_left_behind(tmp_path: pathlib.Path) -> None:
    child = Child(
        tmp_path,
        """
        stages = [[Part("a", stop=told.wait)]]
        sys.exit(daemon.Process(stages, 0.5).run())
        """,
    )
    child.wait_line("start a")
    began = time.monotonic()
    assert child.end(signal.SIGTERM) == 0
    assert time.monotonic() - began < 10
    assert "stopped a" not in child.lines()
    assert child.lines()[-1] == "abandon a"


def test_what_the_parts_used_is_closed_when_all_have_stopped(
    tmp_path: pathlib.Path,
) -> None:
    child = Child(
        tmp_path,
        """
        close = lambda: print("closed", flush=True)
        sys.exit(daemon.Process([[Part("a")]], 30, close=close).run())
        """,
    )
    child.wait_line("start a")
    assert child.end(signal.SIGTERM) == 0
    assert child.lines() == ["start a", "stop a", "stopped a", "closed"]


def test_a_close_that_hangs_does_not_outlive_the_stop(tmp_path: pathlib.Path) -> None:
    child = Child(
        tmp_path,
        """
        sys.exit(daemon.Process([[Part("a")]], 0.5, close=told.wait).run())
        """,
    )
    child.wait_line("start a")
    began = time.monotonic()
    assert child.end(signal.SIGTERM) == 0
    assert time.monotonic() - began < 10


def test_late_parts_may_still_use_what_is_not_closed(tmp_path: pathlib.Path) -> None:
    """They tell those who wait for them, over it."""
    child = Child(
        tmp_path,
        """
        close = lambda: print("closed", flush=True)
        stages = [[Part("a", stop=told.wait)]]
        sys.exit(daemon.Process(stages, 0.5, close=close).run())
        """,
    )
    child.wait_line("start a")
    assert child.end(signal.SIGTERM) == 0
    assert child.lines()[-1] == "abandon a"


def test_only_parts_that_are_late_are_abandoned(tmp_path: pathlib.Path) -> None:
    child = Child(
        tmp_path,
        """
        stages = [[Part("a"), Part("b", stop=told.wait)]]
        sys.exit(daemon.Process(stages, 0.5).run())
        """,
    )
    child.wait_line("start b")
    assert child.end(signal.SIGTERM) == 0
    lines = child.lines()
    assert "abandon b" in lines
    assert "abandon a" not in lines


def test_abandoning_has_its_own_end(tmp_path: pathlib.Path) -> None:
    child = Child(
        tmp_path,
        """
        class Stuck(Part):
            def abandon(self):
                print("abandon", self.name, flush=True)
                told.wait()
        stages = [[Stuck("a", stop=told.wait)]]
        sys.exit(daemon.Process(stages, 0.5).run())
        """,
    )
    child.wait_line("start a")
    began = time.monotonic()
    assert child.end(signal.SIGTERM) == 0
    assert "abandon a" in child.lines()
    assert time.monotonic() - began < 10


def test_a_second_signal_changes_nothing(tmp_path: pathlib.Path) -> None:
    child = Child(
        tmp_path,
        """
        stages = [[Part("a", stop=lambda: time.sleep(1))]]
        sys.exit(daemon.Process(stages, 30).run())
        """,
    )
    child.wait_line("start a")
    child.popen.send_signal(signal.SIGTERM)
    child.wait_line("stop a")
    child.popen.send_signal(signal.SIGINT)
    assert child.end(signal.SIGTERM) == 0
    assert child.lines()[-1] == "stopped a"


def test_sighup_resets_and_goes_on(tmp_path: pathlib.Path) -> None:
    child = Child(
        tmp_path,
        """
        sys.exit(daemon.Process([[Part("a")]], 10).run())
        """,
    )
    child.wait_line("start a")
    child.popen.send_signal(signal.SIGHUP)
    child.wait_line("reset a")
    assert child.popen.poll() is None
    assert child.end(signal.SIGTERM) == 0


def test_a_reload_that_is_refused_resets_nothing(tmp_path: pathlib.Path) -> None:
    child = Child(
        tmp_path,
        """
        answers = [False, True]
        def reload():
            print("reload", answers[0], flush=True)
            return answers.pop(0)
        sys.exit(daemon.Process([[Part("a")]], 10, reload=reload).run())
        """,
    )
    child.wait_line("start a")
    child.popen.send_signal(signal.SIGHUP)
    child.wait_line("reload False")
    child.popen.send_signal(signal.SIGHUP)
    child.wait_line("reset a")
    assert child.end(signal.SIGTERM) == 0
    assert child.lines()[1:4] == ["reload False", "reload True", "reset a"]


def test_it_can_be_told_instead_of_signalled(tmp_path: pathlib.Path) -> None:
    """As a worker is, whose signals are cotyledon's."""
    child = Child(
        tmp_path,
        """
        import signal
        process = daemon.Process([[Part("a")]], 10)
        for _ in range(5):
            process.tell(signal.SIGHUP)  # before it serves
        codes = []
        server = threading.Thread(target=lambda: codes.append(process.serve()))
        server.start()
        process.tell(signal.SIGTERM)
        server.join(20)
        print("code", codes, flush=True)
        """,
    )
    assert child.popen.wait(30) == 0
    lines = child.lines()
    # Five that came together are one.
    assert lines.count("reset a") == 1
    assert lines[-1] == "code [0]"


def test_a_part_is_a_service_of_oslo_service() -> None:
    assert issubclass(daemon.Part, service.ServiceBase)
    part = daemon.Part()
    part.wait()
    part.reset()
    part.abandon()


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (
            "errors.HostTaken(host='web1', process_uuid='u1')",
            "child.py: host web1 is served by another living process",
        ),
        ("ValueError('with a secret')", "child.py: unexpected ValueError"),
    ],
)
def test_a_start_that_fails_ends_the_process(
    tmp_path: pathlib.Path, raised: str, said: str
) -> None:
    child = Child(
        tmp_path,
        f"""
        def fail():
            raise {raised}
        stages = [[Part("a"), Part("b", start=fail), Part("c")]]
        sys.exit(daemon.Process(stages, 10).run())
        """,
    )
    assert child.popen.wait(30) == 1
    lines = child.lines()
    assert "start c" not in lines
    assert "stopped a" in lines
    assert [line for line in lines if line.startswith(said)]


def test_an_option_that_a_part_can_not_use(tmp_path: pathlib.Path) -> None:
    child = Child(
        tmp_path,
        """
        def fail():
            raise errors.ConfigurationError(option="transport_url", reason="no")
        sys.exit(daemon.Process([[Part("a", start=fail)]], 10).run())
        """,
    )
    assert child.popen.wait(30) == 2
    assert child.lines()[-1] == "child.py: option transport_url: no"


def test_a_hangup_stops_who_asked_for_it(tmp_path: pathlib.Path) -> None:
    child = Child(
        tmp_path,
        """
        process = daemon.Process([[Part("a")]], 10, hangup_stops=True)
        sys.exit(process.run())
        """,
    )
    child.wait_line("start a")
    assert child.end(signal.SIGHUP) == 0
    assert child.lines()[1:] == ["stop a", "stopped a"]


def test_errors_become_one_line_and_a_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/x/musterbook-test"])

    def senseless(_: list[str]) -> int:
        raise errors.ConfigurationError(option="workers", reason="is\nnegative")

    def refused(_: list[str]) -> int:
        raise errors.DatabaseShape(reason="is empty")

    assert daemon.command(senseless) == 2
    assert daemon.command(refused) == 1
    assert daemon.command(lambda _: 0) == 0
    assert capsys.readouterr().err.splitlines() == [
        "musterbook-test: option workers: is negative",
        "musterbook-test: the database can't be used: is empty",
    ]
