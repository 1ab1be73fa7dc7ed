"""Looking from time to time whether what this process believes still holds.

Two things may have changed without a message: the grant (another process took over
while this one was frozen, or the service was deleted) and the records of the nodes
(an operator deleted one, the database was restored).
"""

from collections.abc import Callable
import logging
import random
import threading

from conductor import rpcapi as conductor_rpcapi
from musterbook import errors
from musterbook.context import RequestContext

LOG = logging.getLogger(__name__)


class Verifier:
    """Asks the conductor about the grant: on demand, and rarely by itself.

    start(), stop() belong to the agent; look() and set_interval() may be called from
    any thread. What is given as a callback is called in the verifier's thread.

    :param conductor: whom to ask
    :param context: carries the grant
    :param interval: seconds between two looks, shortened by up to half at random; a
        larger value loads the conductors less and finds changes later
    :param timeout: seconds an answer may take
    :param on_superseded: called once, when the grant is no longer the current one
    :param on_verified: called after each look that found the grant current
    """

    def __init__(
        self,
        conductor: conductor_rpcapi.ConductorAPI,
        context: RequestContext,
        interval: float,
        timeout: float,
        on_superseded: Callable[[errors.Superseded], None],
        on_verified: Callable[[], None],
    ) -> None:
        self._conductor = conductor
        self._context = context
        self._interval = interval
        self._timeout = timeout
        self._on_superseded = on_superseded
        self._on_verified = on_verified
        self._rng = random.Random()  # noqa: S311  # no secret depends on it
        self._wanted = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="verifier")

    def start(self) -> None:
        """Begin with a look."""
        self._wanted.set()
        self._thread.start()

    def look(self) -> None:
        """Ask for a look now."""
        self._wanted.set()

    def set_interval(self, interval: float) -> None:
        """Change the seconds between two looks; one comes at once if that is news."""
        if interval != self._interval:
            self._interval = interval
            self._wanted.set()

    def stop(self) -> None:
        """End; returns when a look in hand has ended."""
        self._stopping = True
        self._wanted.set()
        if self._thread.ident is not None and (
            self._thread is not threading.current_thread()
        ):
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._wanted.wait(self._interval * self._rng.uniform(0.5, 1.0))
            self._wanted.clear()
            if not self._stopping and not self._look_once():
                return

    def _look_once(self) -> bool:
        """Return whether to go on."""
        try:
            self._conductor.verify(self._context, timeout=self._timeout)
        except errors.Superseded as exc:
            self._on_superseded(exc)
            return False
        except errors.MusterbookError as exc:
            # Whoever can't be asked will be asked again; that the conductor is away
            # is said by those who need it.
            LOG.debug("The grant was not verified: %s", exc.message)
        else:
            self._on_verified()
        return True
