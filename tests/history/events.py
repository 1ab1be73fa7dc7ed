"""What is recorded while claims are made: one event for each request and each look."""

from collections.abc import Iterator
import dataclasses
import json
import pathlib
import threading
import time
from typing import Any
from typing import TextIO


@dataclasses.dataclass(frozen=True)
class Ask:
    """A request and its answer, by one machine's monotonic clock.

    :ivar kind: claim, confirm or release
    :ivar end: None: the asker died, or was still waiting
    :ivar answer: claimed, refused, gone, conflict; done; unknown
    :ivar node: of a claim that was claimed
    """

    kind: str
    uuid: str
    begin: float
    end: float | None
    answer: str
    amount: int = 0
    node: str | None = None


@dataclasses.dataclass(frozen=True)
class Read:
    """What one statement saw of one node.

    :ivar used: without what is reserved
    :ivar live: uuid and amount of each live claim of the node
    """

    node: str
    begin: float
    end: float
    used: int
    generation: int
    live: tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class Kill:
    """Something was killed or restarted; for people who read the history."""

    what: str
    begin: float


Event = Ask | Read | Kill
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Ask, Read, Kill)}


class Recorder:
    """Writes events to a file as they end; any thread."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lock = threading.Lock()  # guards the file

    def add(self, event: Event) -> None:
        """Write one event, as a line."""
        line = json.dumps([type(event).__name__, dataclasses.asdict(event)])
        with self._lock:
            self._file.write(line + "\n")
            self._file.flush()


def load(path: pathlib.Path) -> Iterator[Event]:
    """Yield the events of a file; a last line that was cut off is left out."""
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            kind, fields = json.loads(line)
        except ValueError:
            continue
        if kind == "Read":
            fields["live"] = tuple(tuple(one) for one in fields["live"])
        yield _KINDS[kind](**fields)


def now() -> float:
    """Return the clock that all processes of a machine share."""
    return time.monotonic()
