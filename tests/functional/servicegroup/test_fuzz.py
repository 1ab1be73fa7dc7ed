"""Whatever a client below the driver raises, only errors of ours come out."""

from collections.abc import Callable
import contextlib
import functools
import inspect
import itertools
import os
import pathlib
import socket
from types import ModuleType
from typing import Any
from typing import cast
from unittest import mock
import uuid

import etcd3gw
from etcd3gw import exceptions as etcd_errors
from kazoo import client as kazoo_client
from kazoo import exceptions as kazoo_errors
from kazoo.handlers import threading as kazoo_threading
from pymemcache import exceptions as memcache_errors
from pymemcache.client import base as memcache_client
import pytest
from redis import connection as redis_connection
from redis import exceptions as redis_errors
import requests
import tenacity
import tooz
from tooz import coordination
from tooz import utils as tooz_utils

from musterbook import errors
from musterbook.servicegroup import tooz_driver
from musterbook.servicegroup import url as group_url
from tests.functional.servicegroup import backends


def classes(*modules: ModuleType) -> list[type[Exception]]:
    """Return the exception classes that the modules define."""
    found = {
        kind
        for module in modules
        for kind in vars(module).values()
        if inspect.isclass(kind) and issubclass(kind, Exception)
    }
    return sorted(found, key=lambda kind: f"{kind.__module__}.{kind.__name__}")


def instance(kind: type[Exception]) -> Exception:
    """Return an error of the class, with a text of two lines if it takes one."""
    for arguments in (("first\nsecond",), (), (b"group", b"member")):
        with contextlib.suppress(Exception):
            return kind(*arguments)
    return kind.__new__(kind)


#: What any library may raise, on purpose or not.
COMMON: list[type[Exception]] = [
    *(ConnectionRefusedError, ConnectionResetError, BrokenPipeError, TimeoutError),
    *(OSError, socket.gaierror, socket.herror, EOFError, MemoryError),
    *(RuntimeError, AssertionError, AttributeError, KeyError, IndexError, TypeError),
    *(ValueError, StopIteration, RecursionError, NotImplementedError),
    *classes(tooz, coordination),
    tenacity.RetryError,
]


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error

    return fail


def fail_redis(error: Exception, patches: contextlib.ExitStack) -> None:
    for name in ("send_command", "read_response"):
        patches.enter_context(
            mock.patch.object(redis_connection.AbstractConnection, name, raising(error))
        )


def fail_kazoo(error: Exception, patches: contextlib.ExitStack) -> None:
    def call(self: Any, request: Any, result: Any) -> bool:
        result.set_exception(error)
        return False

    patches.enter_context(mock.patch.object(kazoo_client.KazooClient, "_call", call))


def fail_memcached(error: Exception, patches: contextlib.ExitStack) -> None:
    for name in ("_fetch_cmd", "_store_cmd", "_misc_cmd"):
        patches.enter_context(
            mock.patch.object(memcache_client.Client, name, raising(error))
        )


def fail_etcd(error: Exception, patches: contextlib.ExitStack) -> None:
    # Those of requests arise in the session, etcd3gw's own above it.
    if isinstance(error, etcd_errors.Etcd3Exception):
        target: Any = etcd3gw.Etcd3Client
    else:
        target = requests.Session
    patches.enter_context(mock.patch.object(target, "post", raising(error)))


def fail_file(error: Exception, patches: contextlib.ExitStack) -> None:
    for module, name in ((os, "listdir"), (os, "utime"), (os, "unlink")):
        patches.enter_context(mock.patch.object(module, name, raising(error)))
    for module, name in ((tooz_utils, "loads"), (tooz_utils, "dumps")):
        patches.enter_context(mock.patch.object(module, name, raising(error)))


FUZZ: dict[str, tuple[Callable[..., None], list[type[Exception]]]] = {
    "redis": (fail_redis, classes(redis_errors)),
    "zookeeper": (
        fail_kazoo,
        [*classes(kazoo_errors), kazoo_threading.KazooTimeoutError],
    ),
    "memcached": (fail_memcached, classes(memcache_errors)),
    "etcd": (fail_etcd, classes(etcd_errors, requests.exceptions)),
    "file": (fail_file, [UnicodeDecodeError, PermissionError, IsADirectoryError]),
}
CALLS: dict[str, Callable[[tooz_driver.ToozDriver, str], object]] = {
    "join": lambda driver, group: driver.join(group),
    "beat": lambda driver, group: driver.beat(),
    "is_visible": lambda driver, group: driver.is_visible(group),
    "get_all": lambda driver, group: driver.get_all(group),
    "get_updated_time": lambda driver, group: driver.get_updated_time(group, "a#1"),
    "leave": lambda driver, group: driver.leave(group),
}


#: What the driver expects of some calls, and isn't troubled by.
MEANT = {
    *("NoNodeError", "NodeExistsError", "GroupAlreadyExist", "GroupNotCreated"),
    *("MemberNotJoined", "MemberAlreadyExist"),
}


@pytest.fixture(params=FUZZ)
def backend(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> str:
    """Return the name of each backend; its place is noted at the test."""
    if request.param == "file":
        request.node.place = group_url.file_url(tmp_path)
    else:
        request.node.place = request.getfixturevalue(f"{request.param}_url")
    return cast(str, request.param)


def test_only_errors_of_ours(backend: str, request: pytest.FixtureRequest) -> None:
    break_client, own = FUZZ[backend]
    place = request.node.place
    group = f"compute-{uuid.uuid4()}"
    driver = tooz_driver.ToozDriver(group_url.parse(place), "a#1", 1.0)
    driver.join(group)
    kinds = [*own, *COMMON]
    raised = 0
    # Leaving comes last: who has left asks nobody whether he is seen.
    for name, kind in itertools.product(CALLS, kinds):
        with contextlib.ExitStack() as patches:
            break_client(instance(kind), patches)
            found = backends.answer(functools.partial(CALLS[name], driver, group))
        if isinstance(found, errors.GroupError):
            raised += 1
            assert "\n" not in found.message, (kind, name)
        else:
            assert kind.__name__ in MEANT, (kind, name, found)
    assert raised > (len(CALLS) - 1) * len(kinds)
    # And the driver is as good as new.
    driver.join(group)
    assert driver.is_visible(group)
    assert driver.get_all(group) == {"a#1"}
    driver.stop()
