"""tooz's redis driver with redis-py's own repeats made settable.

Apart from clients.py because it needs redis-py, which is an extra.
"""

from typing import Any

import redis
from tooz.drivers import redis as redis_driver


class QuickRedisDriver(redis_driver.RedisDriver):
    """Takes two more options; else tooz's.

    ``retry``: a redis.retry.Retry. ``shared``: a mapping, empty at first, that the
    first driver puts its client into and all others with the same one use.
    """

    CLIENT_ARGS = redis_driver.RedisDriver.CLIENT_ARGS | {"retry"}

    @property
    def shares(self) -> bool:
        """Whether the client isn't this driver's alone."""
        return "shared" in self._options

    @classmethod
    def _make_client(
        cls, parsed_url: Any, options: dict[str, Any], default_socket_timeout: int
    ) -> redis.Redis:
        shared: dict[str, redis.Redis] = options.get("shared", {})
        if "client" not in shared:
            shared["client"] = super()._make_client(
                parsed_url, options, default_socket_timeout
            )
        return shared["client"]

    def _start(self) -> None:
        super()._start()
        if self.shares:
            # 20 kB for each of many members, of which nothing is read any more.
            self._server_info = {}
