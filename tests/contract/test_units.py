"""etc/musterbook/*.service: what systemd says of them, and what they must say."""

import pathlib
import re
import shutil
import subprocess
import sys

from oslo_config import cfg
import pytest

from musterbook import daemon
from tests.contract import test_packaging

FOLDER = test_packaging.ROOT / "etc/musterbook"
NAMES = ("musterbook-conductor", "musterbook-compute")
#: Tenths of systemd's exposure level, of at most 100: network services that need no
#: privilege and no file but their own.
EXPOSURE = 20

#: Limits of which the inventory sees the agent's, and takes them for the host's.
SHRINKING = (
    "MemoryMax",
    "MemoryHigh",
    "MemoryLimit",
    "CPUQuota",
    "AllowedCPUs",
    "AllowedMemoryNodes",
    "StartupAllowedCPUs",
    "CPUAffinity",
    "NUMAPolicy",
    "Slice",
)

analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def _settings(name: str) -> dict[str, list[str]]:
    """Return a unit's settings, each with all its values in order."""
    found: dict[str, list[str]] = {}
    text = (FOLDER / f"{name}.service").read_text(encoding="utf-8")
    for line in text.splitlines():
        if setting := re.fullmatch(r"(\w+)=(.*)", line):
            found.setdefault(setting[1], []).append(setting[2])
        else:
            assert re.fullmatch(r"|#.*|\[(Unit|Service|Install)\]", line), line
    return found


@pytest.fixture
def installed(tmp_path: pathlib.Path) -> list[pathlib.Path]:
    """Return copies of the units that start a program which this machine has."""
    copies = []
    for name in NAMES:
        text = (FOLDER / f"{name}.service").read_text(encoding="utf-8")
        program = f"/opt/musterbook/bin/{name}"
        assert program in text
        copies.append(tmp_path / f"{name}.service")
        copies[-1].write_text(text.replace(program, sys.executable))
    return copies


@analyze
def test_systemd_finds_no_fault(installed: list[pathlib.Path]) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", *installed],
        capture_output=True,
        text=True,
        check=False,
    )
    # Of the machine's other units, which it reads along, nothing is asked.
    ours = [line for line in done.stderr.splitlines() if "musterbook" in line]
    assert ours == []
    assert done.returncode == 0, done.stderr


@analyze
def test_little_is_exposed(installed: list[pathlib.Path]) -> None:
    for unit in installed:
        done = subprocess.run(
            [
                *("systemd-analyze", "security", "--no-pager", "--offline=true"),
                *(f"--threshold={EXPOSURE}", unit),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Overall exposure level" in done.stdout, done.stderr
        assert done.returncode == 0, done.stdout


@pytest.mark.skipif(
    shutil.which("systemd-sysusers") is None, reason="systemd-sysusers is missing"
)
def test_sysusers_makes_the_units_user(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "etc/sysusers.d"
    folder.mkdir(parents=True)
    shutil.copy(FOLDER / "musterbook.sysusers", folder / "musterbook.conf")
    done = subprocess.run(
        ["systemd-sysusers", "--dry-run", f"--root={tmp_path}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Creating user 'musterbook'" in done.stderr
    assert {*_settings(NAMES[0])["User"], *_settings(NAMES[1])["User"]} == {
        "musterbook"
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_unit_says_what_the_daemon_needs(name: str) -> None:
    wanted = {
        "Type": "notify",
        "TimeoutStartSec": "infinity",  # waits for others
        "ExecReload": "/bin/kill -HUP $MAINPID",
        "KillMode": "mixed",
        "Restart": "on-failure",
        "RestartPreventExitStatus": "2",
        "StartLimitIntervalSec": "0",  # never gives up
        "LimitNOFILE": "65536",
        "StateDirectory": "musterbook",
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "WantedBy": "multi-user.target",
    }
    settings = _settings(name)
    assert {key: settings.get(key) for key in wanted} == {
        key: [value] for key, value in wanted.items()
    }
    assert int(settings["RestartSec"][0]) >= 1
    (start,) = settings["ExecStart"]
    assert start == (
        f"/opt/musterbook/bin/{name} --config-file /etc/musterbook/{name}.conf"
    )


@pytest.mark.parametrize("name", NAMES)
def test_systemd_waits_longer_for_the_end_than_the_daemon(name: str) -> None:
    conf = cfg.ConfigOpts()
    daemon.register_options(conf)
    conf([])
    assert int(_settings(name)["TimeoutStopSec"][0]) > conf.graceful_shutdown_timeout


def test_readiness_comes_from_a_worker_or_from_the_only_process() -> None:
    told_by = [_settings(name)["NotifyAccess"] for name in NAMES]
    assert told_by == [["all"], ["main"]]


def test_nothing_shrinks_the_host_that_the_agent_reports() -> None:
    assert set(_settings("musterbook-compute")) & set(SHRINKING) == set()


def test_the_agent_may_read_what_the_inventory_reads() -> None:
    settings = _settings("musterbook-compute")
    # /proc/meminfo and /proc/sys; the root directory; the size of /home.
    assert settings.get("ProcSubset", ["all"]) == ["all"]
    assert not {"RootDirectory", "RootImage", "TemporaryFileSystem"} & set(settings)
    assert not {"InaccessiblePaths", "PrivateNetwork"} & set(settings)
    assert settings["ProtectHome"] == ["read-only"]
    assert "AF_NETLINK" in settings["RestrictAddressFamilies"][0].split()
