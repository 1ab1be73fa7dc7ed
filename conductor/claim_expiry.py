"""Giving back claims that nobody confirmed, and forgetting those that are over.

Every conductor has the thread; it does something while its process leads. What it
writes is refused if the lease is another one's by then.
"""

from collections.abc import Callable
import threading
import time

from oslo_log import log as logging

from conductor.db import claim_store
from conductor.db import liveness
from musterbook import errors

LOG = logging.getLogger(__name__)

#: Seconds between two looks for claims that are due. They can't be confirmed from the
#: instant at which they expire; what waits is the room that they take.
_INTERVAL = 2.0
#: And between two looks for what can be forgotten.
_FORGET_INTERVAL = 60.0
#: Claims of one transaction.
_BATCH = 200
_FORGET_BATCH = 500


class Expiry:
    """Looks for claims that are due, in the thread ``claim-expiry``.

    start() and stop() belong to the process's main line.

    :param store: the claims
    :param term: returns the term in which this process leads, None: it doesn't
    :param owner: who holds the lease, as the leader says it
    :param keep_seconds: returns for how long finished claims are known
    """

    def __init__(
        self,
        store: claim_store.ClaimStore,
        term: Callable[[], int | None],
        owner: str,
        keep_seconds: Callable[[], float],
        interval: float = _INTERVAL,
    ) -> None:
        self._store = store
        self._term = term
        self._owner = owner
        self._keep_seconds = keep_seconds
        self._interval = interval
        self._forget_due = 0.0
        self._failing: str | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="claim-expiry")

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End; what is in hand is finished first."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval):
            self._attempt()

    def _attempt(self) -> None:
        """One turn; nothing that goes wrong in it may end the loop."""
        term = self._term()
        if term is None:
            return
        try:
            self.turn(term)
        except errors.MusterbookError as exc:
            if self._failing != errors.kind(exc):
                LOG.warning("Claims that are due wait: %s; trying again", exc.message)
            self._failing = errors.kind(exc)
        except Exception as exc:
            if self._failing != type(exc).__name__:
                LOG.exception("Claims that are due wait: an unexpected error")
            self._failing = type(exc).__name__
        else:
            if self._failing is not None:
                LOG.warning("Claims that are due are given back again")
            self._failing = None

    def turn(self, term: int) -> None:
        """Give back all that are due; forget what is old, when that is due."""
        while not self._stopping.is_set():
            uuids = self._store.expire(liveness.LEASE, self._owner, term, _BATCH)
            for uuid in uuids:
                LOG.info("Claim %s was not confirmed in time and is given back", uuid)
            if len(uuids) < _BATCH:
                break
        if time.monotonic() < self._forget_due:
            return
        self._forget_due = time.monotonic() + _FORGET_INTERVAL
        seconds = self._keep_seconds()
        while not self._stopping.is_set():
            gone = self._store.forget(
                liveness.LEASE, self._owner, term, seconds, _FORGET_BATCH
            )
            if gone < _FORGET_BATCH:
                break
