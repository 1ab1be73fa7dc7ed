"""musterbook-hollow: many hosts in one process, each a host to everybody else."""

from collections.abc import Iterator
import pathlib
import time

import psutil
import pytest

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


def test_fifty_hosts(lab: labs.Lab) -> None:
    """All come up, stay up, are asked one by one, and say goodbye together."""
    lab.start_conductor()
    hollow = lab.start_hollow(50)
    util.wait_until(lambda: states(lab) == {"up": 50}, 60, "50 hosts up")
    util.wait_until(lambda: "50 of 50" in hollow.output(), 10, "what it says")
    process = psutil.Process(hollow.popen.pid)
    print(process.num_threads(), process.memory_info().rss / 2**20)
    # Far fewer than two for each host, which is what as many agents have.
    assert process.num_threads() < 80

    end = time.monotonic() + 20
    while time.monotonic() < end:
        assert states(lab) == {"up": 50}

    agents = compute_rpcapi.ComputeAPI(lab.transport, 3.0)
    asking = context.service_context()
    answers = {n: agents.ping(asking, f"hollow-{n}") for n in (1, 2, 50)}
    assert len({a["process_uuid"] for a in answers.values()}) == 3
    with pytest.raises(errors.AgentUnavailable):
        agents.ping(asking, "hollow-51", timeout=1.0)

    began = time.monotonic()
    assert hollow.stop() == 0
    util.wait_until(lambda: states(lab) == {"down": 50}, 10, "50 hosts down")
    assert time.monotonic() - began < 15
    assert lab.transitions("hollow-7")[-1] == ("down", "goodbye")
