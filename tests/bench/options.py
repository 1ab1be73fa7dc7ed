"""What every bench is told."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Options:
    """How long and how large; the defaults are what the bounds are stated for.

    :ivar seconds: of one window of measuring
    :ivar windows: of each cell; its figure is their median
    :ivar callers: numbers of caller threads to measure with
    :ivar nodes: compute nodes in the table
    :ivar backend: URL of a group backend to use; None: a Redis of the bench's own
    :ivar hosts: members of the largest group
    :ivar schedulers: numbers of threads that claim
    :ivar fleets: numbers of nodes that they claim from
    :ivar calls_for_memory: calls that a server has answered when its memory is read
    """

    seconds: float = 4.0
    windows: int = 3
    callers: tuple[int, ...] = (1, 8, 32)
    nodes: int = 1000
    calls_for_memory: int = 40_000
    backend: str | None = None
    hosts: int = 10_000
    schedulers: tuple[int, ...] = (1, 64)
    fleets: tuple[int, ...] = (1, 100, 1000)


class BenchFailed(Exception):
    """A bench could not be run; the message says why in a line or a few."""
