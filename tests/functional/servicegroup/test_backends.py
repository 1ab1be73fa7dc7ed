"""What every group backend must do: one suite, real servers."""

from collections.abc import Callable
from collections.abc import Iterator
from concurrent import futures
import contextlib
import datetime
import functools
import json
import pathlib
import random
import string
import subprocess
import sys
import threading
import time
from typing import Any
from typing import cast
from typing import IO
import uuid

import pytest

from musterbook import errors
from musterbook.servicegroup import beat
from musterbook.servicegroup import tooz_driver
from musterbook.servicegroup import url as group_url
from tests import process
from tests import util
from tests.functional.servicegroup import backends

ROOT = pathlib.Path(__file__).parents[3]
MEMBER_TIMEOUT = backends.SHORT
ALL_CHARACTERS = f"{string.ascii_letters}{string.digits}._-"
# Seconds beyond what a call may take: the machine is busy.
MARGIN = 5.0


@pytest.fixture(params=backends.BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> backends.Backend:
    """Return a place on the run's server of each kind."""
    kind = backends.BACKENDS[request.param]
    if kind.server is None:
        return kind(group_url.file_url(tmp_path / "a dir#1").partition("?")[0])
    return kind(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def group() -> str:
    """Return a name that no other test uses: servers are shared."""
    return f"compute-{uuid.uuid4()}"


Build = Callable[..., tooz_driver.ToozDriver]


@pytest.fixture
def build() -> Iterator[Build]:
    """Give what makes drivers, and stop them."""
    made: list[tooz_driver.ToozDriver] = []

    def make(
        place: backends.Backend | str,
        member: str = "reader",
        limit: float = 3.0,
        connect: bool = True,
    ) -> tooz_driver.ToozDriver:
        text = place if isinstance(place, str) else place.url
        made.append(tooz_driver.ToozDriver(group_url.parse(text), member, limit))
        if connect and not isinstance(place, str):
            util.wait_until(lambda: _starts(made[-1]), 60, "a connection")
        return made[-1]

    yield make
    for driver in made:
        driver.stop()


def _starts(driver: tooz_driver.ToozDriver) -> bool:
    """Return whether it connects; on a busy machine a first one may take too long."""
    try:
        driver.start()
    except errors.GroupUnavailable:
        return False
    return True


def test_join_see_and_leave(
    backend: backends.Backend, group: str, build: Build
) -> None:
    one, two, reader = (build(backend, m) for m in ("a#1", "b.c#2", "reader"))
    with pytest.raises(errors.GroupVanished):
        reader.get_all(group)
    assert not one.is_visible(group)
    one.join(group)
    one.join(group)
    two.join(group)
    assert reader.get_all(group) == {"a#1", "b.c#2"}
    for driver in (one, two):
        driver.beat()
        assert driver.is_visible(group)
    assert reader.is_up(group, "a#1")
    assert not reader.is_up(group, "a#2")
    one.leave(group)
    one.leave(group)
    assert reader.get_all(group) == {"b.c#2"}
    assert not reader.is_up(group, "a#1")
    assert not one.is_visible(group)
    two.leave(group)
    assert reader.get_all(group) == frozenset()


def test_when_a_member_was_last_seen(
    backend: backends.Backend, group: str, build: Build
) -> None:
    one, reader = build(backend, "a#1"), build(backend)
    one.join(group)
    before = datetime.datetime.now(datetime.UTC)
    seen = reader.get_updated_time(group, "a#1")
    assert seen is not None
    assert before <= seen <= datetime.datetime.now(datetime.UTC)
    one.leave(group)
    assert reader.get_updated_time(group, "a#1") == seen
    assert reader.get_updated_time(group, "never#1") is None


@pytest.mark.parametrize("host", ["h" * 255, ALL_CHARACTERS, "1", "-._"])
def test_names(host: str, backend: backends.Backend, group: str, build: Build) -> None:
    member = f"{host}#{2**31}"
    driver, reader = build(backend, member), build(backend)
    driver.join(group)
    driver.beat()
    assert driver.is_visible(group)
    assert reader.get_all(group) == {member}
    driver.leave(group)
    assert reader.get_all(group) == frozenset()


def test_member_that_the_backend_forgot(
    backend: backends.Backend, group: str, build: Build
) -> None:
    driver, reader = build(backend, "a#1"), build(backend)
    driver.join(group)
    backend.forget_member(group, "a#1")
    assert reader.get_all(group) == frozenset()
    with contextlib.suppress(errors.GroupError):
        driver.beat()
    assert not driver.is_visible(group)
    driver.join(group)
    assert driver.is_visible(group)
    assert reader.get_all(group) == {"a#1"}


def test_group_that_the_backend_forgot(
    backend: backends.Backend, group: str, build: Build
) -> None:
    driver, reader = build(backend, "a#1"), build(backend)
    driver.join(group)
    if backend.name == "zookeeper":  # which deletes nothing that isn't empty
        backend.forget_member(group, "a#1")
    backend.forget_group(group)
    with pytest.raises(errors.GroupVanished):
        reader.get_all(group)
    seen = backends.answer(lambda: driver.is_visible(group))
    assert seen is False or isinstance(seen, errors.GroupVanished)
    driver.join(group)
    assert driver.is_visible(group)
    assert reader.get_all(group) == {"a#1"}


def test_empty_host_is_this_one(
    backend: backends.Backend, group: str, build: Build
) -> None:
    if backend.name == "file":
        pytest.skip("has no host")
    here = build(backend.url.replace("127.0.0.1", ""), "a#1")
    here.join(group)
    assert build(backend).get_all(group) == {"a#1"}


def test_no_thread_outlives_its_driver(backend: backends.Backend, group: str) -> None:
    before = set(threading.enumerate())
    driver = tooz_driver.ToozDriver(group_url.parse(backend.url), "a#1")
    driver.join(group)
    driver.stop()
    util.wait_until(lambda: set(threading.enumerate()) <= before, what="end of threads")


# -- another process --


@contextlib.contextmanager
def other_process(
    backend: backends.Backend, group: str, name: str, count: int
) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Give a process that has joined, and whom it saw once there were so many."""
    script = "tests.functional.servicegroup.member"
    with subprocess.Popen(
        [sys.executable, "-m", script, backend.url, group, name, str(count)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            yield child, json.loads(cast("IO[str]", child.stdout).readline())
        finally:
            child.kill()


def test_other_process_that_is_killed_expires(
    backend: backends.Backend, group: str, build: Build
) -> None:
    backend = backend.hasty()
    reader = build(backend)
    here = beat.Beat(lambda: build(backend, "a#1"), group, 0.3, rng=random.Random(1))
    here.start()
    assert here.wait_joined(10)
    with other_process(backend, group, "b#1", 2) as (child, seen):
        assert seen == ["a#1", "b#1"]
        util.wait_until(lambda: reader.get_all(group) == {"a#1", "b#1"})
        child.kill()
        killed = time.monotonic()
        util.wait_until(lambda: reader.get_all(group) == {"a#1"}, what="expiry")
        # ZooKeeper and etcd look for who expired every tick or half second.
        assert time.monotonic() - killed < MEMBER_TIMEOUT + 1 + MARGIN
    assert here.stop()


@pytest.mark.slow
def test_restart_under_the_same_name_outlives_the_former_entry(
    backend: backends.Backend, group: str, build: Build
) -> None:
    backend = backend.hasty()
    reader = build(backend)
    with other_process(backend, group, "a#1", 1) as (child, _):
        child.kill()
    again = build(backend, "a#1")
    again.join(group)
    end = time.monotonic() + 2 * MEMBER_TIMEOUT
    while time.monotonic() < end:
        again.beat()
        assert again.is_visible(group)
        assert reader.get_all(group) == {"a#1"}
        time.sleep(0.1)  # a beat


# -- a server that is not there, or does not answer --

CALLS: dict[str, Callable[[tooz_driver.ToozDriver, str], object]] = {
    "start": lambda driver, group: driver.start(),
    "join": lambda driver, group: driver.join(group),
    "leave": lambda driver, group: driver.leave(group),
    "beat": lambda driver, group: driver.beat(),
    "is_visible": lambda driver, group: driver.is_visible(group),
    "get_all": lambda driver, group: driver.get_all(group),
    "is_up": lambda driver, group: driver.is_up(group, "a#1"),
    "get_updated_time": lambda driver, group: driver.get_updated_time(group, "a#1"),
}


def assert_unavailable(
    drivers: dict[str, tooz_driver.ToozDriver], group: str, limit: float
) -> None:
    """Check that each driver's call, all at once, is refused by us in its time."""

    def run(name: str) -> tuple[object, float]:
        began = time.monotonic()
        found = backends.answer(lambda: CALLS[name](drivers[name], group))
        return found, time.monotonic() - began

    with futures.ThreadPoolExecutor(len(drivers)) as pool:
        results = dict(zip(drivers, pool.map(run, drivers), strict=True))
    for name, (found, seconds) in results.items():
        assert isinstance(found, errors.GroupUnavailable), (name, found)
        assert not isinstance(found, errors.GroupRefused), (name, found)
        assert seconds < limit + MARGIN, (name, seconds)


def test_server_that_is_not_there(
    backend: backends.Backend, group: str, build: Build, tmp_path: pathlib.Path
) -> None:
    if backend.name == "file":
        (tmp_path / "file").write_text("")
        nowhere = group_url.file_url(tmp_path / "file" / "groups")
    else:
        nowhere = backend.url.replace(f":{backend.target.port}", f":{util.free_port()}")
    drivers = {name: build(nowhere, f"{name}#1") for name in CALLS}
    assert_unavailable(drivers, group, limit=3.0)
    again = backends.answer(lambda: drivers["join"].join(group))
    assert isinstance(again, errors.GroupUnavailable)
    assert group_url.parse(nowhere).label in again.message


@pytest.fixture(params=backends.WITH_SERVER)
def own(
    request: pytest.FixtureRequest, own_server: process.Starter
) -> tuple[backends.Backend, process.Server]:
    """Return a place on a server of each kind that the test may ill-treat."""
    kind = backends.BACKENDS[request.param]
    assert kind.server is not None
    options: dict[str, Any] = {"persistent": True} if kind.name == "redis" else {}
    server = own_server(kind.server, **options)
    return kind(server.lease(0)), server


@pytest.mark.parametrize("limit", [1.0, pytest.param(3.0, marks=pytest.mark.slow)])
def test_frozen_server(
    limit: float,
    own: tuple[backends.Backend, process.Server],
    group: str,
    build: Build,
) -> None:
    backend, server = own
    drivers = {name: build(backend, f"{name}#1", limit, False) for name in CALLS}
    for name, driver in drivers.items():
        if name != "start":
            util.wait_until(functools.partial(_joins, driver, group), what="joining")
    server.freeze()
    assert_unavailable(drivers, group, limit)
    began = time.monotonic()
    drivers["join"].stop()
    assert time.monotonic() - began < limit + MARGIN
    server.thaw()
    for name, driver in drivers.items():
        # Connecting anew may take longer than a second.
        same = driver if limit > 2 else build(backend, f"{name}#1")
        util.wait_until(functools.partial(_joins, same, group), what="return")
    assert build(backend).get_all(group) >= {f"{name}#1" for name in ("join", "beat")}


def _joins(driver: tooz_driver.ToozDriver, group: str) -> bool:
    try:
        driver.join(group)
        return driver.is_visible(group)
    except errors.GroupError:
        return False


@pytest.mark.parametrize("empty", [True, False], ids=["empty", "with data"])
def test_restarted_server(
    own: tuple[backends.Backend, process.Server],
    group: str,
    build: Build,
    *,
    empty: bool,
) -> None:
    backend, server = own
    if empty and backend.name == "zookeeper":
        backend = backend.hasty()  # it takes a member timeout to come back
    driver, reader = build(backend, "a#1"), build(backend)
    # A server that has just started may take its time.
    util.wait_until(lambda: _joins(driver, group), what="joining")
    assert reader.get_all(group) == {"a#1"}
    server.kill()
    assert_unavailable({"beat": driver, "get_all": reader}, group, limit=3.0)
    server.restart(empty=empty)
    keeps = not empty and backend.name != "memcached"
    read = util.wait_until(lambda: _reads(reader, group), what="an answer")
    if keeps:
        assert read == frozenset({"a#1"})
        driver.beat()
    else:
        assert isinstance(read, errors.GroupVanished)
    util.wait_until(lambda: _joins(driver, group), what="return")
    assert reader.get_all(group) == {"a#1"}


def _reads(
    reader: tooz_driver.ToozDriver, group: str
) -> frozenset[str] | errors.GroupVanished | None:
    """Return what was read; None while there is nobody to read from."""
    try:
        return reader.get_all(group)
    except errors.GroupVanished as exc:
        return exc
    except errors.GroupUnavailable:
        return None
