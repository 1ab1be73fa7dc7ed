"""Every bench, small: that it runs, what its JSON looks like, that it cleans up."""

import json
import pathlib
import signal
import subprocess
import sys
from typing import Any

import psutil
import pytest

from tests import conftest
from tests import servers
from tests import util
from tests.bench import catalogue

ROOT = pathlib.Path(__file__).parents[2]
SMALL = ("--seconds=0.5", "--windows=2", "--callers=1,2", "--nodes=20",
         "--calls-for-memory=200")  # fmt: skip
POSITIVE = ("rate", "p50_ms", "p99_ms", "server_cpu_ms", "caller_cpu_ms")


@pytest.fixture(autouse=True)
def _servers_are_installed(tmp_path: pathlib.Path) -> None:
    with conftest.missing_server_skips():
        servers.RabbitMQ(tmp_path).check_installed()
        servers.MariaDB(tmp_path).check_installed()


def bench(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.bench", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def figures(name: str, folder: pathlib.Path) -> dict[str, Any]:
    """Run a bench, small, and return its figures, of which all say that much."""
    path = folder / "figures.json"
    running = bench(name, "--json", str(path), *SMALL)
    printed, _ = running.communicate(timeout=170)
    found: dict[str, Any] = json.loads(path.read_text())
    # What the bounds say about so short a run is nothing; that it's told right is.
    assert running.returncode == (not all(b["holds"] for b in found["bounds"])), printed
    assert found["bench"] == name
    check_bounds(found["bounds"])
    assert found["machine"]["cores"] >= 1
    assert all(found["machine"]["servers"].values())
    return found


def test_small_join(tmp_path: pathlib.Path) -> None:
    found = figures("join", tmp_path)
    assert found["options"]["nodes"] == 20
    taken = found["figures"]["windows_ms"]
    assert set(taken) == {"without", "with_service", "integer_join", "varchar_join"}
    assert all(len(ms) == 2 and min(ms) > 0 for ms in taken.values())
    medians = found["figures"]["medians_ms"]
    ratio = medians["with_service"] / medians["without"]
    assert found["bounds"][0]["value"] == found["ratios"]["with_service"] == ratio


@pytest.mark.parametrize("name", sorted(catalogue.BENCHES.keys() - {"join"}))
def test_small(name: str, tmp_path: pathlib.Path) -> None:
    found = figures(name, tmp_path)
    for side in ("floor", "ours"):
        check_side(found, side)
    assert all(value > 0 for value in found["ratios"]["2"].values() if value)
    sizes = found["figures"]["message_bytes"]
    assert abs(sizes["floor"]["request"] - sizes["ours"]["request"]) < 20
    assert sizes["floor"]["answer"] == sizes["ours"]["answer"]
    assert found["figures"]["memory"]["calls"] >= 200


def check_bounds(bounds: list[dict[str, Any]]) -> None:
    assert bounds
    for bound in bounds:
        kept = (
            bound["value"] <= bound["limit"]
            if bound["sense"] == "max"
            else bound["value"] >= bound["limit"]
        )
        assert bound["holds"] == kept
        assert bound["value"] > 0


def check_side(found: dict[str, Any], side: str) -> None:
    assert len(found["figures"]["windows"][side]) == 4
    for cell in found["figures"]["medians"][side].values():
        assert all(cell[name] > 0 for name in POSITIVE), cell
        assert cell["p50_ms"] <= cell["p99_ms"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ends_all_it_has_started(number: signal.Signals) -> None:
    running = bench("rpc_save", *SMALL)
    started = psutil.Process(running.pid)

    def family() -> list[psutil.Process]:
        found = started.children(recursive=True)
        names = [process.name() for process in found]
        return found if "mariadbd" in names else []

    members = util.wait_until(family, 60)
    folders = {pathlib.Path(member.cwd()) for member in members} - {ROOT}
    running.send_signal(number)
    running.communicate(timeout=100)
    assert running.returncode == 128 + number
    assert not psutil.wait_procs(members, timeout=10)[1]
    assert not [folder for folder in folders if folder.exists()]
