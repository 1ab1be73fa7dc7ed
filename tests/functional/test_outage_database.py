"""The database goes away in every way it can, under running daemons."""

from collections.abc import Callable
from collections.abc import Iterator
from concurrent import futures
import contextlib
import pathlib
import re
import threading
import time

import pytest
import sqlalchemy as sa

from musterbook import context
from musterbook import errors
from tests import delaying_proxy
from tests import process
from tests import servers
from tests import util
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


#: What a driver says of a database that is stopped, killed, frozen or emptied is its
#: own, and proven with both. The other tests are of what depends on time alone: of
#: conductor.db.outage, and of which call comes to which conductor. They have one kind
#: in the gate, not always the same, and both among the long runs.
MOSTLY_MARIADB, MOSTLY_POSTGRESQL = (
    pytest.mark.parametrize(
        "database",
        [
            pytest.param(kind, marks=[] if kind == first else pytest.mark.slow)
            for kind in KINDS
        ],
        indirect=True,
    )
    for first in ("mariadb", "postgresql")
)


@pytest.fixture(params=list(KINDS))
def database(
    request: pytest.FixtureRequest, own_server: process.Starter
) -> process.Server:
    return own_server(KINDS[request.param])


@pytest.fixture
def times(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tests of long outages have the times of cases.md."""
    if request.node.originalname.endswith("for_long"):
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
        made.wait_serving("c1", "c2")
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


class Load:
    """Asks for the fleet from many threads at once until it is ended.

    :param number: of threads
    """

    def __init__(self, lab: labs.Lab, number: int) -> None:
        self._lab = lab
        self._over = threading.Event()
        pool = futures.ThreadPoolExecutor(number)
        self._asking = [pool.submit(self._ask) for _ in range(number)]
        pool.shutdown(wait=False)

    def _ask(self) -> int:
        asked = 0
        while not self._over.is_set():
            with contextlib.suppress(errors.MusterbookError):
                self._lab.conductor.get_fleet(context.service_context(), timeout=60.0)
            asked += 1
        return asked

    def end(self) -> None:
        """Ask no more; what was asked is still on its way."""
        self._over.set()

    def asked(self) -> int:
        """Return how often all of them have asked, after the last answer."""
        return sum(one.result(120) for one in self._asking)


@contextlib.contextmanager
def loaded(lab: labs.Lab, number: int) -> Iterator[Load]:
    """Have so many callers while in it."""
    load = Load(lab, number)
    try:
        yield load
    finally:
        load.end()
        load.asked()


@MOSTLY_MARIADB
def test_a_frozen_database_leaves_threads_for_other_work(
    lab: labs.Lab, database: process.Server
) -> None:
    """As many callers as both conductors have threads, and as many again."""
    with loaded(lab, 256) as load:
        course = Course(lab, database)
        watch = course.go("frozen under load", database.freeze, database.thaw)
    assert load.asked() > 256
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
            made.wait_serving("c1", "c2")
            outages.wait_well(made, dict.fromkeys(HOSTS, labs.NODE["memory_mb"]))
            yield made, between
    finally:
        between.close()


#: Threads that ask for the fleet while the database is slow: more than both conductors
#: have.
LOAD = 160


def in_turns(text: str) -> bool:
    """Return whether each "not saved" was followed by one "saved again"."""
    found = re.findall(r"not saved, trying again|saved again", text)
    begins, ends = found[::2], found[1::2]
    return (
        len(begins) == len(ends)
        and set(begins) <= {"not saved, trying again"}
        and (set(ends) <= {"saved again"})
    )


def make_slow(
    lab: labs.Lab, between: delaying_proxy.DelayingProxy, delay: float, seconds: float
) -> float:
    """Delay every answer for a time, change web1 twice in it; return what it took.

    Meanwhile one process asks for the fleet as fast as it can, from many threads.
    """
    daemons = [p for p in lab.processes if p.err.stem != "manage"]
    conductors = [p for p in daemons if p.err.stem in {"c1", "c2"}]
    with outages.watched(lab) as watch:
        # It ends with the outage: under so many calls a machine that is busy with
        # other things may be silent for long enough to be lost once more.
        with loaded(lab, LOAD) as load:
            between.delay = delay
            for memory_mb in (20480, 24576):
                outages.change(lab, "web1", memory_mb)
                time.sleep(seconds / 2)  # the outage's length, not a wait for anything
            load.end()
            between.delay = 0.0
        took = outages.wait_well(lab, {"web1": 24576, "web2": labs.NODE["memory_mb"]})
        # It is all over for each of them, and not lost again by what comes late.
        outages.wait_said(conductors, BACK, 1)
    assert load.asked() > LOAD
    print("slow", took, "slowest ping", watch.slowest, watch.unanswered)
    outages.check_alive(daemons)
    for text in (LOST, BACK):
        outages.check_said(conductors, text, 1)
    outages.check_rows(lab, len(HOSTS))
    # The newest stays: nothing that was on its way comes later.
    assert outages.fleet(lab)["web1"]["memory_mb"] == 24576
    # Begin and end, not each try; what comes late may make a save fail once more.
    for daemon in daemons:
        util.wait_until(
            lambda told=daemon: in_turns(told.errors()),  # type: ignore[misc]
            outages.BUSY,
        )
    assert "not saved, trying again" in next(
        daemon.errors() for daemon in daemons if daemon.err.stem == "web1"
    )
    assert watch.unanswered == 0
    return took


@MOSTLY_POSTGRESQL
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


def stored(lab: labs.Lab, host: str) -> tuple[int, int]:
    """Return a node's memory and inventory generation, asking no conductor."""
    engine = sa.create_engine(lab.database)
    query = sa.text(
        "SELECT memory_mb, inventory_generation FROM compute_nodes WHERE host = :host"
    )
    try:
        with engine.connect() as connection:
            memory_mb, generation = connection.execute(query, {"host": host}).one()
    finally:
        engine.dispose()
    return memory_mb, generation


@pytest.fixture
def split_lab(
    database: process.Server, tmp_path: pathlib.Path, rabbit_url: str, redis_url: str
) -> Iterator[tuple[labs.Lab, delaying_proxy.DelayingProxy]]:
    """Give a lab of whose conductors c1 reaches the database through a proxy."""
    direct = database.lease(0)
    between = delaying_proxy.DelayingProxy(database.port)
    made = labs.Lab(tmp_path, rabbit_url, redis_url, direct)
    try:
        with labs.opened(made):
            made.sync()
            made.start_conductor("c2")
            made.database = direct.replace(f":{database.port}/", f":{between.port}/")
            made.start_conductor("c1")
            made.database = direct
            made.start_agent("web1")
            made.wait_serving("c1", "c2")
            outages.wait_well(made, {"web1": labs.NODE["memory_mb"]})
            yield made, between
    finally:
        between.close()


@MOSTLY_POSTGRESQL
def test_a_late_update(
    split_lab: tuple[labs.Lab, delaying_proxy.DelayingProxy],
) -> None:
    """A-RPC-1: the older one comes to the database when the newer is in the book."""
    lab, between = split_lab
    with loaded(lab, 32):  # c1 has connections in its pool: an update is sent at once
        outages.change(lab, "web1", 1024)
        util.wait_until(lambda: stored(lab, "web1")[0] == 1024, outages.BUSY)
    # Without calls of others, conductors would take turns with those of one audit.
    with outages.watched(lab):
        memory = hold_an_update(lab, between) + 1024
        outages.change(lab, "web1", memory)
        util.wait_until(
            lambda: stored(lab, "web1")[0] == memory, outages.BUSY, "the newer update"
        )
        newest = stored(lab, "web1")
        assert between.holds(UPDATE)
        between.holding = False
        util.wait_until(lambda: not between.holds(UPDATE), outages.BUSY)
        outages.wait_well(lab, {"web1": memory})
    # Its generation is counted by every update that changes something.
    assert stored(lab, "web1") == newest


UPDATE = b"UPDATE compute_nodes"


def hold_an_update(lab: labs.Lab, between: delaying_proxy.DelayingProxy) -> int:
    """Hold an update of web1's on its way to the database; return its memory.

    Which of both conductors gets it is chance.
    """
    for memory in range(2048, 2048 + 20 * 1024, 1024):
        between.holding = True
        outages.change(lab, "web1", memory)
        util.wait_until(
            lambda wanted=memory: (  # type: ignore[misc]
                between.holds(UPDATE) or stored(lab, "web1")[0] == wanted
            ),
            outages.BUSY,
            "an update",
        )
        if between.holds(UPDATE):
            return memory
        between.holding = False
    raise AssertionError("c1 got none of 20 updates")


@MOSTLY_MARIADB
def test_one_conductor_of_two_has_lost_it(
    split_lab: tuple[labs.Lab, delaying_proxy.DelayingProxy],
) -> None:
    """What an agent saves comes to the conductor that reaches the database."""
    lab, between = split_lab
    (cut,) = [p for p in lab.processes if p.err.stem == "c1"]
    between.close()
    for memory_mb in range(20480, 30720, 1024):
        outages.change(lab, "web1", memory_mb)
        wait_stored(lab, memory_mb)
    outages.wait_said([cut], LOST, 1)


def wait_stored(lab: labs.Lab, memory_mb: int) -> None:
    util.wait_until(lambda: stored(lab, "web1")[0] == memory_mb, outages.BUSY)
