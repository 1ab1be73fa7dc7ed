"""SIGHUP: changed options are taken up, and nobody notices anything else."""

from collections.abc import Iterator
import pathlib
import signal
import time

import pytest

from musterbook import context
from musterbook import levels
from objects import compute_node
from tests import util
from tests.functional import lab as labs
from tests.functional import load as loads


@pytest.fixture
def lab(
    tmp_path: pathlib.Path, rabbit_url: str, redis_url: str, mariadb_url: str
) -> Iterator[labs.Lab]:
    made = labs.Lab(tmp_path, rabbit_url, redis_url, mariadb_url)
    made.workers = 2
    with labs.opened(made):
        made.sync()
        yield made


def change(lab: labs.Lab, name: str, *changes: tuple[str, str]) -> None:
    """Change a daemon's configuration file, whole."""
    path = lab.folder / f"{name}.conf"
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


def hang_up(run: labs.Process, said: str) -> str:
    """Send SIGHUP; return the line that has this in it, once it is there."""
    before = len(run.errors())
    run.send(signal.SIGHUP)

    def found() -> str:
        lines = run.errors()[before:].splitlines()
        return next((line for line in lines if said in line), "")

    return util.wait_until(found, what=said)


@pytest.fixture
def daemons(lab: labs.Lab) -> tuple[labs.Process, labs.Process]:
    """Start a conductor with two workers and an agent, and return them."""
    conductor = lab.start_conductor("c1")
    agent = lab.start_agent("web1")
    lab.wait_state("web1", "up", timeout=60)
    util.wait_until(lambda: labs.consumers(lab.rabbit, "conductor.c1") == 2)
    return conductor, agent


def test_a_reload_under_calls_loses_none_and_keeps_all(
    lab: labs.Lab, daemons: tuple[labs.Process, labs.Process]
) -> None:
    conductor, agent = daemons
    workers = {child.pid for child in conductor.children()}
    history = lab.transitions("web1")
    asking = context.service_context()
    with loads.Load(lambda: lab.conductor.get_fleet(asking, timeout=20.0)) as load:
        load.wait_answers(20)
        for down_time in ("7", "8", "9"):
            value = int(float(down_time)) - 1
            old = "6.0" if value == 6 else str(value)
            downs = (
                f"service_down_time = {old}\n",
                f"service_down_time = {down_time}\n",
            )
            for name, run in (("c1", conductor), ("web1", agent)):
                change(lab, name, downs)
                line = hang_up(run, "in force now")
                assert f"service_down_time from {value}.0 to {down_time}.0" in line
            load.wait_answers(20)
    assert load.failed() == []
    assert load.slowest() < 3
    assert {child.pid for child in conductor.children()} == workers
    assert lab.fleet()["web1"]["incarnation"] == 1
    assert lab.transitions("web1") == history
    assert "Joined again" not in agent.errors()
    # One line for each reload, whatever the number of workers.
    assert conductor.errors().count("in force now") == 3
    for run in daemons:
        assert "Traceback" not in run.errors()
        assert run.stop() == 0


def test_an_agent_takes_up_what_it_reports_and_how_often(
    lab: labs.Lab, daemons: tuple[labs.Process, labs.Process]
) -> None:
    _, agent = daemons
    assert lab.fleet()["web1"]["memory_mb_used"] == 512
    reserved = ("[DEFAULT]\n", "[DEFAULT]\nreserved_host_memory_mb = 1024\n")
    change(lab, "web1", reserved)
    hang_up(agent, "reserved_host_memory_mb from 512 to 1024")
    util.wait_until(lambda: lab.fleet()["web1"]["memory_mb_used"] == 1024)
    # Hardly ever; then often again: whoever waits for the long interval is woken.
    audits = "update_resources_interval = "
    # Without stalled_after, that is, for which they'd come every 12.5 s at least.
    hardly = f"stalled_after = 0\n{audits}86400"
    change(lab, "web1", (f"{audits}1.0", hardly))
    hang_up(agent, "update_resources_interval from 1.0 to 86400.0")
    change(lab, "web1", (f"{audits}86400", f"{audits}0.5"))
    hang_up(agent, "update_resources_interval from 86400.0 to 0.5")
    lab.write_nodes("web1", {"web1": {**labs.NODE, "memory_mb": 32768}})
    util.wait_until(lambda: lab.fleet()["web1"]["memory_mb"] == 32768)
    change(
        lab,
        "web1",
        ("[inventory]\n", "[inventory]\nlabels = rack:r1\ncustom_resources = GPU:4\n"),
    )
    line = hang_up(agent, "Reload refused")
    assert "option [inventory]custom_resources: 'GPU' is no name" in line
    change(lab, "web1", ("= GPU:4", "= CUSTOM_GPU:4"))
    hang_up(agent, "[inventory]labels from ")
    util.wait_until(
        lambda: (
            read_node(lab, "web1").labels == {"rack": "r1"}
            and read_node(lab, "web1").custom_resources == {"CUSTOM_GPU": 4}
        )
    )
    assert lab.fleet()["web1"]["state"] == "up"
    assert agent.stop() == 0


def read_node(lab: labs.Lab, host: str) -> compute_node.ComputeNode:
    """Return the one node of a host."""
    objects = levels.of(levels.SERVICE_LEVEL).objects
    found: compute_node.ComputeNode = lab.conductor.object_class_action_versions(
        context.service_context(),
        "ComputeNode",
        "get_by_host_and_nodename",
        objects,
        [host, host],
        {},
    )
    return found


def test_a_conductor_takes_up_when_silence_means_down(
    lab: labs.Lab,
) -> None:
    path = pathlib.Path(lab.config("c1", {"host": "c1", "service_down_time": 80000}))
    conductor = lab.run("conductor.main", "--config-file", str(path), name="c1")
    agent = lab.start_agent("web1")
    lab.wait_state("web1", "up", timeout=60)
    agent.kill()
    lab.wait_state("web1", "suspect")
    change(
        lab,
        "c1",
        ("service_down_time = 80000", "service_down_time = 4"),
        ("ping_timeout = 1", "ping_timeout = 0.5"),
        ("poll_interval = 0.25", "poll_interval = 0.2"),
        ("lease_interval = 0.5", "lease_interval = 0.6"),
    )
    line = hang_up(conductor, "in force now")
    for name in ("ping_timeout", "poll_interval", "lease_interval"):
        assert f"[conductor]{name} from " in line
    lab.wait_state("web1", "down", timeout=60)
    assert lab.fleet()["web1"]["state_cause"] == "silent"
    assert conductor.stop() == 0


def test_the_log_level_changes_in_every_process(
    lab: labs.Lab, daemons: tuple[labs.Process, labs.Process]
) -> None:
    conductor, agent = daemons
    asking = context.service_context()
    for name, run in (("c1", conductor), ("web1", agent)):
        pids = {run.popen.pid, *(child.pid for child in run.children())}
        assert " DEBUG " not in run.errors()
        change(lab, name, ("[DEFAULT]\n", "[DEFAULT]\ndebug = true\n"))
        hang_up(run, "debug from False to True")

        def talkative(run: labs.Process = run) -> set[int]:
            lab.conductor.get_fleet(asking)
            lines = [line.split() for line in run.errors().splitlines()]
            return {int(words[2]) for words in lines if words[3:4] == ["DEBUG"]}

        # The main process of a conductor does nothing that would be worth a line.
        wanted = pids - ({run.popen.pid} if len(pids) > 1 else set())
        util.wait_until(lambda: wanted <= talkative(), what="debug lines")  # noqa: B023
        change(lab, name, ("debug = true\n", "debug = false\n"))
        hang_up(run, "debug from True to False")
        assert run.stop() == 0 if name == "web1" else True


def test_a_value_that_can_not_be_used_changes_nothing(
    lab: labs.Lab, daemons: tuple[labs.Process, labs.Process]
) -> None:
    conductor, agent = daemons
    workers = {child.pid for child in conductor.children()}
    for name, run in (("c1", conductor), ("web1", agent)):
        change(
            lab,
            name,
            ("service_down_time = 6.0", "service_down_time = soon"),
            ("[DEFAULT]\n", "[DEFAULT]\ndebug = true\n"),
        )
        line = hang_up(run, "Reload refused")
        assert "option service_down_time: " in line
        # Fine by itself, not with the member timeout, which is 2 s.
        change(lab, name, ("service_down_time = soon", "service_down_time = 2"))
        line = hang_up(run, "Reload refused")
        assert "option service_down_time: 2 s must be longer" in line
        assert " DEBUG " not in run.errors()
        assert run.popen.poll() is None
        # Mended, it is taken up.
        change(lab, name, ("service_down_time = 2", "service_down_time = 6.5"))
        hang_up(run, "in force now: debug from False to True, service_down_time")
    assert {child.pid for child in conductor.children()} == workers
    assert lab.fleet()["web1"]["state"] == "up"
    assert lab.fleet()["web1"]["incarnation"] == 1


def test_what_needs_a_restart_is_named(
    lab: labs.Lab, daemons: tuple[labs.Process, labs.Process]
) -> None:
    conductor, agent = daemons
    change(lab, "c1", ("workers = 2", "workers = 3"))
    line = hang_up(conductor, "only a restart")
    assert " WARNING " in line
    assert line.endswith("takes it up: [conductor]workers")
    change(lab, "web1", ("host = web1", "host = web2"))
    line = hang_up(agent, "only a restart")
    assert line.endswith("takes it up: host")
    time.sleep(1)  # nothing happens
    assert len(conductor.children()) == 2
    assert set(lab.fleet()) == {"web1"}


def test_a_worker_that_comes_later_has_what_was_taken_up(
    lab: labs.Lab, daemons: tuple[labs.Process, labs.Process]
) -> None:
    conductor, _ = daemons
    change(lab, "c1", ("[DEFAULT]\n", "[DEFAULT]\ndebug = true\n"))
    hang_up(conductor, "debug from False to True")
    old = {child.pid for child in conductor.children()}
    conductor.children()[0].kill()

    def newcomer() -> int:
        new = [c.pid for c in conductor.children() if c.pid not in old]
        return new[0] if new else 0

    pid = util.wait_until(newcomer, what="another worker")
    util.wait_until(lambda: f" {pid} DEBUG " in conductor.errors(), what="debug lines")


@pytest.mark.parametrize("module", ["conductor.main", "compute_agent.main"])
def test_while_it_starts_it_changes_nothing(lab: labs.Lab, module: str) -> None:
    lab.write_nodes("d", {"d": labs.NODE})
    config = lab.config("d", {"host": "d"})
    run = lab.run(module, "--config-file", config, name="d")
    ignores = 1 << (signal.SIGHUP - 1)
    status = pathlib.Path(f"/proc/{run.popen.pid}/status")

    def guarded() -> bool:
        lines = dict(line.split(":\t") for line in status.read_text().splitlines())
        return bool(int(lines["SigIgn"], 16) & ignores)

    util.wait_until(guarded, what="the guard")
    began = time.monotonic()
    while time.monotonic() - began < 6:
        run.send(signal.SIGHUP)
        # Those that come once it serves are each taken up, one after the other.
        time.sleep(0.1)
    assert run.popen.poll() is None, run.errors()
    assert run.stop() == 0
    assert "Traceback" not in run.errors()
