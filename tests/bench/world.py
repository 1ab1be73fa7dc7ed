"""What a bench measures in: servers of its own, a conductor, a folder."""

import contextlib
import shutil
from typing import Any
from typing import Self
from typing import TypeVar

from kombu import connection
import sqlalchemy as sa

from tests import process
from tests import servers
from tests.bench import child

_S = TypeVar("_S", bound=process.Server)
_SYNC_SECONDS = 120.0


class World:
    """A RabbitMQ, a MariaDB that syncs each commit to disk, and processes of ours.

    A context manager of one thread: leaving it ends everything, the youngest first.
    """

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as building:
            self.folder = process.make_folder()
            building.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self._cleanup = building
            self.broker = self._server(servers.RabbitMQ(self.folder))
            self.database = self._server(servers.MariaDB(self.folder, durable=True))
            self.rabbit_url = self.broker.lease(0)
            self.database_url = self.database.lease(0)
            self._cleanup = building.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._cleanup.close()

    def _server(self, server: _S) -> _S:
        self._cleanup.callback(server.close)
        server.start()
        return server

    def start(self, name: str, *module: str) -> child.Child:
        """Start a process that ends with this world."""
        made = child.Child(self.folder, name, *module)
        self._cleanup.callback(made.close)
        return made

    def conductor(self) -> child.Child:
        """Make the schema and start a conductor with one worker."""
        return self.start_conductor(self.sync())

    def sync(self) -> str:
        """Make the schema; return the path of a conductor's configuration."""
        config = self._write_config()
        sync = ("conductor.manage", "--config-file", config, "db", "sync")
        self.start("manage", *sync).wait(_SYNC_SECONDS)
        return config

    def start_conductor(self, config: str) -> child.Child:
        """Start one with this configuration."""
        return self.start("conductor", "conductor.main", "--config-file", config)

    def common(self) -> dict[str, str]:
        """Return the options that conductors and agents have in common."""
        groups = self.folder / "groups"
        groups.mkdir(exist_ok=True)
        return {
            "transport_url": self.rabbit_url,
            "servicegroup_tooz_url": f"file://{groups}?timeout=10",
        }

    def _write_config(self) -> str:
        path = self.folder / "conductor.conf"
        lines = [
            "[DEFAULT]",
            "host = bench",
            *(f"{name} = {value}" for name, value in self.common().items()),
            f"state_path = {self.folder}",
            "[database]",
            f"connection = {self.database_url}",
            "[conductor]",
            "workers = 1",
        ]
        path.write_text("\n".join(lines).replace("%", "%%") + "\n", encoding="utf-8")
        return str(path)

    def versions(self) -> dict[str, str]:
        """Return what the servers call themselves."""
        engine = sa.create_engine(self.database_url)
        with engine.connect() as session:
            mariadb = str(session.scalar(sa.text("SELECT VERSION()")))
        engine.dispose()
        url = self.rabbit_url.replace("rabbit://", "amqp://")
        connect: Any = connection.Connection  # untyped library
        with connect(url) as broker:
            said = broker.connection.server_properties
        rabbitmq = f"{said['version']} ({said['platform']})"
        return {"mariadb": mariadb, "rabbitmq": rabbitmq}
