"""Backends that are there and refuse: a password, a user, a member timeout."""

from collections.abc import Callable
import contextlib

import pytest

from musterbook import errors
from musterbook.servicegroup import tooz_driver
from musterbook.servicegroup import url as group_url
from tests import group_servers
from tests import process
from tests import servers

GROUP = "compute"
SECRET = "p%40ss%2Fw%25rd"


def start(text: str, *, join: bool = False) -> None:
    """Connect and perhaps join, then disconnect."""
    driver = tooz_driver.ToozDriver(group_url.parse(text), "a#1")
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(driver.stop)
        driver.start()
        if join:
            driver.join(GROUP)
            assert driver.get_all(GROUP) == {"a#1"}


def refused(text: str) -> str:
    """Return the message of the refusal."""
    with pytest.raises(errors.GroupRefused) as caught:
        start(text)
    message = caught.value.message
    assert group_url.parse(text).label in message
    for secret in (SECRET, "p@ss/w%rd", "wrong"):
        assert secret not in message
    assert "\n" not in message
    return message


def test_password_of_redis(own_server: process.Starter) -> None:
    server = own_server(servers.Redis, password="p@ss/w%rd")
    where = f"127.0.0.1:{server.port}"
    start(f"redis://:{SECRET}@{where}", join=True)
    for login in (":wrong@", "wrong:wrong@", ""):
        assert "user or the password" in refused(f"redis://{login}{where}")


def test_owner_of_a_namespace_of_zookeeper(zookeeper_url: str) -> None:
    scheme, _, where = zookeeper_url.partition("://")
    start(f"{scheme}://me:{SECRET}@{where}", join=True)
    for login in ("me:wrong@", f"wrong:{SECRET}@", ""):
        assert "user or the password" in refused(f"{scheme}://{login}{where}")


def test_etcd_that_wants_a_user(own_server: process.Starter) -> None:
    server = own_server(group_servers.Etcd)
    start(server.lease(0), join=True)
    for path, body in (
        ("auth/user/add", {"name": "root", "password": "secret"}),
        ("auth/role/add", {"name": "root"}),
        ("auth/user/grant", {"user": "root", "role": "root"}),
        ("auth/enable", {}),
    ):
        group_servers.call_etcd(server.port, path, **body)
    assert "user or the password" in refused(server.lease(0))


def zookeeper(own_server: process.Starter) -> str:
    return own_server(group_servers.ZooKeeper, longest=20.0).lease(0)


def etcd(own_server: process.Starter) -> str:
    return own_server(group_servers.Etcd).lease(0)


@pytest.mark.parametrize(
    ("place", "asked", "granted"), [(zookeeper, 30, 20), (etcd, 1, 2)]
)
def test_member_timeout_that_the_server_changes(
    place: Callable[[process.Starter], str],
    asked: int,
    granted: int,
    own_server: process.Starter,
) -> None:
    text = place(own_server)
    mark = "&" if "?" in text else "?"
    message = refused(f"{text}{mark}timeout={asked}")
    assert f"{granted} s, not of {asked} s" in message
    assert "'timeout' in the URL" in message
    start(f"{text}{mark}timeout={granted}", join=True)
