"""The view: what is shown of an answer, on a terminal of any width and off it."""

import io
import shlex
from typing import Any

import pytest
from rich import console as rich_console

from musterbook import fleetview

ROW: dict[str, Any] = {
    "host": "web1",
    "hypervisor_hostname": "web1",
    "state": "up",
    "state_cause": "in-group",
    "state_evidence": "web1#1 is in the group",
    "vcpus": 8,
    "memory_mb": 16384,
    "local_gb": 200,
    "cpu_info": '{"arch": "x86_64", "model": "A CPU [of] 3 GHz"}',
    "host_ip": "192.0.2.7",
}


def answer(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"columns": {name: [row[name] for row in rows] for name in ROW}}


def test_a_plain_line_reads_back_as_words() -> None:
    (line,) = fleetview.nodes(answer(ROW))
    words = dict(word.split("=", 1) for word in shlex.split(fleetview.plain(line)))
    assert words == {
        "host": "web1", "node": "web1", "state": "up", "vcpus": "8",
        "memory_mb": "16384", "disk_gb": "200", "arch": "x86_64",
        "cpu": "A CPU [of] 3 GHz", "address": "192.0.2.7",
    }  # fmt: skip


def test_a_plain_line_says_why_a_node_is_not_up() -> None:
    (line,) = fleetview.nodes(answer({**ROW, "state": "down", "state_cause": "silent"}))
    assert fleetview.plain(line).endswith("cause=silent")


def test_rows_are_sorted_by_host_and_node() -> None:
    rows = [{**ROW, "host": h, "hypervisor_hostname": n} for h, n in ("b1", "a2", "a1")]
    assert [line.host + line.node for line in fleetview.nodes(answer(*rows))] == [
        "a1",
        "a2",
        "b1",
    ]


@pytest.mark.parametrize("cpu_info", [None, "", "no JSON", "[]", "7"])
def test_a_cpu_that_nobody_described(cpu_info: str | None) -> None:
    (line,) = fleetview.nodes(answer({**ROW, "cpu_info": cpu_info, "host_ip": None}))
    assert (line.arch, line.model, line.address) == ("unknown",) * 3


@pytest.mark.parametrize(
    ("width", "shown", "hidden"),
    [
        (30, ["web1", "up"], ["8", "192.0.2.7"]),
        (40, ["web1", "up", "8", "16384 MiB"], ["192.0.2.7"]),
        (80, ["web1", "up", "8", "16384 MiB", "200 GiB", "192.0.2.7"], ["x86_64"]),
        (120, ["web1", "up", "200 GiB", "192.0.2.7", "x86_64", "A CPU [of] 3"], []),
    ],
)
def test_a_table_fits_the_terminal(
    width: int, shown: list[str], hidden: list[str]
) -> None:
    out = io.StringIO()
    console = rich_console.Console(file=out, width=width, force_terminal=False)
    console.print(fleetview.table(fleetview.nodes(answer(ROW)), width))
    text = out.getvalue()
    for word in shown:
        assert word in text
    for word in hidden:
        assert word not in text
