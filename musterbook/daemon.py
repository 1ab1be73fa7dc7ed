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
#: Seconds in which parts that outlive a stop may tell others so, before a hard exit.
ABANDON_SECONDS = 1.0
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


class Part(service.ServiceBase):  # type: ignore[misc]  # untyped base
    """One part of a process; what oslo.service calls a service.

    start() may block while it waits for others and must return soon after stop().
    stop() ends the part and returns when nothing of it runs any more; it may be
    called before, during or after start(), and twice. Each is called in a thread of
    its own; reset() in the one that waits for signals, hence it must return at once.
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

    def wait(self) -> None:
        """Return when nothing of it runs any more: at once, stop() has waited."""

    def reset(self) -> None:
        """Take up changed configuration; without an override nothing happens."""

    def abandon(self) -> None:
        """Tell whoever waits for this part that it is left behind unfinished.

        Called when stop() has taken too long; what isn't done within ABANDON_SECONDS
        is not done at all.
        """


class Process:
    """Runs stages of parts until a signal comes, a part fails, or one ends it.

    :param stages: started one after the other, in a stage part by part; stopped
        stage by stage backwards, the parts of a stage in parallel
    :param stop_timeout: seconds for the whole stop; what still runs then is left
        behind by a hard exit
    :param hangup_stops: SIGHUP stops the process instead of resetting its parts
    :param reload: takes up changed configuration on SIGHUP; returns whether it did,
        and the parts are to be reset
    :param close: gives back what the parts used, when all have stopped in time; within
        stop_timeout, too
    """

    def __init__(
        self,
        stages: Sequence[Sequence[Part]],
        stop_timeout: float,
        *,
        hangup_stops: bool = False,
        reload: Callable[[], bool] = lambda: True,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._stages = stages
        for part in (part for stage in stages for part in stage):
            part._process = self
        self._stop_timeout = stop_timeout
        self._hangup_stops = hangup_stops
        self._reload = reload
        self._close = close
        self._failure: BaseException | None = None
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_writer.setblocking(False)
        self._stopping = threading.Event()

    def run(self) -> int:
        """Run to the end, in the main thread; return the exit code.

        0 after a signal, 1 when a part failed, 2 when one could not use an option.
        Does not return when a part outlives the stop: then the process ends here,
        with the same code.
        """
        with _signals_to(self._wake_writer):
            return self.serve()

    def serve(self) -> int:
        """Do as run(), in any thread; signals are what tell() says."""
        _check_threading()
        starter = threading.Thread(target=self._start, name="starter")
        starter.start()
        self._wait()
        self._stopping.set()
        clean = self._stop(starter)
        code = self._report()
        if not clean:
            hard_exit(code)
        return code

    def tell(self, number: int) -> None:
        """Do as if this signal had come; any thread, also before serve()."""
        with contextlib.suppress(OSError):  # full of signals, or closed at the end
            self._wake_writer.send(bytes([number]))

    def end(self, failure: BaseException | None = None) -> None:
        """Ask the process to stop; any thread.

        :param failure: why, if it failed; the first one counts
        """
        if failure is not None and self._failure is None:
            self._failure = failure
        self._stopping.set()
        self.tell(0)

    # -- what a process among others does differently ------------------------------

    def _ready(self) -> None:
        """Tell the service manager; all parts serve."""
        systemd.notify_once()

    def _complain(self, what: errors.MusterbookError | str) -> None:
        complain(what)

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
            self._ready()

    # -- in the thread of run() or serve() -----------------------------------------

    def _wait(self) -> None:
        while not self._stopping.is_set():
            select.select([self._wake_reader], [], [])
            # Reloads that were asked for before this one begins are done by it.
            for number in dict.fromkeys(self._wake_reader.recv(64)):
                if number == signal.SIGHUP and not self._hangup_stops:
                    self._reset()
                elif number:
                    LOG.info("Stopping on %s", signal.Signals(number).name)
                    self._stopping.set()

    def _reset(self) -> None:
        if not self._reload():
            return
        for part in (part for stage in self._stages for part in stage):
            try:
                part.reset()
            except Exception:
                LOG.exception("%s could not take up the configuration", part.name)

    def _stop(self, starter: threading.Thread) -> bool:
        """Stop everything; return whether all of it ended in time."""
        deadline = time.monotonic() + self._stop_timeout
        late: list[Part] = []
        for stage in reversed(self._stages):
            for part in _in_parallel("stop", _stop_part, stage, deadline):
                LOG.warning(
                    "%s did not stop within %s s, leaving it behind",
                    part.name,
                    self._stop_timeout,
                )
                late.append(part)
        _in_parallel("abandon", _abandon_part, late, time.monotonic() + ABANDON_SECONDS)
        starter.join(max(deadline - time.monotonic(), 0.1))
        if late or starter.is_alive():
            return False
        closer = threading.Thread(target=self._clean_up, name="closer", daemon=True)
        closer.start()
        closer.join(max(deadline - time.monotonic(), 0.1))
        return not closer.is_alive()

    def _clean_up(self) -> None:
        try:
            self._close()
        except Exception:
            LOG.exception("Closing what the parts used failed")

    def _report(self) -> int:
        if self._failure is None:
            return 0
        if isinstance(self._failure, errors.MusterbookError):
            self._complain(self._failure)
        else:
            LOG.error("Start failed unexpectedly", exc_info=self._failure)
            self._complain(
                f"unexpected {type(self._failure).__name__}, the log says more"
            )
        return _exit_code(self._failure)


def command(
    main: Callable[[list[str]], int],
    complain_of: "Callable[[errors.MusterbookError], None] | None" = None,
) -> int:
    """Run a command's body on sys.argv; turn our errors into one line and 1 or 2.

    :param complain_of: says the line, instead of complain()
    :return: the body's exit code, 2 for a configuration that can't be used, 1 for
        other errors of ours
    """
    try:
        return main(sys.argv[1:])
    except errors.MusterbookError as exc:
        (complain_of or complain)(exc)
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


def _in_parallel(
    verb: str, do: Callable[[Part], None], parts: Sequence[Part], deadline: float
) -> list[Part]:
    """Do it to all parts, each in its thread; return those not done at the deadline."""
    threads = [
        # A daemon: a part that never ends is left behind.
        threading.Thread(
            target=do, args=(part,), name=f"{verb}-{part.name}", daemon=True
        )
        for part in parts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0.0))
    return [p for p, thread in zip(parts, threads, strict=True) if thread.is_alive()]


def _stop_part(part: Part) -> None:
    try:
        part.stop()
        part.wait()
    except Exception:
        LOG.exception("%s failed while stopping", part.name)


def _abandon_part(part: Part) -> None:
    try:
        part.abandon()
    except Exception:
        LOG.exception("%s could not say that it is left behind", part.name)


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
        ignore_signals()


def ignore_signals() -> None:
    """Let no signal that can be ignored change how this process ends."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    pass


def hard_exit(code: int) -> None:
    """End the process now, whatever still runs in it; what was logged is written."""
    pylogging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
