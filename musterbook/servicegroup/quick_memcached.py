"""tooz's memcached driver, which would lose beats and not say so.

Apart from clients.py because it needs pymemcache, which is an extra. What it stores is
what tooz's stores: both may be in one group.
"""

from collections.abc import Callable
import hashlib
import random
import time
from typing import Any

import tooz
from tooz import coordination
from tooz.drivers import memcached

_MAX_KEY = 250  # bytes, memcached's limit
# The group is one value that all members change by compare-and-swap. Who loses a race
# waits a random time, this many seconds at first and at most; tooz waits a whole one.
_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.2
_CHANGE_SECONDS = 2.0
_AT_ONCE = 500  # keys in a request
_FEW = 10  # members that are taken out as soon as they have no beat

_Members = dict[bytes, Any]


class QuickMemcachedDriver(memcached.MemcachedDriver):
    """Believes no beat that memcached didn't confirm, and finds what it forgot."""

    def __init__(
        self, member_id: bytes, parsed_url: Any, options: dict[str, Any]
    ) -> None:
        super().__init__(member_id, parsed_url, options)
        # Who is in the group's value without a beat, and since when a read found so.
        self._missing: dict[bytes, float] = {}

    def heartbeat(self) -> float:
        """Store the beat, with an answer; tooz's asks for none.

        :raises ToozError: it was not stored
        """
        key = self._encode_member_id(self._member_id)
        if not self.client.set(
            key, self.STILL_ALIVE, expire=self.membership_timeout, noreply=False
        ):
            raise tooz.ToozError("it did not store the beat")
        return self.membership_timeout

    def join_group(
        self, group_id: bytes, capabilities: Any = None
    ) -> coordination.CoordAsyncResult[None]:
        """Put the member into the group's value, if it isn't there any more.

        That it lives, its beat says: an entry needn't be replaced.
        """

        def add(members: _Members) -> None:
            members.setdefault(self._member_id, {b"capabilities": capabilities})

        return self._result(lambda: self._change(group_id, add))

    def leave_group(self, group_id: bytes) -> coordination.CoordAsyncResult[None]:
        """Take the member out of the group's value."""

        def remove(members: _Members) -> None:
            if members.pop(self._member_id, None) is None:
                raise coordination.MemberNotJoined(group_id, self._member_id)

        return self._result(lambda: self._change(group_id, remove))

    def get_member_capabilities(
        self, group_id: bytes, member_id: bytes
    ) -> coordination.CoordAsyncResult[Any]:
        """Look for one member alone, where tooz looks at all."""

        def look() -> Any:
            group, beat = (
                self._encode_group_id(group_id),
                self._encode_member_id(member_id),
            )
            found = self.client.get_many([group, beat])
            if found.get(group) is None:
                raise coordination.GroupNotCreated(group_id)
            if member_id not in found[group] or beat not in found:
                raise coordination.MemberNotJoined(group_id, member_id)
            return found[group][member_id][b"capabilities"]

        return self._result(look)

    def _get_members(self, group_id: bytes) -> _Members:
        """Return who has a beat, and take the others out of the group's value.

        Many at once only when they have been without a beat for a member timeout:
        after a fault all come back, and would have to enter it anew one by one.
        """
        members = self.client.get(self._encode_group_id(group_id))
        if members is None:
            raise coordination.GroupNotCreated(group_id)
        living = self._living(list(members))
        now = time.monotonic()
        self._missing = {
            member: self._missing.get(member, now) for member in members.keys() - living
        }
        since = list(self._missing.values())
        if len(since) > _FEW:
            since = [at for at in since if now - at > self.membership_timeout]
        if since:
            self._change(group_id, self._sweep)
        return {member: members[member] for member in living}

    def _living(self, members: list[bytes]) -> set[bytes]:
        keys = {self._encode_member_id(member): member for member in members}
        asked = list(keys)
        living: set[bytes] = set()
        for at in range(0, len(asked), _AT_ONCE):
            found = self.client.get_many(asked[at : at + _AT_ONCE])
            living.update(keys[key] for key in found)
        return living

    def _sweep(self, members: _Members) -> None:
        for member in members.keys() - self._living(list(members)):
            del members[member]

    def _change(self, group_id: bytes, change: Callable[[_Members], None]) -> None:
        """Change the group's value, again and again until no other was in between."""
        key = self._encode_group_id(group_id)
        end = time.monotonic() + _CHANGE_SECONDS
        pause = _FIRST_PAUSE
        while True:
            members, version = self.client.gets(key)
            if members is None:
                raise coordination.GroupNotCreated(group_id)
            before = set(members)
            change(members)
            if before == set(members) or self.client.cas(key, members, version):
                return
            if time.monotonic() > end:
                raise tooz.ToozError("too many members change the group at once")
            time.sleep(random.uniform(0, pause))  # noqa: S311 - no secret
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _encode_member_id(self, member_id: bytes) -> bytes:
        key = super()._encode_member_id(member_id)
        if len(key) <= _MAX_KEY:
            return key
        return self.MEMBER_PREFIX + hashlib.sha256(member_id).hexdigest().encode()

    def _result(self, work: Callable[[], Any]) -> coordination.CoordAsyncResult[Any]:
        return memcached.MemcachedFutureResult(self._executor.submit(work))
