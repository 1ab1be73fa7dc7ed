"""A few threads that do many small jobs, each when it is due."""

from collections.abc import Callable
import heapq
import itertools
import logging
import threading
import time

LOG = logging.getLogger(__name__)

#: Seconds after which a job that failed unexpectedly comes again.
_AGAIN = 1.0
Turn = Callable[[], float | None]


class Wheel:
    """Gives jobs their turns; any thread may use it.

    A job's turns come one after another, and those of different jobs side by side in
    as many threads as there are: a job that waits holds one of them.

    :param name: of the threads
    :param threads: how many
    """

    def __init__(self, name: str, threads: int) -> None:
        self._changed = threading.Condition()  # guards all that follows, and the jobs
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, Job, int]] = []
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{n}")
            for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def add(self, turn: Turn, delay: float = 0.0) -> "Job":
        """Have turn() called after so many seconds, and again after what it returns.

        None from it ends the job.
        """
        job = Job(self, turn)
        with self._changed:
            self._put(job, delay)
        return job

    def stop(self) -> None:
        """End the threads; returns when turns in hand have ended."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    # -- with the lock held --------------------------------------------------------

    def _put(self, job: "Job", delay: float) -> None:
        job.place += 1
        due = time.monotonic() + delay
        heapq.heappush(self._due, (due, next(self._numbers), job, job.place))
        self._changed.notify()

    def _take(self) -> "Job | None":
        """Wait for the next job that is due; None: stopped."""
        while not self._stopped:
            if not self._due:
                self._changed.wait()
                continue
            due, _, job, place = self._due[0]
            late = due - time.monotonic()
            if job.ended or place != job.place:
                heapq.heappop(self._due)  # it was put elsewhere since
            elif late > 0:
                self._changed.wait(late)
            else:
                heapq.heappop(self._due)
                return job
        return None

    # -- in its threads ------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                job = self._take()
                if job is None:
                    return
                job.running, job.kicked = True, False
            pause = self._turn(job)
            with self._changed:
                job.running = False
                if pause is None:
                    job.ended = True
                elif not job.ended:
                    self._put(job, 0.0 if job.kicked else pause)
                self._changed.notify_all()

    def _turn(self, job: "Job") -> float | None:
        try:
            return job.turn()
        except Exception:
            LOG.exception("A job failed unexpectedly; it comes again")
            return _AGAIN


class Job:
    """One job of a wheel; its fields belong to the wheel."""

    def __init__(self, wheel: Wheel, turn: Turn) -> None:
        self.turn = turn
        self.place = 0
        self.running = False
        self.kicked = False
        self.ended = False
        self._wheel = wheel

    def kick(self) -> None:
        """Make the next turn come now; one in hand is followed by another."""
        with self._wheel._changed:
            if self.running:
                self.kicked = True
            elif not self.ended:
                self._wheel._put(self, 0.0)

    def end(self, timeout: float) -> bool:
        """Let no other turn come; return whether none runs any more.

        :param timeout: seconds to wait for the one in hand
        """
        with self._wheel._changed:
            self.ended = True
            return self._wheel._changed.wait_for(lambda: not self.running, timeout)
