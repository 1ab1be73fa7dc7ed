"""When audits happen: periodically, at an interval that may change."""

from collections.abc import Callable
import random
import threading
import time

from oslo_config import cfg
from oslo_service import loopingcall
from oslo_service import periodic_task

from musterbook import context

#: Seconds between two looks whether an audit is wanted.
_WANTED_STEP = 1.0


class Audits:
    """Calls a function every so many seconds and when wanted, one call at a time.

    Any thread may call its methods.

    :param conf: given to oslo.service
    :param audit: called in a thread of oslo.service's
    :param wanted: set, it is called within a second; it clears it
    """

    def __init__(
        self, conf: cfg.ConfigOpts, audit: Callable[[], None], wanted: threading.Event
    ) -> None:
        self._conf = conf
        self._audit = audit
        self._wanted = wanted
        self._lock = threading.Lock()  # guards what follows
        self._interval = 0.0
        self._timers: list[loopingcall.DynamicLoopingCall] = []
        self._stopped = False

    def set_interval(self, interval: float) -> None:
        """Begin, or go on, with so many seconds between two calls.

        One in hand is not disturbed. The next one comes anywhere in the interval:
        agents that start together don't audit together.
        """
        with self._lock:
            if self._stopped or interval == self._interval:
                return
            self._interval = interval
            earlier = self._timers
            for timer in earlier:
                timer.stop()
            self._timers = [*earlier, self._begin(interval, list(earlier))]

    def stop(self) -> None:
        """End; a call in hand is waited for."""
        with self._lock:
            self._stopped = True
            timers, self._timers = self._timers, []
        for timer in timers:
            timer.stop()
        for timer in timers:
            timer.wait()

    def _begin(
        self, interval: float, earlier: list[loopingcall.DynamicLoopingCall]
    ) -> loopingcall.DynamicLoopingCall:
        wanted, audit = self._wanted, self._audit

        def once() -> None:
            while earlier:  # the last call of a timer that was replaced
                earlier.pop().wait()
            audit()

        class Tasks(periodic_task.PeriodicTasks):  # type: ignore[misc]  # oslo.service is untyped
            # A class per timer: the library keeps spacing and tasks on the class.
            @periodic_task.periodic_task(  # type: ignore[untyped-decorator]  # oslo.service is untyped
                spacing=interval, name="audit", run_immediately=True
            )
            def audit(self, _: context.RequestContext) -> None:
                once()

        tasks = Tasks(self._conf)
        first = time.monotonic() + random.uniform(0, interval)  # noqa: S311  # no secret

        def turn(asking: context.RequestContext) -> float:
            if wanted.is_set():
                once()
            if (early := first - time.monotonic()) > 0:
                return early
            return float(tasks.run_periodic_tasks(asking))

        timer = loopingcall.DynamicLoopingCall(turn, context.service_context())
        timer.start(
            periodic_interval_max=min(interval, _WANTED_STEP), stop_on_exception=False
        )
        return timer
