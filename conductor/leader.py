"""The leader: one conductor looks at the group and writes what it decides.

Every conductor runs one Leader thread. They take turns by a lease in the database;
whoever holds it polls the group, asks the verdict (musterbook.servicegroup.verdict)
and writes transitions in a transaction that checks the lease's term. A leader that
was paused and lost its lease writes nothing: the term refuses it.
"""

from collections.abc import Callable
from collections.abc import Mapping
import contextlib
import dataclasses
import threading
import time

from oslo_config import cfg
from oslo_log import log as logging

from conductor import canary
from conductor import grounds
from conductor import pings
from conductor import strangers
from conductor.db import liveness
from musterbook import errors
from musterbook.servicegroup import driver as group_driver
from musterbook.servicegroup import flapping
from musterbook.servicegroup import freeze as freeze_rules
from musterbook.servicegroup import roster
from musterbook.servicegroup import steady
from musterbook.servicegroup import verdict
from objects import service as service_obj

LOG = logging.getLogger(__name__)

#: The lease lasts this many renewal intervals.
LEASE_INTERVALS = 3
_ACTOR = "leader"


@dataclasses.dataclass(frozen=True)
class Timing:
    """How often, in seconds.

    :ivar poll_interval: between two looks at the group
    :ivar lease_interval: between two renewals of the lease
    """

    poll_interval: float
    lease_interval: float

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts) -> "Timing":
        """Return what the checked configuration says."""
        return cls(conf.conductor.poll_interval, conf.conductor.lease_interval)


class Leader:
    """Looks, decides and writes while it holds the lease.

    start() and stop() belong to the process's main line, take_up() to any thread; all
    else happens in the thread named ``leader``.

    :param store: the liveness records
    :param make_driver: makes this process's own connection to the group backend; None:
        there is no group, beats alone tell who lives
    :param pinger: asks silent hosts over RPC
    :param policy: when silence means what
    :param owner: who holds the lease, unique to the process
    :param bird: proves the backend while a loss is held; None: nothing does
    :param on_stranger: told of hosts that should look whether they are known, as they
        are in the group without a grant, or the database was away; raises
        MusterbookError when they can't be told now
    """

    def __init__(
        self,
        store: liveness.LivenessStore,
        make_driver: Callable[[], group_driver.GroupDriver] | None,
        pinger: pings.Pinger,
        policy: verdict.Policy,
        timing: Timing,
        owner: str,
        on_stranger: Callable[[str], None] = lambda host: None,
        bird: canary.Canary | None = None,
    ) -> None:
        self._store = store
        self._make_driver = make_driver
        self._pinger = pinger
        self._policy = policy
        self._timing = timing
        self._wanted = policy, timing
        self._owner = owner
        self._on_stranger = on_stranger
        self._canary = bird
        self._strangers = strangers.Strangers()
        self._driver: group_driver.GroupDriver | None = None
        self._term: int | None = None
        self._lease_due = 0.0
        self._lease_until = 0.0
        self._proven = True  # whether a look succeeded since the lease was taken
        self._rival: liveness.LeaseMark | None = None
        self._rival_since = 0.0
        self._watch = steady.Steady(policy)
        self._recalled = False
        self._grounds = grounds.Reader(store)
        self._causes: Mapping[str, verdict.Cause] | None = None
        self._unsure = False  # whether what was written is still stored
        self._doubting = False  # whether what agents have written is
        self._failing: str | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leader")

    def start(self) -> None:
        """Begin to stand for leader."""
        self._thread.start()

    def take_up(self, policy: verdict.Policy, timing: Timing) -> None:
        """Change the times; they hold from the next look on."""
        self._wanted = policy, timing

    def term(self) -> int | None:
        """Return the term in which this process leads, None if it doesn't. Any thread.

        It may be over by now: what is written in it checks the lease.
        """
        return self._term if time.monotonic() < self._lease_until else None

    def stop(self) -> None:
        """Stop looking, give the lease away; returns when the thread has ended."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            begun = time.monotonic()
            self._attempt(begun)
            pause = self._timing.poll_interval - (time.monotonic() - begun)
            self._stopping.wait(max(pause, 0.01))
        self._give_up()

    def _attempt(self, now: float) -> None:
        """One turn; nothing that goes wrong in it may end the loop."""
        self._policy, self._timing = self._wanted
        self._watch.set_policy(self._policy)
        try:
            if self._leads(now):
                self._look()
                self._renew(now)
        except errors.MusterbookError as exc:
            self._note_failure(errors.kind(exc), exc.message)
        except Exception as exc:
            name = type(exc).__name__
            if self._note_failure(name, f"unexpected {name}"):
                LOG.exception("Leader: an unexpected error, trying again")
        else:
            self._note_success()

    def _note_failure(self, kind: str, reason: str) -> bool:
        """Log a failure when it begins; return whether it is of a new kind."""
        new = self._failing != kind
        if new:
            what = "Leader: can't look at the fleet"
            if self._term is None:
                what = "Can't ask who leads"
            LOG.warning("%s: %s; trying again", what, reason)
        self._failing = kind
        return new

    def _note_success(self) -> None:
        if self._failing is not None:
            what = "Leader: looking at the fleet again"
            if self._term is None:
                what = "Who leads can be asked again"
            LOG.warning("%s", what)
            self._failing = None
            # It may be another database, or an earlier state of it.
            self._unsure = self._doubting = True
            self._grounds.doubt()

    # -- the lease -----------------------------------------------------------------

    def _leads(self, now: float) -> bool:
        """Return whether this process leads now; ask for the lease when due."""
        held = self._term is not None and now < self._lease_until
        if held or now < self._lease_due:
            return held
        if self._term is not None and not self._proven:
            self._stand_back(now)
            return False
        self._ask(now, looked=False)
        return self._term is not None

    def _renew(self, now: float) -> None:
        """Renew the lease if due, after a look that succeeded.

        Never before: the age of the lease is the age of what is answered, and who
        can't look has to leave it to somebody who can.
        """
        self._proven = True
        if self._term is not None and now >= self._lease_due:
            self._ask(time.monotonic(), looked=True)

    def _ask(self, now: float, *, looked: bool) -> None:
        """Take, keep or renew the lease; ``now`` is before the question.

        :param looked: the fleet was looked at just now
        """
        seconds = self._timing.lease_interval * LEASE_INTERVALS
        term = self._store.acquire(
            liveness.LEASE, self._owner, seconds, looked, self._overdue(now, seconds)
        )
        # Counted from before the question: never longer than the database's count.
        self._lease_until = now + seconds
        self._lease_due = now + self._timing.lease_interval
        if term is None:
            self._watch_rival(now)
        elif not looked:
            self._proven = False
            self._lease_due = now  # once a look has succeeded
        if term != self._term:
            self._change_term(term)

    def _watch_rival(self, now: float) -> None:
        mark, left = self._store.lease_mark(liveness.LEASE)
        if mark != self._rival:
            self._rival, self._rival_since = mark, now
        # When it runs out, if that is before the next question was to be.
        self._lease_due = min(self._lease_due, now + max(left, 0.0))

    def _overdue(self, now: float, seconds: float) -> liveness.LeaseMark | None:
        """Return the other's lease if it wasn't renewed for all its time.

        On this process's clock: the database's may have been set back, or be another
        server's, and would give a dead leader as long as it lags.
        """
        lasted = now - self._rival_since
        return self._rival if self._rival is not None and lasted >= seconds else None

    def _stand_back(self, now: float) -> None:
        """Leave the lease to others for its length: it has been held for nothing."""
        seconds = self._timing.lease_interval * LEASE_INTERVALS
        LOG.warning(
            "Leader: no look at the fleet succeeded for %.0f s; leaving it to another "
            "conductor",
            seconds,
        )
        term = self._term
        self._lease_due, self._lease_until = now + seconds, 0.0
        self._change_term(None)
        self._store.release(liveness.LEASE, self._owner, term)

    def _change_term(self, term: int | None) -> None:
        if term is not None:
            LOG.info("Leading with term %s", term)
            # What an earlier leadership saw is stale: begin with a first look.
            self._watch = steady.Steady(self._policy)
            self._recalled = False
            self._grounds.doubt()
            self._causes = None
            self._pinger.forget()
        elif self._term is not None:
            LOG.warning("No longer leading: term %s ended", self._term)
            self._disconnect()
        self._term = term

    def _give_up(self) -> None:
        self._pinger.stop()
        self._disconnect()
        if self._term is None:
            return
        try:
            self._store.release(liveness.LEASE, self._owner, self._term)
        except errors.MusterbookError as exc:
            LOG.warning("The lease was not given away, it expires: %s", exc.message)

    # -- looking -------------------------------------------------------------------

    def _look(self) -> None:
        """Poll, decide, write what changed."""
        if not self._recalled:
            self._watch.recall(self._past())
            self._recalled = True
        if self._causes is None or self._causes:  # something is frozen, or may be
            for scope in self._store.released():
                self._watch.release(scope)
        poll = self._poll()
        proof = self._proof(poll)
        found = self._grounds.read(self._policy.service_down_time)
        incarnations = found.incarnations
        decision = self._watch.step(
            poll,
            found.judged,
            self._pinger.replies(incarnations),
            time.monotonic(),
            proof,
        )
        if self._canary is not None:
            self._canary.want(decision.canary)
        transitions = [
            _transition(found.rows[host], new)
            for host, new in decision.verdicts.items()
            if not new.same_as(found.judged[host].previous)
        ]
        self._write(transitions, decision.freezes)
        self._pinger.ping({host: incarnations[host] for host in decision.to_ping})
        if isinstance(poll, frozenset):
            # Without a copy of the whole group where nobody beats otherwise.
            seen = poll | found.beating if found.beating else poll
            self._tell_strangers(seen, incarnations)

    def _proof(self, poll: frozenset[str] | errors.GroupError) -> bool | None:
        """Return whether what keeps members is seen to keep one, None: can't be told.

        Without a group that is the database, which every look reads.
        """
        if self._canary is not None:
            return self._canary.look(poll)
        return True if self._make_driver is None else None

    def _past(self) -> list[roster.Past]:
        """Return what was written lately, by whoever led, as of our clock."""
        seconds = flapping.WINDOW + flapping.MOST_HOLD
        now = time.monotonic()
        found = []
        for item in self._store.recent(service_obj.COMPUTE_BINARY, seconds):
            # What another release wrote must not keep anybody from leading.
            with contextlib.suppress(ValueError):
                state = verdict.State(item.state)
                cause = verdict.Cause(item.cause or "")
                found.append(roster.Past(item.host, state, cause, now - item.age))
        return found

    def _tell_strangers(
        self, members: frozenset[str], granted: Mapping[str, int]
    ) -> None:
        if self._doubting:
            self._doubting = False
            self._strangers.doubt(members)
        for host in self._strangers.due(members, granted, time.monotonic()):
            try:
                self._on_stranger(host)
            except errors.MusterbookError as exc:
                LOG.debug("Host %s could not be told to look: %s", host, exc.message)
                return  # nor can the others; they are due again soon

    def _poll(self) -> frozenset[str] | errors.GroupError:
        if self._make_driver is None:
            return frozenset()
        try:
            if self._driver is None:
                self._driver = self._connect(self._make_driver)
            return self._driver.get_all(service_obj.COMPUTE_TOPIC)
        except errors.GroupError as exc:
            return exc

    def _connect(
        self, make_driver: Callable[[], group_driver.GroupDriver]
    ) -> group_driver.GroupDriver:
        made = make_driver()
        try:
            made.start()
        except BaseException:
            made.stop()  # it has a thread, connected or not
            raise
        return made

    def _disconnect(self) -> None:
        if self._canary is not None:
            self._canary.stop()
        if self._driver is not None:
            self._driver.stop()
            self._driver = None

    def _write(
        self,
        transitions: list[liveness.Transition],
        frozen: Mapping[str, freeze_rules.Freeze],
    ) -> None:
        # Evidence alone, such as a count that grows, is nothing to write.
        causes = {scope: freeze.cause for scope, freeze in frozen.items()}
        changed = causes != self._causes
        freezes = frozen if changed or self._unsure else None
        if not transitions and freezes is None:
            return
        if self._term is None or not self._store.write(
            liveness.LEASE,
            self._owner,
            self._term,
            transitions,
            None
            if freezes is None
            else {s: (f.cause.value, f.evidence) for s, f in freezes.items()},
        ):
            # The lease is lost or late: ask for it at once. What was decided is not
            # stored, so the next look must not take it for known.
            self._lease_due = self._lease_until = 0.0
            self._grounds.doubt()
            return
        _log(transitions, frozen if changed else None, thawed=bool(self._causes))
        self._causes = causes
        self._unsure = False


def _transition(row: liveness.GrantedRow, new: verdict.Verdict) -> liveness.Transition:
    return liveness.Transition(
        service_id=row.service_id,
        host=row.host,
        previous=row.state,
        previous_cause=row.state_cause,
        previous_incarnation=row.state_incarnation,
        state=new.state.value,
        cause=new.cause.value,
        evidence=new.evidence,
        actor=_ACTOR,
        incarnation=row.incarnation,
    )


def _log(
    transitions: list[liveness.Transition],
    freezes: Mapping[str, freeze_rules.Freeze] | None,
    *,
    thawed: bool,
) -> None:
    for item in transitions:
        level = logging.INFO if item.state == verdict.State.UP else logging.WARNING
        LOG.log(
            level,
            "Host %s is %s (was %s): %s; %s",
            item.host,
            item.state,
            item.previous,
            item.cause,
            item.evidence,
        )
    if freezes:
        for scope, freeze in freezes.items():
            LOG.warning(
                "Verdicts of %s are frozen: %s; %s",
                scope or "the whole fleet",
                freeze.cause.value,
                freeze.evidence,
            )
    elif freezes is not None and thawed:
        LOG.warning("Verdicts are no longer frozen")
