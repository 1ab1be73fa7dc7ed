"""What a group backend is asked for: its own counters, sampled."""

import collections
from collections.abc import Callable
from collections.abc import Mapping
import contextlib
import dataclasses
import http.client
import re
import socket
import threading
import time

from tests import process
from tests import servers

#: Seconds between two samples.
_STEP = 0.1


Counts = collections.Counter[str]


def _redis(server: process.Server) -> Counts:
    """Return the commands that it has done, the counter's own among them."""
    assert isinstance(server, servers.Redis)
    text = _lines(server.port, b"INFO commandstats\r\n", b"\r\n\r\n")
    found = re.findall(r"cmdstat_([^:]+):calls=(\d+)", text)
    return _counts({name: int(calls) for name, calls in found})


def _zookeeper(server: process.Server) -> Counts:
    """Return the packets that it has got, the counter's own among them."""
    text = _lines(server.port, b"mntr", b"")
    packets = int(_number(r"zk_packets_received\s+(\d+)", text))
    sessions = int(_number(r"zk_connection_request_count\s+(\d+)", text))
    return _counts({"sessions": sessions, "others": packets - sessions})


def _etcd(server: process.Server) -> Counts:
    """Return the calls that it has handled."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=1)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    found = re.findall(
        r'^grpc_server_started_total\{.*grpc_method="(\w+)".*\} (\S+)$',
        text,
        re.MULTILINE,
    )
    return _counts({name: int(float(count)) for name, count in found})


def _memcached(server: process.Server) -> Counts:
    """Return the keys that were asked for or set, and what else was done to them."""
    text = _lines(server.port, b"stats\r\n", b"END\r\n")
    names = ("cmd_get", "cmd_set", "cmd_touch", "delete_hits", "delete_misses")
    return _counts({name: int(_number(rf"STAT {name} (\d+)", text)) for name in names})


def _counts(found: Mapping[str, int]) -> Counts:
    return collections.Counter({name: n for name, n in found.items() if n})


COUNTERS: dict[str, Callable[[process.Server], Counts]] = {
    "redis": _redis,
    "zookeeper": _zookeeper,
    "etcd": _etcd,
    "memcached": _memcached,
}
#: Where asking counts, and as what.
_COUNTS_ITSELF = {"redis": "info", "zookeeper": "others"}


def _lines(port: int, command: bytes, end: bytes) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        connection.settimeout(1)
        connection.sendall(command)
        said = b""
        while not (end and said.endswith(end)):
            more = connection.recv(65536)
            if not more:
                break
            said += more
    return said.decode()


def _number(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise OSError(f"no {pattern} in {text[:200]!r}")
    return found[1]


@dataclasses.dataclass(frozen=True)
class Load:
    """What a server was asked a second.

    :ivar all: how much
    :ivar by_kind: and of what kinds
    """

    all: float
    by_kind: Mapping[str, float]


class Meter:
    """Counts what a server is asked, in a thread of its own; a context manager.

    A server that doesn't answer is asked again; one that was started anew counts from
    nought again, as from here.
    """

    def __init__(self, server: process.Server) -> None:
        self._server = server
        self._count = COUNTERS[server.kind]
        self._counts_itself = _COUNTS_ITSELF.get(server.kind)
        self._lock = threading.Lock()
        # When, and how much since the beginning.
        self._samples: list[tuple[float, Counts]] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meter")

    def __enter__(self) -> "Meter":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping.set()
        self._thread.join(30)

    def rate(self, begin: float, end: float) -> Load:
        """Return how much a second there was between two monotonic instants."""
        with self._lock:
            found = [s for s in self._samples if begin <= s[0] <= end]
        return _load(found[0], found[-1])

    def most(self, begin: float, end: float, window: float) -> Load:
        """Return the highest rate of any window of so many seconds in between."""
        with self._lock:
            found = [s for s in self._samples if begin <= s[0] <= end]
        most = Load(0.0, {})
        at = 0
        for sample in found:
            # From the last sample that lies a window before this one.
            while at + 1 < len(found) and found[at + 1][0] <= sample[0] - window:
                at += 1
            if found[at][0] <= sample[0] - window:
                most = max(most, _load(found[at], sample), key=lambda load: load.all)
        return most

    def _run(self) -> None:
        total: Counts = collections.Counter()
        last: Counts = collections.Counter()
        asked = 0
        while not self._stopping.wait(_STEP):
            asked += self._counts_itself is not None
            try:
                now = self._count(self._server)
            except ConnectionRefusedError:
                asked = 0  # it is away, and with it what was counted
            except (OSError, http.client.HTTPException):
                pass  # it does nothing, which is a sample as well
            else:
                # What was asked while it was frozen is answered all at once.
                new = now - last if now.total() >= last.total() else now.copy()
                if self._counts_itself is not None:
                    new[self._counts_itself] -= asked
                total = total + new if new.total() > 0 else total
                last, asked = now, 0
            with self._lock:
                self._samples.append((time.monotonic(), total))


def _load(before: tuple[float, Counts], after: tuple[float, Counts]) -> Load:
    seconds = after[0] - before[0]
    asked = after[1] - before[1]
    by_kind = {kind: round(count / seconds, 1) for kind, count in asked.items()}
    return Load(asked.total() / seconds, by_kind)
