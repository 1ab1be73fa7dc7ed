"""musterbook-hollow: many hosts in one process, each a host to everybody else."""

from collections.abc import Iterator
import pathlib
import re
import shlex
import time

import psutil
import pytest
import sqlalchemy as sa

from compute_agent import rpcapi as compute_rpcapi
from musterbook import context
from musterbook import errors
from tests import util
from tests.functional import lab as labs


@pytest.fixture
def lab(
    tmp_path: pathlib.Path, rabbit_url: str, redis_url: str, mariadb_url: str
) -> Iterator[labs.Lab]:
    made = labs.Lab(tmp_path, rabbit_url, redis_url, mariadb_url)
    with labs.opened(made):
        made.sync()
        yield made


def states(lab: labs.Lab) -> dict[str, int]:
    """Return how many nodes are in which state."""
    counted: dict[str, int] = {}
    for row in lab.fleet().values():
        counted[row["state"]] = counted.get(row["state"], 0) + 1
    return counted


def watch(lab: labs.Lab, hosts: int, seconds: float) -> None:
    """Look throughout, and see every host up."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert states(lab) == {"up": hosts}


def documented() -> list[str]:
    """Return the options of the command in docs/hollow.md, but for the file."""
    text = (labs.ROOT / "docs/hollow.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^musterbook-hollow .*$", text, re.MULTILINE)
    name, flag, _, *more = shlex.split(command)
    assert (name, flag) == ("musterbook-hollow", "--config-file")
    return more


def test_fifty_hosts(lab: labs.Lab) -> None:
    """All come up, stay up, are asked one by one, and say goodbye together."""
    lab.start_conductor()
    assert documented() == ["--hosts", "50"]
    hollow = lab.start_hollow(50)
    util.wait_until(lambda: states(lab) == {"up": 50}, 60, "50 hosts up")
    util.wait_until(lambda: "50 of 50" in hollow.output(), 10, "what it says")
    # As many agents have ten each.
    assert psutil.Process(hollow.popen.pid).num_threads() < 80

    # Longer than it takes to miss a host that has ceased to beat, and to call it down.
    watch(lab, 50, labs.MEMBER_TIMEOUT + labs.SERVICE_DOWN_TIME)

    agents = compute_rpcapi.ComputeAPI(lab.transport, 3.0)
    asking = context.service_context()
    answers = {n: agents.ping(asking, f"hollow-{n}") for n in (1, 2, 50)}
    assert len({a["process_uuid"] for a in answers.values()}) == 3
    with pytest.raises(errors.AgentUnavailable):
        agents.ping(asking, "hollow-51", timeout=1.0)

    check_superseded(lab, hollow)
    assert hollow.stop() == 0
    util.wait_until(lambda: states(lab) == {"down": 50}, 10, "50 hosts down")
    assert lab.transitions("hollow-7")[-1] == ("down", "goodbye")


def check_superseded(lab: labs.Lab, hollow: labs.Process) -> None:
    """See a host that another process was granted end alone."""
    engine = sa.create_engine(lab.database)
    with engine.begin() as connection:
        connection.execute(
            sa.text(
                "UPDATE services SET incarnation = incarnation + 1, secret_hash = 'x'"
                " WHERE host = 'hollow-3'"
            )
        )
    engine.dispose()
    util.wait_until(lambda: "Host hollow-3 ends" in hollow.errors(), 30, "its end")
    agents = compute_rpcapi.ComputeAPI(lab.transport, 1.0)

    def silent() -> bool:
        try:
            agents.ping(context.service_context(), "hollow-3")
        except errors.AgentUnavailable:
            return True
        return False

    util.wait_until(silent, 10, "hollow-3 to answer no more")
    lab.wait_state("hollow-3", "down")
    assert states(lab) == {"up": 49, "down": 1}


def test_a_name_that_no_host_can_have(lab: labs.Lab) -> None:
    """Bad input ends in one line that names the option."""
    hollow = lab.start_hollow(1, "--prefix", "a b-")
    assert hollow.wait(60) == 2
    said = hollow.errors().splitlines()
    assert len(said) == 1
    assert "prefix" in said[0]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_two_thousand_hosts_for_ten_minutes(
    lab: labs.Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the times of production, as all of them are defaults."""
    for name, value in {
        "REPORT_INTERVAL": 3,
        "MEMBER_TIMEOUT": 10,
        "SERVICE_DOWN_TIME": 40,
        "POLL_INTERVAL": 1,
        "UPDATE_RESOURCES_INTERVAL": 60,
    }.items():
        monkeypatch.setattr(labs, name, value)
    lab.group = lab.group.replace("timeout=2", "timeout=10")
    lab.lease_interval = 5
    lab.start_conductor()
    hollow = lab.start_hollow(2000)
    util.wait_until(lambda: states(lab) == {"up": 2000}, 600, "2,000 hosts up")
    end = time.monotonic() + 600
    while time.monotonic() < end:
        assert states(lab) == {"up": 2000}
        assert hollow.popen.poll() is None
        time.sleep(1.0)
    engine = sa.create_engine(lab.database)
    with engine.connect() as connection:
        downs = connection.scalar(
            sa.text("SELECT COUNT(*) FROM transitions WHERE state = 'down'")
        )
    engine.dispose()
    assert downs == 0
