"""Taking up a changed configuration."""

import functools
import logging
import pathlib

from oslo_config import cfg
import pytest

from musterbook import conf as conf_module
from musterbook import logs
from musterbook.conf import reload as conf_reload
from musterbook.servicegroup import factory

START = """
[DEFAULT]
report_interval = 2
service_down_time = 30
servicegroup_tooz_url = redis://:CANARY1@h:1?timeout=10
[conductor]
workers = 3
"""


class Files:
    """A configuration file and the reloader of what was read from it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.path = folder / "some.conf"
        self.write(START)
        load = functools.partial(
            conf_module.load,
            ["--config-file", str(self.path)],
            "musterbook-test",
            prepare=[logs.register_options],
        )
        self.conf = load()
        self._reloader = conf_reload.Reloader(self.conf, load, [factory.check])

    def write(self, text: str) -> None:
        self.path.write_text(text)

    def reload(self, *changes: tuple[str, str]) -> bool:
        text = self.path.read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        self.write(text)
        return self._reloader.reload()


@pytest.fixture
def files(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> Files:
    caplog.set_level(logging.INFO, "musterbook")
    return Files(tmp_path)


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.name.startswith("musterbook")
    ]


def test_mutable_options_are_taken_up(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    assert files.reload(
        ("report_interval = 2", "report_interval = 1.5"),
        ("service_down_time = 30", "debug = true"),
    )
    assert files.conf.report_interval == 1.5
    assert files.conf.service_down_time == 40.0  # its default
    assert files.conf.debug is True
    assert said(caplog) == [
        (
            "INFO",
            "Reloaded; in force now: debug from False to True, report_interval from "
            "2.0 to 1.5, service_down_time from 30.0 to 40.0",
        )
    ]


def test_what_needs_a_restart_is_named_and_stays(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    assert files.reload(("workers = 3", "workers = 4"), ("CANARY1", "CANARY2"))
    assert files.conf.conductor.workers == 3
    assert "CANARY1" in files.conf.servicegroup_tooz_url
    assert said(caplog) == [
        (
            "WARNING",
            "Reloaded; changed, but only a restart takes it up: [conductor]workers, "
            "servicegroup_tooz_url",
        )
    ]


def test_what_was_changed_back_needs_nothing(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    files.reload(("workers = 3", "workers = 4"), ("report_interval = 2", ""))
    files.write(START)
    caplog.clear()
    assert files.reload()
    assert files.conf.report_interval == 2.0
    assert said(caplog) == [
        ("INFO", "Reloaded; in force now: report_interval from 3.0 to 2.0")
    ]
    caplog.clear()
    assert files.reload()
    assert said(caplog) == [("INFO", "Reloaded; nothing has changed")]


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("report_interval = 2", "report_interval = soon", "report_interval"),
        ("report_interval = 2", "report_interval = -1", "report_interval"),
        # Each alone is fine; not with the member timeout.
        ("report_interval = 2", "report_interval = 11", "report_interval"),
        ("workers = 3", "workers = 0", "workers"),  # needs a restart, is checked
        ("redis://", "rodis://", "servicegroup_tooz_url"),
        ("[conductor]", "[conductor", "config-file"),
    ],
)
def test_one_bad_value_and_nothing_is_taken_up(
    files: Files, caplog: pytest.LogCaptureFixture, old: str, new: str, named: str
) -> None:
    assert not files.reload((old, new), ("service_down_time = 30", ""))
    assert files.conf.report_interval == 2.0
    assert files.conf.service_down_time == 30.0
    ((level, line),) = said(caplog)
    assert level == "ERROR"
    assert line.startswith("Reload refused, all stays as it was: option ")
    assert named in line
    assert "CANARY" not in line
    files.write(START)
    assert files.reload()


def test_a_file_that_is_gone(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    files.path.unlink()
    assert not files._reloader.reload()
    ((level, line),) = said(caplog)
    assert (level, "config-file" in line) == ("ERROR", True)
    assert files.conf.report_interval == 2.0


def test_a_check_that_fails_unexpectedly_ends_nothing(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    def check(conf: cfg.ConfigOpts) -> None:
        raise RuntimeError("no")

    reloader = conf_reload.Reloader(files.conf, lambda: files.conf, [check])
    assert not reloader.reload()
    assert said(caplog) == [
        ("ERROR", "Reload failed unexpectedly, all stays as it was")
    ]


def test_a_quiet_one_leaves_the_telling_to_others(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    files.write(START.replace("= 2", "= 1"))
    assert files._reloader.reload(quiet=True)
    assert files.conf.report_interval == 1.0
    files.write(START.replace("= 2", "= x"))
    assert not files._reloader.reload(quiet=True)
    assert said(caplog) == []
