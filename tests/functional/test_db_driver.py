"""Two real agents with servicegroup_driver db, over RabbitMQ, with a MariaDB."""

from collections.abc import Iterator
import pathlib
import signal
import time
from typing import Any

import pytest
import sqlalchemy as sa

from musterbook import context
from tests import process
from tests import servers
from tests import util
from tests.functional import lab as labs
from tests.functional import outages

pytestmark = pytest.mark.timeout(400)
#: Of anything that a loaded machine does.
LONG = 90.0
#: A beat has three quarters of the interval; five in a row may fail on a busy machine.
INTERVAL = 2.0
DOWN_TIME = 10.0
UP = ("up", "db-beat")
DOWN = ("down", "no-db-beat")
BEGUN = [("suspect", "not-yet-joined"), UP]


class DbLab(labs.Lab):
    """A lab whose processes have the db driver, and no group, unless told otherwise."""

    def config(self, name: str, more: Any) -> str:
        wanted: dict[str, Any] = {
            "servicegroup_driver": "db", "servicegroup_tooz_url": None,
            "report_interval": INTERVAL, "service_down_time": DOWN_TIME,
        }  # fmt: skip
        return super().config(name, wanted | dict(more))

    def beats(self) -> dict[str, float]:
        """Return the ages of the beats, by member."""
        found = self.conductor.get_beats(context.service_context(), timeout=5.0)
        return {f"{host}#{number}": age for host, number, _, age in found}


@pytest.fixture
def server(own_server: process.Starter) -> servers.MariaDB:
    return own_server(servers.MariaDB)


@pytest.fixture
def lab(
    tmp_path: pathlib.Path, rabbit_url: str, server: servers.MariaDB
) -> Iterator[DbLab]:
    made = DbLab(tmp_path, rabbit_url, "file:///nowhere", server.lease(0))
    with labs.opened(made):
        made.sync()
        made.start_conductor()
        for host in ("node-a", "node-b"):
            made.start_agent(host)
        for host in ("node-a", "node-b"):
            made.wait_state(host, "up", timeout=LONG)
        yield made


def wait_history(lab: DbLab, host: str, *wanted: tuple[str, str]) -> None:
    """Wait until these are the last transitions of a host."""
    util.wait_until(
        lambda: lab.transitions(host)[-len(wanted) :] == list(wanted),
        LONG,
        f"{host} {wanted}",
    )


def never_down(lab: DbLab, host: str) -> None:
    assert "down" not in {state for state, _ in lab.transitions(host)}


def test_killed_taken_over_and_said_goodbye(lab: DbLab) -> None:
    """The life of one of two hosts; the other one is up all the while."""
    assert set(lab.beats()) == {"node-a#1", "node-b#1"}
    assert lab.transitions("node-b")[:2] == BEGUN
    # A second agent of a living host is refused, the first one is undisturbed.
    second = lab.start_agent("node-b", file="node-b-twin")
    assert second.wait(LONG) != 0
    assert "node-b" in second.errors()
    # Killed: down, in its time at the earliest.
    first = lab.process("node-b")
    first.kill()
    killed = time.monotonic()
    down = lab.wait_state("node-b", "down", timeout=LONG)
    assert down - killed > DOWN_TIME - INTERVAL - 1
    assert lab.transitions("node-b")[-1] == DOWN
    # A restart is the next incarnation.
    again = lab.start_agent("node-b")
    lab.wait_state("node-b", "up", timeout=LONG)
    # A beat that comes before the leader's next look leaves no `not-yet-joined`.
    wait_history(lab, "node-b", UP)
    # A goodbye is down at once.
    assert again.stop() == 0
    wait_history(lab, "node-b", UP, ("down", "goodbye"))
    never_down(lab, "node-a")
    outages.check_alive([lab.process("node-a"), lab.process("c1")])


@pytest.mark.slow
def test_frozen_and_superseded_while_it_was(lab: DbLab) -> None:
    again = lab.process("node-b")
    # Frozen for longer than counts, and thawed.
    again.freeze()
    lab.wait_state("node-b", "down", timeout=LONG)
    again.thaw()
    lab.wait_state("node-b", "up", timeout=LONG)
    assert again.popen.poll() is None
    # Frozen, and taken over while it was: it finds itself superseded and ends.
    again.freeze()
    second = lab.start_agent("node-b", file="node-b-again")
    util.wait_until(lambda: "node-b#2" in lab.beats(), LONG, "the second beats")
    again.thaw()
    assert again.wait(LONG) != 0
    assert "superseded" in again.errors().lower() or "another" in again.errors()
    lab.wait_state("node-b", "up", timeout=LONG)
    assert second.popen.poll() is None
    never_down(lab, "node-a")


@pytest.mark.slow
def test_an_outage_of_the_database_takes_nobody_down(
    lab: DbLab, server: servers.MariaDB
) -> None:
    """For longer than a beat counts; every agent is back by itself."""
    server.stop()
    util.wait_until(
        lambda: all(
            "beat failed" in lab.process(host).errors() for host in ("node-a", "node-b")
        ),
        LONG,
        "both agents to miss it",
    )
    time.sleep(DOWN_TIME + 2)  # the length of the outage
    server.start()

    def all_beat() -> bool:
        ages = lab.beats()
        return len(ages) == 2 and max(ages.values()) < DOWN_TIME / 2

    def quietly() -> bool:
        try:
            return all_beat()
        except Exception:  # noqa: BLE001  # the conductor may not have it yet
            return False

    util.wait_until(quietly, LONG, "both to beat again")
    for host in ("node-a", "node-b"):
        lab.wait_state(host, "up", timeout=LONG)
        never_down(lab, host)
        outages.check_alive([lab.process(host)])


@pytest.mark.slow
def test_drivers_are_mixed(
    tmp_path: pathlib.Path, rabbit_url: str, redis_url: str, mariadb_url: str
) -> None:
    """Conductors of the group see both; a restart changes an agent's driver."""
    made = labs.Lab(tmp_path, rabbit_url, redis_url, mariadb_url)
    with labs.opened(made):
        made.sync()
        made.start_conductor()
        made.start_agent("node-a")
        made.write_nodes("node-b", {"node-b": labs.NODE})
        config = made.config("node-b", {"host": "node-b", "servicegroup_driver": "db"})
        by_beats = made.run(
            "compute_agent.main", "--config-file", config, name="node-b"
        )
        for host in ("node-a", "node-b"):
            made.wait_state(host, "up", timeout=LONG)
        assert made.transitions("node-a")[-1] == ("up", "in-group")
        assert made.transitions("node-b")[-1] == UP
        by_beats.send(signal.SIGTERM)
        assert by_beats.wait(LONG) == 0
        made.wait_state("node-b", "down", timeout=LONG)
        made.start_agent("node-b")
        made.wait_state("node-b", "up", timeout=LONG)
        assert made.transitions("node-b")[-1] == ("up", "in-group")
        assert made.transitions("node-a")[-1] == ("up", "in-group")


@pytest.mark.slow
def test_hollow_agents_beat_so_too(lab: DbLab) -> None:
    lab.start_hollow(10)
    wanted = {f"hollow-{number}#1" for number in range(1, 11)}
    util.wait_until(lambda: wanted <= lab.beats().keys(), LONG, "all to beat")
    for number in range(1, 11):
        lab.wait_state(f"hollow-{number}", "up", timeout=LONG)
    engine = sa.create_engine(lab.database)
    with engine.connect() as connection:
        causes = connection.execute(
            sa.text("SELECT DISTINCT state_cause FROM services")
        ).scalars()
        assert set(causes) == {"db-beat"}
    engine.dispose()
