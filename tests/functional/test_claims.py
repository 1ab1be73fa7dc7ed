"""Cases A-CLM-1 and A-CLM-2 and a fleet in which things are killed, with processes."""

from collections.abc import Callable
from collections.abc import Iterator
from concurrent import futures
import contextlib
import json
import pathlib
import random
import shutil
import signal
import time
from typing import Any
import uuid as uuidlib

import pytest
import sqlalchemy as sa

from compute_agent import rpcapi as compute_rpcapi
from conductor import rpcapi as conductor_rpcapi
from musterbook import context
from musterbook import errors
from tests import process
from tests import servers
from tests import util
from tests.functional import lab as labs
from tests.functional import outages
from tests.history import checker
from tests.history import events
from tests.history import reader

pytestmark = pytest.mark.timeout(600)
ME = context.service_context()


def ask(node: str, **resources: int) -> dict[str, Any]:
    return {
        "uuid": str(uuidlib.uuid4()),
        "resources": resources,
        "candidates": [node],
        "owner": "tests",
    }


@pytest.fixture
def lab(
    tmp_path: pathlib.Path, rabbit_url: str, redis_url: str, mariadb_url: str
) -> Iterator[labs.Lab]:
    made = labs.Lab(tmp_path, rabbit_url, redis_url, mariadb_url)
    with labs.opened(made):
        made.sync()
        made.start_conductor()
        yield made


class Samples:
    """Usage as it is stored, again and again: vcpus, vcpus_used, memory_mb_used."""

    def __init__(self, lab: labs.Lab) -> None:
        self._engine = sa.create_engine(lab.database)

    def look(self) -> tuple[int, int, int]:
        query = "SELECT vcpus, vcpus_used, memory_mb_used FROM compute_nodes"
        with self._engine.connect() as connection:
            row = connection.execute(sa.text(query)).one()
        return int(row[0]), int(row[1]), int(row[2])

    @contextlib.contextmanager
    def taken(self) -> Iterator[set[tuple[int, int, int]]]:
        """Look every 50 ms; yield what is seen."""
        seen: set[tuple[int, int, int]] = set()
        with futures.ThreadPoolExecutor(1) as pool:
            going = [True]

            def work() -> None:
                while going:
                    seen.add(self.look())
                    time.sleep(0.05)

            done = pool.submit(work)
            try:
                yield seen
            finally:
                going.clear()
            done.result()

    def uuids(self) -> list[str]:
        with self._engine.connect() as connection:
            query = sa.text("SELECT uuid FROM allocations WHERE state = 'held'")
            return list(connection.execute(query).scalars())


def test_a_burst_never_books_too_much(lab: labs.Lab) -> None:
    """A-CLM-1: two schedulers, each a process of its own."""
    config = {"host": "node-a", "reserved_host_memory_mb": 0}
    config["update_resources_interval"] = 3600
    lab.write_nodes("node-a", {"node-a": labs.NODE | {"memory_mb": 71680}})
    path = lab.config("node-a", config | {"ram_allocation_ratio": 1.0})
    lab.run("compute_agent.main", "--config-file", path, name="node-a")
    lab.wait_state("node-a", "up", timeout=outages.BUSY)
    node = lab.fleet()["node-a"]["uuid"]

    def burst(name: str, count: int) -> list[str]:
        """Return the uuids that were claimed; all others were told why not."""
        go = lab.folder / f"{name}.go"
        arguments = (lab.rabbit, node, str(count // 2), str(go), "32768")
        both = [
            lab.run("tests.history.burst", *arguments, name=f"{name}-{n}")
            for n in (1, 2)
        ]
        for one in both:
            util.wait_until(lambda: "ready" in one.output(), outages.BUSY)  # noqa: B023  # called at once
        go.touch()
        for one in both:
            assert one.wait(outages.BUSY) == 0, one.errors()
        lines = [line for one in both for line in one.output().splitlines()[1:]]
        answers = [json.loads(line) for line in lines]
        assert len(answers) == count
        claimed = [uuid for uuid, answer, _ in answers if answer == "claimed"]
        told = [answer for _, answer, _ in answers if answer != "claimed"]
        assert told == ["no-room"] * (count - len(claimed))
        # Ten seconds on a machine that isn't busy.
        assert max(seconds for _, _, seconds in answers) < 60
        return claimed

    samples = Samples(lab)
    with samples.taken() as seen:
        first = burst("first", 30)
        assert len(first) == 2
        assert sorted(samples.uuids()) == sorted(first)
        lab.conductor.release_claim(ME, first[0])
        second = burst("second", 10)
    assert len(second) == 1
    assert sorted(samples.uuids()) == sorted([first[1], *second])
    assert {used for _, _, used in seen} <= {0, 32768, 65536}
    assert samples.look()[2] == 65536
    # The agent isn't asked, yet it hears of what others do on its nodes: it looks at
    # them an hour before it would.
    lab.write_nodes("node-a", {"node-a": labs.NODE | {"memory_mb": 71681}})
    lab.conductor.release_claim(ME, second[0])
    util.wait_until(
        lambda: lab.fleet().get("node-a", {}).get("memory_mb") == 71681, outages.BUSY
    )


def test_a_restart_of_the_agent_changes_nothing(lab: labs.Lab) -> None:
    """A-CLM-2, and the agent's disk is lost as well; the conductor too is killed."""
    agent = lab.start_agent("node-a")
    lab.wait_state("node-a", "up", timeout=outages.BUSY)
    node = lab.fleet()["node-a"]["uuid"]
    agents = compute_rpcapi.ComputeAPI(lab.transport, 30.0)
    asked = [ask(node, vcpus=2) for _ in range(16)]  # of 8 CPUs at 4.0
    for request in asked:
        agents.claim(ME, "node-a", request)
    for request in asked:
        lab.conductor.release_claim(ME, request["uuid"])
    kept = [ask(node, vcpus=4) for _ in range(8)]
    for request in kept:
        agents.claim(ME, "node-a", request)
        lab.conductor.confirm_claim(ME, request["uuid"])
    samples = Samples(lab)

    def up_again(incarnation: int) -> None:
        def again() -> bool:
            row = lab.fleet().get("node-a", {})
            found = row.get("state"), row.get("incarnation")
            return found == ("up", incarnation)

        util.wait_until(again, outages.BUSY)

    with samples.taken() as seen:
        assert agent.stop() == 0
        # All of it while nobody serves the host.
        listed = lab.conductor.list_claims(ME, host="node-a", owner="tests")
        assert [c["uuid"] for c in listed] == [request["uuid"] for request in kept]
        agent = lab.start_agent("node-a")
        up_again(2)
        agent.kill()
        lab.process("c1").kill()
        shutil.rmtree(lab.state("node-a"))
        lab.start_conductor()
        lab.start_agent("node-a")
        up_again(3)
        with pytest.raises(errors.ClaimRefused) as caught:
            agents.claim(ME, "node-a", ask(node, vcpus=1))
        assert caught.value.reasons[0]["free"] == 0
    assert {(vcpus, used) for vcpus, used, _ in seen} == {(8, 32)}
    lab.conductor.release_claim(ME, kept[0]["uuid"])
    assert samples.look()[:2] == (8, 28)
    with pytest.raises(errors.ClaimGone):
        lab.conductor.confirm_claim(ME, kept[0]["uuid"])


# Half a minute of it is MariaDB's, which ends a transaction that stands still.
@pytest.mark.slow
def test_a_conductor_that_freezes_with_the_lock_books_nothing_too_much(
    lab: labs.Lab,
) -> None:
    """It wakes up after another one gave the node away."""
    lab.start_agent("node-a")
    lab.wait_state("node-a", "up", timeout=outages.BUSY)
    node = lab.fleet()["node-a"]["uuid"]
    patient = conductor_rpcapi.ConductorAPI(lab.transport, 300.0)
    mine, others = ask(node, vcpus=8), ask(node, vcpus=8)
    ratio = 4  # of the agent's CPUs, by default
    filling = [ask(node, vcpus=8) for _ in range(ratio - 1)]
    for request in filling:
        patient.claim(ME, request)
    frozen = lab.process("c1")
    engine = sa.create_engine(lab.database)

    def waits() -> bool:
        query = "SELECT COUNT(*) FROM information_schema.innodb_trx"
        query += " WHERE trx_state = 'LOCK WAIT'"
        with engine.connect() as connection:
            return bool(connection.execute(sa.text(query)).scalar_one())

    def try_others() -> bool:
        # Until the server ends the frozen one's transaction, the node is locked.
        try:
            return bool(lab.conductor.claim(ME, others)["uuid"])
        except errors.MusterbookError:
            return False

    with futures.ThreadPoolExecutor(1) as pool:
        with engine.connect() as locking:
            locking.execute(sa.text("SELECT id FROM compute_nodes FOR UPDATE"))
            asked = pool.submit(patient.claim, ME, mine)
            util.wait_until(waits, outages.BUSY)
            frozen.freeze()
        try:
            lab.start_conductor("c2")
            lab.wait_serving("c2")
            util.wait_until(try_others, 2 * outages.BUSY)
        finally:
            frozen.thaw()
        # It has lost its transaction, and tries again or says that it doesn't know.
        with pytest.raises((errors.ClaimRefused, errors.DatabaseUnavailable)):
            asked.result(300)
    engine.dispose()
    with pytest.raises(errors.ClaimRefused) as caught:
        patient.claim(ME, mine)
    assert "no-room" in {reason["reason"] for reason in caught.value.reasons}
    samples = Samples(lab)
    assert samples.look()[:2] == (8, 8 * ratio)
    booked = [request["uuid"] for request in (*filling, others)]
    assert sorted(samples.uuids()) == sorted(booked)


# -- a fleet in which things are killed --------------------------------------------

HOSTS = ("web1", "web2", "web3")
#: Of each node; what the schedulers keep goes beyond it.
LIMIT = 8
THREADS = 8


def check_history(
    lab: labs.Lab, seconds: int, parts: list[process.Server] | None = None
) -> None:
    """Let 16 schedulers ask two conductors while things are killed; check it all."""
    config = {"cpu_allocation_ratio": 1.0}
    # All at once: who is early waits for the others.
    for name in ("c1", "c2"):
        lab.start_conductor(name)

    def start(host: str) -> None:
        lab.write_nodes(host, {host: labs.NODE})
        path = lab.config(host, {"host": host, **config})
        lab.run("compute_agent.main", "--config-file", path, name=host)

    for host in HOSTS:
        start(host)
    for host in HOSTS:
        lab.wait_state(host, "up", timeout=outages.BUSY)
    lab.wait_serving("c1", "c2")
    nodes = {row["uuid"]: host for host, row in lab.fleet().items()}
    files = [lab.folder / f"history-{n}" for n in range(3)]
    stop = lab.folder / "stop"
    rng = random.Random(7)
    with files[0].open("w") as file:
        recorder = events.Recorder(file)
        with reader.Reader(lab.database, recorder, 0.05) as reading:
            running = [
                lab.run(
                    "tests.history.scheduler", "--rabbit", lab.rabbit,
                    "--out", str(files[n]), "--nodes", json.dumps(nodes),
                    "--threads", str(THREADS), "--seed", str(n),
                    "--stop", str(stop), name=f"scheduler-{n}",
                )
                for n in (1, 2)
            ]  # fmt: skip
            began = time.monotonic()
            while time.monotonic() - began < seconds or not enough(files[1:]):
                time.sleep(rng.uniform(1.0, 3.0))
                assert time.monotonic() - began < seconds + 3 * outages.BUSY
                disturb(lab, recorder, rng, start, parts or [])
            stop.touch()
            for one in running:
                assert one.wait(180) == 0, one.errors()
        for last in reader.Reader(lab.database, recorder, 1).read():
            recorder.add(last)
    found = [event for path in files for event in events.load(path)]
    asks = [event for event in found if isinstance(event, events.Ask)]
    answers = [event.answer for event in asks]
    counts = {answer: answers.count(answer) for answer in set(answers)}
    print(f"{len(asks)} requests: {counts}; {reading.count} reads")
    assert checker.check(found, dict.fromkeys(nodes, LIMIT)) == []
    assert reading.count > seconds


def enough(files: list[pathlib.Path]) -> bool:
    """Tell whether there was something to lose."""
    said = "".join(path.read_text() for path in files if path.exists())
    return min(said.count(f'"{one}"') for one in ("claimed", "refused", "done")) > 40


def disturb(
    lab: labs.Lab,
    recorder: events.Recorder,
    rng: random.Random,
    start: Callable[[str], None],
    parts: list[process.Server],
) -> None:
    """Kill something and start it again."""
    if parts and rng.random() < 0.2:
        part = rng.choice(parts)
        recorder.add(events.Kill(part.kind, events.now()))
        part.kill()
        part.start()
        return
    what = rng.choice(["c1", "c2", *HOSTS])
    recorder.add(events.Kill(what, events.now()))
    ended = lab.process(what)
    ended.send(rng.choice([signal.SIGKILL, signal.SIGTERM]))
    util.wait_until(lambda: ended.popen.poll() is not None, 60)
    ended.kill()  # its workers
    if what in HOSTS:
        start(what)
    else:
        lab.start_conductor(what)
        # One of the two is always there, however busy the machine is.
        lab.wait_serving(what)


def while_killed(
    own_server: process.Starter,
    folder: pathlib.Path,
    group: str,
    database: type[process.Server],
    seconds: int,
) -> None:
    """Run it on a broker and a database of its own, which are killed as well."""
    # One after the other: a server ends with the thread that started it.
    parts = [own_server(kind) for kind in (servers.RabbitMQ, database)]
    broker, url = (part.lease(0) for part in parts)
    made = labs.Lab(folder, broker, group, url)
    with labs.opened(made):
        made.sync()
        check_history(made, seconds, parts)


DATABASES = pytest.mark.parametrize("database", [servers.MariaDB, servers.PostgreSQL])


# PostgreSQL's minute is in the slow runs: the gate has no room for two.
@pytest.mark.parametrize(
    "database",
    [servers.MariaDB, pytest.param(servers.PostgreSQL, marks=pytest.mark.slow)],
)
def test_nothing_is_lost_or_doubled_while_things_are_killed(
    own_server: process.Starter,
    tmp_path: pathlib.Path,
    redis_url: str,
    database: type[process.Server],
) -> None:
    while_killed(own_server, tmp_path, redis_url, database, 60)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@DATABASES
def test_for_ten_minutes(
    own_server: process.Starter,
    tmp_path: pathlib.Path,
    redis_url: str,
    database: type[process.Server],
) -> None:
    while_killed(own_server, tmp_path, redis_url, database, 600)
