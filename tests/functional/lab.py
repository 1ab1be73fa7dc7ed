"""Real processes of ours on real servers, for the functional tests."""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

from kombu import connection as kombu_connection
from kombu.transport import pyamqp
import psutil
import sqlalchemy as sa

from conductor import rpcapi as conductor_rpcapi
from musterbook import context
from musterbook import errors
from musterbook import rpc
from tests import rpc_lab
from tests import schema
from tests import util

ROOT = pathlib.Path(__file__).parents[2]

#: The times of the tests' fleets, in seconds: everything as in production, faster.
REPORT_INTERVAL = 0.5
MEMBER_TIMEOUT = 2
SERVICE_DOWN_TIME = 6.0
POLL_INTERVAL = 0.25
UPDATE_RESOURCES_INTERVAL = 1.0

#: The same as in cases.md.
CASES = {
    "REPORT_INTERVAL": 3,
    "MEMBER_TIMEOUT": 10,
    "SERVICE_DOWN_TIME": 13,
    "POLL_INTERVAL": 1,
    "UPDATE_RESOURCES_INTERVAL": 10,
}


class Process:
    """One command of ours, with its output in files.

    :param command: module and arguments, run by this Python
    """

    def __init__(self, folder: pathlib.Path, name: str, *command: str) -> None:
        self.out = folder / f"{name}.out"
        self.err = folder / f"{name}.err"
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONWARNINGS"}
        environment["PYTHONUNBUFFERED"] = "1"
        with self.out.open("ab") as out, self.err.open("ab") as err:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=ROOT,
                env=environment,
            )

    def output(self) -> str:
        """Return what was written to stdout so far."""
        return self.out.read_text(encoding="utf-8", errors="replace")

    def errors(self) -> str:
        """Return what was written to stderr so far; daemons log there."""
        return self.err.read_text(encoding="utf-8", errors="replace")

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.popen.send_signal(number)

    def wait(self, seconds: float = 30.0) -> int:
        """Return the exit code; a process that doesn't end is killed."""
        try:
            return self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def stop(self) -> int:
        """End it politely and return the exit code."""
        self.send(signal.SIGTERM)
        return self.wait()

    def children(self) -> list[psutil.Process]:
        """Return its processes besides the first: a conductor's workers."""
        try:
            return psutil.Process(self.popen.pid).children()
        except psutil.NoSuchProcess:
            return []

    def freeze(self) -> None:
        """Stop it and its workers from running."""
        self.send(signal.SIGSTOP)
        for worker in self.children():
            worker.suspend()

    def thaw(self) -> None:
        """Let it run on after freeze."""
        for worker in self.children():
            worker.resume()
        self.send(signal.SIGCONT)

    def kill(self) -> None:
        """End it and its workers at once, if they still run."""
        workers = self.children()
        self.popen.kill()
        self.popen.wait(30)
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
        psutil.wait_procs(workers, 30)


class Lab:
    """A fleet's servers and processes.

    :param folder: for configuration and output
    :ivar lease_interval: of the conductors that are started from here on
    :ivar response_timeout: of what is started from here on; None: the default
    :ivar stalled_after: of the agents that are started from here on; None: the default
    :ivar inventory_timeout: of the agents that are started from here on
    """

    lease_interval = 0.5
    response_timeout: int | None = 5
    stalled_after: float | None = None
    inventory_timeout = 5.0

    def __init__(
        self, folder: pathlib.Path, rabbit: str, group: str, database: str
    ) -> None:
        self.folder = folder
        self.rabbit = rabbit
        joiner = "&" if "?" in group else "?"
        self.group = f"{group}{joiner}timeout={MEMBER_TIMEOUT}"
        self.database = database
        self.processes: list[Process] = []
        #: Of the conductors that are started from now on.
        self.workers = 1
        self.transport = rpc.make_transport(rpc_lab.make_conf(rabbit))
        self.conductor = conductor_rpcapi.ConductorAPI(self.transport, 5.0)

    def sync(self) -> None:
        """Make the schema."""
        schema.make_url(self.database)

    def config(self, name: str, more: Mapping[str, Any]) -> str:
        """Write a configuration file and return its path."""
        values = {
            "transport_url": self.rabbit,
            "servicegroup_tooz_url": self.group,
            "report_interval": REPORT_INTERVAL,
            "service_down_time": SERVICE_DOWN_TIME,
            "update_resources_interval": UPDATE_RESOURCES_INTERVAL,
            "rpc_response_timeout": self.response_timeout,
            "stalled_after": self.stalled_after,
            "state_path": self.state(name),
            "graceful_shutdown_timeout": 10,
            **more,
        }
        given = {k: v for k, v in values.items() if v is not None}
        lines = ["[DEFAULT]", *(f"{k} = {v}" for k, v in given.items())]
        lines += ["[database]", f"connection = {self.database}"]
        lines += ["[conductor]", f"poll_interval = {POLL_INTERVAL}"]
        lines += [f"workers = {self.workers}", "ping_timeout = 1"]
        lines += [f"lease_interval = {self.lease_interval}"]
        lines += ["[inventory]", "source = fake"]
        lines += [f"timeout = {self.inventory_timeout}"]
        lines += ["[inventory_fake]", f"file = {self.folder / name}.json"]
        path = self.folder / f"{name}.conf"
        path.write_text("\n".join(lines).replace("%", "%%") + "\n", encoding="utf-8")
        return str(path)

    def run(self, module: str, *arguments: str, name: str = "") -> Process:
        """Start a command of ours."""
        made = Process(
            self.folder, name or module.rpartition(".")[2], module, *arguments
        )
        self.processes.append(made)
        return made

    def start_conductor(self, name: str = "c1") -> Process:
        """Start a conductor."""
        config = self.config(name, {"host": name})
        return self.run("conductor.main", "--config-file", config, name=name)

    def wait_serving(self, *names: str, timeout: float = 120.0) -> None:
        """Wait until these conductors serve, as all do whose start is over.

        One that is slower than the other isn't missed by anybody: hosts may be up
        before its start has come to the database or the broker.
        """
        wanted = self.workers
        for queue in (f"conductor.{name}" for name in names):
            util.wait_until(
                functools.partial(self._is_read, queue, wanted),
                timeout,
                f"{wanted} consumers of {queue}",
            )

    def _is_read(self, queue: str, wanted: int) -> bool:
        # The broker may have gone for a moment.
        with contextlib.suppress(*pyamqp.Transport.connection_errors):
            return consumers(self.rabbit, queue) == wanted
        return False

    def start_agent(
        self, host: str, nodes: Mapping[str, Any] | None = None, file: str = ""
    ) -> Process:
        """Start an agent of a host; as a rule with one node of its name."""
        name = file or host
        self.write_nodes(name, nodes or {host: NODE})
        config = self.config(name, {"host": host})
        return self.run("compute_agent.main", "--config-file", config, name=name)

    def state(self, name: str) -> pathlib.Path:
        """Return the state directory of what was started under this name."""
        return self.folder / f"{name}.state"

    def start_hollow(
        self, hosts: int, *arguments: str, name: str = "hollow", **options: Any
    ) -> Process:
        """Start hollow agents, with one node each that is named like the host."""
        self.write_nodes(name, {"{host}": NODE})
        config = self.config(name, options)
        command = ("--config-file", config, "--hosts", str(hosts), *arguments)
        return self.run("compute_agent.hollow.main", *command, name=name)

    def write_nodes(self, name: str, nodes: Mapping[str, Any], **more: Any) -> None:
        """Say what the fake source of an agent reports from now on."""
        path = self.folder / f"{name}.json"
        path.with_suffix(".new").write_text(json.dumps({"nodes": nodes, **more}))
        path.with_suffix(".new").replace(path)

    def fleet(self) -> dict[str, dict[str, Any]]:
        """Return the fleet's rows by node name; empty while no conductor answers."""
        try:
            answer = self.conductor.get_fleet(context.service_context())
        except errors.ConductorUnavailable:
            return {}
        columns = answer["columns"]
        rows = [
            dict(zip(columns, row, strict=True))
            for row in zip(*columns.values(), strict=True)
        ]
        return {row["hypervisor_hostname"]: row for row in rows}

    def wait_state(self, node: str, *states: str, timeout: float = 30.0) -> float:
        """Wait until a node is in one of the states; return the monotonic time."""
        util.wait_until(
            lambda: self.fleet().get(node, {}).get("state") in states,
            timeout,
            f"{node} {' or '.join(states)}",
        )
        return time.monotonic()

    def transitions(self, host: str) -> list[tuple[str, str]]:
        """Return the stored history of a host: state and cause, oldest first."""
        engine = sa.create_engine(self.database)
        query = sa.text(
            "SELECT state, cause FROM transitions WHERE host = :host ORDER BY id"
        )
        with engine.connect() as connection:
            found = connection.execute(query, {"host": host}).all()
        engine.dispose()
        return [(row.state, row.cause) for row in found]

    def process(self, name: str) -> Process:
        """Return the process that was started last under a name."""
        return next(p for p in reversed(self.processes) if p.err.stem == name)

    def close(self) -> None:
        """End everything."""
        for process in self.processes:
            process.kill()
        self.transport.cleanup()


def consumers(url: str, queue: str) -> int | None:
    """Return how many take messages from a queue right now, None if it isn't there."""
    with kombu_connection.Connection(  # type: ignore[no-untyped-call]  # kombu's
        url.replace("rabbit://", "amqp://"), connect_timeout=10
    ) as connection:
        try:
            declared = connection.channel().queue_declare(queue, passive=True)
        except connection.channel_errors:
            return None
        return int(declared.consumer_count)


#: What the labs' nodes have, if nothing else is said.
NODE = {"vcpus": 8, "memory_mb": 16384, "local_gb": 200}


@contextlib.contextmanager
def opened(lab: Lab) -> Iterator[Lab]:
    """Close the lab at the end and print what its processes said.

    pytest shows it when the test failed.
    """
    try:
        yield lab
    finally:
        lab.close()
        for process in lab.processes:
            print(f"--- {process.err.name}\n{process.errors()[-4000:]}")
