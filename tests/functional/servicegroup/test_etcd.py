"""The driver on a real etcd, where it differs from other backends."""

from musterbook.servicegroup import tooz_driver
from musterbook.servicegroup import url as group_url
from tests import group_servers
from tests import process
from tests import util
from tests.functional import group_load

GROUP = "compute"


def test_what_a_member_asks_that_comes_back(own_server: process.Starter) -> None:
    """A renewal that fails, a lease, a transaction; no look at what must be gone."""
    server = own_server(group_servers.Etcd)
    url = group_url.parse(f"{server.lease(0)}?timeout=10")
    drivers = [tooz_driver.ToozDriver(url, name) for name in ("a#1", "b#1")]
    for driver in drivers:
        driver.join(GROUP)
        assert driver.is_visible(GROUP)
    server.kill()
    server.restart(empty=True)
    first, second = drivers
    util.wait_until(lambda: _comes_back(first), 60, "the group")
    before = group_load.COUNTERS["etcd"](server)
    second.beat()
    assert not second.is_visible(GROUP)
    second.join(GROUP)
    after = group_load.COUNTERS["etcd"](server)
    assert second.is_visible(GROUP)
    assert after - before == {"LeaseKeepAlive": 1, "LeaseGrant": 1, "Txn": 1}
    for driver in drivers:
        driver.stop()


def _comes_back(driver: tooz_driver.ToozDriver) -> bool:
    driver.beat()
    if not driver.is_visible(GROUP):
        driver.join(GROUP)
    return driver.is_visible(GROUP)
