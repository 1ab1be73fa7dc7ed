"""The example of docs/usage.md, worked out by both sides' formula."""

import dataclasses
import pathlib
import re
from typing import Any

from compute_agent import core
from compute_agent.inventory import source
from conductor.db import booking
from tests.unit.compute_agent import test_resource_tracker
from tests.unit.compute_agent import trees

GUIDE = pathlib.Path(__file__).parents[3] / "docs/usage.md"
COLUMNS = ("vcpus_used", "memory_mb_used", "local_gb_used", "free_ram_mb",
           "free_disk_gb")  # fmt: skip


def told() -> list[tuple[str, dict[str, int]]]:
    """Return what the guide says: what happens, and the columns after it."""
    text = GUIDE.read_text(encoding="utf-8")
    table = text.partition("## An example")[2].partition("\n\n* ")[0]
    head, _, *rows = re.findall(r"^\| (.+) \|$", table, re.M)
    assert tuple(head.split(" | ")[1:]) == COLUMNS
    cells = [row.split(" | ") for row in rows]
    return [
        (what, dict(zip(COLUMNS, map(int, numbers), strict=True)))
        for what, *numbers in cells
    ]


def worked_out(
    node: source.NodeInventory, claims: list[core.Amounts], policy: core.Policy
) -> dict[str, Any]:
    """Return the same columns, as agent and conductor reckon them."""
    made = core.node(node, claims, policy, None)
    ours = dict(zip(COLUMNS, [*made.used, *made.free[1:]], strict=True))
    row = {**made.columns, "booking": booking.Booking.CONFIRMED}
    others = booking.Amounts(*(sum(c) for c in zip(core.Amounts(), *claims)))  # noqa: B905  # equally long
    theirs = booking.settle(row, row, booking.Book(others=others)).columns
    assert ours == {name: theirs[name] for name in COLUMNS}
    return ours


def test_the_example_is_right() -> None:
    node = test_resource_tracker.node("n1", vcpus=16, memory_mb=16384, local_gb=200)
    options = {"reserved_host_cpus": 1, "reserved_host_disk_mb": 500}
    policy = core.Policy.from_conf(trees.load_conf(**options))
    assert policy.reserved_memory_mb == 512
    one = core.Amounts(4, 4096, 20)
    smaller = dataclasses.replace(node, memory_mb=12288)
    larger = dataclasses.replace(policy, reserved_memory_mb=1024)
    steps = [
        ("creates", worked_out(node, [], policy)),
        ("4 CPUs, 4096 MiB and 20 GiB", worked_out(node, [one], policy)),
        ("four more", worked_out(node, [one] * 5, policy)),
        ("one of the five is released", worked_out(node, [one] * 4, policy)),
        ("12288 MiB", worked_out(smaller, [one] * 4, policy)),
        ("reserved_host_memory_mb = 1024", worked_out(smaller, [one] * 4, larger)),
    ]
    found = told()
    assert len(found) == len(steps)
    for (what, numbers), (words, right) in zip(found, steps, strict=True):
        assert words in what
        assert numbers == right, what
    text = GUIDE.read_text(encoding="utf-8")
    for option in ("reserved_host_cpus = 1", "reserved_host_disk_mb = 500"):
        assert option in text
