"""The driver on a real ZooKeeper, where it differs from other backends."""

from typing import Any

import pytest

from musterbook import errors
from musterbook.servicegroup import clients
from musterbook.servicegroup import tooz_driver
from musterbook.servicegroup import url as group_url
from tests import group_servers
from tests import process
from tests import util

GROUP = "compute"


def test_what_is_asked_while_it_is_away_is_not_kept(
    own_server: process.Starter,
) -> None:
    """Else it would get the questions of the whole outage when it is back."""
    server = own_server(group_servers.ZooKeeper)
    driver, made = _joined(server, timeout=10)
    server.kill()
    for _ in range(4):
        with pytest.raises(errors.GroupUnavailable):
            driver.beat()
    assert [len(one._coord._queue) for one in made] == [0] * len(made)
    server.start()
    util.wait_until(lambda: _joins(driver), 60, "joining again")
    driver.stop()


def test_what_was_not_answered_is_not_asked_again(
    own_server: process.Starter,
) -> None:
    """Else a server that was frozen would get to all of it."""
    server = own_server(group_servers.ZooKeeper)
    driver, made = _joined(server, timeout=20)
    server.freeze()
    for _ in range(3):
        with pytest.raises(errors.GroupUnavailable):
            driver.beat()
    # Those before were given up while the server started.
    assert len(made[-1]._coord._pending) <= 1
    server.thaw()
    util.wait_until(lambda: _joins(driver), 60, "a beat")
    driver.beat()
    driver.stop()


def _joined(
    server: process.Server, timeout: int
) -> tuple[tooz_driver.ToozDriver, list[Any]]:
    """Return a member, and the coordinators that it makes, as they come."""
    url = group_url.parse(f"{server.lease(0)}&timeout={timeout}")
    make = clients.factory(url, "servicegroup_tooz_url")
    made: list[Any] = []

    def coordinator(member: bytes) -> Any:
        made.append(make(member))
        return made[-1]

    driver = tooz_driver.ToozDriver(url, "a#1", make_coordinator=coordinator)
    util.wait_until(lambda: _joins(driver), 60, "joining")
    return driver, made


def _joins(driver: tooz_driver.ToozDriver) -> bool:
    try:
        driver.join(GROUP)
    except errors.GroupUnavailable:
        return False
    return driver.is_visible(GROUP)
