"""What is said about one host: a pure function of what was seen and granted.

All instants are seconds on one observer's monotonic clock; nothing here reads a
clock. The state machine, and what ends each state:

* ``up``: the granted incarnation is in the group
* ``suspect``: it isn't, or it says that it is stalled, or it comes and goes; ends in
  ``up`` when it is seen again, goes on working, or stayed for long enough; in
  ``down`` when it was silent on the group and on RPC for service_down_time, on RPC
  meaning that it was asked and didn't answer; time in which nobody could be asked is
  no silence
* ``down``: forced, said goodbye, or silent; a silent one ends in ``up`` when it
  is seen, in ``suspect`` when it answers
* ``unknown``: no incarnation was ever granted, and no beat seen; or it was granted
  anew to a process that serves all the while, because the database had forgotten it,
  and it had no time yet to join under its new name (and, by those who read verdicts,
  everything that is frozen)

An agent with the db driver isn't in the group: it beats through the conductor, which
notes when. Its host is ``up`` as long as the last beat is no older than
service_down_time by the database's clock. Then it is ``suspect`` until the observer,
too, has seen no beat for that long and knows that nobody answers there. A process that
was granted its host is judged so from its first beat on, by its own beats only. A
legacy agent, which never says hello, lives in this way as well.
"""

import dataclasses
import datetime
import enum

from oslo_config import cfg

from musterbook.servicegroup import flapping


class State(enum.StrEnum):
    """What schedulers and operators are told."""

    UP = "up"
    SUSPECT = "suspect"
    DOWN = "down"
    UNKNOWN = "unknown"


class Cause(enum.StrEnum):
    """Why a state or a freeze is what it is."""

    IN_GROUP = "in-group"
    NOT_YET_JOINED = "not-yet-joined"
    NOT_YET_BACK = "not-yet-back"
    VANISHED = "vanished"
    STALLED = "stalled"
    FLAPPING = "flapping"
    FLAPPING_RESET = "flapping-reset"
    GOODBYE = "goodbye"
    SILENT = "silent"
    FORCED_DOWN = "forced-down"
    NEVER_GRANTED = "never-granted"
    DB_BEAT = "db-beat"
    NO_DB_BEAT = "no-db-beat"
    GRANT_FORGOTTEN = "grant-forgotten"
    GROUP_UNREACHABLE = "group-unreachable"
    GROUP_VANISHED = "group-vanished"
    MASS_LOSS = "mass-loss"
    NO_LEADER = "no-leader"


#: Those that say that the granted incarnation is in the group.
PRESENT = frozenset({Cause.IN_GROUP, Cause.STALLED, Cause.FLAPPING})
_MISSING = frozenset({Cause.NOT_YET_JOINED, Cause.NOT_YET_BACK, Cause.VANISHED})


@dataclasses.dataclass(frozen=True)
class Policy:
    """When silence means what; times in seconds.

    :ivar member_timeout: silence after which the backend drops a member
    :ivar service_down_time: silence after which a host is down
    :ivar mass_loss_minimum: fewest hosts of a mass loss
    :ivar mass_loss_threshold: share of a zone that a mass loss exceeds
    :ivar mass_loss_hold: how long one is held against silent hosts
    """

    member_timeout: float
    service_down_time: float
    mass_loss_minimum: int
    mass_loss_threshold: float
    mass_loss_hold: float

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts, member_timeout: float) -> "Policy":
        """Return the policy of a configuration and a group URL's timeout."""
        return cls(
            member_timeout=member_timeout,
            service_down_time=conf.service_down_time,
            mass_loss_minimum=conf.mass_loss_minimum,
            mass_loss_threshold=conf.mass_loss_threshold,
            mass_loss_hold=conf.mass_loss_hold,
        )

    @property
    def recovery_grace(self) -> float:
        """Seconds that members get to come back once the backend answers.

        One member timeout plus two beats, and a beat comes at least every third
        of that timeout.
        """
        return self.member_timeout * (1 + 2 / 3)

    @property
    def beat_late(self) -> float:
        """Age in seconds of a legacy host's last beat from which it is watched.

        Before it is too old: so that the host has been asked over RPC by then, and a
        mass loss been noticed.
        """
        down = self.service_down_time
        return max(down - self.member_timeout, 0.75 * down)

    def is_mass_loss(self, lost: int, present: int) -> bool:
        """Return whether so many hosts of a zone can't have died one by one."""
        return lost >= self.mass_loss_minimum and lost > self.mass_loss_threshold * (
            lost + present
        )


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What is said about a host.

    :ivar incarnation: the granted one that it is about
    :ivar evidence: what was seen, and how long, for people; changes with time
    """

    state: State
    cause: Cause
    incarnation: int | None
    evidence: str

    def same_as(self, other: "Verdict | None") -> bool:
        """Return whether going from other to this is no transition."""
        return other is not None and (
            (self.state, self.cause, self.incarnation)
            == (other.state, other.cause, other.incarnation)
        )


@dataclasses.dataclass(frozen=True)
class Beat:
    """The last beat that a conductor noted of a host, or its registration.

    :ivar at: when it came; compared only for being another than before
    :ivar age: seconds since, both ends by the database's clock; negative if that
        was set back
    :ivar registered_only: it never beat, nor said hello: its service was created then
    """

    at: datetime.datetime
    age: float
    registered_only: bool = False


@dataclasses.dataclass(frozen=True)
class Granted:
    """What is stored about a host, the ground of every verdict.

    :ivar host: as stored, the first part of the member's name
    :ivar incarnation: the granted one, None if none was ever granted
    :ivar goodbye: that incarnation has said goodbye
    :ivar stalled: why its working loop makes no progress, None if it does
    :ivar forced_down: by an operator
    :ivar previous: the stored verdict
    :ivar zone: within which a mass loss is judged
    :ivar beat: through a conductor, of this incarnation; None: it never beat so
    """

    host: str
    incarnation: int | None
    goodbye: bool
    stalled: str | None
    forced_down: bool
    previous: Verdict | None
    zone: str = "nova"
    beat: Beat | None = None

    @property
    def member(self) -> str:
        """The member's name in the group."""
        return f"{self.host}#{self.incarnation}"

    @property
    def by_beats(self) -> bool:
        """Whether beats tell of it, and the group doesn't."""
        return self.incarnation is None or self.beat is not None

    @property
    def expired(self) -> bool:
        """Whether it is stored that it was missed, of whichever incarnation."""
        return self.previous is not None and (
            has_expired(self.previous.state, self.previous.cause)
        )

    def stored(self, state: State) -> bool:
        """Return whether this state is stored for this incarnation."""
        return (
            self.previous is not None
            and self.previous.state is state
            and self.previous.incarnation == self.incarnation
        )


@dataclasses.dataclass(slots=True)
class Sight:
    """What one observer has seen of one incarnation.

    :ivar incarnation: of which
    :ivar silent_from: when its silence on the group began
    :ivar missing_since: when it was first found missing, None while present
    :ivar cause: why it is called suspect while it is missing
    :ivar seen: this observer has seen it in the group
    :ivar unheard: it has left a question unanswered while it was missing
    :ivar down_since: since when its silence is called down, nothing having been heard
        since; "-inf" if another observer said so
    """

    incarnation: int
    silent_from: float
    missing_since: float | None
    cause: Cause
    seen: bool = False
    unheard: bool = False
    down_since: float | None = None


@dataclasses.dataclass(frozen=True)
class Heard:
    """What came of asking one incarnation over RPC.

    :ivar answered: when it last answered, None if it never did
    :ivar unanswered: when it was asked last, if nobody answered; None when it was
        never asked, answered, or could not be asked
    :ivar not_asked: when that was last to be done, and nobody could tell whether
        anybody is there
    """

    answered: float | None = None
    unanswered: float | None = None
    not_asked: float | None = None

    @property
    def latest(self) -> float:
        """When it last answered or could not be asked; "-inf" if neither was."""
        known = (self.answered, self.not_asked)
        return max((t for t in known if t is not None), default=float("-inf"))


def has_expired(state: State, cause: Cause) -> bool:
    """Return whether a verdict says that a host was seen to leave, or died.

    Not that the observer was blind, nor that the host has never joined.
    """
    return (state, cause) in _EXPIRED


_EXPIRED = {(State.SUSPECT, Cause.VANISHED), (State.DOWN, Cause.SILENT)}


def first_sight(granted: Granted, incarnation: int, now: float) -> Sight:
    """Return how an incarnation counts before this observer has seen it.

    Silence counts from now: of what was before, this observer knows only what is
    stored. So a new leader gives everybody a full service_down_time, except
    those that were down already.
    """
    previous = granted.previous
    cause = Cause.NOT_YET_JOINED
    if previous is not None and previous.incarnation == incarnation:
        known = previous.state is State.SUSPECT and previous.cause in _MISSING
        cause = previous.cause if known else Cause.NOT_YET_BACK
    down = granted.stored(State.DOWN) and granted.expired
    return Sight(
        incarnation=incarnation,
        silent_from=now,
        missing_since=now,
        cause=cause,
        down_since=float("-inf") if down else None,
    )


def judge_words(granted: Granted) -> Verdict | None:
    """Return the verdict that needs no look at the group, if there is one."""
    if granted.forced_down:
        return Verdict(
            State.DOWN,
            Cause.FORCED_DOWN,
            granted.incarnation,
            "forced down by an operator",
        )
    if granted.incarnation is not None and granted.goodbye:
        return Verdict(
            State.DOWN,
            Cause.GOODBYE,
            granted.incarnation,
            f"{granted.member} said goodbye",
        )
    return None


def judge(
    granted: Granted,
    sight: Sight | None,
    heard: Heard,
    now: float,
    policy: Policy,
    hold: flapping.Hold | None = None,
) -> Verdict:
    """Return the verdict of one host.

    :param granted: what is stored
    :param sight: what was seen of the granted incarnation; None without one
    :param heard: what came of asking it over RPC
    :param now: the observer's clock
    :param policy: the times
    :param hold: for coming and going, None for none
    """
    words = judge_words(granted)
    if words is not None:
        return words
    if sight is None:
        return Verdict(
            State.UNKNOWN,
            Cause.NEVER_GRANTED,
            granted.incarnation,
            "no agent of this host was ever granted an incarnation",
        )
    if sight.missing_since is None:
        return _present(granted, sight, hold)
    return _missing(granted, sight, sight.missing_since, heard, now, policy)


def judge_beat(
    granted: Granted,
    watched_from: float,
    heard: Heard,
    now: float,
    policy: Policy,
) -> Verdict:
    """Return the verdict of a host of which beats tell, or nothing does.

    :param watched_from: since when the observer has looked for a newer beat and found
        none, without a gap
    :param heard: what came of asking the host over RPC
    """
    words = judge_words(granted)
    if words is not None:
        return words
    beat = granted.beat
    if beat is None:
        return Verdict(
            State.UNKNOWN,
            Cause.NEVER_GRANTED,
            None,
            "no agent of this host was ever granted an incarnation",
        )
    if abs(beat.age) <= policy.service_down_time:
        return _beating(granted, beat)
    # No beat can have come while nobody could be reached.
    silent_from = max(watched_from, heard.not_asked or watched_from)
    asked = heard.unanswered is not None and heard.unanswered >= silent_from
    silent = asked and now - silent_from >= policy.service_down_time
    was_down = (
        granted.stored(State.DOWN)
        and granted.previous is not None
        and granted.previous.cause is Cause.NO_DB_BEAT
    )
    answered = heard.answered
    lately = answered is not None and now - answered < policy.service_down_time
    what, one = f"the last beat of {_name(granted)} came", "a newer one"
    if beat.registered_only:
        what, one = f"{granted.host} never beat, and was registered", "a beat"
    told = ""
    if answered is not None and lately:
        told = f", answered on RPC {now - answered:.0f} s ago: the host lives"
    return Verdict(
        State.DOWN if (silent or was_down) and not lately else State.SUSPECT,
        Cause.NO_DB_BEAT,
        granted.incarnation,
        f"{what} {beat.age:.0f} s ago by the database's clock, looked for {one} for "
        f"{now - silent_from:.0f} s{told}",
    )


def _beating(granted: Granted, beat: Beat) -> Verdict:
    name = _name(granted)
    if granted.stalled is not None:
        return Verdict(
            State.SUSPECT,
            Cause.STALLED,
            granted.incarnation,
            f"{name} beats, and is stalled: {granted.stalled}",
        )
    what = "was registered" if beat.registered_only else "beat"
    yet = ", and has not beaten yet" if beat.registered_only else ""
    return Verdict(
        State.UP,
        Cause.DB_BEAT,
        granted.incarnation,
        f"{name} {what} {beat.age:.0f} s ago, by the database's clock{yet}",
    )


def _name(granted: Granted) -> str:
    return granted.host if granted.incarnation is None else granted.member


def _present(granted: Granted, sight: Sight, hold: flapping.Hold | None) -> Verdict:
    if granted.stalled is not None:
        return Verdict(
            State.SUSPECT,
            Cause.STALLED,
            sight.incarnation,
            f"{granted.member} is in the group and stalled: {granted.stalled}",
        )
    if hold is not None:
        return Verdict(
            State.SUSPECT,
            Cause.FLAPPING,
            sight.incarnation,
            f"{granted.member} is in the group, and {hold.describe()}",
        )
    return Verdict(
        State.UP,
        Cause.IN_GROUP,
        sight.incarnation,
        f"{granted.member} is in the group",
    )


def _missing(
    granted: Granted,
    sight: Sight,
    missing_since: float,
    heard: Heard,
    now: float,
    policy: Policy,
) -> Verdict:
    # Silence on RPC is a question without an answer; nobody is down unasked. One such
    # question says nothing of the time in which none could be put: a broker that comes
    # back knows for some seconds no agent's queue.
    asked = heard.unanswered is not None and heard.unanswered >= missing_since
    quiet_from = max(sight.silent_from, heard.latest)
    silent = asked and now - quiet_from >= policy.service_down_time
    if silent or (sight.down_since is not None and not _lately(heard, now, policy)):
        return Verdict(
            State.DOWN,
            Cause.SILENT,
            sight.incarnation,
            f"{granted.member} was silent in the group and on RPC for "
            f"{policy.service_down_time:g} s",
        )
    described = _describe(granted, sight, missing_since, heard, now)
    if _granted_anew(granted, sight) and now - missing_since < policy.recovery_grace:
        return Verdict(
            State.UNKNOWN, Cause.GRANT_FORGOTTEN, sight.incarnation, described
        )
    lives = sight.cause is Cause.VANISHED and has_answered(sight, heard)
    return Verdict(
        State.SUSPECT,
        Cause.NOT_YET_BACK if lives else sight.cause,
        sight.incarnation,
        described,
    )


def has_answered(sight: Sight, heard: Heard) -> bool:
    """Return whether a missing one has answered each question since it was missed.

    So it is the group that has lost it: the host was there all the while.
    """
    return (
        sight.missing_since is not None
        and not sight.unheard
        and heard.answered is not None
        and heard.answered >= sight.missing_since
    )


def _lately(heard: Heard, now: float, policy: Policy) -> bool:
    answered = heard.answered
    return answered is not None and now - answered < policy.service_down_time


def _granted_anew(granted: Granted, sight: Sight) -> bool:
    """Return whether a living process was granted this, and hasn't been seen since."""
    previous = granted.previous
    return (
        not sight.seen
        and granted.stored(State.UNKNOWN)
        and previous is not None
        and previous.cause is Cause.GRANT_FORGOTTEN
    )


def _describe(
    granted: Granted, sight: Sight, missing_since: float, heard: Heard, now: float
) -> str:
    seen = {
        Cause.VANISHED: "left the group",
        Cause.NOT_YET_BACK: "is not back in the group, looked for since",
        Cause.NOT_YET_JOINED: "has not joined the group, looked for since",
    }[sight.cause]
    text = f"{granted.member} {seen} {now - missing_since:.0f} s ago"
    answered, unanswered = heard.answered, heard.unanswered
    if answered is not None:
        text = f"{text}, answered on RPC {now - answered:.0f} s ago"
        if answered >= missing_since:
            text += ": the group has lost it, the host lives"
    elif unanswered is not None and unanswered >= missing_since:
        text = f"{text}, no answer on RPC"
    else:
        text = f"{text}, not asked on RPC yet"
    return text
