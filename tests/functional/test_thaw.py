"""An agent that was frozen, and whose host another process has when it thaws."""

from collections.abc import Callable
from collections.abc import Iterator
import pathlib
import signal
import time

import pytest

from compute_agent import rpcapi as compute_rpcapi
from musterbook import context
from musterbook import errors
from tests import util
from tests.functional import lab as labs

#: For processes on a busy machine.
LONG = 120.0
#: What a goodbye may be late by there; the promise is 2 s on a quiet one.
SLACK = 30.0


@pytest.fixture
def lab(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    rabbit_url: str,
    redis_url: str,
    mariadb_url: str,
) -> Iterator[labs.Lab]:
    # A busy machine alone shall make nobody suspect.
    monkeypatch.setattr(labs, "MEMBER_TIMEOUT", 5)
    monkeypatch.setattr(labs, "SERVICE_DOWN_TIME", 9.0)
    made = labs.Lab(tmp_path, rabbit_url, redis_url, mariadb_url)
    with labs.opened(made):
        made.sync()
        yield made


def test_thawed_it_finds_its_host_taken_and_ends(
    lab: labs.Lab, record_property: Callable[[str, object], None]
) -> None:
    lab.start_conductor()
    old = lab.start_agent("web1")
    lab.wait_state("web1", "up", timeout=LONG)
    kept = lab.state("web1") / "nodes.json"
    util.wait_until(kept.exists, LONG)
    saved, before = kept.read_text(), lab.fleet()["web1"]

    old.freeze()
    lab.wait_state("web1", "suspect", "down", timeout=LONG)
    new = take_over(lab)
    util.wait_until(lambda: is_up(lab, 2), LONG, "the second process to be up")

    old.thaw()
    util.wait_until(lambda: has_ended(lab, old), LONG, "the first process to end")
    assert old.wait() == 1
    said = old.errors().splitlines()
    assert "web1" in said[-1]
    assert "Traceback" not in old.errors()

    check_undisturbed(lab, new)
    assert kept.read_text() == saved
    after = lab.fleet()["web1"]
    for same in ("id", "uuid", "memory_mb", "memory_mb_used"):
        assert after[same] == before[same]

    # What the first one did when it ended took nothing from the second.
    new.send(signal.SIGTERM)
    sent = time.monotonic()
    seconds = lab.wait_state("web1", "down", timeout=LONG) - sent
    record_property("seconds_from_sigterm_to_down", round(seconds, 2))
    print(f"from SIGTERM to down: {seconds:.2f} s")
    assert seconds < 2.0 + SLACK
    assert lab.fleet()["web1"]["state_cause"] == "goodbye"
    assert new.wait(LONG) == 0


def take_over(lab: labs.Lab) -> labs.Process:
    """Start a second process of the same host on the same state directory."""
    lab.write_nodes("again", {"web1": labs.NODE})
    config = lab.config("again", {"host": "web1", "state_path": lab.state("web1")})
    return lab.run("compute_agent.main", "--config-file", config, name="again")


def is_up(lab: labs.Lab, incarnation: int) -> bool:
    """Return whether the host is up under this number, as anybody is told."""
    row = util.wait_until(lab.fleet, LONG, "a conductor to answer")["web1"]
    return (row["state"], row["incarnation"]) == ("up", incarnation)


def has_ended(lab: labs.Lab, old: labs.Process) -> bool:
    """Return whether it has; until then, and after that, the host is up."""
    ended = old.popen.poll() is not None
    assert is_up(lab, 2)
    return ended


def check_undisturbed(lab: labs.Lab, new: labs.Process) -> None:
    """Let it be asked over RPC, and be seen to work, after the other one's end."""
    agents = compute_rpcapi.ComputeAPI(lab.transport, 5.0)

    def answers() -> bool:
        try:
            agents.ping(context.service_context(), "web1")
        except errors.AgentUnavailable:
            return False
        return True

    util.wait_until(answers, LONG, "the second process to answer")
    lab.write_nodes("again", {"web1": {**labs.NODE, "vcpus": 9}})
    util.wait_until(lambda: lab.fleet()["web1"]["vcpus"] == 9, LONG, "a save of its")
    assert is_up(lab, 2)
    assert new.popen.poll() is None
    assert "superseded" not in new.errors()
    assert "Traceback" not in new.errors()
