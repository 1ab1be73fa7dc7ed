"""docs/quickstart.md, typed into one shell, block after block."""

from collections.abc import Callable
from collections.abc import Iterator
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import pytest

from tests import process
from tests import servers
from tests import util
from tests.functional import lab

pytestmark = pytest.mark.docs
GUIDE = lab.ROOT / "docs/quickstart.md"
BLOCK = re.compile(
    r"(?P<skip><!-- not run by the tests: .*? -->\n)?```bash\n(?P<text>.*?)```\n", re.S
)


def blocks() -> list[str]:
    """Return the guide's commands in order, apart from those marked as not run."""
    found = BLOCK.finditer(GUIDE.read_text())
    return [match["text"] for match in found if not match["skip"]]


class Shell:
    """One bash, as somebody who follows the guide has it.

    :param programs: a folder that comes first in PATH
    """

    def __init__(self, folder: pathlib.Path, programs: pathlib.Path) -> None:
        self._out = folder / "shell.out"
        environment = {**os.environ, "PYTHONPATH": str(lab.ROOT)}
        environment["PATH"] = f"{programs}:{environment['PATH']}"
        with self._out.open("wb") as out:
            self._bash = subprocess.Popen(
                ["bash"],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._typed = 0

    def run(self, block: str, *, may_fail: bool = False) -> str:
        """Run a block, whose last command has to succeed; return what it printed."""
        before = len(self.printed())
        self._typed += 1
        end = re.compile(rf"@{self._typed} (\d+)\n")
        assert self._bash.stdin is not None
        self._bash.stdin.write(f'{block}echo "@{self._typed} $?"\n'.encode())
        self._bash.stdin.flush()
        util.wait_until(lambda: end.search(self.printed()), 60, block)
        match = end.search(self.printed())
        assert match is not None
        printed = self.printed()[before : match.start()]
        assert may_fail or match[1] == "0", f"{block}\n{printed}"
        return printed

    def printed(self) -> str:
        """Return all that was printed so far."""
        return self._out.read_text(encoding="utf-8", errors="replace")

    def close(self) -> None:
        """End it and all that it started, which is its session."""
        os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.wait(30)


@pytest.fixture
def broker(own_server: process.Starter) -> servers.RabbitMQ:
    return own_server(servers.RabbitMQ)


@pytest.fixture
def database(own_server: process.Starter) -> servers.MariaDB:
    return own_server(servers.MariaDB)


@pytest.fixture
def group(own_server: process.Starter) -> servers.Redis:
    return own_server(servers.Redis)


@pytest.fixture
def programs(
    tmp_path: pathlib.Path, broker: servers.RabbitMQ, database: servers.MariaDB
) -> pathlib.Path:
    """Return a folder with the administrators' programs, aimed at our servers."""
    folder = tmp_path / "programs"
    folder.mkdir()
    control = " ".join(f"{k}='{v}'" for k, v in broker._environment().items())
    client = process.find_program("mariadb")
    for name, text in {
        "sudo": 'exec "$@"',
        "rabbitmqctl": f'{control} exec {broker._program("rabbitmqctl")} -q "$@"',
        "mariadb": (
            f'exec {client} --no-defaults --socket={database.folder}/socket -uroot "$@"'
        ),
    }.items():
        # Not the shell's input: what we type is not theirs to read.
        (folder / name).write_text(f"#!/bin/bash\n{text} </dev/null\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def shell(tmp_path: pathlib.Path, programs: pathlib.Path) -> Iterator[Shell]:
    place = tmp_path / "clone"
    place.mkdir()
    (place / ".venv").symlink_to(sys.prefix)
    shutil.copytree(lab.ROOT / "examples", place / "examples")
    made = Shell(place, programs)
    yield made
    made.close()
    print(made.printed())
    for path in (place / "quickstart").glob("*.log"):
        print(f"--- {path.name}\n{path.read_text()}")


@pytest.fixture
def ours(
    broker: servers.RabbitMQ, database: servers.MariaDB, group: servers.Redis
) -> Callable[[str], str]:
    """Return a function that puts our servers' ports into a block."""

    def translated(block: str) -> str:
        for shown, port in {
            "127.0.0.1:5672": broker.port,
            "127.0.0.1:3306": database.port,
            "127.0.0.1:6379": group.port,
        }.items():
            block = block.replace(shown, f"127.0.0.1:{port}")
        return block

    return translated


def states(shell: Shell, look: str) -> dict[str, str]:
    """Return the state of each node, out of what the example prints."""
    lines = shell.run(look, may_fail=True).splitlines()  # it may be too early
    found = [re.search(r"(?:^|\s)node=(\S+).*\sstate=(\S+)", line) for line in lines]
    return {match[1]: match[2] for match in found if match is not None}


def test_the_quick_start(shell: Shell, ours: Callable[[str], str]) -> None:
    typed = [ours(block) for block in blocks()]
    (at,) = [n for n, block in enumerate(typed) if "examples/fleet.py" in block]
    look, kill, again, stop = typed[at:]
    for block in typed[:at]:
        shell.run(block)
    util.wait_until(lambda: sorted(states(shell, look).values()) == ["up"] * 3, 90)
    assert {"blade-a", "blade-b"} < states(shell, look).keys()
    shell.run(kill)
    util.wait_until(lambda: states(shell, look).get("blade-a") == "suspect", 60)
    shell.run(again)
    util.wait_until(lambda: states(shell, look).get("blade-a") == "up", 60)
    shell.run(stop)
