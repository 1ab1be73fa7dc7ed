"""Looking from time to time whether what this process believes still holds.

Two things may have changed without a message: the grant (another process took over
while this one was frozen, or the service was deleted) and the records of the nodes
(an operator deleted one, the database was restored).
"""

from collections.abc import Callable
import logging
import random
import threading

from compute_agent import tenure
from conductor import rpcapi as conductor_rpcapi
from musterbook import backoff
from musterbook import errors

LOG = logging.getLogger(__name__)

# Seconds between two looks while nobody can be asked.
_FIRST_PAUSE = 1.0
_MOST_PAUSE = 10.0


class Verifier:
    """Asks the conductor about the grant: on demand, and rarely by itself.

    A look that nobody answers is repeated, with growing pauses.

    start(), stop() belong to the agent; look() and set_interval() may be called from
    any thread. What is given as a callback is called in the verifier's thread.

    :param conductor: whom to ask
    :param held: the grant
    :param interval: seconds between two looks, shortened by up to half at random; a
        larger value loads the conductors less and finds changes later
    :param timeout: seconds an answer may take
    :param on_superseded: called once, when the grant is no longer the current one
    :param on_forgotten: called when the database doesn't know the grant: says hello
        anew. What it raises that may pass makes the verifier look again soon
    :param on_verified: called after each look that found the grant current
    """

    def __init__(
        self,
        conductor: conductor_rpcapi.ConductorAPI,
        held: tenure.Tenure,
        interval: float,
        timeout: float,
        on_superseded: Callable[[errors.MusterbookError], None],
        on_forgotten: Callable[[errors.GrantForgotten], None],
        on_verified: Callable[[], None],
    ) -> None:
        self._conductor = conductor
        self._held = held
        self._interval = interval
        self._timeout = timeout
        self._on_superseded = on_superseded
        self._on_forgotten = on_forgotten
        self._on_verified = on_verified
        self._rng = random.Random()  # noqa: S311  # no secret depends on it
        self._pauses: backoff.Backoff | None = None  # while nobody answers
        self._wanted = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="verifier")

    def start(self) -> None:
        """Begin with a look."""
        self._wanted.set()
        self._thread.start()

    def look(self) -> None:
        """Ask for a look now."""
        self._want()

    def set_interval(self, interval: float) -> None:
        """Change the seconds between two looks; one comes at once if that is news."""
        if interval != self._interval:
            self._interval = interval
            self._want()

    def stop(self) -> None:
        """End; returns when a look in hand has ended."""
        self._stopping = True
        self._wanted.set()
        if self._thread.ident is not None and (
            self._thread is not threading.current_thread()
        ):
            self._thread.join()

    def _want(self) -> None:
        self._wanted.set()

    def _run(self) -> None:
        pause: float | None = 0.0
        while pause is not None:
            self._wanted.wait(pause)
            self._wanted.clear()
            pause = self._turn()

    def _turn(self) -> float | None:
        """Look once; return the seconds until the next look, None for no other."""
        if self._stopping:
            return None
        try:
            self._look_once()
        except (errors.Superseded, errors.HostTaken) as exc:
            self._on_superseded(exc)
            return None
        except Exception as exc:  # noqa: BLE001  # the looks go on
            self._say(exc, first=self._pauses is None)
            if self._pauses is None:
                self._pauses = backoff.Backoff(_FIRST_PAUSE, _MOST_PAUSE, self._rng)
            return min(self._pauses.pause(), self._interval)
        self._pauses = None
        return self._interval * self._rng.uniform(0.5, 1.0)

    def _say(self, exc: Exception, *, first: bool) -> None:
        if isinstance(exc, errors.MusterbookError):
            # That the conductor is away is said by those who need it.
            LOG.debug("The grant was not verified: %s", exc.message)
        else:
            LOG.log(
                logging.ERROR if first else logging.DEBUG,
                "The grant was not verified, which is tried until it works",
                exc_info=exc,
            )

    def _look_once(self) -> None:
        try:
            self._conductor.verify(self._held.context, timeout=self._timeout)
        except errors.GrantForgotten as exc:
            self._on_forgotten(exc)
        self._on_verified()
