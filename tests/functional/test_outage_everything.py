"""Broker, database and group go away at the same time, as with their rack."""

from collections.abc import Iterator
import contextlib
import itertools
import pathlib

import pytest

from tests import process
from tests import servers
from tests import util
from tests.functional import lab as labs
from tests.functional import outages
from tests.functional import test_readiness as readiness

pytestmark = pytest.mark.timeout(600)
HOSTS = ["web1", "web2"]


@pytest.fixture
def parts(own_server: process.Starter) -> list[process.Server]:
    return [
        own_server(kind) for kind in (servers.RabbitMQ, servers.MariaDB, servers.Redis)
    ]


@pytest.fixture
def lab(parts: list[process.Server], tmp_path: pathlib.Path) -> Iterator[labs.Lab]:
    broker, database, group = (part.lease(0) for part in parts)
    made = labs.Lab(tmp_path, broker, group, database)
    with labs.opened(made):
        made.sync()
        for name in ("c1", "c2"):
            made.start_conductor(name)
        for host in HOSTS:
            made.start_agent(host)
        made.wait_serving("c1", "c2")
        outages.wait_well(made, dict.fromkeys(HOSTS, labs.NODE["memory_mb"]))
        yield made


def test_started_in_the_worst_order(
    parts: list[process.Server],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A-LIFE-2: the agent, then the broker, the conductor, and the database last."""
    broker, database, _ = parts
    urls = [part.lease(0) for part in parts]
    for part in (broker, database):
        part.stop()
    lab = labs.Lab(tmp_path, urls[0], urls[2], urls[1])
    manager = readiness.Manager(tmp_path, "systemd")
    monkeypatch.setenv("NOTIFY_SOCKET", manager.path)
    with labs.opened(lab), contextlib.closing(manager):
        agent = lab.start_agent("web1")
        outages.wait_said([agent], "Waiting for the message broker", 1)
        broker.start()
        outages.wait_said([agent], "Waiting for a conductor", 4)
        conductor = lab.start_conductor()
        outages.wait_said([conductor], "Waiting for the database", 1)
        assert not manager.listen(2.0), manager.heard
        database.start()
        lab.sync()
        outages.wait_well(lab, {"web1": labs.NODE["memory_mb"]})
        util.wait_until(lambda: manager.listen(0.1) or len(manager.heard) == 2)
        util.wait_until(lambda: manager.listen(0.1) or len(manager.heard) == 2)
        outages.check_alive([agent, conductor])
        said = [line for line in agent.errors().splitlines() if "next try in" in line]
        pauses = [float(line.split("next try in ")[1].split(" s")[0]) for line in said]
        # Half to all of a length that doubles, up to 10 s: none is shorter than the
        # one before until that length is reached.
        assert len(pauses) >= 4, said
        assert all(
            later >= min(earlier, 5.0) for earlier, later in itertools.pairwise(pauses)
        ), pauses
        assert max(pauses) <= 10.0
        assert pauses[3] > 2 * pauses[0], pauses


def test_all_restarted(lab: labs.Lab, parts: list[process.Server]) -> None:
    daemons = [p for p in lab.processes if p.err.stem != "manage"]
    with outages.watched(lab):
        for part in parts:
            part.kill()
        outages.change(lab, "web1", 24576)
        for conductor in daemons[:2]:
            outages.wait_said([conductor], "The database is lost", 1)
        outages.wait_said(daemons[2:], "Group compute: beat failed", 1)
        for part in parts:
            part.start()
        took = outages.wait_well(lab, {"web1": 24576, "web2": labs.NODE["memory_mb"]})
    print("everything", took)
    # Both serve again: hosts may be up by one of them.
    outages.wait_said(daemons[:2], "The database is back", 1)
    lab.wait_serving("c1", "c2")
    outages.check_alive(daemons)
    outages.check_said(daemons[:2], "The database is lost", 1)
    outages.check_said(daemons[:2], "The database is back", 1)
    outages.check_said(daemons[2:], "Group compute: beat failed", 1)
    outages.check_rows(lab, len(HOSTS))
    assert {row["incarnation"] for row in lab.fleet().values()} == {1}
