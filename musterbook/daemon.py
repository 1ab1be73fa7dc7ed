"""The process: parts started in order, stopped in parallel under one deadline.

A part is an oslo.service service (start, stop, wait, reset). The main thread only
waits for signals; starting happens in a thread of its own, so that a part which
waits for somebody else at start can be told to stop.
"""

from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import logging as pylogging
import os
import select
import signal
import socket
import sys
import threading
import time
from types import FrameType

from oslo_config import cfg
from oslo_log import log as logging
from oslo_service import backend
from oslo_service import service
from oslo_service import systemd

from musterbook import errors

LOG = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: Exit codes: something could not be done; an option can't be used.
EXIT_FAILED = 1
EXIT_USAGE = 2


def register_options(conf: cfg.ConfigOpts) -> None:
    """Register what oslo.service knows of a process, graceful_shutdown_timeout etc."""
    for group, opts in service.list_opts():
        conf.register_opts(opts, group=group)


def list_opts() -> list[tuple[str | None, list[cfg.Opt]]]:
    """Return those of oslo.service's options that are heeded here, for the samples."""
    honoured = [
        opt
        for _, opts in service.list_opts()
        for opt in opts
        if opt.dest == "graceful_shutdown_timeout"
    ]
    return [(None, honoured)]


class Part:
    """One part of a process; what oslo.service calls a service.

    start() may block while it waits for others and must return soon after stop().
    stop() ends the part and returns when nothing of it runs any more; it may be
    called before, during or after start(), and twice.
    """

    name = "part"
    _process: "Process | None" = None

    def fail(self, reason: errors.MusterbookError) -> None:
        """End the whole process because of an error; any thread."""
        if self._process is not None:
            self._process.end(reason)

    def start(self) -> None:
        """Start; return when serving.

        :raises MusterbookError: what can't pass by waiting; the process ends
        """
        raise NotImplementedError

    def stop(self) -> None:
        """Stop."""
        raise NotImplementedError

    def reset(self) -> None:
        """Take up changed configuration; without an override nothing happens."""


class Process:
    """Runs stages of parts until a signal comes, a part fails, or one ends it.

    :param stages: started one after the other, in a stage part by part; stopped
        stage by stage backwards, the parts of a stage in parallel
    :param stop_timeout: seconds for the whole stop; what still runs then is left
        behind by a hard exit
    :param hangup_stops: SIGHUP stops the process instead of resetting its parts
    """

    def __init__(
        self,
        stages: Sequence[Sequence[Part]],
        stop_timeout: float,
        *,
        hangup_stops: bool = False,
    ) -> None:
        self._stages = stages
        for part in (part for stage in stages for part in stage):
            part._process = self
        self._stop_timeout = stop_timeout
        self._hangup_stops = hangup_stops
        self._failure: BaseException | None = None
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._stopping = threading.Event()

    def run(self) -> int:
        """Run to the end, in the main thread; return the exit code.

        0 after a signal, 1 when a part failed, 2 when one could not use an option.
        Does not return when a part outlives the stop: then the process ends here,
        with the same code.
        """
        _check_threading()
        self._wake_writer.setblocking(False)
        with _signals_to(self._wake_writer):
            starter = threading.Thread(target=self._start, name="starter")
            starter.start()
            self._wait()
            self._stopping.set()
            clean = self._stop(starter)
        code = self._report()
        if not clean:
            _hard_exit(code)
        return code

    def end(self, failure: BaseException | None = None) -> None:
        """Ask the process to stop; any thread.

        :param failure: why, if it failed; the first one counts
        """
        if failure is not None and self._failure is None:
            self._failure = failure
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"\0")

    # -- in the starter's thread ---------------------------------------------------

    def _start(self) -> None:
        try:
            for part in (part for stage in self._stages for part in stage):
                if self._stopping.is_set():
                    return
                LOG.debug("Starting %s", part.name)
                part.start()
        except BaseException as exc:  # noqa: BLE001  # whatever ended a start ends the process
            self.end(exc)
            return
        if not self._stopping.is_set():
            systemd.notify_once()

    # -- in the main thread --------------------------------------------------------

    def _wait(self) -> None:
        while not self._stopping.is_set():
            select.select([self._wake_reader], [], [])
            for number in self._wake_reader.recv(64):
                if number == signal.SIGHUP and not self._hangup_stops:
                    self._reset()
                elif number:
                    LOG.info("Stopping on %s", signal.Signals(number).name)
                    self._stopping.set()

    def _reset(self) -> None:
        for part in (part for stage in self._stages for part in stage):
            try:
                part.reset()
            except Exception:
                LOG.exception("%s could not take up the configuration", part.name)

    def _stop(self, starter: threading.Thread) -> bool:
        """Stop everything; return whether all of it ended in time."""
        deadline = time.monotonic() + self._stop_timeout
        clean = True
        for stage in reversed(self._stages):
            stoppers = [
                threading.Thread(
                    target=_stop_part, args=(part,), name=f"stop-{part.name}"
                )
                for part in stage
            ]
            for stopper in stoppers:
                stopper.daemon = True  # a part that never stops is left behind
                stopper.start()
            for stopper, part in zip(stoppers, stage, strict=True):
                stopper.join(max(deadline - time.monotonic(), 0.0))
                if stopper.is_alive():
                    LOG.warning(
                        "%s did not stop within %s s, leaving it behind",
                        part.name,
                        self._stop_timeout,
                    )
                    clean = False
        starter.join(max(deadline - time.monotonic(), 0.1))
        return clean and not starter.is_alive()

    def _report(self) -> int:
        if self._failure is None:
            return 0
        if isinstance(self._failure, errors.MusterbookError):
            complain(self._failure)
        else:
            LOG.error("Start failed unexpectedly", exc_info=self._failure)
            complain(f"unexpected {type(self._failure).__name__}, the log says more")
        return _exit_code(self._failure)


def command(main: Callable[[list[str]], int]) -> int:
    """Run a command's body on sys.argv; turn our errors into one line and 1 or 2.

    :return: the body's exit code, 2 for a configuration that can't be used, 1 for
        other errors of ours
    """
    try:
        return main(sys.argv[1:])
    except errors.MusterbookError as exc:
        complain(exc)
        return _exit_code(exc)


def _exit_code(failure: BaseException) -> int:
    refused = isinstance(failure, errors.ConfigurationError)
    return EXIT_USAGE if refused else EXIT_FAILED


def complain(what: errors.MusterbookError | str) -> None:
    """Write one line to stderr, under the command's name."""
    text = what.message if isinstance(what, errors.MusterbookError) else what
    name = os.path.basename(sys.argv[0]) or "musterbook"
    sys.stderr.write(f"{name}: {errors.one_line(text)}\n")
    sys.stderr.flush()


def _check_threading() -> None:
    """Refuse to run on green threads: something loaded oslo.messaging before us."""
    chosen = backend.get_backend_type()
    if chosen is not backend.BackendType.THREADING:
        raise RuntimeError(f"oslo.service runs on {chosen}, not on native threads")


def _stop_part(part: Part) -> None:
    try:
        part.stop()
    except Exception:
        LOG.exception("%s failed while stopping", part.name)


class _signals_to(contextlib.AbstractContextManager[None]):  # noqa: N801  # reads as a verb
    """While entered, signals are written to the socket by number, nothing else.

    A handler that touched a lock could find it held by the code it interrupted.
    """

    def __init__(self, writer: socket.socket) -> None:
        self._writer = writer
        self._fd = -1

    def __enter__(self) -> None:
        self._fd = signal.set_wakeup_fd(
            self._writer.fileno(), warn_on_full_buffer=False
        )
        for number in _SIGNALS:
            signal.signal(number, _ignore)

    def __exit__(self, *_: object) -> None:
        # Ignored from here on: the process is at its end, and a second signal must
        # not turn a clean exit into another one. SIG_IGN, since the interpreter puts
        # handlers of Python's back to the default while it shuts down.
        signal.set_wakeup_fd(self._fd)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    pass


def _hard_exit(code: int) -> None:
    pylogging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
