"""tooz's redis driver, made quicker to fail and to ask, and able to share a client.

Apart from clients.py because it needs redis-py, which is an extra.
"""

from typing import Any

import redis
from tooz import coordination
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

    def get_member_capabilities(
        self, group_id: bytes, member_id: bytes
    ) -> coordination.CoordinatorResult[coordination.Capabilities | None]:
        """Return a member's capabilities, as tooz does, by one question if it is there.

        tooz asks whether the group exists first, in a transaction: four round trips
        (9.1), which an agent would make with each beat.
        """
        group = self._encode_group_id(group_id)
        member = self._encode_member_id(member_id)

        def ask() -> coordination.Capabilities | None:
            assert self._client is not None
            found: Any = self._client.hget(group, member)
            if found is None:
                slowly = super(QuickRedisDriver, self).get_member_capabilities
                return slowly(group_id, member_id).get()
            return self._loads(found)  # type: ignore[no-any-return]  # untyped there

        return redis_driver.RedisFutureResult(self._submit(ask))
