"""Every bench, small: that it runs, what its JSON looks like, that it cleans up."""

import contextlib
import json
import pathlib
import signal
import statistics
import subprocess
import sys
from typing import Any

import psutil
import pytest

from tests import conftest
from tests import servers
from tests import util
from tests.bench import catalogue
from tests.bench import options
from tests.bench import rpc_stop

ROOT = pathlib.Path(__file__).parents[2]
SMALL = ("--seconds=0.5", "--windows=2", "--callers=1,8", "--nodes=20",
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


def figures(name: str, folder: pathlib.Path, *more: str) -> dict[str, Any]:
    """Run a bench, small, and return its figures, of which all say that much."""
    path = folder / "figures.json"
    running = bench(name, "--json", str(path), *SMALL, *more)
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
    for number, kind in enumerate(("mariadb", "postgresql", "sqlite")):
        taken = found["figures"]["windows_ms"][kind]
        assert all(len(ms) == 2 and min(ms) > 0 for ms in taken.values())
        medians = found["figures"]["medians_ms"][kind]
        assert medians.keys() == taken.keys()
        ratio = medians["with_service"] / medians["without"]
        bound = found["bounds"][number]
        assert bound["value"] == found["ratios"][kind]["with_service"] == ratio
        assert (kind in bound["name"], bound["limit"]) == (True, 1.3)
        joins = medians["varchar_join"] / medians["integer_join"]
        assert found["ratios"][kind]["varchar_join"] == joins


def test_small_by_host(tmp_path: pathlib.Path) -> None:
    found = figures("by_host", tmp_path)
    assert found["figures"]["statements"].keys() == {"mariadb", "postgresql", "sqlite"}
    for kind, queries in found["figures"]["statements"].items():
        assert queries == dict.fromkeys(queries, 1)  # as many as the floor's
        for name, cell in found["figures"]["medians_us"][kind].items():
            assert found["ratios"][kind][name] == cell["ours"] / cell["floor"]
            noise = found["figures"]["noise"][kind][name]
            assert noise == cell["again"] / cell["floor"]
    assert [bound["limit"] for bound in found["bounds"]] == [1.05] * 6


def test_small_liveness(tmp_path: pathlib.Path) -> None:
    with conftest.missing_server_skips():
        servers.Redis(tmp_path).check_installed()
    found = figures("liveness", tmp_path, "--hosts=50")
    groups = found["figures"]["groups"]
    assert set(groups) == {"50"}
    for group in groups.values():
        calls = group["calls_ms"]
        assert set(calls) == {"beat", "visible", "turn", "read"}
        taken = [*calls.values(), group["join_storm_s"]]
        assert all(len(t[s]) == 2 and min(t[s]) > 0 for t in taken for s in t)
        # A dead member is missed when its last beat is a member timeout old (10 s).
        for seconds in group["detection_s"].values():
            assert len(seconds) == 20
            assert 10 - 10 / 3 - 0.5 < min(seconds) <= max(seconds) < 10 + 5
    steady = statistics.median(found["figures"]["verdicts"]["50"]["steady_ms"])
    assert found["bounds"][0]["value"] == steady
    assert found["figures"]["look"]["statements"] == 2
    # Nova's db driver: two.
    assert found["figures"]["statements_per_beat"] == {"tooz": 0, "db": 1}
    assert [bound["value"] for bound in found["bounds"]][1:] == [0]
    read = groups["50"]["calls_ms"]["read"]
    ratio = statistics.median(read["ours"]) / statistics.median(read["floor"])
    assert found["ratios"]["50"]["read"] == ratio


def test_small_audit(tmp_path: pathlib.Path) -> None:
    found = figures("audit", tmp_path)
    counted = found["figures"]["counted"]
    # The promise itself, which depends on no machine.
    assert counted == {
        "unchanged": {"rpcs": 0, "statements": 0},
        "changed": {"rpcs": 1, "statements": 1},
    }
    windows = found["figures"]["windows"]
    assert windows.keys() == {"floor", "unchanged", "changed"}

    def of(side: str) -> float:
        cells = [float(w["server_cpu_ms"]) for w in windows[side] if w["callers"] == 8]
        return statistics.median(cells)

    assert all(len(side) == 4 for side in windows.values())
    assert all(w["rate"] > 0 and w["calls"] > 0 for s in windows.values() for w in s)
    ratio = found["bounds"][-1]
    assert ratio["limit"] == 1.5
    assert ratio["value"] == pytest.approx(of("changed") / of("floor"))


# A minute and a half: every way, and their floors.
@pytest.mark.slow
def test_small_claims(tmp_path: pathlib.Path) -> None:
    small = ("--windows=1", "--seconds=0.2", "--schedulers=1,8", "--fleets=20")
    found = figures("claims", tmp_path, *small)
    single = [f"conductor {cell}" for cell in ("1/20", "8/20")]
    batches = [name.replace("conductor", "batch") for name in single]
    cells = {*single, *batches, "agent 1/1", "agent 8/1"}
    for side in ("floor", "ours"):
        own = {w["cell"]: w for w in found["figures"]["windows"] if w["side"] == side}
        assert own.keys() == cells
        for window in own.values():
            assert window["rate"] > 0
            assert 0 < window["p50_ms"] <= window["p99_ms"]
        # Of which the bounds are.
        decided = {c: w["server_cpu_ms"] + w["database_cpu_ms"] for c, w in own.items()}
        for cell, ms in decided.items():
            kept = found["figures"]["medians"][side][cell]["decided_cpu_ms"]
            assert kept == pytest.approx(ms)
    cpu, rate, wrong = found["bounds"]
    assert (cpu["limit"], rate["limit"], wrong["limit"]) == (1.5, 5000, 0)
    medians = found["figures"]["medians"]
    ratios = [
        medians["ours"][cell]["decided_cpu_ms"]
        / medians["floor"][cell]["decided_cpu_ms"]
        for cell in single
    ]
    assert cpu["value"] == pytest.approx(max(ratios))
    fastest = max(medians["ours"][cell]["rate"] for cell in batches)
    assert rate["value"] == pytest.approx(fastest)
    # The floor's rows are counted as well: neither lost an update to the other.
    assert wrong["value"] == 0
    sizes = found["figures"]["message_bytes"]
    for way in ("conductor", "batch", "agent"):
        for name in ("request", "answer"):
            assert abs(sizes["floor"][way][name] - sizes["ours"][way][name]) < 40


# rpc_get is rpc_pair's measurement with another method: rpc_save goes through all of
# it, and has a bound of its own besides.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name == "rpc_get" else [])
        for name in sorted(catalogue.BENCHES.keys() & {"rpc_get", "rpc_save"})
    ],
)
def test_small(name: str, tmp_path: pathlib.Path) -> None:
    found = figures(name, tmp_path)
    if name == "rpc_save":
        check_ratio(found)
    for side in ("floor", "ours"):
        check_side(found, side)
    assert all(value > 0 for value in found["ratios"]["8"].values() if value)
    sizes = found["figures"]["message_bytes"]
    assert abs(sizes["floor"]["request"] - sizes["ours"]["request"]) < 20
    assert sizes["floor"]["answer"] == sizes["ours"]["answer"]
    assert found["figures"]["memory"]["calls"] >= 200


# A minute and a half, most of it waiting for the stock library.
@pytest.mark.slow
def test_small_rpc_stop(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "figures.json"
    running = bench("rpc_stop", "--json", str(path), "--seconds=0.5")
    printed, _ = running.communicate(timeout=170)
    found = json.loads(path.read_text())
    assert running.returncode == (not all(b["holds"] for b in found["bounds"])), printed
    assert found["machine"]["servers"]["rabbitmq"]
    for side in ("floor", "ours"):
        figures = found["figures"][side]
        assert figures.keys() == rpc_stop.FIGURES.keys()
        assert figures["calls"] > 50
    ours = found["figures"]["ours"]
    assert ours["lost_calls"] == 0
    assert ours["log_lines"] < found["figures"]["floor"]["log_lines"]


def test_smallest_rpc_stop(rabbit_url: str) -> None:
    """The part that needs no broker of its own and no waiting for the stock library."""
    scale = rpc_stop._Scale(stops=2, idle=0.5, patience=8)
    side = rpc_stop._SIDES["ours"](rabbit_url)
    try:
        idle = rpc_stop._idle_stop(side, scale)
        side.server("first")
        lost, calls = rpc_stop._stops(side, scale)
    finally:
        side.close()
    assert lost == 0
    assert calls > 50
    assert 0 < idle < 5
    figures = dict.fromkeys(rpc_stop.FIGURES, 1.0) | {"lost_calls": lost}
    chosen = options.Options()
    for lost_calls in (0, 1):
        sides = {"floor": figures, "ours": figures | {"lost_calls": lost_calls}}
        report = rpc_stop._report(chosen, scale, sides, "3.10")
        assert all(bound.holds for bound in report.bounds) == (lost_calls == 0)


def check_bounds(bounds: list[dict[str, Any]]) -> None:
    assert bounds
    for bound in bounds:
        kept = (
            bound["value"] <= bound["limit"]
            if bound["sense"] == "max"
            else bound["value"] >= bound["limit"]
        )
        assert bound["holds"] == kept
        assert bound["value"] > 0 or bound["limit"] == 0


def check_ratio(found: dict[str, Any]) -> None:
    """Work out anew what the bound is on: server's CPU over floor's, 8 callers."""

    def of(side: str) -> float:
        windows = found["figures"]["windows"][side]
        cells = [float(w["server_cpu_ms"]) for w in windows if w["callers"] == 8]
        return statistics.median(cells)

    ratio, memory = found["bounds"]
    assert ratio["value"] == pytest.approx(of("ours") / of("floor"))
    assert (ratio["limit"], memory["limit"]) == (1.3, 100)
    assert memory["value"] == found["figures"]["memory"]["after_mib"]
    assert found["figures"]["floor_statement_alone_cpu_ms"] > 0


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
        with contextlib.suppress(psutil.NoSuchProcess):  # a script's short helper
            return found if "mariadbd" in [each.name() for each in found] else []
        return []

    def places(process: psutil.Process) -> set[pathlib.Path]:
        with contextlib.suppress(psutil.NoSuchProcess):  # a helper that has ended
            return {pathlib.Path(process.cwd())}
        return set()

    members = util.wait_until(family, 60)
    folders = {place for member in members for place in places(member)} - {ROOT}
    assert folders
    running.send_signal(number)
    running.communicate(timeout=100)
    assert running.returncode == 128 + number
    assert not psutil.wait_procs(members, timeout=10)[1]
    assert not [folder for folder in folders if folder.exists()]
