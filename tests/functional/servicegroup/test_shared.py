"""Members of one thread and one connection, on a real redis and in files."""

import functools
import pathlib
import threading
import time

import pytest
import redis

from musterbook import errors
from musterbook.servicegroup import driver as group_driver
from musterbook.servicegroup import shared
from musterbook.servicegroup import tooz_driver
from musterbook.servicegroup import url as group_url
from tests import process
from tests import servers
from tests import util

GROUP = "compute"


@pytest.fixture(params=["redis", "file"])
def url(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> group_url.GroupURL:
    if request.param == "file":
        return group_url.parse(group_url.file_url(tmp_path, 2))
    return group_url.parse(request.getfixturevalue("redis_url") + "&timeout=2")


def test_each_is_a_member_of_its_own(url: group_url.GroupURL) -> None:
    road = shared.Road(url)
    drivers = [road.driver(f"h{n}#1") for n in range(20)]
    for driver in drivers:
        driver.join(GROUP)
    reader = tooz_driver.ToozDriver(url, "reader")
    names = {f"h{n}#1" for n in range(20)}
    assert reader.get_all(GROUP) == names
    threads = [t for t in threading.enumerate() if t.name.startswith("groups-")]
    assert len(threads) == 1

    drivers[3].leave(GROUP)
    assert not drivers[3].is_visible(GROUP)
    assert drivers[4].is_visible(GROUP)
    assert reader.get_all(GROUP) == names - {"h3#1"}
    # Who is stopped takes no other's connection along.
    drivers[3].stop()
    for driver in (drivers[0], drivers[19]):
        driver.beat()
        assert driver.is_visible(GROUP)
    # Who doesn't beat expires, alone.
    end = time.monotonic() + 10
    while "h0#1" in reader.get_all(GROUP) and time.monotonic() < end:
        drivers[19].beat()
        time.sleep(0.1)
    found = reader.get_all(GROUP)
    assert "h19#1" in found
    assert "h0#1" not in found
    for driver in drivers:
        driver.stop()
    reader.stop()
    util.wait_until(lambda: not threads[0].is_alive(), 5, "the shared thread's end")


def test_one_connection(own_server: process.Starter) -> None:
    url = group_url.parse(own_server(servers.Redis).lease(0))
    road = shared.Road(url)
    drivers = [road.driver(f"h{n}#1") for n in range(50)]
    for driver in drivers:
        driver.join(GROUP)
        driver.beat()
    asking = redis.Redis(host=url.target.hostname or "", port=url.target.port or 0)
    # That of the members and the one that asks.
    assert len(asking.client_list()) == 2
    asking.close()
    for driver in drivers:
        driver.stop()


def test_all_go_on_after_the_server_was_frozen(own_server: process.Starter) -> None:
    server = own_server(servers.Redis)
    road = shared.Road(group_url.parse(server.lease(0) + "&timeout=60"))
    drivers = [road.driver(f"h{n}#1") for n in range(3)]
    for driver in drivers:
        driver.join(GROUP)
    server.freeze()
    began = time.monotonic()
    failed: list[errors.GroupError] = []

    def beat(driver: group_driver.GroupDriver) -> None:
        with pytest.raises(errors.GroupUnavailable) as caught:
            driver.beat()
        failed.append(caught.value)

    threads = [threading.Thread(target=beat, args=(d,)) for d in drivers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failed) == 3
    assert time.monotonic() - began < 15
    server.thaw()
    for driver in drivers:
        util.wait_until(functools.partial(_joins, driver), 20, "a join")
        assert driver.is_visible(GROUP)
        driver.stop()


def _joins(driver: group_driver.GroupDriver) -> bool:
    try:
        driver.join(GROUP)
    except errors.GroupUnavailable:
        return False
    return True
