"""The oslo.messaging driver and its listeners (see the package)."""

from collections.abc import Callable
from collections.abc import Iterable
import logging
import queue
import threading
import time
from typing import Any
from typing import ClassVar
import uuid
import weakref

import oslo_messaging
from oslo_messaging._drivers import base
from oslo_messaging._drivers import common
from oslo_serialization import jsonutils

from musterbook.inproc import exchange

LOG = logging.getLogger(__name__)

# What a call is told; a heartbeat has no payload.
_REPLY = "reply"
_FAILURE = "failure"
_HEARTBEAT = "heartbeat"
_CLOSED = "closed"


class Call:
    """A caller that waits. Tell it from any thread; what comes late is dropped."""

    def __init__(self, monitor_timeout: float | None) -> None:
        self.id = uuid.uuid4().hex
        self.monitor_timeout = monitor_timeout
        self._told: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()

    def tell(self, kind: str, payload: str = "") -> None:
        """Hand over an answer, a failure, a heartbeat or the end of the transport."""
        self._told.put((kind, payload))

    def wait(self, timeout: float | None) -> tuple[str, str]:
        """Return what ended the call and its JSON text.

        :param timeout: seconds for the whole call; heartbeats do not extend it, they
            only keep the monitor timeout from ending it sooner
        :raises queue.Empty: when the time is up
        """
        end = _deadline(timeout)
        monitor_end = _deadline(self.monitor_timeout)
        while True:
            ends = [e for e in (end, monitor_end) if e is not None]
            left = max(0.0, min(ends) - time.monotonic()) if ends else None
            kind, payload = self._told.get(timeout=left)
            if kind != _HEARTBEAT:
                return kind, payload
            monitor_end = _deadline(self.monitor_timeout)


class IncomingMessage(base.RpcIncomingMessage):  # type: ignore[misc]  # untyped base
    """What a server gets: its own copy of the message."""

    def __init__(
        self,
        envelope: exchange.Envelope,
        requeue: Callable[[], None],
    ) -> None:
        wire = jsonutils.loads(envelope.body)
        self._call: Call | None = envelope.call
        super().__init__(
            wire["ctxt"],
            wire["message"],
            msg_id=self._call.id if self._call else None,
        )
        self.client_timeout = self._call.monitor_timeout if self._call else None
        self._requeue = requeue

    def reply(self, reply: Any = None, failure: Any = None) -> None:
        """Answer the caller; a cast has none.

        :raises ValueError, TypeError: when the answer can't be put into JSON
        """
        if self._call is None:
            return
        if failure:
            self._call.tell(_FAILURE, common.serialize_remote_exception(failure))
        else:
            self._call.tell(_REPLY, jsonutils.dumps(reply))

    def requeue(self) -> None:
        """Put the message back in front of its queue."""
        self._requeue()

    def heartbeat(self) -> None:
        """Tell the caller that the work goes on."""
        if self._call is not None:
            self._call.tell(_HEARTBEAT)


class Listener(base.Listener):  # type: ignore[misc]  # untyped base
    """A thread that takes messages from a subscription and hands them to a server."""

    def __init__(
        self,
        source: exchange.Exchange,
        subscription: exchange.Subscription,
        name: str,
        batch_size: int | None,
        batch_timeout: float | None,
    ) -> None:
        super().__init__(batch_size or 1, batch_timeout)
        self._source = source
        self._subscription = subscription
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, on_incoming_callback: Callable[[list[Any]], None]) -> None:
        """Hand incoming batches to the callback, from the listener's thread."""
        super().start(on_incoming_callback)
        self._thread.start()

    def stop(self) -> None:
        """Take nothing more from shared queues; everything taken is handed over.

        Returns when the thread has ended, which waits for nothing but the callback.
        """
        self._subscription.stop()
        if self._thread.is_alive():
            self._thread.join()
        super().stop()

    def cleanup(self) -> None:
        """Do nothing more than stop()."""
        self.stop()

    def _run(self) -> None:
        while batch := self._take_batch():
            try:
                self.on_incoming_callback(batch)
            except Exception:
                LOG.exception("an incoming message could not be handed over")

    def _take_batch(self) -> list[IncomingMessage]:
        batch: list[IncomingMessage] = []
        end = None
        while len(batch) < self.batch_size:
            left = None if end is None else max(0.0, end - time.monotonic())
            taken = self._subscription.take(left)
            if taken is None:
                break
            batch.append(self._incoming(*taken))
            end = end or _deadline(self.batch_timeout)
        return batch

    def _incoming(self, origin: Any, envelope: exchange.Envelope) -> IncomingMessage:
        return IncomingMessage(
            envelope, lambda: self._source.put_back(origin, envelope)
        )


class InProcessDriver(base.BaseDriver):  # type: ignore[misc]  # untyped base
    """A transport within this process. Any thread may call it."""

    # The exchanges by the URL's virtual host. Weak: an exchange ends with the last
    # transport that uses it, cleaned up or forgotten.
    _exchanges: ClassVar[weakref.WeakValueDictionary[str, exchange.Exchange]] = (
        weakref.WeakValueDictionary()
    )
    _exchanges_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(
        self,
        conf: Any,
        url: Any,
        default_exchange: str | None = None,
        allowed_remote_exmods: list[str] | None = None,
    ) -> None:
        super().__init__(conf, url, default_exchange, allowed_remote_exmods)
        name = url.virtual_host or ""
        with self._exchanges_lock:
            found = self._exchanges.get(name)
            if found is None:
                found = self._exchanges[name] = exchange.Exchange()
        self._exchange: exchange.Exchange | None = found
        self._owned_lock = threading.Lock()
        self._calls: set[Call] = set()
        # Weak: a stopped server's listener is nobody's.
        self._listeners: weakref.WeakSet[Listener] = weakref.WeakSet()

    def require_features(self, requeue: bool = False) -> None:
        """Accept: messages can be put back."""

    def send(
        self,
        target: Any,
        ctxt: dict[str, Any],
        message: dict[str, Any],
        wait_for_reply: bool | None = None,
        timeout: float | None = None,
        call_monitor_timeout: float | None = None,
        retry: int | None = None,
        transport_options: Any = None,
    ) -> Any:
        """Send; for a call wait for the answer and return it.

        :param timeout: seconds to wait for the answer
        :param retry: without meaning here: sending does not fail for a while
        :raises MessagingTimeout: no answer in time
        :raises MessageUndeliverable: no such queue, and at_least_once was asked for
        :raises MessageDeliveryFailure: the transport was cleaned up
        :raises ValueError, TypeError: the message can't be put into JSON
        """
        body = jsonutils.dumps({"ctxt": ctxt, "message": message})
        if not wait_for_reply:
            self._publish(target, exchange.Envelope(body), transport_options)
            return None
        call = self._open_call(call_monitor_timeout)
        try:
            envelope = exchange.Envelope(body, call, _deadline(timeout))
            self._publish(target, envelope, transport_options)
            kind, payload = call.wait(timeout)
        except queue.Empty:
            raise oslo_messaging.MessagingTimeout(
                f"no answer on topic {target.topic} within {timeout} s"
            ) from None
        finally:
            with self._owned_lock:
                self._calls.discard(call)
        return self._result(kind, payload)

    def send_notification(
        self,
        target: Any,
        ctxt: dict[str, Any],
        message: dict[str, Any],
        version: float,
        retry: int | None = None,
    ) -> None:
        """Store a notification until a listener takes it (the newest 10,000)."""
        body = jsonutils.dumps({"ctxt": ctxt, "message": message})
        self._opened().store(
            self._exchange_name(target), target.topic, exchange.Envelope(body)
        )

    def listen(
        self, target: Any, batch_size: int | None, batch_timeout: float | None
    ) -> Listener:
        """Return a listener of a server; its queues exist from now on."""
        source = self._opened()
        subscription = source.subscribe_server(
            self._exchange_name(target), target.topic, target.server
        )
        name = f"inproc-{target.topic}.{target.server}"
        return self._own(
            Listener(source, subscription, name, batch_size, batch_timeout)
        )

    def listen_for_notifications(
        self,
        targets_and_priorities: Iterable[tuple[Any, str]],
        pool: str | None,
        batch_size: int | None,
        batch_timeout: float | None,
    ) -> Listener:
        """Return a listener for notifications; each pool gets a copy of each."""
        source = self._opened()
        keys = [
            (self._exchange_name(target), f"{target.topic}.{priority}")
            for target, priority in targets_and_priorities
        ]
        subscription = source.subscribe_notifications(keys, pool)
        return self._own(
            Listener(source, subscription, "inproc-notify", batch_size, batch_timeout)
        )

    def cleanup(self) -> None:
        """End what this transport made: its waiting calls and its listeners."""
        with self._owned_lock:
            self._exchange = None
            calls, self._calls = self._calls, set()
            listeners = list(self._listeners)
        for call in calls:
            call.tell(_CLOSED)
        for listener in listeners:
            listener.cleanup()

    def _opened(self) -> exchange.Exchange:
        found = self._exchange
        if found is None:
            raise oslo_messaging.MessageDeliveryFailure("the transport is closed")
        return found

    def _open_call(self, monitor_timeout: float | None) -> Call:
        call = Call(monitor_timeout)
        with self._owned_lock:
            self._opened()
            self._calls.add(call)
        return call

    def _own(self, listener: Listener) -> Listener:
        with self._owned_lock:
            self._listeners.add(listener)
            closed = self._exchange is None
        if closed:
            listener.cleanup()
            self._opened()
        return listener

    def _exchange_name(self, target: Any) -> str:
        return str(target.exchange or self._default_exchange)

    def _publish(self, target: Any, envelope: exchange.Envelope, options: Any) -> None:
        found = self._opened()
        if target.fanout:
            found.publish_fanout(target.topic, envelope)
            return
        key = f"{target.topic}.{target.server}" if target.server else target.topic
        name = self._exchange_name(target)
        delivered = found.publish(name, key, envelope)
        if not delivered and options is not None and options.at_least_once:
            raise oslo_messaging.MessageUndeliverable(
                "no such queue", name, key, envelope.body
            )

    def _result(self, kind: str, payload: str) -> Any:
        if kind == _REPLY:
            return jsonutils.loads(payload)
        if kind == _FAILURE:
            raise common.deserialize_remote_exception(
                payload, self._allowed_remote_exmods
            )
        raise oslo_messaging.MessageDeliveryFailure("the transport was closed")


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout
