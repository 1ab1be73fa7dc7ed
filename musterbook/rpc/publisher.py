"""The connection that messages leave by: confirmed, and bounded in time."""

import dataclasses
import time
from typing import Any

from kombu import compression
from oslo_messaging import exceptions

from musterbook.rpc import connection

_PERSISTENT = 2


@dataclasses.dataclass(frozen=True)
class Exchange:
    """Where a message goes; '' is the broker's own, whose keys are queues' names."""

    name: str
    type: str = "direct"
    durable: bool = False
    auto_delete: bool = False


@dataclasses.dataclass(frozen=True)
class Message:
    """What is published.

    :ivar body: UTF-8 JSON
    :ivar mandatory: it is an error if no queue takes it
    :ivar expires: it may leave its queue unread when the deadline has passed
    """

    body: bytes
    exchange: Exchange
    key: str
    mandatory: bool = False
    expires: bool = False


class Publisher(connection.Connection):
    """Publishes one message at a time and waits for the broker's word that it has it.

    The original's waiting has no bound but the socket's (a minute), and under a memory
    alarm, when the broker goes on beating, none at all. It also leaves off waiting when
    the broker returns a message, and takes the word on that one for the next one's.

    After any error but MessageUndeliverable it must be dropped: what the broker has
    of the message is not known.

    :ivar blocked: the broker takes no messages now (it lacks memory or disk)
    """

    def __init__(self, conf: Any, url: Any) -> None:
        super().__init__(conf, url)
        # py-amqp's own waiting for the confirmation can't be bounded.
        self.connection.transport_options["confirm_publish"] = False
        self.blocked = False
        self.used = time.monotonic()
        self._sent = 0
        self._confirmed = 0
        self._nacked = False
        self._returned: tuple[Any, ...] | None = None

    def open(self, deadline: float, *_unused: Any) -> None:
        """Connect, within the time; raises one of connection.FAULTS."""
        super().open(deadline)
        self.channel.confirm_select()
        self.channel.events["basic_ack"].add(self._on_ack)
        self.channel.events["basic_nack"].add(self._on_nack)

    def publish(self, message: Message, deadline: float) -> None:
        """Publish and return when the broker has it.

        :param deadline: monotonic time
        :raises MessageUndeliverable: of the library: no queue takes it
        :raises MessageDeliveryFailure: of the library: the broker refuses it
        :raises Exception: one of connection.FAULTS
        """
        amqp = self.connection.connection
        amqp.sock.settimeout(connection.left(deadline))
        self._declare(message.exchange)
        self._returned, self._nacked = None, False
        self._sent += 1
        self.channel.basic_publish(
            self._prepared(message, deadline),
            exchange=message.exchange.name,
            routing_key=message.key,
            mandatory=message.mandatory,
            timeout=connection.left(deadline),
        )
        while self._confirmed < self._sent:
            amqp.blocking_read(connection.left(deadline))
        self.used = time.monotonic()
        if self._nacked:
            raise exceptions.MessageDeliveryFailure("the broker refused the message")
        if self._returned is not None:
            raise exceptions.MessageUndeliverable(*self._returned)

    def beat(self) -> None:
        """Keep an unused connection alive and read what the broker says on it.

        :raises Exception: one of connection.FAULTS: it is lost
        """
        self.connection.connection.sock.settimeout(1.0)
        if self.heartbeat_timeout_threshold > 0:
            self.connection.heartbeat_check(rate=self.heartbeat_rate)
        try:
            while True:
                self.connection.connection.blocking_read(0.001)
        except TimeoutError:
            pass

    def _prepared(self, message: Message, deadline: float) -> Any:
        body, headers = message.body, {}
        if self.kombu_compression:
            body, headers["compression"] = compression.compress(  # type: ignore[no-untyped-call]
                body, self.kombu_compression
            )
        properties: dict[str, Any] = {"delivery_mode": _PERSISTENT}
        if message.expires:
            properties["expiration"] = str(
                max(1, int(connection.left(deadline) * 1000))
            )
        return self.channel.prepare_message(
            body,
            content_type="application/json",
            content_encoding="utf-8",
            headers=headers,
            properties=properties,
        )

    def _declare(self, exchange: Exchange) -> None:
        if not exchange.name or exchange.name in self._declared_exchanges:
            return
        self.channel.exchange_declare(
            exchange.name,
            exchange.type,
            durable=exchange.durable,
            auto_delete=exchange.auto_delete,
        )
        self._declared_exchanges.add(exchange.name)

    def on_return(self, *args: Any) -> None:  # noqa: D102  called by kombu
        self._returned = args

    def _on_ack(self, tag: int, _multiple: bool) -> None:
        self._confirmed = max(self._confirmed, tag)

    def _on_nack(self, tag: int, multiple: bool) -> None:
        self._nacked = True
        self._on_ack(tag, multiple)

    def _on_connection_blocked(self, _reason: str) -> None:
        self.blocked = True

    def _on_connection_unblocked(self) -> None:
        self.blocked = False
