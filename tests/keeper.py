"""One server of each kind for a whole test run, whichever worker asks for it.

The process that the developer started (pytest itself, or pytest-xdist's
controller) has the Keeper; the fixtures, here or in a worker, ask it over a Unix
socket for a *lease*: an own database, logical database or vhost on the shared
server of a kind. The first lease of a kind starts its server.
"""

from concurrent import futures
import contextlib
import itertools
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

    start and stop are called by the thread that runs pytest; the keeper's own takes
    in the requests, and one for each kind answers them one after the other. These
    live as long as their servers do (see tests.process on why they must).
    """

    def __init__(self) -> None:
        self._folder = process.make_folder()
        self.address = self._folder / "keeper"
        self._rooms: dict[str, _Room] = {}
        self._numbers = itertools.count()
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

    def info(self, kind: str) -> str | None:
        """Return what the server of a kind says of its use; None: nobody asked for it.

        Only while no test runs.
        """
        room = self._rooms.get(kind)
        return None if room is None else room.info()

    def _serve(self) -> None:
        try:
            with self._listener:
                while self._serve_one():
                    pass
        finally:
            for room in self._rooms.values():
                room.close()
            for room in self._rooms.values():
                room.join()

    def _serve_one(self) -> bool:
        """Take in one request; return whether to go on."""
        connection, _ = self._listener.accept()
        connection.settimeout(_REQUEST_SECONDS)
        with contextlib.ExitStack() as unless_passed_on:
            unless_passed_on.enter_context(connection)
            # A client that was killed meanwhile is nothing to stop for.
            with contextlib.suppress(OSError, ValueError):
                with connection.makefile("r") as stream:
                    request = json.loads(stream.readline())
                if request["do"] == "stop":
                    connection.sendall(b"{}\n")
                    return False
                self._room(request["kind"]).submit(connection, request)
                unless_passed_on.pop_all()
        return True

    def _room(self, kind: str) -> "_Room":
        if kind not in self._rooms:
            self._rooms[kind] = _Room(kind, self._folder, self._numbers)
        return self._rooms[kind]


class _Room:
    """The server of one kind, and the thread in which all happens to it.

    While one kind is slow to start, the tests of the others go on.
    """

    def __init__(
        self, kind: str, folder: pathlib.Path, numbers: "itertools.count[int]"
    ) -> None:
        self._kind = kind
        self._folder = folder
        self._numbers = numbers  # of leases, shared: no two of a run are the same
        self._server: process.Server | None = None
        self._failure: dict[str, str] | None = None
        self._thread = futures.ThreadPoolExecutor(1, f"server-{kind}")
        self._end: futures.Future[None] | None = None

    def submit(self, connection: socket.socket, request: dict[str, Any]) -> None:
        """Answer a request later, and close the connection."""
        self._thread.submit(self._reply, connection, request)

    def info(self) -> str | None:
        """Return what the server says of its use; None: it doesn't run."""
        return self._thread.submit(self._info).result(_REQUEST_SECONDS)

    def _info(self) -> str | None:
        return self._server.info() if isinstance(self._server, servers.Redis) else None

    def close(self) -> None:
        """End the server after the answers to what was asked before."""
        self._end = self._thread.submit(self._close)

    def join(self) -> None:
        """Return when the server has ended."""
        self._thread.shutdown()
        assert self._end is not None
        self._end.result()

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()

    def _reply(self, connection: socket.socket, request: dict[str, Any]) -> None:
        with connection:
            answer = self._answer(request)
            with contextlib.suppress(OSError):  # the client was killed meanwhile
                connection.sendall(json.dumps(answer).encode() + b"\n")

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._failure is not None:
            return self._failure
        try:
            server = self._running()
        except Exception as exc:  # noqa: BLE001 - each test that asks says it
            word = "missing" if isinstance(exc, process.ServerMissing) else "failed"
            self._failure = {word: str(exc)}
            return self._failure
        try:
            return self._on(server, request)
        except Exception as exc:  # noqa: BLE001 - the test that asked says it
            return {"failed": f"{type(exc).__name__}: {exc}"}

    def _running(self) -> process.Server:
        if self._server is None:
            server = servers.KINDS[self._kind](self._folder)
            server.start()
            self._server = server
        return self._server

    def _on(self, server: process.Server, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "release":
            server.release(request["number"])
            return {}
        number = next(self._numbers)
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
