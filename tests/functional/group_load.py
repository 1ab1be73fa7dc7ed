"""What a group backend is asked for: its own counters, sampled."""

from collections.abc import Callable
import contextlib
import http.client
import re
import socket
import threading
import time

from tests import process
from tests import servers

#: Seconds between two samples.
_STEP = 0.1


def _redis(server: process.Server) -> int:
    """Return the commands that it has done, the counter's own among them."""
    assert isinstance(server, servers.Redis)
    text = _lines(server.port, b"INFO commandstats\r\n", b"\r\n\r\n")
    return sum(int(calls) for calls in re.findall(r"cmdstat_[^:]+:calls=(\d+)", text))


def _zookeeper(server: process.Server) -> int:
    """Return the packets that it has got, the counter's own among them."""
    text = _lines(server.port, b"mntr", b"")
    return int(_number(r"zk_packets_received\s+(\d+)", text))


def _etcd(server: process.Server) -> int:
    """Return the calls that it has handled."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=1)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    found = re.findall(r"^grpc_server_started_total\{.*\} (\S+)$", text, re.MULTILINE)
    return int(sum(float(count) for count in found))


def _memcached(server: process.Server) -> int:
    """Return the keys that were asked for or set, and what else was done to them."""
    text = _lines(server.port, b"stats\r\n", b"END\r\n")
    names = ("cmd_get", "cmd_set", "cmd_touch", "delete_hits", "delete_misses")
    return sum(int(_number(rf"STAT {name} (\d+)", text)) for name in names)


COUNTERS: dict[str, Callable[[process.Server], int]] = {
    "redis": _redis,
    "zookeeper": _zookeeper,
    "etcd": _etcd,
    "memcached": _memcached,
}
#: Where asking counts.
_COUNTS_ITSELF = {"redis", "zookeeper"}


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


class Meter:
    """Counts what a server is asked, in a thread of its own; a context manager.

    A server that doesn't answer is asked again; one that was started anew counts from
    nought again, as from here.
    """

    def __init__(self, server: process.Server) -> None:
        self._server = server
        self._count = COUNTERS[server.kind]
        self._counts_itself = server.kind in _COUNTS_ITSELF
        self._lock = threading.Lock()
        # When, and how much since the beginning.
        self._samples: list[tuple[float, int]] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meter")

    def __enter__(self) -> "Meter":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping.set()
        self._thread.join(30)

    def rate(self, begin: float, end: float) -> float:
        """Return how much a second there was between two monotonic instants."""
        with self._lock:
            found = [s for s in self._samples if begin <= s[0] <= end]
        (first, before), (last, after) = found[0], found[-1]
        return (after - before) / (last - first)

    def most(self, begin: float, end: float, window: float) -> float:
        """Return the highest rate of any window of so many seconds in between."""
        with self._lock:
            found = [s for s in self._samples if begin <= s[0] <= end]
        most = 0.0
        at = 0
        for when, count in found:
            # From the last sample that lies a window before this one.
            while at + 1 < len(found) and found[at + 1][0] <= when - window:
                at += 1
            if found[at][0] <= when - window:
                most = max(most, (count - found[at][1]) / (when - found[at][0]))
        return most

    def _run(self) -> None:
        total = last = asked = 0
        while not self._stopping.wait(_STEP):
            asked += self._counts_itself
            try:
                now = self._count(self._server)
            except ConnectionRefusedError:
                asked = 0  # it is away, and with it what was counted
            except (OSError, http.client.HTTPException):
                pass  # it does nothing, which is a sample as well
            else:
                # What was asked while it was frozen is answered all at once.
                total += max((now - last if now >= last else now) - asked, 0)
                last, asked = now, 0
            with self._lock:
                self._samples.append((time.monotonic(), total))
