"""tooz's etcd driver with a check that sees all, and joins that read nothing.

Apart from clients.py because it needs etcd3gw, which is an extra. What it stores is
what tooz's stores: both may be in one group.
"""

import base64
from collections.abc import Callable
from typing import Any

from tooz import coordination
from tooz import utils
from tooz.drivers import etcd3gw

from musterbook.servicegroup import failures


class QuickEtcdDriver(etcd3gw.Etcd3Driver):
    """Joins and leaves in one transaction; tooz's read the whole group for each."""

    def _start(self) -> None:
        super()._start()
        assert self._membership_lease is not None
        granted = self._membership_lease.refresh()
        if granted != self.membership_timeout:
            raise failures.Clamped(
                self.membership_timeout,
                granted,
                "election-timeout (1.5 of it is the shortest)",
            )
        # A lease is granted to everybody; this isn't.
        self.client.get(self.GROUP_PREFIX.decode())

    def join_group(
        self, group_id: bytes, capabilities: Any = None
    ) -> coordination.CoordinatorResult[None]:
        """Put the member's key, bound to the lease, if the group has its own."""

        def work() -> None:
            assert self._membership_lease is not None
            group, member = self._keys(group_id, self._member_id)
            result = self.client.transaction(
                {
                    "compare": [_is_there(group), _is_missing(member)],
                    "success": [
                        {
                            "request_put": {
                                "key": member,
                                "value": _encode(utils.dumps(capabilities)),
                                "lease": self._membership_lease.id,
                            }
                        }
                    ],
                    "failure": [{"request_range": {"key": group}}],
                }
            )
            if result.get("succeeded"):
                return
            if not _found(result, 0):
                raise coordination.GroupNotCreated(group_id)
            raise coordination.MemberAlreadyExist(group_id, self._member_id)

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
        """Look for the member and for the group, which readers need as well."""

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


def _is_missing(key: str) -> dict[str, Any]:
    return {"key": key, "target": "VERSION", "result": "EQUAL", "version": 0}


def _found(result: Any, at: int) -> list[dict[str, str]]:
    """Return what a range that was asked for in a transaction has found."""
    found: list[dict[str, str]] = result["responses"][at]["response_range"].get(
        "kvs", []
    )
    return found
