"""Many servers of one topic behind one connection to RabbitMQ."""

import functools
import queue
import threading
from typing import Any

from musterbook.rpc import consumer

#: A connection with nothing to read looks this often (seconds) for names that came.
_LOOK_SECONDS = 0.1


class Names:
    """The servers' names, of a topic; any thread may add and remove some."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._changes: queue.SimpleQueue[tuple[str, bool, threading.Event]] = (
            queue.SimpleQueue()
        )

    def add(self, name: str) -> threading.Event:
        """Have a server of this name listened for; what is returned is set then."""
        return self._change(name, True)

    def remove(self, name: str) -> threading.Event:
        """Have its queue read no more; what is returned is set then."""
        return self._change(name, False)

    def take(self) -> tuple[str, bool, threading.Event] | None:
        """Return the next change: a name, whether it came, what to set; else None."""
        try:
            return self._changes.get_nowait()
        except queue.Empty:
            return None

    def _change(self, name: str, added: bool) -> threading.Event:
        done = threading.Event()
        self._changes.put((name, added, done))
        return done


class Consumer(consumer.Consumer):
    """Reads from the queues of names that come and go.

    :param exchange: of the topic
    :param names: of the servers
    :ivar listener: takes what comes; each message gets the ``server`` that it is for
    """

    listener: Any

    def __init__(
        self,
        conf: Any,
        url: Any,
        outage: Any,
        stopped: threading.Event | None,
        exchange: str,
        names: Names,
    ) -> None:
        super().__init__(conf, url, outage, stopped)
        self._exchange = exchange
        self._names = names

    def consume(self, timeout: float | None = None) -> None:
        """Read as the base does, with the names as they are now."""
        while (change := self._names.take()) is not None:
            name, added, done = change
            queue_name = f"{self._names.topic}.{name}"
            if added:
                take = functools.partial(self._take, name)
                self.declare_topic_consumer(self._exchange, queue_name, take)
            else:
                self._cancel(queue_name)
            done.set()
        seconds = _LOOK_SECONDS if timeout is None else min(timeout, _LOOK_SECONDS)
        super().consume(timeout=seconds)

    def _take(self, name: str, message: Any) -> None:
        waiting = len(self.listener.incoming)
        self.listener(message)
        for incoming in self.listener.incoming[waiting:]:
            incoming.server = name

    def _cancel(self, queue_name: str) -> None:
        for read in [c for c in self._consumers if c.queue_name == queue_name]:
            tag = self._consumers.pop(read)
            self._active_tags.pop(queue_name, None)
            if tag in self._new_tags:
                self._new_tags.discard(tag)
            elif self.channel is not None:
                self.ensure(functools.partial(self._cancel_once, read, tag))

    def _cancel_once(self, read: Any, tag: Any) -> None:
        # After a loss the queue isn't read any more.
        if read.queue.channel is self.channel:
            read.cancel(tag)
