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


def test_floor_is_called_inflated_where_it_is() -> None:
    assert rpc_save.floor_note(0.9).endswith("as expected")
    assert rpc_save.floor_note(1.0).endswith("inflated")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (0.123, "0.12"), (12.34, "12.3"), (1234.5, "1,234")],
)
def test_numbers(value: float, shown: str) -> None:
    assert report.number(value) == shown
