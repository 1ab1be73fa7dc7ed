"""The fleet on a screen: the answer of get_fleet as a table or as plain lines."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import json
import shlex
from typing import Any

from rich import box
from rich import markup
from rich import table as rich_table

#: What the view asks the conductor for.
COLUMNS = (
    "host",
    "hypervisor_hostname",
    "state",
    "state_cause",
    "state_evidence",
    "vcpus",
    "memory_mb",
    "local_gb",
    "cpu_info",
    "host_ip",
)
_STYLES = {"up": "bold green", "suspect": "yellow", "down": "bold red"}


@dataclasses.dataclass(frozen=True)
class NodeLine:
    """What is shown of one node; memory in MiB, disk in GiB."""

    host: str
    node: str
    state: str
    cause: str
    vcpus: int
    memory_mb: int
    disk_gb: int
    arch: str
    model: str
    address: str


def nodes(answer: Mapping[str, Any]) -> list[NodeLine]:
    """Turn a columnar answer into lines, by host and node."""
    columns = answer["columns"]
    rows = zip(*(columns[name] for name in COLUMNS), strict=True)
    return sorted(
        (_node(dict(zip(COLUMNS, row, strict=True))) for row in rows),
        key=lambda line: (line.host, line.node),
    )


def plain(line: NodeLine) -> str:
    """Return one node as key=value words, quoted as a shell would read them."""
    words = {
        "host": line.host,
        "node": line.node,
        "state": line.state,
        "vcpus": line.vcpus,
        "memory_mb": line.memory_mb,
        "disk_gb": line.disk_gb,
        "arch": line.arch,
        "cpu": line.model,
        "address": line.address,
    }
    if line.state != "up":
        words["cause"] = line.cause
    return " ".join(f"{key}={shlex.quote(str(value))}" for key, value in words.items())


@dataclasses.dataclass(frozen=True)
class _Column:
    """A column of the table: from which width of the terminal on it is shown."""

    heading: str
    width: int
    text: Callable[[NodeLine], str]
    number: bool = False


# The identity and the state come first and always; the rest as there is room.
_TABLE = (
    _Column("host", 0, lambda line: markup.escape(line.host)),
    _Column("node", 60, lambda line: markup.escape(line.node)),
    _Column("state", 0, lambda line: _state(line)),
    _Column("vCPUs", 40, lambda line: str(line.vcpus), number=True),
    _Column("memory", 40, lambda line: f"{line.memory_mb} MiB", number=True),
    _Column("disk", 60, lambda line: f"{line.disk_gb} GiB", number=True),
    _Column("arch", 100, lambda line: markup.escape(line.arch)),
    _Column("address", 80, lambda line: markup.escape(line.address)),
    _Column("CPU", 100, lambda line: markup.escape(line.model)),
)


def table(lines: Sequence[NodeLine], width: int) -> rich_table.Table:
    """Return the fleet as a table for a terminal of so many columns."""
    shown = rich_table.Table(
        box=box.SIMPLE_HEAD, title="The fleet", title_justify="left"
    )
    columns = [column for column in _TABLE if width >= column.width]
    for column in columns:
        shown.add_column(
            column.heading,
            justify="right" if column.number else "left",
            no_wrap=column.number,
            overflow="ellipsis" if column.number else "fold",
        )
    for line in lines:
        shown.add_row(*(column.text(line) for column in columns))
    return shown


def _state(line: NodeLine) -> str:
    said = line.state if line.state == "up" else f"{line.state}: {line.cause}"
    return f"[{_STYLES.get(line.state, 'magenta')}]{markup.escape(said)}[/]"


def _node(row: Mapping[str, Any]) -> NodeLine:
    cpu = _cpu_info(row["cpu_info"])
    return NodeLine(
        host=row["host"] or "",
        node=row["hypervisor_hostname"] or "",
        state=row["state"],
        cause=row["state_cause"] or "",
        vcpus=row["vcpus"],
        memory_mb=row["memory_mb"],
        disk_gb=row["local_gb"],
        arch=str(cpu.get("arch") or "unknown"),
        model=str(cpu.get("model") or "unknown"),
        address=row["host_ip"] or "unknown",
    )


def _cpu_info(text: str | None) -> Mapping[str, Any]:
    """Return the description of the CPU; rows of Juno's time may hold anything."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
