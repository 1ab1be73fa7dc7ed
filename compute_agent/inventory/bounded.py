"""Reading a source that may hang, without hanging oneself."""

import threading
import time

from compute_agent.inventory import source as source_mod
from musterbook import errors

# How long close() waits for a thread that was told to end.
CLOSE_SECONDS = 5.0


class BoundedReader:
    """Reads a source under a time limit, one reading at a time.

    Each reading runs in a thread of its own. One that is late is given up, and
    until it comes back every further read() fails at once: a hung hypervisor costs
    one thread, not one an audit. What it says when it comes back is thrown away,
    for it is old, and the next read() works again.

    read() may be called by several threads; they take turns, and the wait for
    one's turn counts against the limit.

    :param source: what to read; owned, that is closed, by the reader
    :param timeout: seconds a read() may take; see set_timeout
    :param name: the source's name in errors and in the thread's name
    """

    def __init__(
        self, source: source_mod.InventorySource, timeout: float, name: str
    ) -> None:
        self._source = source
        self._timeout = timeout
        self._name = name
        # Guards everything below; notified when a reading ends or is given up.
        self._changed = threading.Condition()
        self._reading: _Reading | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def read(self) -> source_mod.Reading:
        """Return what the source says, checked.

        :raises InventoryUnavailable: when it says that it isn't ready, when it
            fails, says nonsense or doesn't answer in time, and after close()
        """
        timeout = self._timeout
        deadline = time.monotonic() + timeout
        with self._changed:
            reading = self._begin(deadline)
            self._changed.wait_for(
                lambda: reading.ended or self._closed, deadline - time.monotonic()
            )
            if not reading.ended:
                reading.given_up = True
                self._changed.notify_all()
                raise self._unavailable(
                    "was closed"
                    if self._closed
                    else f"did not answer within {timeout:g} s"
                )
        if isinstance(reading.answer, errors.InventoryUnavailable):
            raise reading.answer
        if isinstance(reading.answer, BaseException):
            raise self._translate(reading.answer) from reading.answer
        return reading.answer

    def set_timeout(self, timeout: float) -> None:
        """Change the seconds that every later read() may take; any thread."""
        self._timeout = timeout

    def close(self) -> None:
        """Close the source and wait for its thread, at most CLOSE_SECONDS.

        A read() that waits raises at once. A thread that is still stuck after that
        is left behind; it doesn't keep the process from ending. Closing twice does
        nothing. Any thread may call it.
        """
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        self._source.close()
        if thread is not None:
            thread.join(CLOSE_SECONDS)

    def _begin(self, deadline: float) -> "_Reading":
        """Start a reading when it is this caller's turn; the lock is held."""
        self._changed.wait_for(
            lambda: self._closed or self._reading is None or self._reading.given_up,
            deadline - time.monotonic(),
        )
        if self._closed:
            raise self._unavailable("was closed")
        if self._reading is not None:
            age = time.monotonic() - self._reading.began
            raise self._unavailable(f"has not answered for {age:.0f} s")
        if self._thread is not None:
            # It has given its answer and holds no lock: all it does is end.
            self._thread.join()
        reading = _Reading()
        thread = threading.Thread(
            target=self._run,
            args=(reading,),
            name=f"inventory-{self._name}",
            # One that hangs for ever must not keep the process alive; all others
            # are joined, by the next reading or by close().
            daemon=True,
        )
        thread.start()
        self._reading, self._thread = reading, thread
        return reading

    def _run(self, reading: "_Reading") -> None:
        answer: source_mod.Reading | BaseException
        try:
            answer = source_mod.check(self._source.read())
        except BaseException as exc:  # noqa: BLE001 - foreign code; the caller gets it
            answer = exc
        with self._changed:
            reading.answer = answer
            reading.ended = True
            self._reading = None
            self._changed.notify_all()

    def _translate(self, exc: BaseException) -> errors.InventoryUnavailable:
        if isinstance(exc, errors.MusterbookError):
            return self._unavailable(exc.message)
        return self._unavailable(f"failed: {source_mod.describe(exc)}")

    def _unavailable(self, reason: str) -> errors.InventoryUnavailable:
        return errors.InventoryUnavailable(source=self._name, reason=reason)


class _Reading:
    """One call of the source; guarded by its reader's condition."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.answer: source_mod.Reading | BaseException = source_mod.Reading()
        self.ended = False
        self.given_up = False
