"""A-LIV-3 and a renamed host, with real processes."""

from collections.abc import Iterator
import pathlib
import shutil
import time
from typing import Any
import uuid as uuidlib

import pytest

from compute_agent import rpcapi as compute_rpcapi
from musterbook import context
from tests import util
from tests.functional import lab as labs
from tests.functional import outages

UUID = "7d9f9f2e-5a4a-4d15-8f9f-5a0b3bb0a001"


@pytest.fixture
def lab(
    tmp_path: pathlib.Path, rabbit_url: str, redis_url: str, mariadb_url: str
) -> Iterator[labs.Lab]:
    made = labs.Lab(tmp_path, rabbit_url, redis_url, mariadb_url)
    with labs.opened(made):
        made.sync()
        yield made


def check_claims(lab: labs.Lab, node: str) -> None:
    """Claim one CPU of node-a and give it back, twenty times: all of it once."""
    me = context.service_context()
    agents = compute_rpcapi.ComputeAPI(lab.transport, 30.0)
    asked = []
    for _ in range(20):
        uuid = str(uuidlib.uuid4())
        asked.append(uuid)
        request = {"uuid": uuid, "resources": {"vcpus": 1}, "candidates": [node]}
        assert agents.claim(me, "node-a", request)["host"] == "node-a"
        lab.conductor.release_claim(me, uuid)
    found = lab.conductor.list_claims(me, host="node-a", finished=True)
    assert [(c["uuid"], c["state"]) for c in found] == [
        (uuid, "released") for uuid in asked
    ]


def test_a_copy_is_refused_and_a_renamed_host_is_not(lab: labs.Lab) -> None:
    lab.start_conductor()
    nodes: dict[str, Any] = {"n1": {**labs.NODE, "uuid": UUID}}
    first = lab.start_agent("node-a", nodes)
    lab.wait_state("n1", "up", timeout=60)
    kept = lab.state("node-a") / "nodes.json"
    util.wait_until(kept.exists)
    before = lab.fleet()["n1"]

    # A machine that is started from an image of the first one.
    shutil.copytree(lab.state("node-a"), lab.state("node-a2"))
    began = time.monotonic()
    with outages.Scheduler(lab) as scheduler:
        second = lab.start_agent("node-a2", nodes)
        other = lab.start_agent("node-a", nodes, file="empty")  # with an empty state
        while second.popen.poll() is None:
            assert lab.fleet()["n1"] == before
            assert time.monotonic() - began < 60
            time.sleep(0.2)  # between two samples
    assert second.wait(60) == 1
    assert scheduler.told("n1") == {"up"}
    assert time.monotonic() - began < 10 + 10  # of which 10 s for a busy machine
    check_claims(lab, before["uuid"])
    assert other.wait(60) == 1
    said = second.errors().splitlines()[-1]
    assert "node-a" in said
    assert UUID in said
    assert "Traceback" not in second.errors()
    # Of claims that were released again only the row's generation tells.
    assert lab.fleet()["n1"] | {"generation": 0} == before | {"generation": 0}
    assert first.popen.poll() is None
    assert lab.transitions("node-a2") == []

    # The first one dies without a word: the machine has the other name from now on.
    first.kill()
    shutil.copytree(lab.state("node-a"), lab.state("third"))
    third = lab.start_agent("node-a2", nodes, file="third")
    util.wait_until(lambda: lab.fleet()["n1"]["host"] == "node-a2", timeout=60)
    lab.wait_state("n1", "up", timeout=60)
    after = lab.fleet()["n1"]
    assert (after["id"], after["uuid"]) == (before["id"], before["uuid"])
    assert after["memory_mb_used"] == before["memory_mb_used"]
    (line,) = [t for t in third.errors().splitlines() if "Host renamed" in t]
    for word in ("node-a", "node-a2", UUID):
        assert word in line
    assert third.stop() == 0
    assert "Traceback" not in third.errors()
