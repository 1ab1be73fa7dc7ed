"""The real servers that tests talk to: MariaDB, PostgreSQL, Redis, RabbitMQ.

memcached, etcd and ZooKeeper are in group_servers.py.
"""

from collections.abc import Iterator
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
from typing import Any
from typing import ClassVar
import urllib.parse

import sqlalchemy as sa
from sqlalchemy import exc as sa_exc
from sqlalchemy import pool as sa_pool

from tests import group_servers
from tests import process
from tests import util


class _Database(process.Server):
    """A SQL server: each lease is a database of its own."""

    def _url(self, database: str) -> sa.URL:
        raise NotImplementedError

    def _limits(self, seconds: int) -> dict[str, Any]:
        """Return the driver's arguments that bound a connection's calls."""
        raise NotImplementedError

    _admin_database: ClassVar[str]

    @contextlib.contextmanager
    def _admin(self, seconds: int = 30) -> Iterator[sa.Connection]:
        engine = sa.create_engine(
            self._url(self._admin_database),
            isolation_level="AUTOCOMMIT",
            poolclass=sa_pool.NullPool,
            connect_args=self._limits(seconds),
        )
        with engine.connect() as connection:
            yield connection

    def answers(self) -> bool:
        try:
            with self._admin(2) as connection:
                return bool(connection.scalar(sa.text("SELECT 1")))
        except sa_exc.DBAPIError:
            return False

    @staticmethod
    def _name(number: int) -> str:
        return f"lease_{number}"


class MariaDB(_Database):
    """MariaDB.

    :param durable: whether a commit outlives the machine, as by default in
        production, or only the process, which is faster
    """

    kind = "mariadb"
    _admin_database = "mysql"

    def __init__(self, folder: pathlib.Path, *, durable: bool = False) -> None:
        super().__init__(folder)
        self._durable = durable

    def _limits(self, seconds: int) -> dict[str, Any]:
        return {"connect_timeout": seconds, "read_timeout": seconds}

    def _url(self, database: str) -> sa.URL:
        return sa.make_url(
            f"mysql+pymysql://root@127.0.0.1:{self.port}/{database}?charset=utf8mb4"
        )

    def check_installed(self) -> None:
        process.find_program("mariadbd")
        process.find_program("mariadb-install-db")

    def _create(self) -> None:
        self._run(
            [
                process.find_program("mariadb-install-db"),
                "--no-defaults",
                f"--datadir={self.folder / 'data'}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                *self._as_root(),
            ]
        )

    def _command(self) -> list[str]:
        return [
            process.find_program("mariadbd"),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            "--character-set-server=utf8mb4",
            "--max-connections=500",
            *([] if self._durable else self._FAST),
            *self._as_root(),
        ]

    _FAST: ClassVar = [
        "--innodb-flush-log-at-trx-commit=2",
        "--innodb-flush-method=nosync",
    ]

    @staticmethod
    def _as_root() -> list[str]:
        # mariadbd refuses to run as root unless it is told to.
        return ["--user=root"] if os.geteuid() == 0 else []

    def lease(self, number: int) -> str:
        with self._admin() as connection:
            connection.execute(
                sa.text(f"CREATE DATABASE {self._name(number)} CHARACTER SET utf8mb4")
            )
        return self._url(self._name(number)).render_as_string()

    def release(self, number: int) -> None:
        # DROP DATABASE waits for every transaction that has used a table of it.
        users = sa.text("SELECT id FROM information_schema.processlist WHERE db = :db")
        with self._admin() as connection:
            for thread in connection.scalars(users, {"db": self._name(number)}).all():
                with contextlib.suppress(sa_exc.DBAPIError):  # it has just left
                    connection.execute(sa.text(f"KILL {thread:d}"))
            connection.execute(sa.text(f"DROP DATABASE {self._name(number)}"))


class PostgreSQL(_Database):
    """PostgreSQL; a commit outlives the process, not the machine."""

    kind = "postgresql"
    user = "postgres"  # it refuses to run as root
    stop_signal = signal.SIGINT  # "fast": does not wait for clients
    orphan_signal = signal.SIGQUIT  # "immediate": takes its children along
    _admin_database = "postgres"
    _folders = "/usr/lib/postgresql/*/bin"

    def _limits(self, seconds: int) -> dict[str, Any]:
        return {
            "connect_timeout": seconds,
            "options": f"-c statement_timeout={seconds}s",
        }

    def _url(self, database: str) -> sa.URL:
        return sa.make_url(
            f"postgresql+psycopg2://postgres@127.0.0.1:{self.port}/{database}"
        )

    def check_installed(self) -> None:
        process.find_program("postgres", self._folders)
        process.find_program("initdb", self._folders)

    def _create(self) -> None:
        self._run(
            [
                process.find_program("initdb", self._folders),
                f"--pgdata={self.folder / 'data'}",
                "--username=postgres",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C.UTF-8",
                "--no-sync",
            ]
        )

    def _command(self) -> list[str]:
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": 300,
            "fsync": "off",
            "full_page_writes": "off",
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        program = process.find_program("postgres", self._folders)
        return [program, "-D", str(self.folder / "data"), *options]

    def lease(self, number: int) -> str:
        with self._admin() as connection:
            connection.execute(sa.text(f"CREATE DATABASE {self._name(number)}"))
        return self._url(self._name(number)).render_as_string()

    def release(self, number: int) -> None:
        with self._admin() as connection:
            connection.execute(
                sa.text(f"DROP DATABASE {self._name(number)} WITH (FORCE)")
            )


class Redis(process.Server):
    """Redis; each lease is a logical database.

    :param persistent: whether its data outlive a restart (append-only file)
    :param password: without white space; clients must give it, unless empty
    """

    kind = "redis"
    databases: ClassVar[int] = 1024

    def __init__(
        self, folder: pathlib.Path, *, persistent: bool = False, password: str = ""
    ) -> None:
        super().__init__(folder)
        self.persistent = persistent
        self._password = password

    def check_installed(self) -> None:
        process.find_program("redis-server")

    def _create(self) -> None:
        pass

    def _command(self) -> list[str]:
        settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.folder),
            "databases": str(self.databases),
            "save": "",
            "appendonly": "yes" if self.persistent else "no",
            "appendfsync": "no",
            "requirepass": self._password,
        }
        options = [part for name, value in settings.items() for part in (name, value)]
        for at in range(0, len(options), 2):
            options[at] = f"--{options[at]}"
        return [process.find_program("redis-server"), *options]

    def answers(self) -> bool:
        try:
            return self.ask("PING") == ["+PONG"]
        except OSError:
            return False

    def lease(self, number: int) -> str:
        self.release(number)
        user = f":{urllib.parse.quote(self._password, safe='')}@"
        where = f"{user * bool(self._password)}127.0.0.1:{self.port}"
        return f"redis://{where}?db={number % self.databases}"

    def release(self, number: int) -> None:
        database = number % self.databases
        answer = self.ask(f"SELECT {database}", "FLUSHDB")
        assert answer == ["+OK", "+OK"], answer

    def ask(self, *commands: str) -> list[str]:
        """Return the answers, of one line each, to commands like "PING"."""
        if self._password:
            login, *answers = self._ask(f"AUTH {self._password}", *commands)
            assert login == "+OK", login
            return answers
        return self._ask(*commands)

    def info(self) -> str:
        """Return how often each command came since the start (INFO commandstats)."""
        with socket.create_connection(("127.0.0.1", self.port), 2) as connection:
            connection.settimeout(2)
            connection.sendall(b"INFO commandstats\r\n")
            with connection.makefile("rb") as answer:
                size = int(answer.readline().removeprefix(b"$"))
                return answer.read(size).decode()

    def _ask(self, *commands: str) -> list[str]:
        address = ("127.0.0.1", self.port)
        with socket.create_connection(address, timeout=2) as connection:
            connection.settimeout(2)
            connection.sendall("".join(f"{line}\r\n" for line in commands).encode())
            with connection.makefile("r", newline="\r\n") as answers:
                return [answers.readline().strip() for _ in commands]


class RabbitMQ(process.Server):
    """RabbitMQ with an epmd and a node name of its own; each lease is a vhost.

    A vhost costs the broker 0.05 s and a rabbitmqctl 0.9 s, so that vhosts are
    made in batches: the first by the broker's start.
    """

    kind = "rabbitmq"
    batch: ClassVar[int] = 20
    _bin = "/usr/lib/rabbitmq/bin"  # Debian's /usr/sbin has wrappers for services

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        self._epmd_port = util.free_port()
        self._node_port = util.free_port()
        self._epmd: subprocess.Popen[bytes] | None = None
        self._vhosts = 0

    def check_installed(self) -> None:
        process.find_program("epmd")
        self._program("rabbitmq-server")
        self._program("rabbitmqctl")

    def _program(self, name: str) -> str:
        path = f"{self._bin}/{name}"
        if not os.access(path, os.X_OK):
            raise process.ServerMissing(f"{name} is not installed")
        return path

    def _create(self) -> None:
        (self.folder / "plugins").write_text("[].\n")
        (self.folder / "environment").write_text("")
        self._vhosts = self.batch
        self._write_definitions(range(self.batch), default=True)

    def _write_definitions(self, numbers: range, *, default: bool = False) -> None:
        guest = {"name": "guest", "password": "guest", "tags": "administrator"}
        vhosts = [f"lease_{number}" for number in numbers] + ["/"] * default
        rights = {"user": "guest", "configure": ".*", "write": ".*", "read": ".*"}
        definitions = {
            "users": [guest],
            "vhosts": [{"name": vhost} for vhost in vhosts],
            "permissions": [{"vhost": vhost, **rights} for vhost in vhosts],
        }
        (self.folder / "definitions.json").write_text(json.dumps(definitions))

    def start(self) -> None:
        try:
            super().start()
        except BaseException:
            self._stop_epmd()
            raise

    def _command(self) -> list[str]:
        (self.folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            f"load_definitions = {self.folder / 'definitions.json'}\n"
        )
        if self._epmd is None:
            # Without this one the node would start a daemon that nobody stops.
            arguments = ["-port", str(self._epmd_port), "-address", "127.0.0.1"]
            self._epmd = self._launch([process.find_program("epmd"), *arguments])
            util.wait_until(lambda: _listens(self._epmd_port), what="start of epmd")
        return [self._program("rabbitmq-server")]

    def _environment(self) -> dict[str, str]:
        local = "-kernel inet_dist_use_interface {127,0,0,1}"
        return super()._environment() | {
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "environment"),
            "RABBITMQ_DIST_PORT": str(self._node_port),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_LOG_BASE": str(self.folder / "logs"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_NODENAME": "musterbook@localhost",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": local,
            # Makes the start script become the broker instead of its parent.
            "RUNNING_UNDER_SYSTEMD": "1",
        }

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 2) as connection:
                connection.settimeout(2)
                connection.sendall(b"AMQP\x00\x00\x09\x01")
                return connection.recv(1) == b"\x01"  # the method Connection.Start
        except OSError:
            return False

    def lease(self, number: int) -> str:
        if number >= self._vhosts:
            end = number + self.batch
            self._write_definitions(range(self._vhosts, end))
            self.control("import_definitions", str(self.folder / "definitions.json"))
            self._vhosts = end
        return f"rabbit://guest:guest@127.0.0.1:{self.port}/lease_{number}"

    def control(self, *arguments: str) -> str:
        """Run rabbitmqctl and return what it printed; takes a second."""
        return self._run([self._program("rabbitmqctl"), "--quiet", *arguments])

    def queues(self, vhost: str, *columns: str) -> list[list[str]]:
        """Return columns of each queue, such as name and messages_unacknowledged."""
        listed = self.control(
            "list_queues", "--no-table-headers", "-p", vhost, *columns
        )
        return [line.split("\t") for line in listed.splitlines()]

    def release(self, number: int) -> None:
        """Leave the vhost behind: no other lease gets it, and deleting is dear."""

    def kill(self) -> None:
        super().kill()
        self._stop_epmd()

    def _stop_epmd(self) -> None:
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait(process.STOP_SECONDS)
            self._epmd = None


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


KINDS: dict[str, type[process.Server]] = {
    kind.kind: kind
    for kind in (
        MariaDB,
        PostgreSQL,
        Redis,
        RabbitMQ,
        group_servers.Memcached,
        group_servers.Etcd,
        group_servers.ZooKeeper,
    )
}
