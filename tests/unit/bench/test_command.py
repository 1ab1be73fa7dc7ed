"""The command around the benches, and the parts that calculate."""

import json
import pathlib
import random
import subprocess
import sys
import time

import pytest

from tests.bench import __main__ as command
from tests.bench import catalogue
from tests.bench import loop
from tests.bench import options
from tests.bench import procs
from tests.bench import report
from tests.bench import rpc_get
from tests.bench import rpc_pair
from tests.bench import rpc_save


class Fake:
    """A bench that finds what it is told."""

    def __init__(self, *bounds: report.Bound) -> None:
        self._bounds = bounds
        self.chosen: options.Options | None = None

    def run(self, chosen: options.Options) -> report.Report:
        self.chosen = chosen
        table = report.Table("fake", ["callers", "ms"], [["1", 0.1234], ["8", 12345.6]])
        return report.Report(
            "fake",
            {},
            {"raw": 1},
            {"r": 2.0},
            {"cores": 2},
            self._bounds,
            [table],
            ["!"],
        )


def test_without_a_name_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == sorted(catalogue.BENCHES)
    assert all(len(line.split()) > 3 for line in listed)


@pytest.mark.parametrize(
    "arguments",
    [
        ["nosuch"],
        ["rpc_save", "--callers", "1,x"],
        ["rpc_save", "--callers", "0"],
        ["rpc_save", "--seconds", "0"],
        ["rpc_save", "--nodes", "4"],
    ],
)
def test_wrong_usage_is_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("sense", "limit", "code"),
    [("max", 2.0, 0), ("max", 1.9, 1), ("min", 2.0, 0), ("min", 2.1, 1)],
)
def test_exit_code_and_json_say_whether_the_bound_holds(
    sense: str,
    limit: float,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
) -> None:
    bound = report.Bound("b", 2.0, limit, "min" if sense == "min" else "max")
    monkeypatch.setitem(catalogue.BENCHES, "fake", Fake(report.Bound("a", 1, 1), bound))
    path = tmp_path / "out.json"
    assert command.main(["fake", "--json", str(path)]) == code
    found = json.loads(path.read_text())
    assert found["bounds"][1] == {
        "name": "b", "value": 2.0, "limit": limit, "sense": sense, "holds": not code
    }  # fmt: skip
    assert found["ratios"] == {"r": 2.0}


def test_options_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    monkeypatch.setitem(catalogue.BENCHES, "fake", fake)
    command.main(["fake", "--callers", "3,4", "--seconds", "0.5", "--nodes", "7"])
    assert fake.chosen == options.Options(seconds=0.5, callers=(3, 4), nodes=7)


def test_percentile() -> None:
    ordered = [float(n) for n in range(1, 101)]
    assert loop.percentile(ordered, 0.5) == 51
    assert loop.percentile(ordered, 0.99) == 100
    assert loop.percentile([7.0], 0.99) == 7


def test_loop_makes_the_count_and_tells_a_failure() -> None:
    made: list[int] = []
    done = loop.run([lambda rng: made.append(1)] * 4, count=40)
    assert done["calls"] == len(made) == 40
    assert done["p50_ms"] <= done["p99_ms"]

    def fail(rng: random.Random) -> None:
        raise ValueError("no answer")

    with pytest.raises(ValueError, match="no answer"):
        loop.run([fail, fail], seconds=5)


def test_cpu_of_children_counts_also_when_they_have_ended() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass\n"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
    code = f"{parent}; print('done', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        assert running.stdin is not None
        meter = procs.Meter({"it": running.pid})
        start = meter.read()
        assert running.stdout.readline() == b"done\n"
        end = meter.read()
        assert end.cpu["it"] - start.cpu["it"] > 0.15
        assert end.at <= time.monotonic()
        assert procs.per_call_ms(start, end, 10)["it"] > 15
        assert procs.largest_mib(running.pid) > 1
        running.stdin.close()


def test_floor_is_called_inflated_where_it_is_and_says_why() -> None:
    (said,) = rpc_save.floor_notes(0.97, 0.14, 0.0)
    assert said.endswith("as expected")
    said, why = rpc_save.floor_notes(1.5, 0.28, 0.1)
    assert said.endswith("inflated")
    assert "2.00 times" in why
    assert why.endswith("a slower or busier machine explains it")
    assert "1.4 cores were busy" in rpc_save.floor_notes(1.5, 0.28, 1.4)[1]
    assert "not explained" in rpc_save.floor_notes(1.5, 0.14, 0.0)[1]


def outcome(ours_ms: float, floor_ms: float, mib: float) -> rpc_pair.Outcome:
    """Return what a run would find, with figures of 1 where nothing is said."""

    def windows(server_ms: float) -> list[dict[str, float]]:
        # The middle one of three counts, and only with eight callers.
        figures = dict.fromkeys(rpc_pair.FIGURES, 1.0)
        cells = [(8, server_ms), (8, 90.0), (8, 0.01), (1, 70.0), (32, 80.0)]
        return [
            figures | {"callers": callers, "calls": 9, "server_cpu_ms": ms}
            for callers, ms in cells
        ]

    return rpc_pair.Outcome(
        windows={"ours": windows(ours_ms), "floor": windows(floor_ms)},
        memory={"start_mib": 1.0, "after_mib": mib, "calls": 40_000},
        bytes={},
        alone_ms=0.14,
        machine={},
    )


@pytest.mark.parametrize(
    ("ours_ms", "mib", "holds"),
    [
        (1.3, 100.0, [True, True]),
        (1.31, 100.0, [False, True]),
        (1.3, 100.1, [True, False]),
    ],
)
def test_bounds_of_a_save(
    ours_ms: float, mib: float, holds: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = outcome(ours_ms, 1.0, mib)
    monkeypatch.setattr(rpc_pair, "measure", lambda *_: found)
    made = rpc_save.run(options.Options())
    assert [bound.holds for bound in made.bounds] == holds
    assert [bound.limit for bound in made.bounds] == [1.3, 100.0]
    assert made.bounds[0].value == pytest.approx(ours_ms)
    assert made.holds == all(holds)
    json.dumps(made.to_dict())


def test_bound_of_a_get_is_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_pair, "measure", lambda *_: outcome(1.0, 1.0, 100.1))
    made = rpc_get.run(options.Options())
    assert [(b.limit, b.holds) for b in made.bounds] == [(100.0, False)]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (0.123, "0.12"), (12.34, "12.3"), (1234.5, "1,234")],
)
def test_numbers(value: float, shown: str) -> None:
    assert report.number(value) == shown
