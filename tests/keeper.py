"""One server of each kind for a whole test run, whichever worker asks for it.

The process that the developer started (pytest itself, or pytest-xdist's
controller) has the Keeper; the fixtures, here or in a worker, ask it over a Unix
socket for a *lease*: an own database, logical database or vhost on the shared
server of a kind. The first lease of a kind starts its server.
"""

from concurrent import futures
import contextlib
import json
import os
import pathlib
import shutil
import socket
import threading
from typing import Any

from tests import process
from tests import servers

_REQUEST_SECONDS = 150.0


class Keeper:
    """Starts servers when first asked, ends all of them at the end of the run.

    start and stop are called by the thread that runs pytest; everything else
    happens in the keeper's own thread, one request after the other. That thread
    lives as long as the servers do (see tests.process on why it must).
    """

    def __init__(self) -> None:
        self._folder = process.make_folder()
        self.address = self._folder / "keeper"
        self._servers: dict[str, process.Server] = {}
        self._failures: dict[str, dict[str, str]] = {}
        self._leases = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._thread = threading.Thread(target=self._serve, name="server-keeper")

    def start(self) -> None:
        """Listen for requests."""
        self._listener.bind(str(self.address))
        self.address.chmod(0o600)
        self._listener.listen()
        self._thread.start()

    def stop(self) -> None:
        """End the servers and remove their folders; harmless when repeated."""
        if self._thread.is_alive():
            with contextlib.suppress(OSError):
                _ask(self.address, {"do": "stop"})
            self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _serve(self) -> None:
        try:
            with self._listener:
                while self._serve_one():
                    pass
        finally:
            with futures.ThreadPoolExecutor() as pool:
                list(pool.map(process.Server.close, self._servers.values()))

    def _serve_one(self) -> bool:
        """Answer one request; return whether to go on."""
        connection, _ = self._listener.accept()
        # A client that was killed meanwhile is nothing to stop for.
        with connection, contextlib.suppress(OSError, ValueError):
            connection.settimeout(_REQUEST_SECONDS)
            with connection.makefile("rw") as stream:
                request = json.loads(stream.readline())
                if request["do"] == "stop":
                    print("{}", file=stream, flush=True)
                    return False
                print(json.dumps(self._answer(request)), file=stream, flush=True)
        return True

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        kind = request["kind"]
        if kind in self._failures:
            return self._failures[kind]
        try:
            server = self._running(kind)
        except Exception as exc:  # noqa: BLE001 - each test that asks says it
            word = "missing" if isinstance(exc, process.ServerMissing) else "failed"
            self._failures[kind] = {word: str(exc)}
            return self._failures[kind]
        try:
            return self._on(server, request)
        except Exception as exc:  # noqa: BLE001 - the test that asked says it
            return {"failed": f"{type(exc).__name__}: {exc}"}

    def _running(self, kind: str) -> process.Server:
        if kind not in self._servers:
            server = servers.KINDS[kind](self._folder)
            server.start()
            self._servers[kind] = server
        return self._servers[kind]

    def _on(self, server: process.Server, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "release":
            server.release(request["number"])
            return {}
        number = self._leases
        self._leases += 1
        return {"url": server.lease(number), "number": number}


class Lease:
    """An own place on a shared server.

    :param address: of the run's keeper
    :param kind: of the server
    :raises ServerMissing: if the machine lacks the server
    :raises ServerFailed: if it is there and doesn't work
    """

    def __init__(self, address: pathlib.Path, kind: str) -> None:
        self._address = address
        self._kind = kind
        answer = _ask(address, {"do": "lease", "kind": kind})
        self.url: str = answer["url"]
        self._number: int = answer["number"]

    def release(self) -> None:
        """Give it back; whatever is in it is gone."""
        request = {"do": "release", "kind": self._kind, "number": self._number}
        _ask(self._address, request)


def _ask(address: pathlib.Path, request: dict[str, Any]) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_REQUEST_SECONDS)
        connection.connect(os.fspath(address))
        with connection.makefile("rw") as stream:
            print(json.dumps(request), file=stream, flush=True)
            answer: dict[str, Any] = json.loads(stream.readline() or "{}")
    if "missing" in answer:
        raise process.ServerMissing(answer["missing"])
    if "failed" in answer:
        raise process.ServerFailed(answer["failed"])
    return answer
