"""Queues of the in-process transport, and who takes from them.

One lock guards an exchange: what happens under it is a few deque operations, so
that more locks would cost more than they save. Any thread may call anything.
"""

import collections
from collections.abc import Iterable
import dataclasses
import itertools
import threading
import time
from typing import Any

# Notifications kept for a listener that is still to come; the oldest go first.
MAX_NOTIFICATIONS = 10_000


@dataclasses.dataclass(frozen=True, slots=True)
class Envelope:
    """One message on its way.

    :ivar body: its JSON text
    :ivar call: where the answer goes; None when none is wanted
    :ivar deadline: monotonic time at which its caller gives up
    """

    body: str
    call: Any = None
    deadline: float | None = None

    @property
    def expired(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self.deadline is not None and time.monotonic() >= self.deadline


class _Queue:
    """Messages in order, and the subscriptions that take turns at them.

    :ivar lasting: it stays, with its messages, when the last subscription leaves
    """

    def __init__(self, *, lasting: bool, limit: int | None = None) -> None:
        self.lasting = lasting
        self.items: collections.deque[tuple[int, Envelope]] = collections.deque(
            maxlen=limit
        )
        self.takers: collections.deque[Subscription] = collections.deque()

    def wake_one(self) -> None:
        """Wake the taker whose turn it is among those that wait."""
        for taker in self.takers:
            if taker.wake():
                self.takers.remove(taker)
                self.takers.append(taker)
                return

    def head(self) -> int | None:
        """Return the number of the oldest message that somebody still wants."""
        while self.items and self.items[0][1].expired:
            self.items.popleft()
        return self.items[0][0] if self.items else None


class Exchange:
    """The queues behind one transport URL.

    Messages are published to a *key* (exchange name, routing key); queues are bound
    to keys. Fanouts go by topic alone, as over RabbitMQ.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._numbers = itertools.count()
        self._queues: dict[tuple[str, str], _Queue] = {}
        self._bindings: dict[tuple[str, str], list[_Queue]] = {}
        self._fanouts: dict[str, list[_Queue]] = {}

    def publish(self, exchange: str, key: str, envelope: Envelope) -> bool:
        """Put a message into each queue bound to the key; return whether one was."""
        with self.lock:
            return self._put(self._bindings.get((exchange, key), ()), envelope)

    def publish_fanout(self, topic: str, envelope: Envelope) -> None:
        """Put a message into the fanout queue of every server of the topic."""
        with self.lock:
            self._put(self._fanouts.get(topic, ()), envelope)

    def store(self, exchange: str, key: str, envelope: Envelope) -> None:
        """Publish, and keep the message if no queue is bound to the key yet."""
        with self.lock:
            if not self._bindings.get((exchange, key)):
                self._bind(exchange, key, key, lasting=True, limit=MAX_NOTIFICATIONS)
            self._put(self._bindings[exchange, key], envelope)

    def subscribe_server(
        self, exchange: str, topic: str, server: str
    ) -> "Subscription":
        """Take what is sent to the topic, to this server of it, and to all of them."""
        with self.lock:
            own = f"{topic}.{server}"
            fanout = _Queue(lasting=False)
            self._fanouts.setdefault(topic, []).append(fanout)
            return self._subscribe(
                [
                    self._bind(exchange, topic, topic, lasting=True),
                    self._bind(exchange, own, own, lasting=False),
                    fanout,
                ]
            )

    def subscribe_notifications(
        self, keys: Iterable[tuple[str, str]], pool: str | None
    ) -> "Subscription":
        """Take what is stored under the keys; each pool gets its own copy."""
        with self.lock:
            queues = [
                self._bind(
                    exchange, key, pool or key, lasting=True, limit=MAX_NOTIFICATIONS
                )
                for exchange, key in keys
            ]
            return self._subscribe(list(dict.fromkeys(queues)))

    def put_back(self, queue: _Queue, envelope: Envelope) -> None:
        """Return a message to the front of the queue it was taken from."""
        with self.lock:
            queue.items.appendleft((next(self._numbers), envelope))
            queue.wake_one()

    def drop(self, queue: _Queue) -> None:
        """Take a queue out of every binding; the lock is held."""
        for table in (self._bindings, self._fanouts):
            _remove_everywhere(table, queue)
        for name in [n for n, found in self._queues.items() if found is queue]:
            del self._queues[name]

    def _bind(
        self,
        exchange: str,
        key: str,
        name: str,
        *,
        lasting: bool,
        limit: int | None = None,
    ) -> _Queue:
        queue = self._queues.get((exchange, name))
        if queue is None:
            queue = _Queue(lasting=lasting, limit=limit)
            self._queues[exchange, name] = queue
        bound = self._bindings.setdefault((exchange, key), [])
        if queue not in bound:
            bound.append(queue)
        return queue

    def _subscribe(self, queues: list[_Queue]) -> "Subscription":
        subscription = Subscription(self, queues)
        for queue in queues:
            queue.takers.append(subscription)
        return subscription

    def _put(self, queues: Iterable[_Queue], envelope: Envelope) -> bool:
        found = False
        for queue in queues:
            queue.items.append((next(self._numbers), envelope))
            queue.wake_one()
            found = True
        return found


class Subscription:
    """One listener's part in its queues."""

    def __init__(self, exchange: Exchange, queues: list[_Queue]) -> None:
        self._exchange = exchange
        self._queues = queues
        self._ready = threading.Condition(exchange.lock)
        self._waiting = False
        self._stopped = False

    def take(self, timeout: float | None = None) -> tuple[_Queue, Envelope] | None:
        """Return the oldest message, waiting for one; None: timed out or stopped.

        Once stopped it still returns what is left in the queues that were this
        listener's alone, then None at once.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._exchange.lock:
            while (taken := self._pop()) is None and not self._stopped:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._waiting = True
                self._ready.wait(left)
                self._waiting = False
            return taken

    def wake(self) -> bool:
        """Wake the waiting taker; return False if it has no need. Lock held."""
        if not self._waiting:
            return False
        self._waiting = False
        self._ready.notify()
        return True

    def stop(self) -> None:
        """Leave the queues: shared ones to the other listeners. Any number of times.

        The lock makes this the moment after which no shared message is taken.
        """
        with self._exchange.lock:
            if self._stopped:
                return
            self._stopped = True
            self._queues = [queue for queue in self._queues if self._leave(queue)]
            self._ready.notify_all()

    def _leave(self, queue: _Queue) -> bool:
        """Return whether the queue is now this listener's to empty."""
        queue.takers.remove(self)
        if not queue.takers and not queue.lasting:
            self._exchange.drop(queue)
            return True
        # This listener may have been woken for a message that it won't take now.
        if queue.head() is not None:
            queue.wake_one()
        return False

    def _pop(self) -> tuple[_Queue, Envelope] | None:
        oldest: tuple[int, _Queue] | None = None
        for queue in self._queues:
            number = queue.head()
            if number is not None and (oldest is None or number < oldest[0]):
                oldest = (number, queue)
        if oldest is None:
            return None
        return oldest[1], oldest[1].items.popleft()[1]


def _remove_everywhere(table: dict[Any, list[_Queue]], queue: _Queue) -> None:
    for key in [key for key, queues in table.items() if queue in queues]:
        table[key].remove(queue)
        if not table[key]:
            del table[key]
