"""The database goes away in every way it can, under running daemons."""

from collections.abc import Callable
from collections.abc import Iterator
from concurrent import futures
import contextlib
import pathlib
import threading
import time

import pytest

from musterbook import context
from musterbook import errors
from tests import delaying_proxy
from tests import process
from tests import servers
from tests.functional import lab as labs
from tests.functional import outages

KINDS: dict[str, type[process.Server]] = {
    "mariadb": servers.MariaDB,
    "postgresql": servers.PostgreSQL,
}
pytestmark = pytest.mark.timeout(600)
LOST = "The database is lost"
BACK = "The database is back"
HOSTS = ["web1", "web2"]


@pytest.fixture(params=list(KINDS))
def database(
    request: pytest.FixtureRequest, own_server: process.Starter
) -> process.Server:
    return own_server(KINDS[request.param])


@pytest.fixture
def times(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tests that are slow anyhow have the times of cases.md."""
    if request.node.get_closest_marker("slow"):
        for name, value in labs.CASES.items():
            monkeypatch.setattr(labs, name, value)


@pytest.fixture
def lab(
    times: None,
    database: process.Server,
    tmp_path: pathlib.Path,
    rabbit_url: str,
    redis_url: str,
) -> Iterator[labs.Lab]:
    made = labs.Lab(tmp_path, rabbit_url, redis_url, database.lease(0))
    with labs.opened(made):
        made.sync()
        for name in ("c1", "c2"):
            made.start_conductor(name)
        for host in HOSTS:
            made.start_agent(host)
        outages.wait_well(made, dict.fromkeys(HOSTS, labs.NODE["memory_mb"]))
        yield made


class Course:
    """One outage after the other, with what must hold of each."""

    def __init__(self, lab: labs.Lab, database: process.Server) -> None:
        self.lab = lab
        self.database = database
        self.conductors = [p for p in lab.processes if p.err.stem in {"c1", "c2"}]
        self.daemons = [p for p in lab.processes if p.err.stem != "manage"]
        self.memory = labs.NODE["memory_mb"]
        self.outages = 0
        self.took: dict[str, float] = {}

    def go(
        self, name: str, begin: Callable[[], None], end: Callable[[], None]
    ) -> outages.Watch:
        """Let one happen."""
        self.outages += 1
        self.memory += 1024
        with outages.watched(self.lab) as watch:
            begin()
            outages.change(self.lab, "web1", self.memory)
            outages.wait_said(self.conductors, LOST, self.outages)
            end()
            memory = {"web1": self.memory, "web2": labs.NODE["memory_mb"]}
            self.took[name] = outages.wait_well(self.lab, memory)
        outages.wait_said(self.conductors, BACK, self.outages)
        outages.check_alive(self.daemons)
        for text in (LOST, BACK):
            outages.check_said(self.conductors, text, self.outages)
        outages.check_rows(self.lab, len(HOSTS))
        print(name, self.took[name], "slowest ping", watch.slowest, watch.unanswered)
        return watch


def callers(
    lab: labs.Lab, number: int, stopping: threading.Event
) -> list[futures.Future[int]]:
    """Ask for the fleet from many threads at once until told to stop."""
    pool = futures.ThreadPoolExecutor(number)

    def ask() -> int:
        asked = 0
        while not stopping.is_set():
            with contextlib.suppress(errors.MusterbookError):
                lab.conductor.get_fleet(context.service_context(), timeout=60.0)
            asked += 1
        return asked

    done = [pool.submit(ask) for _ in range(number)]
    pool.shutdown(wait=False)
    return done


def test_a_frozen_database_leaves_threads_for_other_work(
    lab: labs.Lab, database: process.Server
) -> None:
    """As many callers as both conductors have threads, and as many again."""
    stopping = threading.Event()
    asking = callers(lab, 256, stopping)
    try:
        course = Course(lab, database)
        watch = course.go("frozen under load", database.freeze, database.thaw)
    finally:
        stopping.set()
        asked = [done.result(120) for done in asking]
    assert sum(asked) > len(asked)
    # It says nothing for SILENCE_WHEN_FULL; a ping behind that is late by as much.
    assert watch.unanswered == 0


def test_stopped_killed_frozen_emptied(lab: labs.Lab, database: process.Server) -> None:
    course = Course(lab, database)
    course.go("stopped", database.stop, database.start)
    course.go("killed", database.kill, database.start)
    before = {h: row["incarnation"] for h, row in lab.fleet().items()}
    watch = course.go("frozen", database.freeze, database.thaw)
    assert watch.unanswered == 0
    assert {h: row["incarnation"] for h, row in lab.fleet().items()} == before

    def make_anew() -> None:
        database.restart(empty=True)
        assert database.lease(0) == lab.database
        lab.sync()

    course.go("emptied", database.stop, make_anew)
    # The same processes go on, as incarnations that nobody has used.
    after = {h: row["incarnation"] for h, row in lab.fleet().items()}
    assert all(after[host] > before[host] for host in HOSTS)
    for host in HOSTS:
        states = [state for state, _ in lab.transitions(host)]
        assert states == ["unknown", "up"]


@pytest.mark.slow
def test_away_for_long(lab: labs.Lab, database: process.Server) -> None:
    course = Course(lab, database)

    def later(end: Callable[[], None]) -> Callable[[], None]:
        began = time.monotonic()

        def go() -> None:
            time.sleep(max(0.0, began + 25.0 - time.monotonic()))  # its length
            end()

        return go

    course.go("frozen for 25 s", database.freeze, later(database.thaw))
    course.go("stopped for 25 s", database.stop, later(database.start))
    assert all(took < outages.WELL for took in course.took.values()), course.took


@pytest.fixture
def slow_lab(
    times: None,
    database: process.Server,
    tmp_path: pathlib.Path,
    rabbit_url: str,
    redis_url: str,
) -> Iterator[tuple[labs.Lab, delaying_proxy.DelayingProxy]]:
    """Give a lab that reaches its database through a proxy."""
    direct = database.lease(0)
    between = delaying_proxy.DelayingProxy(database.port)
    url = direct.replace(f":{database.port}/", f":{between.port}/")
    made = labs.Lab(tmp_path, rabbit_url, redis_url, url)
    try:
        with labs.opened(made):
            made.sync()
            for name in ("c1", "c2"):
                made.start_conductor(name)
            for host in HOSTS:
                made.start_agent(host)
            outages.wait_well(made, dict.fromkeys(HOSTS, labs.NODE["memory_mb"]))
            yield made, between
    finally:
        between.close()


def make_slow(
    lab: labs.Lab, between: delaying_proxy.DelayingProxy, delay: float, seconds: float
) -> float:
    """Delay every answer for a time, change web1 twice in it; return what it took."""
    daemons = [p for p in lab.processes if p.err.stem != "manage"]
    said = [p.errors().count("not saved, trying again") for p in daemons]
    with outages.watched(lab) as watch:
        between.delay = delay
        for memory_mb in (20480, 24576):
            outages.change(lab, "web1", memory_mb)
            time.sleep(seconds / 2)  # the outage's length, not a wait for anything
        between.delay = 0.0
        took = outages.wait_well(lab, {"web1": 24576, "web2": labs.NODE["memory_mb"]})
    outages.check_alive(daemons)
    outages.check_rows(lab, len(HOSTS))
    # The newest stays: nothing that was on its way comes later.
    assert outages.fleet(lab)["web1"]["memory_mb"] == 24576
    # Once for all that it tried; the other one may have had nothing to save.
    for daemon, before in zip(daemons, said, strict=True):
        times = daemon.errors().count("not saved, trying again") - before
        assert times == 1 if daemon.err.stem == "web1" else times <= 1
    assert watch.unanswered == 0
    return took


def test_slow(slow_lab: tuple[labs.Lab, delaying_proxy.DelayingProxy]) -> None:
    lab, between = slow_lab
    took = make_slow(lab, between, delay=12.0, seconds=16.0)
    print("slow", took)
    between.delay = 0.3
    outages.change(lab, "web1", 28672)
    outages.wait_well(lab, {"web1": 28672})


@pytest.mark.slow
def test_slow_for_long(slow_lab: tuple[labs.Lab, delaying_proxy.DelayingProxy]) -> None:
    """A-RPC-1: every answer 30 s late, for 60 s; updates are due every 10 s."""
    assert make_slow(*slow_lab, delay=30.0, seconds=60.0) < outages.WELL
