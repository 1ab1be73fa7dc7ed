"""The connections that a process publishes by, and what becomes of those that fail."""

from collections.abc import Callable
import logging
import re
import threading
import time

from oslo_messaging import exceptions
from oslo_messaging._drivers import impl_rabbit

from musterbook import errors
from musterbook.rpc import connection
from musterbook.rpc import outage as rpc_outage
from musterbook.rpc import publisher as rpc_publisher

LOG = logging.getLogger(__name__)

#: Seconds between two beats of unused connections; the broker's are 30 s apart.
_BEAT_SECONDS = 10.0
#: Seconds between two looks whether the broker takes messages again.
_LOOK_SECONDS = 0.5
#: A publish that took so many seconds, and failed, says that the broker is lost.
_SLOW_SECONDS = 1.0
#: Connections that are kept although nobody needs them.
_SPARE = 2
_TOO_LARGE = re.compile(r"message size (?P<size>\d+).* max size (?P<limit>\d+)")


class Pool:
    """Publishes by one of at most so many connections; any thread may use it.

    Nothing in it outlasts a caller's deadline: not the wait for a connection, not
    connecting, not publishing. A connection that failed is dropped and never used
    again. A thread of its own keeps the unused ones alive and, while the broker is
    lost, looks for it.

    :param make: makes a connection, not yet open
    :param size: connections at most
    :param ttl: seconds after which an unused one is closed
    :param outage: is told what becomes of the broker
    :param pauses: before each look for a lost broker
    """

    def __init__(
        self,
        make: Callable[[], rpc_publisher.Publisher],
        size: int,
        ttl: float,
        outage: rpc_outage.Outage,
        pauses: rpc_outage.Pauses,
    ) -> None:
        self._make = make
        self._room = size
        self._ttl = ttl
        self._outage = outage
        self._pauses = pauses
        self._changed = threading.Condition()
        self._idle: list[rpc_publisher.Publisher] = []
        # The first that the broker blocked: it will be told when that is over.
        self._blocked: rpc_publisher.Publisher | None = None
        self._closed = False
        self._attention = threading.Event()
        self._ended = threading.Event()
        self._keeper: threading.Thread | None = None

    def publish(
        self, message: rpc_publisher.Message, deadline: float, retries: int = 0
    ) -> None:
        """Return when the broker has the message.

        :param deadline: monotonic time
        :param retries: how often to try again when the broker can't be reached
        :raises MessageUndeliverable: of the library: no queue takes it
        :raises MessageDeliveryFailure: of the library: the broker is lost or takes
            nothing; it may have the message nevertheless
        :raises MessageTooLarge: the broker refuses it for its size
        """
        while True:
            used = self._take(deadline)
            fresh = used.channel is None
            began = time.monotonic()
            try:
                if fresh:
                    used.open(deadline)
                used.publish(message, deadline)
            except exceptions.MessageUndeliverable:
                self._give(used)
                raise
            except exceptions.MessageDeliveryFailure:
                self._drop(used)
                raise
            except Exception as exc:
                now = time.monotonic()
                # One that lay unused may be lost without the broker being so.
                self._failed(used, exc, tell=fresh or now - began > _SLOW_SECONDS)
                if not isinstance(exc, connection.FAULTS):
                    raise
                if _size(exc) or now >= deadline or (fresh and retries <= 0):
                    raise _failure(exc) from None
                if fresh:
                    retries -= 1
                    time.sleep(min(1.0, max(0.0, deadline - time.monotonic())))
            else:
                self._give(used)
                self._outage.back(self)
                return

    def close(self) -> None:
        """Close all connections; what is published afterwards fails at once."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            blocked, self._blocked = self._blocked, None
            self._changed.notify_all()
        self._ended.set()
        self._attention.set()
        if self._keeper is not None:
            self._keeper.join()
        # A second for the goodbyes of all: the broker may hang.
        end = time.monotonic() + 1
        for unused in idle:
            if self._outage.misses(self) or time.monotonic() > end:
                unused.drop()
            else:
                unused.close()
        if blocked is not None:
            blocked.drop()
        self._outage.forget(self)

    # -- who has which connection --------------------------------------------------

    def _take(self, deadline: float) -> rpc_publisher.Publisher:
        with self._changed:
            while True:
                if self._closed:
                    raise exceptions.MessageDeliveryFailure("the transport is closed")
                if self._blocked is not None:
                    raise exceptions.MessageDeliveryFailure("the broker takes nothing")
                if self._idle:
                    return self._idle.pop()
                if self._room:
                    self._room -= 1
                    break
                seconds = deadline - time.monotonic()
                if seconds <= 0 or not self._changed.wait(seconds):
                    raise exceptions.MessageDeliveryFailure("no connection was free")
            if self._keeper is None:
                self._keeper = threading.Thread(
                    target=self._keep, name="rpc-keeper", daemon=True
                )
                self._keeper.start()
        try:
            return self._make()
        except BaseException:
            self._free()
            raise

    def _give(self, used: rpc_publisher.Publisher) -> None:
        with self._changed:
            if not self._closed:
                self._idle.append(used)
                self._changed.notify()
                return
        used.close()

    def _free(self) -> None:
        with self._changed:
            self._room += 1
            self._changed.notify()

    def _drop(self, used: rpc_publisher.Publisher) -> None:
        used.drop()
        self._free()

    def _failed(
        self, used: rpc_publisher.Publisher, exc: Exception, *, tell: bool
    ) -> None:
        LOG.debug("Publishing at %s failed: %s", used.address, exc)
        if used.blocked:
            reason = "takes no messages: it lacks memory or disk"
            self._outage.lost(self, used.address, reason)
            self._attention.set()
            with self._changed:
                if self._blocked is None and not self._closed:
                    self._blocked = used
                    return
        elif tell and isinstance(exc, connection.FAULTS) and not _size(exc):
            self._outage.lost(self, used.address, connection.why(exc))
            with self._changed:
                idle, self._idle = self._idle, []
            for unused in idle:
                self._drop(unused)
            self._attention.set()
        self._drop(used)

    # -- the keeper ----------------------------------------------------------------

    def _keep(self) -> None:
        pause = _BEAT_SECONDS
        while True:
            self._attention.wait(pause)
            if self._ended.is_set():
                return
            self._attention.clear()
            pause = _BEAT_SECONDS
            if self._blocked is not None:
                self._watch(self._blocked)
                pause = _LOOK_SECONDS
            elif self._outage.misses(self):
                if self._ended.wait(self._pauses.next()):
                    return
                self._look()
                pause = 0.0 if self._outage.misses(self) else _BEAT_SECONDS
            else:
                self._pauses.reset()
                self._beat()

    def _beat(self) -> None:
        """Beat each unused connection once; drop the lost, close the spare ones."""
        for _ in range(len(self._idle)):
            with self._changed:
                if not self._idle or self._closed:
                    return
                unused = self._idle.pop(0)
                spare = len(self._idle) >= _SPARE
            if spare and time.monotonic() - unused.used > self._ttl:
                unused.close()
                self._free()
                continue
            try:
                unused.beat()
            except Exception as exc:  # noqa: BLE001  a lost one raises anything
                LOG.debug("An unused connection is lost: %s", exc)
                self._drop(unused)
            else:
                self._give(unused)

    def _watch(self, blocked: rpc_publisher.Publisher) -> None:
        """Look whether the broker takes messages again."""
        try:
            blocked.beat()
        except Exception:  # noqa: BLE001  a lost one raises anything
            LOG.debug("The blocked connection is lost")
        else:
            if blocked.blocked:
                return
        with self._changed:
            if self._blocked is not blocked:
                return
            self._blocked = None
        # What it was publishing when it was given up may be run now.
        self._drop(blocked)
        self._outage.back(self)

    def _look(self) -> None:
        """Look whether the broker can be reached again."""
        try:
            found = self._take(time.monotonic())
        except exceptions.MessageDeliveryFailure:
            return  # all are in use
        try:
            # One that is open has published since.
            if found.channel is None:
                found.open(time.monotonic() + 2 * connection.HOST_SECONDS)
        except Exception as exc:  # noqa: BLE001  a lost one raises anything
            LOG.debug("The broker at %s is still lost: %s", found.address, exc)
            self._drop(found)
        else:
            self._give(found)
            self._outage.back(self)


def _size(exc: Exception) -> re.Match[str] | None:
    if isinstance(exc, impl_rabbit.amqp_ex.PreconditionFailed):
        return _TOO_LARGE.search(str(exc))
    return None


def _failure(exc: Exception) -> Exception:
    size = _size(exc)
    if size is not None:
        return errors.MessageTooLarge(
            what="a message", size=int(size["size"]), limit=int(size["limit"])
        )
    # Only the class: the text may quote what was sent.
    reason = f"the broker is lost ({type(exc).__name__})"
    failure: Exception = exceptions.MessageDeliveryFailure(reason)
    return failure
