"""The five group backends as the tests see them, and how each is ill-treated."""

import abc
import base64
from collections.abc import Callable
import pathlib
import shutil
from typing import Any
from typing import ClassVar
from typing import Self
import urllib.parse

from kazoo import client as kazoo_client
import pymemcache
import redis

from musterbook import errors
from musterbook.servicegroup import tooz_driver
from musterbook.servicegroup import url as group_url
from tests import group_servers
from tests import process
from tests import servers

#: Seconds; a busy machine lets no member expire by mistake.
LONG = 10
#: The shortest that etcd grants, for tests that wait for it.
SHORT = 2

Connect = Callable[[str], tooz_driver.ToozDriver]


class Backend(abc.ABC):
    """A place for groups on one server.

    :ivar url: of the place, with the member timeout
    """

    name: ClassVar[str]
    server: ClassVar[type[process.Server] | None] = None

    def __init__(self, place: str, member_timeout: int = LONG) -> None:
        mark = "&" if "?" in place else "?"
        self.url = f"{place}{mark}timeout={member_timeout}"
        self._place = place
        self.target = group_url.parse(self.url).target

    def hasty(self) -> Self:
        """Return the same with the short member timeout."""
        return type(self)(self._place, SHORT)

    @abc.abstractmethod
    def forget_member(self, group: str, member: str) -> None:
        """Make the backend lose one member, as its own tools can."""

    @abc.abstractmethod
    def forget_group(self, group: str) -> None:
        """Make the backend lose the group, of which forget_member left nobody."""


class Redis(Backend):
    name = "redis"
    server = servers.Redis

    def _client(self) -> Any:
        return redis.Redis.from_url(self.url.partition("&")[0].replace("?db=", "/"))

    def forget_member(self, group: str, member: str) -> None:
        assert self._client().hdel(f"_tooz_group:{group}", member) == 1

    def forget_group(self, group: str) -> None:
        assert self._client().delete(f"_tooz_group:{group}") == 1


class Memcached(Backend):
    name = "memcached"
    server = group_servers.Memcached

    def _client(self) -> Any:
        return pymemcache.Client(("127.0.0.1", self.target.port))

    def forget_member(self, group: str, member: str) -> None:
        """Lose its beat, and have a reader look."""
        assert self._client().delete(f"_TOOZ_MEMBER_{member}", noreply=False)
        reader = tooz_driver.ToozDriver(group_url.parse(self.url), "sweeper")
        assert member not in reader.get_all(group)
        reader.stop()

    def forget_group(self, group: str) -> None:
        assert self._client().delete(f"_TOOZ_GROUP_{group}", noreply=False)


class Etcd(Backend):
    name = "etcd"
    server = group_servers.Etcd

    def _delete(self, key: str) -> None:
        encoded = base64.b64encode(key.encode()).decode()
        answer = group_servers.call_etcd(
            self.target.port or 0, "kv/deleterange", key=encoded
        )
        assert answer["deleted"] == "1"

    def forget_member(self, group: str, member: str) -> None:
        self._delete(f"tooz/groups/{group}/{member}")

    def forget_group(self, group: str) -> None:
        self._delete(f"tooz/groups/{group}/")


class ZooKeeper(Backend):
    name = "zookeeper"
    server = group_servers.ZooKeeper

    def _delete(self, *path: str) -> None:
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.url).query)
        client = kazoo_client.KazooClient(self.target.netloc)
        client.start()
        client.delete("/".join(["", query["namespace"][0], *path]))
        client.stop()
        client.close()

    def forget_member(self, group: str, member: str) -> None:
        self._delete(group, member)

    def forget_group(self, group: str) -> None:
        self._delete(group)


class File(Backend):
    name = "file"

    def forget_member(self, group: str, member: str) -> None:
        (path,) = pathlib.Path(self.target.path).glob("groups/*/*.raw")
        path.unlink()

    def forget_group(self, group: str) -> None:
        shutil.rmtree(pathlib.Path(self.target.path) / "groups")


BACKENDS = {kind.name: kind for kind in (Redis, File, ZooKeeper, Etcd, Memcached)}
WITH_SERVER = [name for name, kind in BACKENDS.items() if kind.server]


def answer(call: Callable[[], object]) -> object:
    """Return what a call answered, or the error of ours that it raised."""
    try:
        return call()
    except errors.GroupError as exc:
        return exc
