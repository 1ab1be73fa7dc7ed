"""One daemon as a main process and its workers, by cotyledon.

The main process checks the configuration, forks and supervises; it never connects to
anything. Each worker makes what it needs after the fork and runs its parts as a
daemon.Process does. docs/adr/0008-workers.md says why, and what cotyledon 2.2 does
that is put right here.
"""

from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import gc
import multiprocessing
import multiprocessing.synchronize
import os
import signal
import threading
import time

import cotyledon
from cotyledon import types
from oslo_log import log as logging
from oslo_service import systemd
import psutil

from musterbook import daemon
from musterbook import errors
from musterbook.conf import reload as conf_reload

LOG = logging.getLogger(__name__)

#: Makes a worker's stages, in the worker; leaving it gives back what they used.
Make = Callable[[], contextlib.AbstractContextManager[Sequence[Sequence[daemon.Part]]]]
#: Seconds that a worker may outlive graceful_shutdown_timeout: it abandons what isn't
#: done, then ends by itself. Who doesn't is killed.
_MARGIN = daemon.ABANDON_SECONDS + 1.0
#: Seconds between two signals to a worker that doesn't end: it may have been forked a
#: moment ago, before it could take the first one.
_AGAIN = 1.0
#: What a pipe takes at once, whoever reads it.
_COMPLAINT_BYTES = 2000


def run(
    make: Make, workers: int, stop_timeout: float, reloader: conf_reload.Reloader
) -> int:
    """Run workers until SIGTERM or SIGINT, in the main thread; return the exit code.

    0 after a signal; what a worker ended with, when it could not start (daemon.Process
    says the codes). A worker that was killed is replaced.

    :param make: called once in each worker
    :param stop_timeout: seconds in which each worker has to stop
    :param reloader: of the configuration that the workers inherit
    """
    master = _Master(make, workers, stop_timeout, reloader)
    # Workers look through what they have made, and don't copy the rest by doing so.
    gc.collect()
    gc.freeze()
    return master.run_to_end()


class _Shared:
    """What the main process and its workers share; made before the first fork.

    :ivar ready: held by the worker that told the service manager
    """

    def __init__(self, context: "multiprocessing.context.ForkContext") -> None:
        # cotyledon's main process says READY before it has forked; a worker shall.
        self.notify_socket = os.environ.pop("NOTIFY_SOCKET", None)
        self.master = os.getpid()
        self.ready: multiprocessing.synchronize.Lock = context.Lock()
        self._complained: multiprocessing.synchronize.Lock = context.Lock()
        self._reader, self._writer = context.Pipe(duplex=False)

    def tell_ready(self) -> None:
        """Tell the service manager once, however many workers get ready."""
        if self.notify_socket and self.ready.acquire(block=False):
            os.environ["NOTIFY_SOCKET"] = self.notify_socket
            systemd.notify_once()

    def complain(self, what: errors.MusterbookError | str) -> None:
        """Leave it to the main process to say why a worker can't go on; one is enough.

        Said by it when all have ended, it is the last that is heard of the command.
        """
        if self._complained.acquire(block=False):
            text = what.message if isinstance(what, errors.MusterbookError) else what
            self._writer.send_bytes(text.encode()[:_COMPLAINT_BYTES])

    def complaint(self) -> str | None:
        """Return what a worker complained of, once."""
        if not self._reader.poll():
            return None
        return self._reader.recv_bytes().decode(errors="replace")


class _Process(daemon.Process):
    """The parts of one worker."""

    shared: _Shared

    def _ready(self) -> None:
        self.shared.tell_ready()

    def _complain(self, what: errors.MusterbookError | str) -> None:
        self.shared.complain(what)


class _Worker(cotyledon.Service):
    """A worker, as cotyledon calls it: run() in one thread, the others in another."""

    name = "worker"
    # No alarm of cotyledon's: daemon.Process has its own end, and its exit code.
    graceful_shutdown_timeout = 0

    def __init__(
        self,
        worker_id: types.WorkerId,
        make: Make,
        stop_timeout: float,
        reloader: conf_reload.Reloader,
        shared: _Shared,
    ) -> None:
        super().__init__(worker_id)
        # A terminal's Ctrl-C comes to all processes; the main one tells us to stop.
        # cotyledon would end us at once.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._make = make
        self._stop_timeout = stop_timeout
        self._reloader = reloader
        self._shared = shared
        self._process: _Process | None = None
        self._told: list[int] = []
        self._lock = threading.Lock()  # guards the two before

    def run(self) -> None:
        """Be the worker to its end."""
        code = daemon.EXIT_FAILED
        try:
            code = daemon.command(lambda _: self._serve(), self._shared.complain)
        except BaseException:
            LOG.exception("Worker %s failed unexpectedly", self.worker_id)
        daemon.hard_exit(code)

    def terminate(self) -> None:
        """Stop the parts; run() ends the process."""
        if os.getppid() != self._shared.master:
            LOG.warning(
                "The main process %s is gone, this worker stops", self._shared.master
            )
        self._tell(signal.SIGTERM)
        threading.Event().wait()  # cotyledon would end the process on return

    def reload(self) -> None:
        """Take up changed configuration."""
        self._tell(signal.SIGHUP)

    def _serve(self) -> int:
        with self._make() as stages:
            process = _Process(stages, self._stop_timeout, reload=self._reload)
            process.shared = self._shared
            with self._lock:
                self._process = process
            for number in self._told:
                process.tell(number)
            return process.serve()

    def _tell(self, number: int) -> None:
        with self._lock:
            if self._process is None:
                self._told.append(number)
                return
        self._process.tell(number)

    def _reload(self) -> bool:
        return self._reloader.reload(quiet=True)


class _Master(cotyledon.ServiceManager):
    """The main process: cotyledon's, with other answers to some signals."""

    def __init__(
        self,
        make: Make,
        workers: int,
        stop_timeout: float,
        reloader: conf_reload.Reloader,
    ) -> None:
        context = multiprocessing.get_context("fork")
        # 0: its alarm is never heard, as it waits for its workers where it would hear
        # it (cotyledon 2.2); _Undertaker sees to the end.
        super().__init__(graceful_shutdown_timeout=0, mp_context=context)
        self._code = 0
        self._reloader = reloader
        self._shared = _Shared(context)
        self._undertaker = _Undertaker(stop_timeout + _MARGIN)
        self.register_hooks(
            on_terminate=self._undertaker.start, on_dead_worker=self._bury
        )
        args = (make, stop_timeout, reloader, self._shared)
        self.add(_Worker, workers, args=args)

    def run_to_end(self) -> int:
        """Run; return the exit code of the command."""
        try:
            self.run()
        except SystemExit:
            pass
        finally:
            daemon.ignore_signals()
            self._undertaker.stop()
        if complaint := self._shared.complaint():
            daemon.complain(complaint)
        return self._code

    def _on_signal_received(self, sig: int) -> None:
        if sig == signal.SIGHUP:
            # cotyledon sends it to the whole process group, whoever else is in it.
            if self._reloader.reload():
                _send_all(psutil.Process().children(), signal.SIGHUP)
        elif sig == signal.SIGINT:
            # cotyledon would end everything at once.
            super()._on_signal_received(signal.SIGTERM)
        else:
            super()._on_signal_received(sig)

    def _bury(self, _service_id: object, worker_id: int, code: int) -> None:
        """Decide what the end of a worker means; in the supervisor's thread."""
        if code > 0:
            self._code = self._code or code
            # It has said why.
            LOG.debug("Worker %s ended with code %s, all stop", worker_id, code)
            self.shutdown()  # returns when no worker will be started any more
        elif code:
            LOG.warning(
                "Worker %s was killed by %s, another one is started",
                worker_id,
                signal.Signals(-code).name,
            )


class _Undertaker:
    """Sees to it that workers that were told to stop do end.

    :param seconds: after which those that are left are killed
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="undertaker")

    def start(self) -> None:
        """Begin to count; just before the workers are told."""
        self._thread.start()

    def stop(self) -> None:
        """End; the workers have."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        deadline = time.monotonic() + self._seconds
        workers = psutil.Process().children()
        while not self._stopping.wait(min(_AGAIN, deadline - time.monotonic())):
            if time.monotonic() >= deadline:
                LOG.warning("Killing workers that don't end")
                _send_all(workers, signal.SIGKILL)
                return
            _send_all(workers, signal.SIGTERM)


def _send_all(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
