"""The servers that only group backends are: memcached, etcd, ZooKeeper.

What tooz keeps on memcached and etcd has no place of its own for each lease: tests
that share such a server use groups of their own names.
"""

import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
from typing import Any
from typing import ClassVar

from tests import process
from tests import util


class Memcached(process.Server):
    """memcached: a restart empties it.

    :param megabytes: of memory; 2 are full soon, and then it forgets things
    """

    kind = "memcached"
    stop_signal = signal.SIGKILL  # it has nothing to save, and takes a second for it

    def __init__(self, folder: pathlib.Path, *, megabytes: int = 64) -> None:
        super().__init__(folder)
        self._megabytes = megabytes

    def check_installed(self) -> None:
        process.find_program("memcached")

    def _create(self) -> None:
        pass

    def _command(self) -> list[str]:
        return [
            process.find_program("memcached"),
            "--listen=127.0.0.1",
            f"--port={self.port}",
            f"--memory-limit={self._megabytes}",
            "--threads=1",
            # It refuses to run as root unless it is told to.
            *(["--user=root"] if os.geteuid() == 0 else []),
        ]

    def answers(self) -> bool:
        try:
            return self.ask("version").startswith("VERSION")
        except OSError:
            return False

    def lease(self, number: int) -> str:
        return f"memcached://127.0.0.1:{self.port}"

    def release(self, number: int) -> None:
        pass

    def ask(self, command: str) -> str:
        """Return the first line of the answer to a command like "flush_all"."""
        return _ask(self.port, f"{command}\r\n").partition("\r\n")[0]


class Etcd(process.Server):
    """One etcd; what it took in outlives the process, not the machine."""

    kind = "etcd"

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        self._peer_port = util.free_port()

    def check_installed(self) -> None:
        process.find_program("etcd")

    def _create(self) -> None:
        pass

    def _command(self) -> list[str]:
        clients = f"http://127.0.0.1:{self.port}"
        peers = f"http://127.0.0.1:{self._peer_port}"
        return [
            process.find_program("etcd"),
            "--name=one",
            f"--data-dir={self.folder / 'data'}",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=one={peers}",
            "--logger=zap",
            "--log-level=error",
            "--unsafe-no-fsync",
        ]

    def answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        with contextlib.closing(connection):
            try:
                connection.request("GET", "/health")
                health = json.loads(connection.getresponse().read())
            except (OSError, http.client.HTTPException, ValueError):
                return False
        return bool(health.get("health") == "true")

    def lease(self, number: int) -> str:
        return f"etcd3+http://127.0.0.1:{self.port}"

    def release(self, number: int) -> None:
        pass


def call_etcd(port: int, path: str, **body: Any) -> dict[str, Any]:
    """Return the answer to a call of etcd's HTTP interface, such as "kv/range"."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.request("POST", f"/v3/{path}", json.dumps(body))
        answer = connection.getresponse()
        text = answer.read().decode()
    assert answer.status == 200, text
    found: dict[str, Any] = json.loads(text)
    return found


class ZooKeeper(process.Server):
    """One ZooKeeper; what it took in outlives the process, not the machine.

    A tick of 0.5 s: sessions of 1 to 60 s are granted as asked for, unless...

    :param longest: seconds of the longest session that it grants
    """

    kind = "zookeeper"
    _jar: ClassVar[pathlib.Path] = pathlib.Path("/usr/share/java/zookeeper.jar")

    def __init__(self, folder: pathlib.Path, *, longest: float = 60.0) -> None:
        super().__init__(folder)
        self._longest = longest

    def check_installed(self) -> None:
        process.find_program("java")
        if not self._jar.exists():
            raise process.ServerMissing("zookeeper is not installed")

    def _create(self) -> None:
        pass

    def _command(self) -> list[str]:
        settings = {
            "tickTime": 500,
            "minSessionTimeout": 1000,
            "maxSessionTimeout": f"{self._longest * 1000:.0f}",
            "dataDir": self.folder / "data",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "ruok,mntr",
        }
        configuration = self.folder / "zoo.cfg"
        configuration.write_text("".join(f"{k}={v}\n" for k, v in settings.items()))
        return [
            process.find_program("java"),
            "-Xmx96m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",  # starts in half the time
            "-Dzookeeper.forceSync=no",
            "-Dzookeeper.preAllocSize=64",
            "-cp",
            os.fspath(self._jar),
            "org.apache.zookeeper.server.ZooKeeperServerMain",
            os.fspath(configuration),
        ]

    def answers(self) -> bool:
        try:
            return _ask(self.port, "ruok") == "imok"
        except OSError:
            return False

    def lease(self, number: int) -> str:
        return f"kazoo://127.0.0.1:{self.port}?namespace=lease_{number}"

    def release(self, number: int) -> None:
        """Leave it behind: no other lease gets it."""


def _ask(port: int, text: str) -> str:
    """Send text, return what comes back at once."""
    with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
        connection.settimeout(2)
        connection.sendall(text.encode())
        return connection.recv(4096).decode()
