"""oslo.messaging's RabbitMQ driver with the faults of 18.3 that we met mended.

Which ones, with what was measured: docs/adr/0009-rpc-server-and-driver.md. The
connections are in rpc.consumer and rpc.pool; the form of the messages is the
original's, and so is what an original peer gets to see.
"""

import contextlib
import logging
import threading
import time
from typing import Any
import uuid

import oslo_messaging
from oslo_messaging._drivers import amqp as rpc_amqp
from oslo_messaging._drivers import amqpdriver
from oslo_messaging._drivers import base as driver_base
from oslo_messaging._drivers import common
from oslo_messaging._drivers import impl_rabbit
from oslo_serialization import jsonutils

from musterbook import errors
from musterbook.rpc import connection
from musterbook.rpc import consumer
from musterbook.rpc import many
from musterbook.rpc import outage as rpc_outage
from musterbook.rpc import pool as rpc_pool
from musterbook.rpc import publisher

LOG = logging.getLogger(__name__)

#: Seconds for a message that nobody waits for, or for an answer, to leave.
_CAST_SECONDS = 5.0
# An idle listener looks this often (seconds) whether it shall stop; the original one
# up to every 5 s, which is how long stop() then took.
_MAX_POLL = 0.5
#: Seconds for an answer that is on its way when its queue is back.
_LATE_SECONDS = 2.0
#: Seconds that a cleanup waits for the thread that reads answers.
_JOIN_SECONDS = 1.0
#: Of a queue's name, by AMQP.
_NAME_BYTES = 255
#: Reply queues that are gone and have been told of.
_GONE_MOST = 200


class RabbitDriver(impl_rabbit.RabbitDriver):  # type: ignore[misc]  # untyped base
    """The driver for ``rabbit://`` URLs."""

    def __init__(self, conf: Any, url: Any, **kwargs: Any) -> None:
        super().__init__(conf, url, **kwargs)
        options = self.conf.oslo_messaging_rabbit
        self._outage = rpc_outage.Outage()
        self._publishing = rpc_pool.Pool(
            lambda: publisher.Publisher(self.conf, self._url),
            options.rpc_conn_pool_size,
            options.conn_pool_ttl,
            self._outage,
            rpc_outage.Pauses(
                options.rabbit_retry_interval,
                options.rabbit_retry_backoff,
                options.rabbit_interval_max,
                options.kombu_reconnect_splay,
            ),
        )
        self._durable = options.amqp_durable_queues or options.rabbit_quorum_queue
        self._transient_durable = options.rabbit_transient_quorum_queue
        self._auto_delete = options.amqp_auto_delete
        self._limit = self.conf.rpc_message_limit
        self._replies: _Replies | None = None

    def send(
        self,
        target: Any,
        ctxt: Any,
        message: dict[str, Any],
        wait_for_reply: bool | None = None,
        timeout: float | None = None,
        call_monitor_timeout: float | None = None,
        retry: int | None = None,
        transport_options: Any = None,
    ) -> Any:
        """Send, and for a call wait for the answer; none of it outlasts the timeout.

        :raises MessagingTimeout: it was sent and no answer came
        :raises MessageDeliveryFailure: the broker is lost or takes nothing, or was lost
            while the answer was waited for, which may be lost with it
        :raises MessageUndeliverable: no such server
        :raises MessageTooLarge: the message is over the limit, ours or the broker's
        :raises Exception: what the other side raised
        """
        seconds = _CAST_SECONDS if timeout is None else timeout
        deadline = time.monotonic() + seconds
        message = dict(message)
        replies, losses, msg_id = None, 0, uuid.uuid4().hex
        if wait_for_reply:
            # First: an answer without a queue is lost.
            replies, losses = self._ready_replies(deadline)
            message["_msg_id"] = msg_id
            message["_reply_q"] = replies.queue
            message["_timeout"] = call_monitor_timeout
        rpc_amqp._add_unique_id(message)
        rpc_amqp.pack_context(message, ctxt)
        outgoing = publisher.Message(
            self._encoded(message, str(message.get("method"))),
            *self._address(target),
            mandatory=bool(getattr(transport_options, "at_least_once", False)),
            expires=timeout is not None,
        )
        if replies is None:
            self._publish(outgoing, deadline, retry)
            return None
        replies.await_answer(msg_id, losses)
        try:
            self._publish(outgoing, deadline, retry)
            return replies.result(msg_id, deadline, call_monitor_timeout)
        finally:
            replies.unlisten(msg_id)

    def answer(self, queue: str, answer: dict[str, Any], method: str) -> None:
        """Send an answer to a caller's queue.

        :raises MessageUndeliverable: the queue is gone
        :raises MessageDeliveryFailure: the broker is lost or takes nothing
        :raises MessageTooLarge: the answer is over the limit, ours or the broker's
        :raises ValueError, TypeError: it can't be put into JSON
        """
        rpc_amqp._add_unique_id(answer)
        outgoing = publisher.Message(
            self._encoded(answer, f"the answer to {method}"),
            publisher.Exchange(""),
            queue,
            mandatory=True,
        )
        deadline = time.monotonic() + _CAST_SECONDS
        self._publish(outgoing, deadline, None, f"the answer to {method}")

    def listen(self, target: Any, batch_size: int, batch_timeout: float | None) -> Any:
        """Return the listener of a server, mended as _Listener says.

        Waits for the broker, until the target's ``stopping`` is set, if it has one.
        With ``names`` (many.Names) it listens as many servers in place of one.

        :raises ConfigurationError: the broker refuses
        """
        stopping = getattr(target, "stopping", None)
        names = getattr(target, "names", None)
        exchange = self._get_exchange(target)
        topics = [target.topic]
        conn: consumer.Consumer
        if names is None:
            conn = consumer.Consumer(self.conf, self._url, self._outage, stopping)
            listener = _Listener(self, conn)
            topics.append(f"{target.topic}.{target.server}")
        else:
            conn = many.Consumer(
                self.conf, self._url, self._outage, stopping, exchange, names
            )
            conn.listener = listener = _Listener(self, conn)
        conn.starting = True
        try:
            for topic in topics:
                conn.declare_topic_consumer(exchange, topic, listener)
            conn.declare_fanout_consumer(target.topic, listener)
        except BaseException:
            conn.close()
            raise
        conn.starting = False
        return driver_base.PollStyleListenerAdapter(listener, batch_size, batch_timeout)

    def cleanup(self) -> None:
        """Give back connections and threads; calls that wait go on to wait."""
        with self._reply_q_lock:
            replies, self._replies = self._replies, None
        if replies is not None:
            replies.stop()
        self._publishing.close()
        super().cleanup()

    def _get_connection(self, purpose: Any = None, retry: int | None = None) -> Any:
        # Only the replies get one: what is sent goes by the pool.
        return consumer.Consumer(self.conf, self._url, self._outage)

    def _ready_replies(self, deadline: float) -> "tuple[_Replies, int]":
        """Return the queue for answers once it is there, and how often it was lost."""
        with self._reply_q_lock:
            if self._replies is None:
                self._replies = _Replies(
                    self._get_reply_queue_name(),
                    self._get_connection(),
                    self._allowed_remote_exmods,
                )
            replies = self._replies
        losses = replies.conn.wait_ready(deadline)
        if losses is None:
            raise oslo_messaging.MessageDeliveryFailure("the broker is lost")
        return replies, losses

    def _address(self, target: Any) -> tuple[publisher.Exchange, str]:
        """Return the exchange and the key of a target."""
        if target.fanout:
            name = f"{target.topic}_fanout"
            return publisher.Exchange(name, "fanout", self._transient_durable, True), ""
        name = self._get_exchange(target)
        exchange = publisher.Exchange(name, "topic", self._durable, self._auto_delete)
        if target.server:
            return exchange, f"{target.topic}.{target.server}"
        return exchange, target.topic

    def _encoded(self, message: dict[str, Any], what: str) -> bytes:
        body = jsonutils.dump_as_bytes(common.serialize_msg(message))
        if len(body) > self._limit:
            raise errors.MessageTooLarge(what=what, size=len(body), limit=self._limit)
        return bytes(body)

    def _publish(
        self,
        message: publisher.Message,
        deadline: float,
        retry: int | None,
        what: str = "the message",
    ) -> None:
        try:
            self._publishing.publish(message, deadline, retry or 0)
        except errors.MessageTooLarge as exc:
            raise errors.MessageTooLarge(None, **exc.kwargs | {"what": what}) from None


class Probe(connection.Connection):
    """Connects as the driver does, but once.

    One thread uses it.

    :raises RuntimeError: an option of the driver can't be used
    """

    def make_queue(self) -> None:
        """Make a queue named as one of answers, which ends with the connection.

        :raises Exception: one of FAULTS; the user may lack the right
        """
        self.connection.connection.sock.settimeout(connection.HOST_SECONDS)
        name = f"reply_probe_{uuid.uuid4().hex}"
        self.connection.channel().queue_declare(name, exclusive=True)

    def close(self) -> None:
        """Disconnect; waits a moment at most for the broker to agree."""
        if self.connection.connected:
            self.connection.connection.sock.settimeout(connection.HOST_SECONDS)
        self.connection.release()


class _Replies(amqpdriver.ReplyWaiter):  # type: ignore[misc]  # untyped base
    """The queue of a process's answers, and the thread that reads from it.

    The original connects in its first caller's thread, for as long as that takes, and
    its callers know nothing of a lost connection: an answer that was lost with it, or
    that found no queue before that was made again, is waited for to the deadline.
    """

    def __init__(self, queue: str, conn: consumer.Consumer, exmods: Any) -> None:
        self.queue = queue
        self.conn = conn
        self.allowed_remote_exmods = exmods
        self.msg_id_cache = rpc_amqp._MsgIdCache()
        self.waiters = amqpdriver.ReplyWaiters()
        # More callers than ten are no leak.
        self.waiters._wrn_threshold = 10**6
        # How often the queue had been lost when each call was sent.
        self._sent: dict[str, int] = {}
        # Of the calls that were sent at fewer losses nobody waits any more.
        self._given_up = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="rpc-replies", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread and the connection; waits a moment, not for the broker."""
        self._ending.set()
        self.conn.stop_consuming()
        # It may be connecting to a broker that hangs; it ends after that.
        self._thread.join(_JOIN_SECONDS)
        if not self._thread.is_alive():
            self.conn.close()

    def await_answer(self, msg_id: str, losses: int) -> None:
        """Begin to keep what comes for a call, until unlisten().

        :param losses: how often the queue had been lost when it was last seen to be
            there
        """
        self.listen(msg_id)
        self._sent[msg_id] = losses
        if losses < self._given_up:  # in the meantime
            self.waiters.put(msg_id, _LOST)

    def unlisten(self, msg_id: str) -> None:
        """End what await_answer() began."""
        self._sent.pop(msg_id, None)
        super().unlisten(msg_id)

    def result(
        self, msg_id: str, deadline: float, monitor_timeout: float | None
    ) -> Any:
        """Return the answer to a call, or raise it if it is an exception.

        :raises MessagingTimeout: none came
        :raises MessageDeliveryFailure: the queue was lost meanwhile, and none came
        """
        seconds = max(0.001, deadline - time.monotonic())
        try:
            result = self.wait(msg_id, seconds, monitor_timeout, self.queue)
        except oslo_messaging.MessagingTimeout:
            self.conn.doubt()
            if self.conn.losses > self._sent[msg_id]:
                raise _may_be_lost() from None
            raise
        if isinstance(result, Exception):
            raise result
        return result

    def _run(self) -> None:
        self.conn.declare_direct_consumer(self.queue, self)
        while not self._ending.is_set():
            with contextlib.suppress(common.Timeout):
                self.conn.consume(timeout=_MAX_POLL)
            self._give_up_lost()

    def _give_up_lost(self) -> None:
        """Let the calls fail whose answers would have come by now."""
        found = self.conn.back_since()
        if found is None:
            return
        losses, since = found
        if losses == self._given_up or time.monotonic() < since + _LATE_SECONDS:
            return
        self._given_up = losses
        for msg_id, then in self._sent.copy().items():
            if then < losses:
                self.waiters.put(msg_id, _LOST)

    def _process_reply(self, data: dict[str, Any]) -> Any:
        if data is _LOST:
            raise _may_be_lost()
        return super()._process_reply(data)


#: In place of an answer.
_LOST: dict[str, Any] = {}


def _may_be_lost() -> Exception:
    lost: Exception = oslo_messaging.MessageDeliveryFailure(
        "the broker was lost, and the answer may be lost with it"
    )
    return lost


class _Incoming(amqpdriver.AMQPIncomingMessage):  # type: ignore[misc]  # untyped base
    """A message whose answer holds up nobody.

    The original tries for a minute to reach the queue of a caller that is gone, in one
    of the server's threads, and then drops for a minute whatever is for that queue,
    though it may be back.
    """

    def reply(self, reply: Any = None, failure: Any = None) -> None:
        """Answer the caller if there is still one.

        :raises MessageTooLarge: the answer is
        :raises ValueError, TypeError: it can't be put into JSON
        """
        if not self.orig_msg_id:
            return  # a cast
        method = str(self.message.get("method"))
        try:
            self._answer(reply, failure, ending=True)
        except oslo_messaging.MessageUndeliverable:
            self.listener.gone(self.reply_q, method)
        except oslo_messaging.MessageDeliveryFailure as exc:
            # The outage is told of elsewhere; the caller has given up or will.
            LOG.debug("The answer to %a was dropped: %s", method, exc)

    def heartbeat(self) -> None:
        """Tell the caller that the work goes on."""
        try:
            self._answer(None, None, ending=False)
        except oslo_messaging.MessageUndeliverable:
            raise oslo_messaging.MessageDeliveryFailure("nobody waits") from None

    def _answer(self, reply: Any, failure: Any, *, ending: bool) -> None:
        if failure:
            failure = common.serialize_remote_exception(failure)
        answer = {
            "result": reply,
            "failure": failure,
            "ending": ending,
            "_msg_id": self.msg_id,
        }
        method = str(self.message.get("method"))
        self.listener.driver.answer(self.reply_q, answer, method)


class _Listener(amqpdriver.RpcAMQPListener):  # type: ignore[misc]  # untyped base
    """Takes nothing once it has stopped, and stops soon.

    The original acknowledges what arrives between the end of its polling and the end
    of its connection, and nobody ever handles it: each graceful stop lost calls.
    Unacknowledged, the broker gives them to another server.
    """

    message_cls = _Incoming

    @property
    def _current_timeout(self) -> float:
        return float(self.__dict__.get("_current_timeout", _MAX_POLL))

    @_current_timeout.setter
    def _current_timeout(self, seconds: float) -> None:
        self.__dict__["_current_timeout"] = min(seconds, _MAX_POLL)

    def __call__(self, message: Any) -> None:
        """Take a message.

        :raises AttributeError, ValueError: it is none that could be answered
        """
        if self._shutoff.is_set():
            return
        for name in ("_msg_id", "_reply_q"):
            value = message.get(name)
            if value is not None and not 0 < len(value.encode()) <= _NAME_BYTES:
                raise ValueError(f"{name} can't be the name of a queue")
        unique_id = message.get(rpc_amqp.UNIQUE_ID)
        if unique_id and unique_id in self.msg_id_cache.prev_msgids:
            # As the original, which shows a traceback of it.
            LOG.info("Request %a came twice; it is run once", message.get("method"))
            with contextlib.suppress(Exception):  # lost again: it comes a third time
                message.acknowledge()
            return
        if not isinstance(message.get("_timeout") or 0, int | float):
            raise ValueError("_timeout is no number")
        super().__call__(message)

    def gone(self, queue: str, method: str) -> None:
        """Note that a caller's queue is gone; any thread."""
        told = self.__dict__.setdefault("_told_gone", {})
        if queue in told:
            return
        if len(told) >= _GONE_MOST:
            told.clear()
        told[queue] = True
        LOG.warning(
            "The caller of %a is gone (its queue %a is not there): the answer is "
            "dropped, as are others for that queue",
            method,
            queue,
        )
