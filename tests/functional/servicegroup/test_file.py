"""The driver and the beat on a directory."""

from collections.abc import Callable
from collections.abc import Iterator
import os
import pathlib
import random
import shutil

import pytest

from musterbook import errors
from musterbook.servicegroup import beat
from musterbook.servicegroup import tooz_driver
from musterbook.servicegroup import url as group_url
from tests import util

GROUP = "compute"
Connect = Callable[[str], tooz_driver.ToozDriver]


@pytest.fixture
def directory(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "a dir#1"


@pytest.fixture
def connect(directory: pathlib.Path) -> Iterator[Connect]:
    drivers: list[tooz_driver.ToozDriver] = []
    url = group_url.parse(group_url.file_url(directory, 1))

    def build(member: str) -> tooz_driver.ToozDriver:
        drivers.append(tooz_driver.ToozDriver(url, member))
        return drivers[-1]

    yield build
    for driver in drivers:
        driver.stop()


def member_files(directory: pathlib.Path) -> list[pathlib.Path]:
    return list(directory.glob("groups/*/*.raw"))


def test_join_leave_and_nobody_in_a_group_that_is_not(connect: Connect) -> None:
    driver, reader = connect("a#1"), connect("reader")
    with pytest.raises(errors.GroupVanished):
        reader.get_all(GROUP)
    driver.join(GROUP)
    driver.join(GROUP)
    assert driver.is_visible(GROUP)
    assert reader.get_all(GROUP) == {"a#1"}
    driver.leave(GROUP)
    driver.leave(GROUP)
    assert reader.get_all(GROUP) == frozenset()


def test_name_of_full_length(connect: Connect) -> None:
    name = "h" * 255 + "#1"
    driver = connect(name)
    driver.join(GROUP)
    assert driver.is_visible(GROUP)
    assert driver.get_all(GROUP) == {name}


def test_silent_member_expires_and_comes_back_with_its_beat(connect: Connect) -> None:
    driver, reader = connect("a#1"), connect("reader")
    driver.join(GROUP)
    util.wait_until(lambda: reader.get_all(GROUP) == frozenset())
    driver.beat()
    assert reader.get_all(GROUP) == {"a#1"}


def test_deleted_member_file(
    connect: Connect, directory: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    reader = connect("reader")
    running = beat.Beat(lambda: connect("a#1"), GROUP, 0.1, rng=random.Random(1))
    running.start()
    assert running.wait_joined(10)
    (path,) = member_files(directory)
    path.unlink()
    util.wait_until(lambda: reader.get_all(GROUP) == {"a#1"})
    assert running.stop()
    assert reader.get_all(GROUP) == frozenset()
    lines = [r.getMessage() for r in caplog.records]
    assert [line for line in lines if line.startswith("Joined again")] == lines


def test_restart_after_a_kill_replaces_the_stale_file(connect: Connect) -> None:
    connect("a#1").join(GROUP)  # never leaves
    after = connect("a#1")
    after.join(GROUP)
    assert after.is_visible(GROUP)


def test_directory_that_can_not_be_made(tmp_path: pathlib.Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    driver = tooz_driver.ToozDriver(
        group_url.parse(group_url.file_url(blocker / "groups")), "a#1"
    )
    with pytest.raises(errors.GroupUnavailable) as caught:
        driver.start()
    assert os.fspath(blocker) in caught.value.message
    driver.stop()


def test_directory_that_was_removed(connect: Connect, directory: pathlib.Path) -> None:
    reader = connect("reader")
    running = beat.Beat(lambda: connect("a#1"), GROUP, 0.1, rng=random.Random(1))
    running.start()
    assert running.wait_joined(10)
    reader.start()  # which would make the directories as well
    shutil.rmtree(directory)
    util.wait_until(lambda: "a#1" in _seen(reader))
    assert running.stop()


def _seen(reader: tooz_driver.ToozDriver) -> frozenset[str]:
    try:
        return reader.get_all(GROUP)
    except errors.GroupError:
        return frozenset()
