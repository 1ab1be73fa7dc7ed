"""Many servers of one topic in one process, over one connection and few threads.

Each has its own name, endpoints and queue; what a caller sees is the same as of as
many processes with a Server each.
"""

from collections.abc import Sequence
import threading
import time
from typing import Any

import oslo_messaging
from oslo_messaging.rpc import dispatcher as rpc_dispatcher

from musterbook import errors
from musterbook.rpc import many
from musterbook.rpc import server as rpc_server
from musterbook.rpc import transport as rpc_transport

#: Seconds between two looks of a seat that waits, whether it shall stop.
_STEP = 0.2
#: Seconds that a seat waits for its queue to be left, and for its calls in hand.
_LEAVE_SECONDS = 5.0


class SharedServer:
    """The connection and the threads of many seats.

    One thread starts it, once, before any seat; one stops it after all seats. Over
    RabbitMQ only.

    :param transport: from make_transport; belongs to the caller
    :param topic: of all seats
    :param label: tells this one from others in logs and threads
    """

    def __init__(
        self, transport: rpc_transport.Transport, topic: str, label: str
    ) -> None:
        self._names = many.Names(topic)
        self._router = _Router(topic)
        self._target = _SharedTarget(self._names, topic=topic, server=label)
        self._server = _RoutingServer(transport, self._target, self._router)
        self._started = False

    def start(self) -> None:
        """Listen, as nobody yet. Waits for the broker, until stop() at most.

        :raises ConfigurationError: the broker refuses
        """
        self._started = True
        self._server.start()

    def stop(self) -> None:
        """End; calls in hand are waited for."""
        self._target.stopping.set()
        if not self._started:
            return
        self._server.stop()
        if self._server.listener is not None:
            self._server.listener.cleanup()
        self._server.wait()

    def seat(
        self,
        name: str,
        endpoints: Sequence[object],
        serializer: oslo_messaging.Serializer,
    ) -> "Seat":
        """Return one server, by name; parameters as those of Server."""
        dispatcher = rpc_dispatcher.RPCDispatcher(
            list(endpoints), rpc_server._Noting(serializer), rpc_server._OnlyExposed
        )
        return Seat(self, name, rpc_server._Guard(dispatcher))


class Seat:
    """One of the servers; start() and stop() as those of Server."""

    def __init__(
        self, shared: SharedServer, name: str, guard: "rpc_server._Guard"
    ) -> None:
        self._shared = shared
        self._name = name
        self._guard = guard
        self._stopping = threading.Event()

    def start(self) -> None:
        """Listen; returns when the queue is there, or when told to stop."""
        if self._stopping.is_set():
            return
        self._shared._router.add(self._name, self._guard)
        added = self._shared._names.add(self._name)
        while not added.wait(_STEP):
            if self._stopping.is_set() or self._shared._target.stopping.is_set():
                return

    def stop(self) -> None:
        """Take nothing new; what is not yet taken waits for the name's next server."""
        self._stopping.set()
        removed = self._shared._names.remove(self._name)
        deadline = time.monotonic() + _LEAVE_SECONDS
        while not removed.wait(_STEP):
            if (
                self._shared._target.stopping.is_set()
                or not self._shared._started
                or time.monotonic() > deadline
            ):
                return

    def wait(self) -> None:
        """Return when its calls in hand are answered, or after some seconds."""
        deadline = time.monotonic() + _LEAVE_SECONDS
        while self._in_hand() and time.monotonic() < deadline:
            time.sleep(_STEP / 10)
        self._shared._router.remove(self._name, self._guard)

    def full_since(self) -> float | None:
        """As Server.full_since(), of the threads that all seats share."""
        return self._shared._server.full_since()

    def abandon(self) -> None:
        """Answer its calls in hand with Stopping."""
        for message in self._in_hand():
            message.give_up(self._name)

    def _in_hand(self) -> list[Any]:
        return [
            message
            for message in self._shared._server.in_hand()
            if getattr(message, "server", None) == self._name
        ]


class _SharedTarget(rpc_server._Target):
    """Listened to under many names instead of its own; see RabbitDriver.listen."""

    def __init__(self, listened: many.Names, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.names = listened


class _RoutingServer(rpc_server._AnsweringServer):
    def __init__(self, transport: Any, target: Any, router: "_Router") -> None:
        super().__init__(transport, target, None)
        self.dispatcher = router


class _Router:
    """Gives a message to the server that it was sent to, by name."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._lock = threading.Lock()  # guards the writing
        self._guards: dict[str, rpc_server._Guard] = {}

    def add(self, name: str, guard: "rpc_server._Guard") -> None:
        with self._lock:
            self._guards = self._guards | {name: guard}

    def remove(self, name: str, guard: "rpc_server._Guard") -> None:
        with self._lock:
            if self._guards.get(name) is guard:
                self._guards = {n: g for n, g in self._guards.items() if n != name}

    def dispatch(self, incoming: Any) -> Any:
        name = getattr(incoming, "server", None)
        if name is None:
            return self._dispatch_unnamed(incoming)
        guard = self._guards.get(name)
        if guard is None:
            raise self._stopping(name, incoming)
        return guard.dispatch(incoming)

    def _dispatch_unnamed(self, incoming: Any) -> Any:
        """Let all have a cast, which a fanout is, and the first one a call."""
        guards = list(self._guards.values())
        # Of the driver: the library gives a cast a made-up msg_id.
        if incoming.orig_msg_id is not None:
            if not guards:
                raise self._stopping(self._topic, incoming)
            return guards[0].dispatch(incoming)
        for guard in guards:
            guard.dispatch(incoming)
        return None

    def _stopping(self, name: str, incoming: Any) -> Exception:
        method = incoming.message.get("method")
        return rpc_server._expected(errors.Stopping(server=name, method=method))
