"""tooz's ZooKeeper driver with quick failures and the session it was asked for.

Apart from clients.py because it needs kazoo, which is an extra.
"""

from collections.abc import Mapping
import random
import threading
import time
from typing import Any

from kazoo import client as kazoo_client
from kazoo import exceptions
import tooz
from tooz import coordination
from tooz.drivers import zookeeper

from musterbook.servicegroup import failures

# Seconds that kazoo waits for its first connection, and between two later ones.
# As tooz makes it, it waits the member timeout at first, and up to an hour later: for
# as long again as the server was away (kazoo 2.11).
_CONNECT = 2
# Each try is a request, and a server that came back empty refuses for a member timeout.
_LONGEST_PAUSE = 1.2
# Who couldn't connect and then hears that its session is over hears it with all others,
# and asks for another one within so many seconds.
_SPREAD = 3.0


class QuickKazooDriver(zookeeper.KazooDriver):
    """One session with ZooKeeper, which refuses another length than was asked for.

    After a fault all members come back within a few beats, so what one sends then is
    counted: while nothing happens it is two requests with each beat.
    """

    def __init__(
        self, member_id: bytes, parsed_url: Any, options: dict[str, Any]
    ) -> None:
        self._granted: float | None = None
        self._lost_at: float | None = None
        self._connected = threading.Event()
        # There was an answer that no beat has had to ask for.
        self._answered = False
        # A question of a beat that has no answer yet.
        self._pending: Any = None
        # The session that the membership was bound to is over.
        self._membership_ended = False
        super().__init__(member_id, parsed_url, options)
        self._asked, self.timeout = self.timeout, _CONNECT

    def _make_client(self, parsed_url: Any, options: Mapping[str, Any]) -> Any:
        retry = {"max_tries": -1, "max_delay": _LONGEST_PAUSE}
        client = super()._make_client(
            parsed_url, {**options, "connection_retry": retry}
        )
        self._wrap_handshake(client)
        client.add_listener(self._state_changed)
        return client

    def _wrap_handshake(self, client: Any) -> None:
        """Learn what session was granted, and forget one that was lost for good.

        A server that was restarted empty refuses a client that has seen more than it
        has, for ever: kazoo shows its last transaction even after a session expired.
        """
        handshake = client._connection._connect
        failed: list[bool] = []  # since the last connection

        def connect(*args: Any) -> Any:
            lost = self._lost_at
            if lost is not None and time.monotonic() - lost > self._asked:
                client.last_zxid = 0
                client._reset_session()
                self._membership_ended = True
            try:
                read_timeout, connect_timeout = handshake(*args)
            except exceptions.SessionExpiredError:
                if failed:
                    pause = random.uniform(0, _SPREAD)  # noqa: S311 - no secret
                    client._stopped.wait(pause)
                raise
            except BaseException:
                failed.append(True)
                raise
            failed.clear()
            # Two thirds of the session, in milliseconds.
            self._granted = read_timeout * 1.5 / 1000
            return read_timeout, connect_timeout

        client._connection._connect = connect

    def _state_changed(self, state: str) -> None:
        """Note when a connection is lost; in kazoo's thread."""
        connected = state == kazoo_client.KazooState.CONNECTED
        if state == kazoo_client.KazooState.LOST:
            self._membership_ended = True
        if connected:
            self._answered = True
            self._connected.set()
        else:
            self._connected.clear()
            self._answered = False
        self._lost_at = None if connected else time.monotonic()

    def _start(self) -> None:
        super()._start()
        if self._granted is not None and round(self._granted) != self._asked:
            raise failures.Clamped(
                self._asked,
                self._granted,
                "minSessionTimeout or maxSessionTimeout (2 and 20 ticks)",
            )
        # A password is only tested by what it protects.
        self.get_groups().get(timeout=_CONNECT)

    def heartbeat(self) -> float:
        """Ask for something; kazoo's own thread keeps the session.

        A session that has just been made or resumed is an answer, too, and a question
        that has none yet is not asked again: a server that was frozen would get to all
        of them. tooz's waits without limit for a server that is gone. While there is no
        connection nothing is asked: kazoo would keep it all, and when all members are
        back the server would get each one's questions of the whole outage at once.

        :raises ToozError: there is no connection
        """
        if not self._connected.wait(_CONNECT):
            raise tooz.ToozError("no connection")
        if self._answered:
            self._answered = False
            return self._asked
        if self._pending is None:
            self._pending = self._coord.exists_async(self._base_path())
        pending = self._pending
        try:
            pending.get(timeout=_CONNECT)
        finally:
            if pending.ready():
                self._pending = None
        return self._asked

    def join_group(
        self, group_id: bytes, capabilities: Any = None
    ) -> zookeeper.ZooAsyncResult[None]:
        """As tooz's."""
        # Before it is asked for: a session that ends after this ends the new one.
        self._membership_ended = self._answered = False
        return super().join_group(group_id, capabilities)

    def get_member_capabilities(
        self, group_id: bytes, member_id: bytes
    ) -> zookeeper.ZooAsyncResult[Any]:
        """Look for the member; one's own of a session that is over needs no look."""
        if self._membership_ended and member_id == self._member_id:
            raise coordination.MemberNotJoined(group_id, member_id)
        return super().get_member_capabilities(group_id, member_id)

    def create_group(self, group_id: bytes) -> zookeeper.ZooAsyncResult[None]:
        """Create the group, and what it is in, which tooz's makes at start only."""
        self._coord.ensure_path_async(self._base_path()).get(timeout=_CONNECT)
        return super().create_group(group_id)
