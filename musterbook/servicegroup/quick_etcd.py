"""tooz's etcd driver with a check that sees all, and joins that read nothing.

Apart from clients.py because it needs etcd3gw, which is an extra. What it stores is
what tooz's stores: both may be in one group.
"""

import base64
from collections.abc import Callable
import time
from typing import Any

from etcd3gw import lease
from tooz import coordination
from tooz import utils
from tooz.drivers import etcd3gw

from musterbook.servicegroup import failures


class QuickEtcdDriver(etcd3gw.Etcd3Driver):
    """Joins and leaves in one transaction; tooz's read the whole group for each.

    After a fault all members come back within a few beats, so what one sends then is
    counted: while nothing happens it is two calls with each beat.

    ``seen``, another option: a set, empty at first, of those that have one URL. What a
    server tells once, about itself, is asked for once.
    """

    def __init__(
        self, member_id: bytes, parsed_url: Any, options: dict[str, Any]
    ) -> None:
        super().__init__(member_id, parsed_url, options)
        self._seen: set[str] = self._options.get("seen", set())
        # The lease is newer than the membership, which has ended with another.
        self._membership_ended = False
        self._renewed = 0.0

    def _start(self) -> None:
        super(etcd3gw.Etcd3Driver, self)._start()  # without its lease
        self._new_lease()
        if "access" not in self._seen:
            # A lease is granted to everybody; this isn't.
            self.client.get(self.GROUP_PREFIX.decode())
            self._seen.add("access")

    def heartbeat(self) -> int:
        """Renew the lease, or get another, which no membership has.

        One that must be over isn't asked for. If it is not, because the server stood
        still or was started anew, the join that follows binds the key to the new one.
        """
        assert self._membership_lease is not None
        began = time.monotonic()
        over = began - self._renewed > self.membership_timeout
        if over or self._membership_lease.refresh() == -1:
            self._membership_ended = True
            self._new_lease()
        self._renewed = began
        return int(self.membership_timeout)

    def _new_lease(self) -> None:
        """Get a lease; what it is granted for needs no question of its own."""
        began = time.monotonic()
        answer = self.client.post(
            self.client.get_url("/lease/grant"),
            json={"TTL": self.membership_timeout, "ID": 0},
        )
        granted = int(answer["TTL"])
        if granted != self.membership_timeout:
            raise failures.Clamped(
                self.membership_timeout,
                granted,
                "election-timeout (1.5 of it is the shortest)",
            )
        self._membership_lease = lease.Lease(int(answer["ID"]), client=self.client)
        self._renewed = began

    def join_group(
        self, group_id: bytes, capabilities: Any = None
    ) -> coordination.CoordinatorResult[None]:
        """Put the member's key, bound to the lease, if the group has its own.

        One that is there, of a lease that nobody renews any more, is replaced.
        """

        def work() -> None:
            assert self._membership_lease is not None
            group, member = self._keys(group_id, self._member_id)
            result = self.client.transaction(
                {
                    "compare": [_is_there(group)],
                    "success": [
                        {
                            "request_put": {
                                "key": member,
                                "value": _encode(utils.dumps(capabilities)),
                                "lease": self._membership_lease.id,
                            }
                        }
                    ],
                    "failure": [],
                }
            )
            if not result.get("succeeded"):
                raise coordination.GroupNotCreated(group_id)
            self._membership_ended = False

        return self._result(work)

    def leave_group(self, group_id: bytes) -> coordination.CoordinatorResult[None]:
        """Delete the member's key."""

        def work() -> None:
            _, member = self._keys(group_id, self._member_id)
            result = self.client.transaction(
                {
                    "compare": [_is_there(member)],
                    "success": [{"request_delete_range": {"key": member}}],
                    "failure": [],
                }
            )
            if not result.get("succeeded"):
                raise coordination.MemberNotJoined(group_id, self._member_id)

        return self._result(work)

    def get_member_capabilities(
        self, group_id: bytes, member_id: bytes
    ) -> coordination.CoordinatorResult[Any]:
        """Look for the member and for the group, which readers need as well.

        One's own key that was bound to a lease that is over needs no look.
        """
        if self._membership_ended and member_id == self._member_id:
            raise coordination.MemberNotJoined(group_id, member_id)

        def work() -> Any:
            group, member = self._keys(group_id, member_id)
            result = self.client.transaction(
                {
                    "compare": [_is_there(group)],
                    "success": [{"request_range": {"key": member}}],
                    "failure": [],
                }
            )
            if not result.get("succeeded"):
                raise coordination.GroupNotCreated(group_id)
            found = _found(result, 0)
            if not found:
                raise coordination.MemberNotJoined(group_id, member_id)
            return utils.loads(base64.b64decode(found[0]["value"]))

        return self._result(work)

    def _keys(self, group_id: bytes, member_id: bytes) -> tuple[str, str]:
        group = self._prefix_group(group_id)
        return _encode(group), _encode(group + member_id)

    def _result(self, work: Callable[[], Any]) -> coordination.CoordinatorResult[Any]:
        return coordination.CoordinatorResult(self._executor.submit(work))


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _is_there(key: str) -> dict[str, Any]:
    return {"key": key, "target": "VERSION", "result": "GREATER", "version": 0}


def _found(result: Any, at: int) -> list[dict[str, str]]:
    """Return what a range that was asked for in a transaction has found."""
    found: list[dict[str, str]] = result["responses"][at]["response_range"].get(
        "kvs", []
    )
    return found
