"""A connection to libvirt that comes back, and whose calls come to an end.

The bindings are imported here, when a source is made, and nowhere else: they are an
extra. What is process-wide in libvirt (its event loop, its error handler) is set up
once; the thread that runs the loop belongs to whoever holds a Link, and ends with the
last of them.
"""

from collections.abc import Callable
import importlib
import threading
from typing import Any
from typing import TypeVar

from musterbook import errors

#: A connection whose other side says nothing for (count + 1) times as long is dead.
#: Within the default [inventory]timeout, so that a reading that is stuck ends itself.
KEEPALIVE_SECONDS = 2
KEEPALIVE_COUNT = 2
_TICK_MILLISECONDS = 1000
#: How long close() waits for the loop, which is woken up.
_LOOP_SECONDS = 5.0

_T = TypeVar("_T")


def bindings(option: str) -> Any:
    """Return the module of libvirt's bindings.

    :raises ConfigurationError: it isn't installed
    """
    try:
        return importlib.import_module("libvirt")
    except ImportError as exc:
        raise errors.ConfigurationError(
            option=option,
            reason="source 'libvirt' needs libvirt's Python bindings, the extra "
            f"musterbook[libvirt]: {errors.one_line(str(exc))}",
        ) from None


class Link:
    """One connection, opened when it is needed; one thread calls run() at a time.

    :param library: what bindings() returned, or its like
    :param uri: whom to ask; opened for reading only
    """

    def __init__(self, library: Any, uri: str) -> None:
        self._library = library
        self._uri = uri
        # Held while the connection is used; close() must not wait for it.
        self._using = threading.Lock()
        self._connection: Any = None
        self._closed = False
        self._loop: _Loop | None = None

    def run(self, work: Callable[[Any], _T]) -> _T:
        """Return what the work returns, given a connection.

        If a connection of before fails (libvirtd was restarted) it is replaced, and the
        work done again, once.

        :raises InventoryUnavailable: libvirt can't be reached, or fails
        """
        try:
            with self._using:
                return self._run(work)
        finally:
            # Released by now, so that either this or close() itself ends it.
            if self._closed:
                self.close()

    def _run(self, work: Callable[[Any], _T]) -> _T:
        try:
            if self._usable():
                try:
                    return work(self._connection)
                except self._library.libvirtError:
                    self._drop()
            self._open()
            return work(self._connection)
        except self._library.libvirtError as exc:
            self._drop()
            raise unavailable(errors.one_line(str(exc))) from None

    def close(self) -> None:
        """Let go of the connection, at once or when the work in hand has ended.

        Work that waits for a libvirtd that hangs ends by the keepalive; to close its
        connection from here would wait for the same.
        """
        self._closed = True
        if self._using.acquire(blocking=False):
            try:
                self._end()
            finally:
                self._using.release()

    def _usable(self) -> bool:
        if self._connection is None:
            return False
        if self._connection.isAlive() == 1:
            return True
        self._drop()
        return False

    def _open(self) -> None:
        if self._closed:
            raise unavailable("was closed")
        if self._loop is None:
            self._loop = _Loop.join(self._library)
        self._connection = self._library.openReadOnly(self._uri)
        try:
            self._connection.setKeepAlive(KEEPALIVE_SECONDS, KEEPALIVE_COUNT)
        except self._library.libvirtError as exc:
            # Drivers that run in this process have nobody to keep alive.
            if exc.get_error_code() != self._library.VIR_ERR_NO_SUPPORT:
                raise

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except self._library.libvirtError:
                return  # it is gone already

    def _end(self) -> None:
        self._drop()
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.leave()


class _Loop:
    """libvirt's event loop, which keepalives need: one a process, while it is used."""

    _guard = threading.Lock()
    _current: "_Loop | None" = None
    _registered = False
    _tick = -1  # the number of the timer that wakes it up

    def __init__(self, library: Any) -> None:
        self._library = library
        self._users = 0
        self._stopping = False
        self._thread = threading.Thread(
            target=self._run,
            name="libvirt-events",
            # It ends within a second of leave(); an exit that skips it isn't held up.
            daemon=True,
        )

    @classmethod
    def join(cls, library: Any) -> "_Loop":
        """Return the process's loop, running; each join needs its leave."""
        with cls._guard:
            if not _Loop._registered:
                # Before the first connection, and once: there is no way back.
                library.virEventRegisterDefaultImpl()
                library.registerErrorHandler(_say_nothing, None)
                tick = library.virEventAddTimeout(_TICK_MILLISECONDS, _tick, None)
                _Loop._tick = tick
                _Loop._registered = True
            loop = _Loop._current
            if loop is None:
                library.virEventUpdateTimeout(_Loop._tick, _TICK_MILLISECONDS)
                loop = _Loop._current = cls(library)
                loop._thread.start()
            loop._users += 1
            return loop

    def leave(self) -> None:
        """Stop the loop if this was its last user, and wait for its thread."""
        with _Loop._guard:
            self._users -= 1
            if self._users:
                return
            self._stopping = True
            _Loop._current = None
            self._library.virEventUpdateTimeout(_Loop._tick, 0)  # wakes it up
            # Within the guard: two loops must never run at once.
            self._thread.join(_LOOP_SECONDS)

    def _run(self) -> None:
        while not self._stopping:
            self._library.virEventRunDefaultImpl()


def _tick(*_: object) -> None:
    """Wake the loop up, so that it sees that it has to end."""


def _say_nothing(*_: object) -> None:
    """Keep libvirt from writing to stderr what it raises as well."""


def unavailable(reason: str) -> errors.InventoryUnavailable:
    """Return the error of a source that can't tell."""
    return errors.InventoryUnavailable(source="libvirt", reason=reason)
