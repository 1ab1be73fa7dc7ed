"""tooz's drivers as we load them: decoded URLs, quick failures, quiet ends.

The only place that reaches into tooz's drivers; each reach names what was seen
in tooz 9.1.
"""

from collections.abc import Callable
import contextlib
import importlib.metadata
from typing import Any
from typing import cast

from tooz import coordination

from musterbook import errors
from musterbook.servicegroup import url as group_url

_EXTRAS = {
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
            f"pip install musterbook[{_EXTRAS.get(name, name)}]",
        ) from None
    # Our thread runs the calls one by one; tooz's own pool would add a thread
    # that can hang where nobody can join it.
    options = {**url.options, **extra, "executor": ["synchronous"]}
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


#: The clients' errors for a user or password that the server doesn't take, by class:
#: redis-py's and kazoo's. etcd3gw has none of its own; memcached has no users.
_REFUSALS = frozenset(
    {
        "AuthenticationError",
        "AuthenticationWrongNumberOfArgsError",
        "NoPermissionError",
        "AuthFailedError",
        "NoAuthError",
    }
)


def is_refusal(exc: BaseException) -> bool:
    """Tell whether an error of tooz, or of a client, means that nobody lets us in."""
    seen: set[int] = set()
    found: BaseException | None = exc
    while found is not None and id(found) not in seen:
        if type(found).__name__ in _REFUSALS:
            return True
        seen.add(id(found))
        # tooz keeps the client's error as ``cause`` (9.1).
        found = getattr(found, "cause", None) or found.__cause__ or found.__context__
    return False


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
    (entry,) = importlib.metadata.entry_points(group="tooz.backends", name=name)
    return entry.load(), {}
