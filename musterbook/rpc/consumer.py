"""The connection that messages come in by; it lives as long as its queues."""

from collections.abc import Callable
import logging
import threading
import time
from typing import Any

from oslo_messaging._drivers import common
from oslo_messaging._drivers import impl_rabbit

from musterbook.rpc import connection
from musterbook.rpc import outage as rpc_outage

LOG = logging.getLogger(__name__)

#: Seconds for the broker to let us in and to make our queues.
_OPEN_SECONDS = 10.0
#: Seconds in which a broker that we doubt must answer.
_PROOF_SECONDS = 3.0


class Consumer(connection.Connection):
    """Keeps its queues and reads from them, over any number of lost connections.

    The original retries by kombu, which knows two kinds of faults. Those that it calls
    irrecoverable, such as a virtual host that was deleted or a changed password, come
    out of each attempt at once and without a pause: 140,000 log lines in 41 s. Here
    there is one kind, with pauses that grow and are spread.

    One thread uses it, but any may call stop_consuming(), doubt() and wait_ready().

    :param outage: is told what becomes of the broker
    """

    def __init__(self, conf: Any, url: Any, outage: rpc_outage.Outage) -> None:
        super().__init__(conf, url)
        self._outage = outage
        self._pauses = rpc_outage.Pauses(
            self.interval_start,
            self.interval_stepping,
            self.interval_max,
            self.kombu_reconnect_splay,
        )
        self._next_attempt = 0.0
        self._stopped = threading.Event()
        self._state = threading.Condition()
        self._ready = False
        self._losses = 0
        self._doubted = False

    def ensure(
        self,
        method: Callable[[], Any],
        retry: int | None = None,
        recoverable_error_callback: Callable[[Exception], None] | None = None,
        error_callback: Callable[[Exception], None] | None = None,
        timeout_is_error: bool = True,
    ) -> Any:
        """Run a method of the library's that uses the channel, until it is done.

        :returns: None when told to stop meanwhile
        :raises Timeout: of the library, from the method or the callback
        """
        while True:
            try:
                if self.channel is None and not self._reopened():
                    return None
                return method()
            except common.Timeout:
                raise
            except Exception as exc:  # noqa: BLE001  a lost connection raises anything
                if self._stopped.is_set():
                    return None
                self._lose(exc)
                if recoverable_error_callback is not None:
                    recoverable_error_callback(exc)

    def consume(self, timeout: float | None = None) -> None:
        """Handle what comes in, for so many seconds or until something has come.

        :raises Timeout: of the library: nothing has come
        """
        if self._doubted:
            self._doubted = False
            self.ensure(self._prove)
        super().consume(timeout=timeout)

    def stop_consuming(self) -> None:
        """End consume(), also where it waits for the broker."""
        super().stop_consuming()
        self._stopped.set()

    def doubt(self) -> None:
        """Have the connection looked at: something that should have come hasn't.

        A connection that a network has forgotten looks like one on which nothing comes
        until heartbeats are missed, two minutes later.
        """
        self._doubted = True

    def wait_ready(self, deadline: float) -> bool:
        """Return whether its queues are there.

        Waits for the next attempt to connect if there has to be one, and no longer
        than to the deadline, a monotonic time.
        """
        with self._state:
            losses = self._losses
            self._state.wait_for(
                lambda: self._ready or self._losses > losses,
                max(0.0, deadline - time.monotonic()),
            )
            return self._ready

    def declare_consumer(self, consumer: Any) -> Any:
        """Make a queue and read from it; waits for the broker."""
        consumer.__class__ = _Queue
        made = super().declare_consumer(consumer)
        if made is not None:
            self._set_ready(True)
        return made

    def close(self) -> None:
        """Disconnect for good."""
        self._stopped.set()
        self._set_ready(False)
        super().close()
        self._outage.forget(self)

    def _reopened(self) -> bool:
        """Connect and read again; False when told to stop."""
        pause = max(0.0, self._next_attempt - time.monotonic())
        if self._stopped.wait(pause):
            return False
        # Declares the queues; it is the reading that has to be asked for.
        self.open(time.monotonic() + _OPEN_SECONDS, lambda: not self._stopped.is_set())
        for consumer, tag in self._consumers.items():
            consumer.consume(self, tag=tag)
        self._new_tags.clear()
        self.set_transport_socket_timeout()
        self._pauses.reset()
        if self._consumers:
            self._set_ready(True)
        self._outage.back(self)
        return True

    def _lose(self, exc: Exception) -> None:
        self._set_ready(False)
        self._outage.lost(self, self.address, connection.why(exc))
        LOG.debug("Connection %s is lost: %s", self.connection_id, exc)
        self.drop()
        self._next_attempt = time.monotonic() + self._pauses.next()

    def _set_ready(self, ready: bool) -> None:
        with self._state:
            self._ready = ready
            self._losses += not ready
            self._state.notify_all()

    def _prove(self) -> None:
        """Have the broker answer something that changes nothing."""
        self.connection.connection.sock.settimeout(_PROOF_SECONDS)
        self.channel.basic_qos(0, max(0, self.rabbit_qos_prefetch_count), False)
        self.set_transport_socket_timeout()


class _Queue(impl_rabbit.Consumer):  # type: ignore[misc]  # untyped base
    """Lets no message that can't be read out of its callback."""

    def _callback(self, message: Any) -> None:
        message = self.queue.channel.message_to_python(message)
        try:
            self.callback(impl_rabbit.RabbitMessage(message))
        except Exception as exc:  # noqa: BLE001  whatever anybody may have sent
            LOG.error(
                "A message of %d bytes in the queue %s can't be read (%s); it is "
                "dropped",
                len(message.body or b""),
                self.queue_name,
                type(exc).__name__,
            )
            if not message.acknowledged:
                message.reject()
