"""What README and docs/operators.md show, run."""

from collections.abc import Iterator
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import psutil
import pytest
import sqlalchemy as sa

from tests import util
from tests.functional import lab

pytestmark = pytest.mark.docs
ROOT = lab.ROOT


def readme_command(name: str) -> str:
    """Return a command of the README, as .ci/run reads it."""
    return subprocess.run(
        [ROOT / ".ci/readme-command", name],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


@pytest.fixture
def clone(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a copy of what git tracks."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    for name in filter(None, tracked):
        if (ROOT / name).exists():
            target = tmp_path / "clone" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
    return tmp_path / "clone"


@pytest.mark.timeout(600)
def test_the_first_command(clone: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """In an empty home: environment, installation, this machine, Ctrl-C."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in {"PATH", "LANG"} or name.startswith(("PIP_", "SSL_", "REQUESTS_"))
    }
    environment["HOME"] = str(tmp_path / "home")
    out = tmp_path / "out"
    with out.open("wb") as written:
        run = subprocess.Popen(
            ["bash", "-c", readme_command("run")],
            cwd=clone,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        util.wait_until(
            lambda: "state=up" in out.read_text() or run.poll() is not None, 500
        )
        assert "state=up" in out.read_text(), out.read_text()
        assert (tmp_path / "home/.local/state/musterbook/musterbook.sqlite").exists()
        # Ctrl-C reaches the whole foreground group.
        os.killpg(run.pid, signal.SIGINT)
        assert run.wait(30) == 0, out.read_text()
        assert "Traceback" not in out.read_text()
    finally:
        for process in psutil.process_iter(["pid"]):
            if _in_session(process.pid, run.pid):
                process.kill()
        run.wait(30)


def _in_session(pid: int, session: int) -> bool:
    try:
        return os.getsid(pid) == session
    except OSError:
        return False


class Guide:
    """docs/operators.md with its files and commands."""

    def __init__(self) -> None:
        text = (ROOT / "docs/operators.md").read_text()
        # Text and fenced blocks take turns; the first word of a block is its kind.
        parts = text.split("```")
        self.files = {
            re.findall(r"`(/etc/musterbook/\S+\.conf)`", before)[-1]: block[4:]
            for before, block in zip(parts[::2], parts[1::2], strict=False)
            if block.startswith("ini\n")
        }
        lines = [line for block in parts[1::2] for line in block.splitlines()]
        self.commands = [line for line in lines if line.startswith("musterbook-")]

    def write(self, folder: pathlib.Path, places: dict[str, str]) -> None:
        """Write the files with our servers' places instead of the shown ones."""
        for path, text in self.files.items():
            for shown, ours in places.items():
                text = text.replace(shown, ours)
            (folder / pathlib.Path(path).name).write_text(
                text + f"\n[DEFAULT]\nstate_path = {folder}\n"
            )

    def run(self, folder: pathlib.Path, line: str) -> subprocess.Popen[bytes]:
        """Start a command, with our files instead of those in /etc."""
        program, *arguments = line.replace("/etc/musterbook", str(folder)).split()
        with (folder / f"{program}.out").open("ab") as out:
            return subprocess.Popen(
                [str(pathlib.Path(sys.executable).parent / program), *arguments],
                cwd=folder,
                stdout=out,
                stderr=subprocess.STDOUT,
            )


@pytest.fixture
def guide(
    tmp_path: pathlib.Path, rabbit_url: str, redis_url: str, mariadb_url: str
) -> Iterator[Guide]:
    made = Guide()
    url = sa.make_url(mariadb_url).render_as_string(hide_password=False)
    made.write(
        tmp_path,
        {
            "rabbit://musterbook:secret@controller:5672/": rabbit_url,
            "redis://controller:6379?timeout=10": f"{redis_url}&timeout=10",
            "mysql+pymysql://musterbook:secret@controller/musterbook": url,
        },
    )
    yield made
    for path in tmp_path.glob("*.out"):
        print(f"--- {path.name}\n{path.read_text()}")


def test_the_operators_guide(
    guide: Guide, tmp_path: pathlib.Path, rabbit_url: str
) -> None:
    sync, version, conductor, compute = guide.commands
    assert [sync.split()[0], version.split()[0]] == ["musterbook-manage"] * 2
    assert guide.run(tmp_path, sync).wait(60) == 0
    assert guide.run(tmp_path, version).wait(60) == 0
    running = [guide.run(tmp_path, conductor), guide.run(tmp_path, compute)]
    asking = lab.Lab(tmp_path, rabbit_url, "", "")
    try:
        util.wait_until(
            lambda: [row["state"] for row in asking.fleet().values()] == ["up"], 60
        )
        shown = subprocess.run(
            [
                *(sys.executable, ROOT / "examples/fleet.py"),
                *("--config-file", tmp_path / "musterbook-compute.conf"),
            ],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert " state=up " in shown.stdout
        for process in reversed(running):
            process.terminate()
            assert process.wait(30) == 0
    finally:
        asking.close()
        for process in running:
            process.kill()
            process.wait(30)
