"""A hollow host says what a real agent says: to conductors, callers and the group."""

from collections.abc import Iterator
import contextlib
import json
import pathlib
import re
import threading
from typing import Any
import urllib.parse

import pytest
import redis

from compute_agent import rpcapi as compute_rpcapi
from conductor import grants
from conductor import manager
from conductor.db import engine as db_engine
from conductor.db import liveness
from conductor.db import migration
from conductor.db import store as db_store
from musterbook import context
from musterbook import rpc
from musterbook.rpc import server as rpc_server
from objects import store
from tests import rpc_lab
from tests import util
from tests.functional import lab as labs

HOST = "parity-1"
MEMBER = f"{HOST}#1"
#: What differs between any two processes, and between any two rows.
_RANDOM = re.compile(
    r"req-[0-9a-f-]{36}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r'|(?<="secret": ")[^"]+|\d{4}-\d\d-\d\dT[\d:.]+(?:Z|\+00:00)'
)
#: In the order of an agent's life. A verify comes at the start and when it is asked
#: for, side by side with audits, which read the book anew after it.
LIFE = ["ping", "hello", "create", "save", "goodbye"]


class Book:
    """A real conductor's endpoint on SQLite, which keeps what it is sent."""

    def __init__(self, folder: pathlib.Path, rabbit: str, group: str) -> None:
        self.heard: list[tuple[str, str]] = []
        self.lab = labs.Lab(folder, rabbit, group, f"sqlite:///{folder}/book.sqlite")
        self._engine = db_engine.make_engine(self.lab.database)
        migration.sync(self._engine)
        store.bind(db_store.DatabaseStore(self._engine))
        records = liveness.LivenessStore(self._engine)
        self._transport = rpc.make_transport(rpc_lab.make_conf(rabbit))
        self.agents = compute_rpcapi.ComputeAPI(self._transport, 5.0)
        self._server = manager.make_server(
            self._transport,
            "book",
            manager.ConductorManager(
                grants.Granter(records, self.agents.ping), records
            ),
        )
        self._server.start()

    def hear(self, incoming: Any) -> None:
        """Note a message that somebody sent to a conductor."""
        message = incoming.message
        name = message["args"].get("objmethod", message["method"])
        said = json.dumps(_in_order([incoming.ctxt, message]), sort_keys=True)
        self.heard.append((name, _RANDOM.sub("MASKED", said)))

    def times(self, name: str) -> int:
        """Return how often a message of this name came."""
        return [heard for heard, _ in self.heard].count(name)

    def wait(self, name: str, times: int) -> None:
        """Wait until a message came so often."""
        util.wait_until(lambda: self.times(name) >= times, 60, f"{name} {times} times")

    def close(self) -> None:
        self._server.stop()
        self._server.wait()
        store.unbind()
        self._transport.cleanup()
        self._engine.dispose()


def _in_order(value: Any) -> Any:
    """Return JSON values with the names of changed fields, which are a set, sorted."""
    if isinstance(value, list):
        return [_in_order(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: sorted(item) if key.endswith(".changes") else _in_order(item)
        for key, item in value.items()
    }


class Monitor:
    """What reaches one database of a Redis server, as it comes."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self._number = int(urllib.parse.parse_qs(parts.query)["db"][0])
        self.client = redis.Redis(
            host=parts.hostname or "",
            port=parts.port or 0,
            db=self._number,
            socket_timeout=120,
        )
        self.commands: list[str] = []
        self._watching: Any = self.client.monitor()  # type: ignore[no-untyped-call]  # redis-py
        self._watching.__enter__()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="monitor")
        self._thread.start()

    def close(self) -> None:
        self._ended = True
        self.client.ping()  # the next command, for it to see
        self._thread.join()
        with contextlib.suppress(redis.RedisError):
            self._watching.__exit__(None, None, None)
        self.client.close()

    def _run(self) -> None:
        while not self._ended:
            seen = self._watching.next_command()
            if int(seen["db"]) == self._number:
                self.commands.append(seen["command"])


@pytest.fixture
def monitor(redis_url: str) -> Iterator[Monitor]:
    made = Monitor(redis_url)
    yield made
    made.close()


@contextlib.contextmanager
def book(
    folder: pathlib.Path, rabbit: str, group: str, patch: pytest.MonkeyPatch
) -> Iterator[Book]:
    folder.mkdir()
    made = Book(folder, rabbit, group)
    dispatch = rpc_server._Guard.dispatch

    def hearing(self: Any, incoming: Any) -> Any:
        made.hear(incoming)
        return dispatch(self, incoming)

    try:
        with patch.context() as patched, labs.opened(made.lab):
            patched.setattr(rpc_server._Guard, "dispatch", hearing)
            yield made
    finally:
        made.close()


def live(book: Book, monitor: Monitor, *, hollow: bool) -> dict[str, Any]:
    """Let an agent live a short life; return what it said, by whom it was heard."""
    lab = book.lab
    monitor.commands.clear()
    if hollow:
        process = lab.start_hollow(1, "--prefix", "parity-")
    else:
        process = lab.start_agent(HOST)
    book.wait("create", 1)
    book.wait("verify", 1)
    group = "_tooz_group:compute"
    util.wait_until(
        lambda: monitor.client.hexists(group, MEMBER), 30, "member of the group"
    )
    value = monitor.client.hget(group, MEMBER)
    beat = monitor.client.get(f"_tooz_beats:{MEMBER}")

    nodes = {"{host}" if hollow else HOST: labs.NODE | {"vcpus": 16}}
    lab.write_nodes("hollow" if hollow else HOST, nodes)
    book.wait("save", 1)

    asking = context.service_context()
    answer = book.agents.ping(asking, HOST)
    book.agents.look(asking, HOST)
    book.wait("verify", 2)
    reads = book.times("get_by_host_and_nodename")
    book.wait("get_by_host_and_nodename", reads + 1)
    # That it isn't stalled is said again: the database may have lost it.
    book.wait("stalled", 1)
    # A rejoin is told by what the backend gets.
    book.agents.rejoin(asking, HOST, 1)
    assert process.stop() == 0
    book.wait("goodbye", 1)
    assert monitor.client.hkeys(group) == [b"__created__"]
    commands = {c for c in monitor.commands if MEMBER in c}
    return {
        "answer": {**answer, "process_uuid": len(answer["process_uuid"])},
        "life": [name for name, _ in book.heard if name in LIFE],
        "messages": set(book.heard),
        "value": value,
        "beat": beat,
        "commands": commands,
    }


def test_a_hollow_host_says_what_a_real_one_says(
    tmp_path: pathlib.Path,
    rabbit_url: str,
    redis_url: str,
    monitor: Monitor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with book(tmp_path / "real", rabbit_url, redis_url, monkeypatch) as heard:
        real = live(heard, monitor, hollow=False)
    with book(tmp_path / "hollow", rabbit_url, redis_url, monkeypatch) as heard:
        hollow = live(heard, monitor, hollow=True)
    assert real["life"] == LIFE
    assert {name for name, _ in real["messages"]} == {
        *LIFE,
        "verify",
        "get_by_host_and_nodename",
        "stalled",
    }
    assert any("psetex" in c.lower() for c in real["commands"])
    for what in real:
        assert hollow[what] == real[what], what
