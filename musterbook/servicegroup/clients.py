"""tooz's drivers as we load them: decoded URLs, quick failures, quiet ends.

This module and quick_*.py are the only ones that reach into tooz's drivers (9.1).
"""

from collections.abc import Callable
import contextlib
from typing import Any
from typing import cast

from tooz import coordination

from musterbook import errors
from musterbook.servicegroup import url as group_url

#: Of this package, by tooz's scheme: what installs its client.
EXTRAS = {
    "etcd3+http": "etcd",
    "etcd3+https": "etcd",
    "memcached": "memcached",
    "redis": "redis",
    "zookeeper": "zookeeper",
}

Factory = Callable[[bytes], coordination.CoordinationDriver]


def factory(url: group_url.GroupURL, option: str, *, shared: bool = False) -> Factory:
    """Return what makes a coordinator for a member id; connects to nothing yet.

    :param shared: all that are made use one connection, where the client allows it
        (Redis), so that one thread at a time may use any of them
    :raises ConfigurationError: the backend's client isn't installed
    """
    name = url.target.scheme
    try:
        kind, extra = _load(name)
    except ImportError as exc:
        raise errors.ConfigurationError(
            option=option,
            reason=f"{name} needs a client that is not installed ({exc.name}): "
            f"pip install musterbook[{EXTRAS.get(name, name)}]",
        ) from None
    # Our thread runs the calls one by one; tooz's own pool would add a thread
    # that can hang where nobody can join it.
    options = {**url.options, **extra, "executor": ["synchronous"]}
    if name.startswith("etcd3+"):
        options["seen"] = [set()]
    if shared and name == "redis":
        options["shared"] = [{}]

    def make(member: bytes) -> coordination.CoordinationDriver:
        # get_coordinator() would take the URL apart itself and hand the drivers
        # a password that is still percent-encoded.
        return cast(coordination.CoordinationDriver, kind(member, url.target, options))

    return make


def let_go(coordinator: coordination.CoordinationDriver) -> None:
    """Close a coordinator's connections without leaving any group; never fails.

    Its own stop() leaves every group it joined. On behalf of a coordinator that
    was given up this would put out its successor, which has the same name.
    """
    if getattr(coordinator, "shares", False):
        return
    client: Any = getattr(coordinator, "_client", None) or getattr(
        coordinator, "client", None
    )
    with contextlib.suppress(Exception):
        if hasattr(coordinator, "_coord"):
            # kazoo: a session left alone would keep its member alive for ever
            cast(Any, coordinator)._coord.stop()
            cast(Any, coordinator)._coord.close()
        elif hasattr(client, "session"):
            client.session.close()  # etcd3gw: a requests session
        elif client is not None:
            client.close()  # redis, pymemcache


def _load(name: str) -> tuple[Any, dict[str, Any]]:
    """Return the driver's class and options that can't stand in a URL."""
    if name == "redis":
        from redis import backoff
        from redis import retry

        from musterbook.servicegroup import quick_redis

        # redis-py 8 repeats each command with pauses and tooz repeats that 15
        # times: 60 s for a server that refuses. tooz's repeats alone reconnect.
        return quick_redis.QuickRedisDriver, {
            "retry": [retry.Retry(backoff.NoBackoff(), 0)]
        }
    if name == "zookeeper":
        from musterbook.servicegroup import quick_kazoo

        return quick_kazoo.QuickKazooDriver, {}
    if name == "memcached":
        from musterbook.servicegroup import quick_memcached

        return quick_memcached.QuickMemcachedDriver, {}
    if name.startswith("etcd3+"):
        from musterbook.servicegroup import quick_etcd

        return quick_etcd.QuickEtcdDriver, {}
    from musterbook.servicegroup import quick_file

    return quick_file.QuickFileDriver, {}
