"""Nodes that another agent has taken, and when to ask for them again.

Of a node that several agents can manage, two may report it for long. Each takes it
from the other, once it finds out; the pauses keep that from becoming a storm.
"""

from collections.abc import Callable
import dataclasses
import time

#: Seconds from the first loss to the next claim; doubles with each further loss.
FIRST_PAUSE = 60.0
MOST_PAUSE = 3600.0


@dataclasses.dataclass
class _Node:
    losses: int = 0
    again_at: float | None = None


class Contest:
    """Remembers losses, by uuid; one thread uses it.

    :param clock: monotonic seconds
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._nodes: dict[str, _Node] = {}

    def lose(self, uuid: str) -> float | None:
        """Note that another agent has it; return the pause, None if that is known."""
        node = self._nodes.setdefault(uuid, _Node())
        if node.again_at is not None:
            return None
        pause = min(FIRST_PAUSE * 2.0 ** min(node.losses, 16), MOST_PAUSE)
        node.losses += 1
        node.again_at = self._clock() + pause
        return pause

    def may_take(self, uuid: str) -> bool:
        """Return whether it may be asked for now."""
        node = self._nodes.get(uuid)
        return node is None or node.again_at is None or self._clock() >= node.again_at

    def take(self, uuid: str) -> None:
        """Note that it is ours; that it was lost before is not forgotten."""
        if uuid in self._nodes:
            self._nodes[uuid].again_at = None
