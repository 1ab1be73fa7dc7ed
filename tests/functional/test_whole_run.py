"""A whole run in CI without a group on a real Redis fails, and says why."""

import os
import pathlib
import subprocess
import sys
import types
from typing import Any

import pytest

from tests import whole_run
from tests.functional import lab

NOTHING = "def test_nothing(): pass\n"
GROUP = """
from musterbook.servicegroup import tooz_driver
from musterbook.servicegroup import url


def test_group(redis_url):
    driver = tooz_driver.ToozDriver(url.parse(redis_url), "h1")
    driver.join("compute")
    driver.stop()
"""
INI = """[pytest]
testpaths = suite
addopts = -m "not slow"
markers = slow
"""


def run(folder: pathlib.Path, test: str, *arguments: str) -> tuple[int, str]:
    """Run a suite of one test with our fixtures; return the code and what was said."""
    (folder / "suite").mkdir()
    (folder / "suite" / "test_it.py").write_text(test)
    (folder / "pytest.ini").write_text(INI)
    (folder / "conftest.py").write_text("from tests.conftest import *  # noqa: F403\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "CI": "true", "PYTHONPATH": str(lab.ROOT)}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_whole_run_without_a_group(tmp_path: pathlib.Path) -> None:
    code, said = run(tmp_path, NOTHING, "-n", "1")
    assert code == 1, said
    assert said.count(whole_run.NO_GROUP) == 1
    assert "1 passed" in said


def test_a_whole_run_with_a_group(tmp_path: pathlib.Path) -> None:
    code, said = run(tmp_path, GROUP, "-n", "1")
    assert code == 0, said
    assert whole_run.NO_GROUP not in said


def test_a_part_of_the_tests_needs_none(tmp_path: pathlib.Path) -> None:
    code, said = run(tmp_path, NOTHING, "suite/test_it.py")
    assert code == 0, said


@pytest.mark.parametrize(
    ("given", "whole"),
    [
        ({}, True),
        ({"keyword": "some"}, False),
        ({"markexpr": "slow"}, False),
        ({"deselect": ["some"]}, False),
        ({"collectonly": True}, False),
        ({"lf": True}, False),
    ],
)
def test_what_a_whole_run_is(given: dict[str, Any], whole: bool) -> None:
    options = dict.fromkeys(("keyword", "collectonly", "deselect", "lf"))
    option = types.SimpleNamespace(**{**options, "markexpr": "not slow", **given})
    source = pytest.Config.ArgsSource.TESTPATHS
    config: Any = types.SimpleNamespace(option=option, args_source=source)
    assert whole_run.is_whole(config) is whole


def test_elsewhere_nothing_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "")
    nobody: Any = None
    assert whole_run.complaint(nobody, nobody) is None
