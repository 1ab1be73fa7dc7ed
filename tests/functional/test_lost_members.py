"""Case A-LIV-1 on Redis: the group forgets members, whose beats don't bring them back.

Step 5, of the file backend, is in test_edits.py. That callers get an error instead of
`unknown` is for the scheduler's client, which comes with the fleet question.
"""

from collections.abc import Callable
from collections.abc import Iterator
import pathlib
import subprocess
import sys
import time

import pytest

from tests import process
from tests import servers
from tests import util
from tests.functional import lab as labs
from tests.functional import outages

pytestmark = pytest.mark.timeout(600)
HOSTS = ("node-a", "node-b", "node-c")
AGAIN = "Joined again: group compute"
GROUP = "_tooz_group:compute"


@pytest.fixture
def redis(own_server: process.Starter) -> servers.Redis:
    return own_server(servers.Redis)


def started(lab: labs.Lab) -> Iterator[labs.Lab]:
    lab.lease_interval = 2.0  # longer than one look at a group that says nothing
    with labs.opened(lab):
        lab.sync()
        lab.start_conductor()
        for host in HOSTS:
            lab.start_agent(host)
        outages.wait_well(lab, dict.fromkeys(HOSTS, labs.NODE["memory_mb"]))
        yield lab


@pytest.fixture
def lab(
    redis: servers.Redis, tmp_path: pathlib.Path, rabbit_url: str, mariadb_url: str
) -> Iterator[labs.Lab]:
    yield from started(labs.Lab(tmp_path, rabbit_url, redis.lease(0), mariadb_url))


@pytest.fixture
def cases_lab(
    redis: servers.Redis,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    rabbit_url: str,
    mariadb_url: str,
) -> Iterator[labs.Lab]:
    for name, value in labs.CASES.items():
        monkeypatch.setattr(labs, name, value)
    yield from started(labs.Lab(tmp_path, rabbit_url, redis.lease(0), mariadb_url))


class Course:
    """One fault after the other, with what must hold of each."""

    def __init__(self, lab: labs.Lab, well: float) -> None:
        self.lab = lab
        self._well = well
        self._joined = dict.fromkeys(HOSTS, 0)
        self._identity = self._rows()

    def _rows(self) -> dict[str, tuple[int, str]]:
        return {n: (r["id"], r["uuid"]) for n, r in self.lab.fleet().items()}

    def go(
        self,
        name: str,
        begin: Callable[[], object],
        end: Callable[[], object] = lambda: None,
        seconds: float = 0.0,
        victims: tuple[str, ...] = HOSTS,
    ) -> outages.Scheduler:
        """Let one happen for some seconds; return who asked meanwhile."""
        with outages.Scheduler(self.lab) as scheduler:
            began = time.monotonic()
            begin()
            # A fault is as long as it is: this is its length, not a wait for it.
            time.sleep(max(0.0, began + seconds - time.monotonic()))
            end()
            ended = time.monotonic()
            for host in victims:
                self._joined[host] += 1
                outages.wait_said([self.lab.process(host)], AGAIN, self._joined[host])
            outages.wait_well(
                self.lab, dict.fromkeys(HOSTS, labs.NODE["memory_mb"]), self._well
            )
            print(f"{name}: well after {time.monotonic() - ended:.1f} s")
        self.check(scheduler)
        return scheduler

    def check(self, scheduler: outages.Scheduler) -> None:
        """Check what holds of every fault."""
        assert scheduler.answers
        for answer in scheduler.answers:
            assert answer.keys() == set(HOSTS)
        for host in HOSTS:
            outages.check_said([self.lab.process(host)], AGAIN, self._joined[host])
            outages.check_said([self.lab.process(host)], "Stalled", 0)
        outages.check_alive([self.lab.process(host) for host in HOSTS])
        assert self._rows() == self._identity


def one_after_the_other(
    course: Course, redis: servers.Redis, frozen: float, stopped: float
) -> None:
    """Go through steps 1 to 4 of the case."""

    def empty() -> None:
        assert redis.ask("FLUSHALL") == ["+OK"]

    def remove() -> None:
        assert redis.ask(f"HDEL {GROUP} node-b#1") == [":1"]

    for host in HOSTS:
        assert redis.ask(f"HEXISTS {GROUP} {host}#1") == [":1"]
    scheduler = course.go("emptied", empty)
    # Whoever looks right after the first is back may see the others missing, until
    # their next beat (docs/liveness.md).
    for host in HOSTS:
        assert scheduler.told(host) <= {"up", "unknown", "suspect"}
    scheduler = course.go("one removed", remove, victims=("node-b",))
    assert scheduler.told("node-b") <= {"up", "suspect"}
    assert scheduler.told("node-a") == scheduler.told("node-c") == {"up"}
    scheduler = course.go("frozen", redis.freeze, redis.thaw, frozen)
    for host in HOSTS:
        assert scheduler.told(host) == {"up", "unknown"}
    agent = course.lab.process("node-c")
    scheduler = course.go(
        "agent frozen", agent.freeze, agent.thaw, stopped, victims=("node-c",)
    )
    assert scheduler.told("node-a") == scheduler.told("node-b") == {"up"}
    silent_for_long = stopped > labs.SERVICE_DOWN_TIME + labs.MEMBER_TIMEOUT
    assert scheduler.told("node-c") == (
        {"up", "suspect", "down"} if silent_for_long else {"up", "suspect"}
    )


def check_flapping(course: Course) -> None:
    """Let node-c leave and come back twice more: it is held, until somebody says so."""
    lab, agent = course.lab, course.lab.process("node-c")
    for state in ("up", "suspect"):
        agent.freeze()
        # Who answers the first ping, were it late, was there: only the group had lost
        # it, which is no flapping.
        util.wait_until(
            lambda: lab.fleet()["node-c"]["state_cause"] == "silent", outages.BUSY
        )
        agent.thaw()
        cause = "in-group" if state == "up" else "flapping"
        util.wait_until(
            lambda: lab.fleet()["node-c"]["state_cause"] == cause,  # noqa: B023
            outages.BUSY,
        )
        assert lab.fleet()["node-c"]["state"] == state
    assert "came back 3 times" in lab.fleet()["node-c"]["state_evidence"]
    history = lab.transitions("node-c")
    # A new leader holds on.
    lab.process("c1").kill()
    lab.start_conductor("c2")
    util.wait_until(
        lambda: (
            outages.fleet(lab)
            and outages.fleet(lab)["node-c"]["state_cause"] == "flapping"
        ),
        outages.BUSY,
    )
    assert lab.transitions("node-c") == history
    script = str(labs.ROOT / "examples/reset_flapping.py")
    config = str(lab.folder / "node-a.conf")
    for host, said in (("node-c", ""), ("nobody", "no service with host nobody")):
        done = subprocess.run(
            [sys.executable, script, host, "--config-file", config],
            cwd=labs.ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert said in done.stderr
        assert done.returncode == bool(said), done.stderr
    script = str(labs.ROOT / "examples/release_freeze.py")
    told = subprocess.run(
        [sys.executable, script, "--config-file", config],
        cwd=labs.ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert told.stdout == "nothing is frozen\n"
    lab.wait_state("node-c", "up")
    assert lab.transitions("node-c")[-2:] == [
        ("suspect", "flapping-reset"),
        ("up", "in-group"),
    ]


def test_one_fault_after_the_other(lab: labs.Lab, redis: servers.Redis) -> None:
    course = Course(lab, outages.BUSY)
    longer = labs.MEMBER_TIMEOUT * 1.5
    one_after_the_other(course, redis, longer, longer)
    check_flapping(course)


@pytest.mark.slow
def test_with_the_numbers_of_the_case(
    cases_lab: labs.Lab, redis: servers.Redis
) -> None:
    one_after_the_other(Course(cases_lab, outages.WELL), redis, 25.0, 25.0)
