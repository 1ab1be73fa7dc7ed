"""Bad configuration, by every command: one line, an exit code, no secret, nothing left.

Cases A-LIV-5, A-CFG-1 and A-CFG-2 for what exists.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import os
import pathlib
import time
from typing import Any

import pytest
import sqlalchemy as sa

from tests import util
from tests.functional import forks
from tests.functional import lab

#: Seconds within which a senseless value must have ended the process. The promise is
#: 5 s from the start; the rest is for a busy machine.
LIMIT = 30.0
CANARY = "CANARY-p@ss/w%rd"
ENCODED = "CANARY-p%40ss%2Fw%25rd"


@pytest.fixture(scope="module")
def template() -> Iterator[forks.Template]:
    made = forks.Template("musterbook.standalone")
    yield made
    made.close()


@pytest.fixture(scope="module")
def agents() -> Iterator[forks.Template]:
    made = forks.Template("compute_agent.main")
    yield made
    made.close()


def refused(process: lab.Process | forks.Run, *words: str) -> str:
    """Return the one line with which a process refused its configuration."""
    code = process.wait(LIMIT)
    lines = process.errors().splitlines()
    assert code == 2, lines
    (line,) = lines
    for word in words:
        assert word in line, line
    assert "CANARY" not in line
    assert process.output() == ""
    return line


def standalone(folder: pathlib.Path, *arguments: str, name: str = "run") -> lab.Process:
    return lab.Process(
        folder,
        name,
        "musterbook.standalone",
        *("--state-dir", str(folder / "state"), *arguments),
    )


def config(folder: pathlib.Path, values: Mapping[str, Any]) -> str:
    """Write a configuration file; ``group/name`` is an option of a group."""
    groups: dict[str, list[str]] = {}
    for key, value in values.items():
        group, _, name = key.rpartition("/")
        groups.setdefault(group or "DEFAULT", []).append(f"{name} = {value}")
    path = folder / "bad.conf"
    text = "\n".join(
        f"[{group}]\n" + "\n".join(lines) for group, lines in groups.items()
    )
    path.write_text(text + "\n", encoding="utf-8")
    return str(path)


bad_names = pytest.mark.parametrize(
    "host",
    [
        "rechner-ä1",
        "узел-1",
        "with a space",
        "with/slash",
        "n" * 246,
        "n" * 256,
        "",
        "disk-\N{OPTICAL DISC}",
        "..",
    ],
    ids=[
        "umlaut", "cyrillic", "space", "slash", "246", "256", "empty", "emoji", "dots",
    ],
)  # fmt: skip


@bad_names
def test_a_host_name_that_is_not_allowed(
    tmp_path: pathlib.Path, template: forks.Template, host: str
) -> None:
    state = str(tmp_path / "state")
    run = template.run(tmp_path, "--state-dir", state, f"--host={host}")
    line = refused(run, "host", "A-Z a-z 0-9 . _ -")
    assert "1 to 245 of" in line
    # Nothing of it is left.
    assert not (tmp_path / "state" / "groups").exists()
    assert not (tmp_path / "state" / "musterbook.sqlite").exists()


def test_a_directory_without_a_name(
    tmp_path: pathlib.Path, template: forks.Template
) -> None:
    """It would be the one that one happens to be in."""
    run = template.run(tmp_path, "--state-dir", "")
    refused(run, "state-dir", "is empty")


@bad_names
def test_an_agent_connects_to_nothing_under_such_a_name(
    tmp_path: pathlib.Path, agents: forks.Template, host: str
) -> None:
    values = {
        "host": host,
        "transport_url": "rabbit://127.0.0.1:1",
        "servicegroup_tooz_url": f"file://{tmp_path}/groups",
        "log_file": tmp_path / "log",
    }
    run = agents.run(tmp_path, "--config-file", config(tmp_path, values))
    refused(run, "host", "A-Z a-z 0-9 . _ -", "1 to 245 of")
    assert not (tmp_path / "groups").exists()


@pytest.mark.parametrize("host", ["n" * 245, "NODE-a.example_1"], ids=["245", "mixed"])
def test_a_host_name_that_is_allowed_comes_back_as_given(
    tmp_path: pathlib.Path, host: str
) -> None:
    run = standalone(tmp_path, f"--host={host}")
    try:
        util.wait_until(lambda: f"host={host} node={host} state=up" in run.output())
        assert run.stop() == 0
        assert run.errors() == ""
    finally:
        run.kill()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"report_interval": "10m"}, ["report_interval"]),
        ({"report_interval": "0"}, ["report_interval"]),
        ({"report_interval": "-1"}, ["report_interval"]),
        ({"report_interval": "nan"}, ["report_interval"]),
        ({"report_interval": "inf"}, ["report_interval"]),
        ({"report_interval": ""}, ["report_interval", "empty"]),
        ({"conductor/poll_interval": ""}, ["poll_interval", "empty"]),
        ({"log_file": "/nonexistent/x.log"}, ["log_file", "/nonexistent/x.log"]),
        ({"default_log_levels": "garbage"}, ["default_log_levels"]),
        ({"update_resources_interval": "0"}, ["update_resources_interval"]),
        ({"update_resources_interval": "-1"}, ["update_resources_interval"]),
        ({"update_resources_interval": "10m"}, ["update_resources_interval"]),
        ({"stalled_after": "0.5"}, ["stalled_after"]),
        ({"inventory/timeout": "13"}, ["[inventory]timeout", "stalled_after"]),
        ({"rpc_response_timeout": "soon"}, ["rpc_response_timeout"]),
        ({"reserved_host_disk_mb": "-1"}, ["reserved_host_disk_mb"]),
        ({"cpu_allocation_ratio": "-1"}, ["cpu_allocation_ratio"]),
        ({"cpu_allocation_ratio": "abc"}, ["cpu_allocation_ratio"]),
        ({"mass_loss_threshold": "2"}, ["mass_loss_threshold"]),
        ({"my_ip": "not-an-address"}, ["my_ip"]),
        ({"conductor/ping_workers": "0"}, ["ping_workers"]),
        ({"conductor/poll_interval": "0"}, ["poll_interval"]),
        ({"inventory/source": "nosuch"}, ["source", "host"]),
        ({"inventory/timeout": "-3"}, ["timeout"]),
        ({"inventory/source": "fake"}, ["inventory_fake"]),
        ({"servicegroup_driver": "pigeon"}, ["servicegroup_driver"]),
        # A-CFG-2: the beat is slower than the member timeout.
        (
            {"servicegroup_tooz_url": "file:///tmp/x?timeout=3", "report_interval": 5},
            ["report_interval", "servicegroup_tooz_url"],
        ),
        (
            {"service_down_time": 5},
            ["service_down_time", "servicegroup_tooz_url"],
        ),
        ({"servicegroup_tooz_url": ""}, ["servicegroup_tooz_url"]),
        ({"servicegroup_tooz_url": "redsi://h"}, ["servicegroup_tooz_url", "redsi"]),
        ({"servicegroup_tooz_url": "redis://h:99999"}, ["servicegroup_tooz_url"]),
        (
            {"servicegroup_tooz_url": f"mysql://u:{ENCODED}@h/d"},
            ["servicegroup_tooz_url", "mysql"],
        ),
        ({"servicegroup_tooz_url": "redis://a b"}, ["servicegroup_tooz_url"]),
        ({"transport_url": f"rabit://u:{ENCODED}@h/"}, ["transport_url", "rabit"]),
        ({"transport_url": f"rabbit://u:{CANARY}@h/"}, ["transport_url"]),
        ({"transport_url": f"rabbit://u:{ENCODED}@h:99999/"}, ["transport_url"]),
        ({"transport_url": f"rabbit://u:{ENCODED}@/"}, ["transport_url"]),
        ({"transport_url": "rabbit://u h/"}, ["transport_url"]),
        ({"transport_url": ""}, ["transport_url"]),
        ({"transport_url": "rabbit://u:CAN$ARY@h/"}, ["transport_url", "$$"]),
        ({"database/connection": "mysql://u:CAN$ARY@h/d"}, ["connection", "$$"]),
        ({"servicegroup_tooz_url": "file:///proc/nope"}, ["servicegroup_tooz_url"]),
        ({"servicegroup_preset": "small"}, ["servicegroup_preset", "lan, wan, large"]),
        ({"servicegroup_driver": "mc"}, ["servicegroup_driver"]),
        (
            {
                "inventory/source": "libvirt",
                "inventory_libvirt/uri": "qemu://[x/system",
            },
            ["inventory"],
        ),
        ({"executor_thread_pool_size": 0}, ["executor_thread_pool_size"]),
        ({"graceful_shutdown_timeout": -1}, ["graceful_shutdown_timeout"]),
        ({"rpc_response_timeout": 0}, ["rpc_response_timeout"]),
        (
            {"database/connection": f"mysqll://u:{ENCODED}@h/d"},
            ["[database]connection"],
        ),
        (
            {"database/connection": f"mysql://u:{ENCODED}@h:99999/d"},
            ["[database]connection"],
        ),
        ({"database/connection": ""}, ["[database]connection"]),
        ({"database/connection": "sqlite:///a b"}, ["[database]connection"]),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)
def test_a_value_that_makes_no_sense(
    tmp_path: pathlib.Path,
    template: forks.Template,
    values: Mapping[str, Any],
    words: list[str],
) -> None:
    state, file = str(tmp_path / "state"), config(tmp_path, values)
    run = template.run(tmp_path, "--state-dir", state, "--config-file", file)
    refused(run, *words)


@pytest.mark.parametrize("module", ["conductor.main", "compute_agent.main"])
def test_a_daemon_without_configuration(tmp_path: pathlib.Path, module: str) -> None:
    path = config(tmp_path, {"host": "h1"})
    line = refused(lab.Process(tmp_path, "d", module, "--config-file", path))
    assert "transport_url" in line or "servicegroup_tooz_url" in line


DAEMONS = ["conductor.main", "compute_agent.main"]


def daemon(folder: pathlib.Path, module: str, **values: str) -> lab.Process:
    settled = {
        "host": "h1",
        "transport_url": f"rabbit://u:{ENCODED}@127.0.0.1:1/",
        "servicegroup_tooz_url": f"file://{folder}/groups",
        "database/connection": f"sqlite:///{folder}/some.sqlite",
        **values,
    }
    return lab.Process(folder, "d", module, "--config-file", config(folder, settled))


@pytest.mark.parametrize("module", DAEMONS)
def test_a_daemon_whose_transport_reaches_nobody(
    tmp_path: pathlib.Path, module: str
) -> None:
    process = daemon(tmp_path, module, transport_url="inproc://")
    refused(process, "transport_url", "inproc", "rabbit://")


@pytest.mark.parametrize("module", DAEMONS)
def test_a_group_in_a_directory_that_can_not_be(
    tmp_path: pathlib.Path, module: str
) -> None:
    process = daemon(tmp_path, module, servicegroup_tooz_url="file:///proc/nope")
    refused(process, "servicegroup_tooz_url", "/proc/nope")


@pytest.mark.parametrize("module", DAEMONS)
def test_a_group_whose_client_is_not_installed(
    tmp_path: pathlib.Path, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kazoo.py").write_text("raise ImportError('gone', name='kazoo')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    process = daemon(tmp_path, module, servicegroup_tooz_url="kazoo://127.0.0.1")
    refused(process, "servicegroup_tooz_url", "musterbook[zookeeper]")


def test_a_file_that_is_not_there(tmp_path: pathlib.Path) -> None:
    missing = str(tmp_path / "missing.conf")
    refused(standalone(tmp_path, "--config-file", missing), "config-file", missing)


def test_a_file_that_is_no_configuration(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "garbage.conf"
    path.write_text("what is this\n")
    refused(standalone(tmp_path, "--config-file", str(path)), "config-file", str(path))


def test_a_state_directory_that_is_a_file(tmp_path: pathlib.Path) -> None:
    (tmp_path / "state").write_text("")
    refused(standalone(tmp_path), "state-dir", str(tmp_path / "state"))


def test_a_state_directory_that_can_not_be_made(tmp_path: pathlib.Path) -> None:
    process = lab.Process(
        tmp_path, "run", "musterbook.standalone", "--state-dir", "/proc/no/such"
    )
    refused(process, "state-dir", "/proc/no/such")


def test_a_database_newer_than_the_code(tmp_path: pathlib.Path) -> None:
    run = standalone(tmp_path)
    try:
        util.wait_until(lambda: "state=up" in run.output())
        assert run.stop() == 0
    finally:
        run.kill()
    path = tmp_path / "state" / "musterbook.sqlite"
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE musterbook_version SET version_num = '9'"))
    engine.dispose()
    again = standalone(tmp_path, name="again")
    assert again.wait(LIMIT) == 1
    (line,) = again.errors().splitlines()
    assert "newer" in line
    assert again.output() == ""


def test_a_database_that_refuses_the_password(
    tmp_path: pathlib.Path, mariadb_url: str
) -> None:
    url = sa.make_url(mariadb_url).set(username="nobody", password=CANARY)
    shown = url.render_as_string(hide_password=False)
    path = config(
        tmp_path,
        {
            "transport_url": "rabbit://u:p@127.0.0.1:1/",
            "servicegroup_tooz_url": f"file://{tmp_path}/groups",
            "database/connection": shown.replace("%", "%%"),
            "use_stderr": "false",
        },
    )
    process = lab.Process(tmp_path, "c", "conductor.main", "--config-file", path)
    began = time.monotonic()
    assert process.wait(30) == 2
    assert time.monotonic() - began < 30
    (line,) = process.errors().splitlines()
    assert "CANARY" not in line
    assert "[database]connection" in line
    assert "password" in line
