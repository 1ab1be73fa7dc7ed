"""What makes nobody alive, and nobody else: a file less, a second agent, edits.

On the file backend: step 5 of case A-LIV-1, step 2 of A-LIV-3, and A-LIV-4. Of these,
claims and REST come later: the calls to node-a are pings, and edits are made by the
objects, over RPC.
"""

from collections.abc import Iterator
import pathlib
import threading
import time

import pytest

from compute_agent import rpcapi as compute_rpcapi
from musterbook import context
from musterbook.servicegroup import tooz_driver
from musterbook.servicegroup import url as group_url
from objects import base
from objects import compute_node
from objects import service as service_obj
from tests import util
from tests.functional import lab as labs
from tests.functional import outages

pytestmark = pytest.mark.timeout(400)
HOSTS = ("node-a", "node-b")
AGAIN = "Joined again: group compute"
CALLS = 20


@pytest.fixture
def lab(
    request: pytest.FixtureRequest,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    rabbit_url: str,
    sqlite_url: str,
) -> Iterator[labs.Lab]:
    if request.node.get_closest_marker("slow"):
        for name, value in labs.CASES.items():
            monkeypatch.setattr(labs, name, value)
    made = labs.Lab(tmp_path, rabbit_url, f"file://{tmp_path}/groups", sqlite_url)
    with labs.opened(made):
        made.sync()
        made.start_conductor()
        for host in HOSTS:
            made.start_agent(host)
        outages.wait_well(made, dict.fromkeys(HOSTS, labs.NODE["memory_mb"]))
        monkeypatch.setattr(base.MusterObject, "indirection_api", made.conductor)
        yield made


def identity(lab: labs.Lab, host: str) -> tuple[object, ...]:
    row = lab.fleet()[host]
    names = ("id", "uuid", "host", "service_uuid", "vcpus", "memory_mb", "incarnation")
    return tuple(row[name] for name in names)


# -- A-LIV-1, step 5 -----------------------------------------------------------------


def check_a_member_file_is_lost(lab: labs.Lab) -> None:
    before = {host: identity(lab, host) for host in HOSTS}
    groups = lab.folder / "groups"
    (path,) = [p for p in groups.rglob("*.raw") if b"node-b#1" in p.read_bytes()]
    with outages.Scheduler(lab) as scheduler:
        path.unlink()
        began = time.monotonic()
        outages.wait_said([lab.process("node-b")], AGAIN, 1)
        lab.wait_state("node-b", "up")
        print("member file: well after", time.monotonic() - began)
    assert scheduler.told("node-a") == {"up"}
    assert scheduler.told("node-b") <= {"up", "suspect"}
    outages.check_said([lab.process("node-b")], AGAIN, 1)
    outages.check_said([lab.process("node-a")], AGAIN, 0)
    assert {host: identity(lab, host) for host in HOSTS} == before


# -- A-LIV-3, step 2 -----------------------------------------------------------------


class Caller:
    """Calls node-a's agent CALLS times, in a thread of its own.

    :ivar answers: which process has answered
    """

    def __init__(self, lab: labs.Lab) -> None:
        self._api = compute_rpcapi.ComputeAPI(lab.transport, 10.0)
        self.answers: list[str] = []
        self._thread = threading.Thread(target=self._run, name="caller")

    def __enter__(self) -> "Caller":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread.join(60)

    def _run(self) -> None:
        for _ in range(CALLS):
            answer = self._api.ping(context.service_context(), "node-a")
            self.answers.append(answer["process_uuid"])
            time.sleep(0.2)  # spread over the intruder's life


def start_intruder(lab: labs.Lab) -> labs.Process:
    """Start a second agent for node-a, as from another machine."""
    state = lab.folder / "empty"
    state.mkdir()
    lab.write_nodes("second", {"node-a": {**labs.NODE, "vcpus": 4}})
    config = lab.config("second", {"host": "node-a", "state_path": state})
    return lab.run("compute_agent.main", "--config-file", config, name="second")


def check_a_second_agent_is_refused(lab: labs.Lab, watch: float, limit: float) -> None:
    reader = tooz_driver.ToozDriver(group_url.parse(lab.group), "a-reader")
    reader.start()
    before = identity(lab, "node-a")
    began = time.monotonic()
    try:
        with outages.Scheduler(lab) as scheduler, Caller(lab) as caller:
            second = start_intruder(lab)
            assert second.wait(60) == 1
            took = time.monotonic() - began
            while time.monotonic() - began < watch:
                assert identity(lab, "node-a") == before
                members = reader.get_all(service_obj.COMPUTE_TOPIC)
                assert {m for m in members if m.startswith("node-a#")} == {"node-a#1"}
                time.sleep(0.5)  # between two samples
    finally:
        reader.stop()
    print("refused after", took)
    assert took < limit
    assert scheduler.told("node-a") == {"up"}
    assert len(caller.answers) == CALLS
    (first,) = set(caller.answers)
    last = second.errors().splitlines()[-1]
    assert "node-a" in last
    assert first in last
    assert "Traceback" not in second.errors()
    outages.check_alive([lab.process("node-a")])


# -- A-LIV-4 -------------------------------------------------------------------------


def service(host: str) -> service_obj.Service:
    return service_obj.Service.get_by_host_and_binary(
        context.service_context(), host, service_obj.COMPUTE_BINARY
    )


def edit(host: str, **values: object) -> None:
    found = service(host)
    for name, value in values.items():
        setattr(found, name, value)
    found.save()


def check_edits_make_nobody_alive(lab: labs.Lab, pause: float) -> None:
    lab.process("node-b").kill()
    lab.wait_state("node-b", "down", timeout=outages.BUSY)
    history = lab.transitions("node-b")
    assert history[-1] == ("down", "silent")
    with outages.Scheduler(lab) as scheduler:
        for number in range(5):
            edit("node-b", disabled=True, disabled_reason="being looked at")
            if number == 2:
                edit("node-b", forced_down=True)
                wait_transition(lab, ("down", "forced-down"))
                edit("node-b", forced_down=False)
                wait_transition(lab, ("down", "silent"))
            time.sleep(pause)
            edit("node-b", disabled=False, disabled_reason=None)
        node = compute_node.ComputeNode.get_by_host_and_nodename(
            context.service_context(), "node-b", "node-b"
        )
        node.cpu_allocation_ratio = 2.5
        node.save()
        asked = len(scheduler.answers)
        util.wait_until(lambda: len(scheduler.answers) >= asked + 5)
    assert scheduler.told("node-b") == {"down"}
    assert scheduler.told("node-a") == {"up"}
    assert service("node-b").updated_at is not None  # edited it was
    assert lab.transitions("node-b") == [
        *history,
        ("down", "forced-down"),
        ("down", "silent"),
    ]


def wait_transition(lab: labs.Lab, wanted: tuple[str, str]) -> None:
    util.wait_until(lambda: lab.transitions("node-b")[-1] == wanted, what=str(wanted))


def check_forced_down_on_a_living_node(lab: labs.Lab) -> None:
    edit("node-a", forced_down=True)
    # At once, before the leader has looked.
    assert lab.fleet()["node-a"]["state"] == "down"
    wait_forced = ("down", "forced-down")
    util.wait_until(lambda: lab.transitions("node-a")[-1] == wait_forced)
    edit("node-a", forced_down=False)
    began = time.monotonic()
    lab.wait_state("node-a", "up")
    took = time.monotonic() - began
    print("up after", took)
    assert took < 5
    outages.check_said([lab.process("node-a")], AGAIN, 0)


def test_a_file_less_a_second_agent_and_edits(lab: labs.Lab) -> None:
    check_a_member_file_is_lost(lab)
    check_a_second_agent_is_refused(lab, watch=5.0, limit=outages.WELL)
    check_forced_down_on_a_living_node(lab)
    check_edits_make_nobody_alive(lab, pause=0.0)


@pytest.mark.slow
def test_with_the_numbers_of_the_cases(lab: labs.Lab) -> None:
    check_a_member_file_is_lost(lab)
    check_a_second_agent_is_refused(lab, watch=60.0, limit=10.0)
    check_forced_down_on_a_living_node(lab)
    check_edits_make_nobody_alive(lab, pause=4.0)
