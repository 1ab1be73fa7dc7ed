"""tooz's redis driver, made quicker to fail and to ask, and able to share a client.

Apart from clients.py because it needs redis-py, which is an extra. What it stores is
what tooz's stores: both may be in one group.

After a fault all members come back within a beat, so what one sends then is counted:
while nothing happens it sends two commands with each beat.
"""

from typing import Any
from typing import cast

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
            client = super()._make_client(parsed_url, options, default_socket_timeout)
            # tooz asks for all that the server can tell of itself, to see that it is
            # younger than of 2012; the beat that follows finds a dead one, too.
            client.info = lambda *_, **__: {}  # type: ignore[method-assign]
            shared["client"] = client
        return shared["client"]

    def join_group(
        self, group_id: bytes, capabilities: coordination.Capabilities | None = None
    ) -> coordination.CoordinatorResult[None]:
        """Become a member of the group, also when one is; make the group if need be.

        By one command where tooz (9.1) sends some ten, with the group's creation.
        """
        group = self._encode_group_id(group_id)
        fields: dict[Any, Any] = {
            self.GROUP_EXISTS: self.GROUP_EXISTS_VALUE,
            self._encode_member_id(self._member_id): self._dumps(capabilities),
        }

        def join() -> None:
            assert self._client is not None
            if self._client.hset(group, mapping=fields) == len(fields):  # it is new
                name = self._encode_group_id(group_id, apply_namespace=False)
                self._client.sadd(self._groups, name)
            self._joined_groups.add(group_id)

        return redis_driver.RedisFutureResult(self._submit(join))

    def get_member_capabilities(
        self, group_id: bytes, member_id: bytes
    ) -> coordination.CoordinatorResult[coordination.Capabilities | None]:
        """Return a member's capabilities, as tooz does, by one question.

        tooz asks whether the group exists first, in a transaction: four round trips
        (9.1), which an agent would make with each beat.
        """
        group = self._encode_group_id(group_id)
        member = self._encode_member_id(member_id)

        def ask() -> coordination.Capabilities | None:
            assert self._client is not None
            asked = [self.GROUP_EXISTS, member]
            exists, found = cast("list[Any]", self._client.hmget(group, asked))
            if exists is None:
                raise coordination.GroupNotCreated(group_id)
            if found is None:
                raise coordination.MemberNotJoined(group_id, member_id)
            return self._loads(found)  # type: ignore[no-any-return]  # untyped there

        return redis_driver.RedisFutureResult(self._submit(ask))
