"""What one observer sees of a group over time, and what it decides from that.

The leader's loop polls the group once a second and hands the outcome to a Watch.
Nothing here reads a clock, blocks, or is random: the same steps give the same
decisions. Which host is how is decided in verdict.py, when verdicts stand still
in freeze.py and losses.py; this keeps what they need to know.
"""

from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses

from musterbook import errors
from musterbook.servicegroup import beats
from musterbook.servicegroup import flapping
from musterbook.servicegroup import freeze
from musterbook.servicegroup import losses
from musterbook.servicegroup import ping
from musterbook.servicegroup import verdict


@dataclasses.dataclass(frozen=True)
class Decision:
    """What one step came to.

    :ivar verdicts: by host, of those whose verdict isn't frozen
    :ivar freezes: by scope: "" is the whole fleet, else a zone
    :ivar to_ping: hosts to ask over RPC now, the most urgent first
    :ivar canary: a loss is held: a canary member should be in the backend, to prove it
    """

    verdicts: Mapping[str, verdict.Verdict]
    freezes: Mapping[str, freeze.Freeze]
    to_ping: tuple[str, ...]
    canary: bool = False


@dataclasses.dataclass(frozen=True)
class Past:
    """A transition that was written by whoever led then.

    :ivar when: on the present observer's clock
    """

    host: str
    state: verdict.State
    cause: verdict.Cause
    when: float


class Watch:
    """One leader's observation, from its election to its end.

    For one thread. A new leader starts a new one: what the former saw on another
    clock is of no use, what it decided is stored and comes back as
    ``Granted.previous``.
    """

    def __init__(self, policy: verdict.Policy) -> None:
        self._policy = policy
        self._sights: dict[str, verdict.Sight] = {}
        self._beats = beats.Beats()
        self._present: frozenset[str] = frozenset()
        self._outage: freeze.Outage | None = None
        self._losses = losses.Losses()
        self._canary = freeze.Canary()
        self._released: set[str] = set()
        self._stepped: float | None = None
        self._last_good: float | None = None
        self._last_answer: float | None = None  # of the backend, with or without it
        self._poll_failed = False
        self._flaps = flapping.Ledger()

    def recall(self, past: Iterable[Past]) -> None:
        """Take in what former observers wrote, oldest first; before the first step."""
        for item in past:
            if verdict.has_expired(item.state, item.cause):
                self._flaps.expire(item.host)
            elif item.cause is verdict.Cause.FLAPPING_RESET:
                self._flaps.forget(item.host)
            elif item.cause in verdict.PRESENT:
                self._flaps.come_back(item.host, item.when)
            elif item.state is verdict.State.DOWN or (
                item.cause is verdict.Cause.NOT_YET_BACK
            ):
                self._flaps.excuse(item.host)

    def set_policy(self, policy: verdict.Policy) -> None:
        """Judge by other times from the next step on; what was seen is kept."""
        self._policy = policy

    def step(
        self,
        poll: frozenset[str] | errors.GroupError,
        granted: Mapping[str, verdict.Granted],
        replies: ping.Replies,
        now: float,
        canary: bool | None = None,
    ) -> Decision:
        """Take in one poll and decide.

        :param poll: the members, or why they can't be told
        :param granted: every host of the fleet, by name
        :param replies: what came of asking them over RPC
        :param now: this observer's monotonic clock, never less than before
        :param canary: whether the canary was found; None: nobody could look for it, or
            there is none
        """
        self._forget(granted)
        self._canary.note(canary, now, self._policy)
        self._mind_flaps(granted, now)
        answered = replies.answered
        self._look_at_beats(granted, now)
        members = self._readable(poll, granted, answered, now)
        if members is not None:
            self._look(members, granted, now)
            if self._outage is not None:
                self._recover(self._outage, granted, now)
            if self._outage is None:
                self._weigh_losses(granted, answered, now)
                # Not before: an operator's word holds until it can be followed.
                self._released.clear()
        self._stepped = now
        return Decision(
            verdicts=self._judge(granted, replies, now),
            freezes=self._freezes(),
            to_ping=self._to_ping(granted, replies.asked, now),
            canary=bool(self._losses.zones)
            or (self._outage is not None and self._outage.vanished),
        )

    def release(self, scope: str) -> bool:
        """End a freeze on an operator's word, at the next step that sees the group.

        :param scope: "" or a zone
        :returns: False when there is none, or the backend can't be seen at all. Before
            the first step, which may find one, it is taken as said
        """
        outage = self._outage
        if self._stepped is None:
            known = True
        elif scope == freeze.FLEET:
            known = outage is not None and not outage.blind
        else:
            known = scope in self._losses.zones
        if known:
            self._released.add(scope)
        return known

    def quiet_until(
        self, granted: Mapping[str, verdict.Granted], asked: Mapping[str, float]
    ) -> float | None:
        """Return until when steps would decide what the last one did.

        As long as they are told the same, none later than a member timeout after the
        other. None: time alone may change something at once. Whatever is decided by
        time has to be regarded here.

        :param granted: as in the last step
        :param asked: when each host was asked last
        """
        if self._outage or self._losses or self._released:
            return None
        if any(g.by_beats for g in granted.values()):
            return None  # the ages of beats grow
        until = self._flaps.next_end(self._last_good)
        for host, sight in self._sights.items():
            if sight.missing_since is None:
                continue
            if verdict.judge_words(granted[host]) is not None:
                continue
            if sight.down_since is None or host not in asked or self._stepped is None:
                return None
            down_for = self._stepped - sight.down_since
            until = min(until, asked[host] + ping.pause(down_for, self._ping_every))
        return until

    def look_again(self, now: float) -> None:
        """Do as a step whose decision is known, by quiet_until(), to be nothing new."""
        self._last_good = self._stepped = now

    @property
    def _ping_every(self) -> float:
        return self._policy.member_timeout / 2

    # -- what is no longer waited for --------------------------------------------

    def _forget(self, granted: Mapping[str, verdict.Granted]) -> None:
        """Drop what was seen of incarnations that are over, and who won't return.

        A new incarnation is a sign of life of its host; a goodbye and an
        operator's word explain an absence.
        """
        gone = {
            host
            for host, sight in self._sights.items()
            if host not in granted
            or granted[host].incarnation != sight.incarnation
            or granted[host].by_beats
        }
        for host in gone:
            del self._sights[host]
        gone.update(h for h, g in granted.items() if g.goodbye or g.forced_down)
        if self._outage is not None:
            gone.update(
                host
                for host in self._outage.awaited - self._sights.keys()
                if host not in granted or not granted[host].stored(verdict.State.UP)
            )
        # A host that beat, and that the group is to tell of now, is judged by that.
        gone.update(
            host
            for host in self._losses.hosts() - self._sights.keys()
            if host not in granted or not granted[host].by_beats
        )
        if not gone:
            return
        self._present -= gone
        if self._outage is not None:
            self._outage.awaited -= gone
        self._losses.explain(gone)

    def _mind_flaps(self, granted: Mapping[str, verdict.Granted], now: float) -> None:
        """Take in what explains an absence, and an operator's word."""
        self._flaps.prune(now)
        for host in tuple(self._flaps.hosts()):
            g = granted.get(host)
            if g is None or (
                g.previous is not None
                and g.previous.cause is verdict.Cause.FLAPPING_RESET
            ):
                self._flaps.forget(host)
            elif g.goodbye or g.forced_down:
                self._flaps.excuse(host)

    # -- the fleet: can the group be seen ----------------------------------------

    def _readable(
        self,
        poll: frozenset[str] | errors.GroupError,
        granted: Mapping[str, verdict.Granted],
        answered: Mapping[str, float],
        now: float,
    ) -> frozenset[str] | None:
        """Return the members, None when nobody can tell."""
        if isinstance(poll, frozenset):
            return poll
        if self._outage is None:
            awaited = self._who_was_up(granted)
        else:
            awaited = self._outage.awaited
        if not isinstance(poll, errors.GroupVanished):
            self._blind(verdict.Cause.GROUP_UNREACHABLE, poll, awaited, now)
            return None
        if not awaited:
            return frozenset()  # nobody joined yet, or nobody is left to do so
        outage = self._blind(verdict.Cause.GROUP_VANISHED, poll, awaited, now)
        outage.answered_for = None
        outage.vanished_for = self._count_on(outage.vanished_for, now)
        self._last_answer = now
        if freeze.FLEET in self._released or self._is_gone(outage, answered, now):
            self._believe_vanished(outage, granted, now)
            return frozenset()
        return None

    def _is_gone(
        self, outage: freeze.Outage, answered: Mapping[str, float], now: float
    ) -> bool:
        """Return whether a group that vanished is to be believed: nobody lives."""
        assert outage.vanished_for is not None
        return not any(
            freeze.heard_lately(host, answered, now, self._policy)
            for host in outage.awaited
        ) and freeze.hold_over(
            outage.vanished_for, (), answered, self._canary, now, self._policy
        )

    def _count_on(self, seconds: float | None, now: float) -> float:
        """Return a count of seconds with those since the last step.

        :param seconds: None: it begins now
        """
        return 0.0 if seconds is None else seconds + self._since_step(now)

    def _since_step(self, now: float) -> float:
        """Return the seconds since the last step, 0 after a pause that hides things.

        For so long holds what this step sees. If the last one saw nothing, only that
        it did is lost, not all since the one before: a backend that fails now and then
        would put everything off for ever.
        """
        pause = 0.0 if self._stepped is None else now - self._stepped
        return pause if pause <= self._policy.member_timeout else 0.0

    def _who_was_up(self, granted: Mapping[str, verdict.Granted]) -> frozenset[str]:
        if self._last_good is not None:
            return self._present
        return frozenset(
            host
            for host, g in granted.items()
            if g.stored(verdict.State.UP)
            and not g.by_beats
            and not (g.goodbye or g.forced_down)
        )

    def _blind(
        self,
        cause: verdict.Cause,
        poll: errors.GroupError,
        awaited: frozenset[str],
        now: float,
    ) -> freeze.Outage:
        self._poll_failed = True
        outage = self._outage
        if outage is None:
            began = freeze.Freeze(cause, now, poll.message)
            self._outage = outage = freeze.Outage(began, awaited)
        elif outage.freeze.cause is not cause:
            outage.freeze = dataclasses.replace(
                outage.freeze, cause=cause, evidence=poll.message
            )
        outage.back = False
        last = self._last_answer
        if last is None or now - last > self._policy.member_timeout:
            # Long enough for what was there to be lost.
            outage.answered_for = outage.vanished_for = None
        return outage

    def _believe_vanished(
        self, outage: freeze.Outage, granted: Mapping[str, verdict.Granted], now: float
    ) -> None:
        """Count everybody as silent since the group vanished.

        Only time in which the backend answered, so it was observed.
        """
        assert outage.vanished_for is not None
        since = now - outage.vanished_for
        for host in outage.awaited:
            incarnation = granted[host].incarnation
            assert incarnation is not None  # see _who_was_up and _forget
            sight = self._sights.get(host)
            if sight is None:
                self._sights[host] = verdict.first_sight(
                    granted[host], incarnation, since
                )
            elif sight.missing_since is None:
                sight.missing_since = since
                sight.cause = verdict.Cause.VANISHED
        for sight in self._sights.values():
            if sight.missing_since is not None:
                sight.silent_from = max(sight.silent_from, since)
        self._outage = None
        self._poll_failed = False
        self._last_good = None

    def _recover(
        self,
        outage: freeze.Outage,
        granted: Mapping[str, verdict.Granted],
        now: float,
    ) -> None:
        """End an outage when its time has come; the group was seen just now."""
        outage.back = True
        outage.vanished_for = None
        outage.answered_for = self._count_on(outage.answered_for, now)
        missing = outage.awaited - self._present
        if freeze.FLEET in self._released:
            self._outage = None
            self._losses.forgive()
        elif freeze.recovered(outage, missing, self._policy):
            self._outage = None
            # Too many to have died during the outage, by chance, one by one.
            self._losses.vanish(missing, now)

    # -- who is in the group -----------------------------------------------------

    def _look(
        self,
        members: frozenset[str],
        granted: Mapping[str, verdict.Granted],
        now: float,
    ) -> None:
        """Take in who is there and who isn't, the group having been readable."""
        gap = 0.0 if self._last_good is None else now - self._last_good
        blind = self._poll_failed or gap > self._policy.member_timeout
        present = set()
        vanished = []
        for host, g in granted.items():
            if g.incarnation is None or g.beat is not None:
                continue
            expected = not (g.goodbye or g.forced_down)
            sight = self._sights.get(host)
            if sight is None:
                sight = verdict.first_sight(g, g.incarnation, now)
                self._sights[host] = sight
                if expected and _was_there(g):
                    vanished.append(host)
            self._note_flap(g, sight, now, there=g.member in members)
            if g.member in members:
                if expected:
                    present.add(host)
                sight.missing_since = None
                sight.seen = True
                sight.down_since = None
            elif sight.missing_since is None:
                self._miss(sight, blind, now)
                if expected:
                    vanished.append(host)
            elif blind:
                self._pause_silence(sight, gap, now)
        self._present = frozenset(present)
        self._losses.vanish(vanished, now)
        self._poll_failed = False
        self._last_good = self._last_answer = now

    def _note_flap(
        self, g: verdict.Granted, sight: verdict.Sight, now: float, *, there: bool
    ) -> None:
        """Take in how one is that wasn't there at the last look."""
        if sight.missing_since is None:
            return
        previous = g.previous
        if previous is not None and previous.cause is verdict.Cause.NOT_YET_BACK:
            self._flaps.excuse(g.host)
        elif g.expired and not (g.goodbye or g.forced_down):
            self._flaps.expire(g.host)
        if there:
            self._flaps.come_back(g.host, now)

    def _miss(self, sight: verdict.Sight, blind: bool, now: float) -> None:
        sight.missing_since = now
        sight.unheard = False
        if blind:
            sight.silent_from = now
            sight.cause = verdict.Cause.NOT_YET_BACK
        else:
            # The backend drops a member this long after its last beat.
            sight.silent_from = now - self._policy.member_timeout
            sight.cause = verdict.Cause.VANISHED

    def _pause_silence(self, sight: verdict.Sight, gap: float, now: float) -> None:
        """Don't count time in which the observer couldn't see as silence.

        After a short gap the count goes on where it stood. A long one may have
        hidden a host that came and was dropped again, so the count starts anew.

        :param gap: seconds since the group was last seen
        """
        if gap > self._policy.member_timeout:
            sight.silent_from = now
        else:
            sight.silent_from += gap - self._since_step(now)

    def _look_at_beats(
        self, granted: Mapping[str, verdict.Granted], now: float
    ) -> None:
        """Take in the beats, which the group has nothing to do with."""
        late = self._beats.look(granted, now, self._policy)
        if self._outage is not None:
            # Counted as lost when the outage ends: nobody is judged before.
            late |= {h for h in self._losses.vanished if granted[h].by_beats}
        self._losses.vanish(late, now)

    # -- zones: have too many vanished at once -----------------------------------

    def _weigh_losses(
        self,
        granted: Mapping[str, verdict.Granted],
        answered: Mapping[str, float],
        now: float,
    ) -> None:
        if not self._losses:
            return
        there = self._present | self._beats.beating
        self._losses.weigh(granted, there, now, self._policy)
        self._losses.end(
            granted,
            there,
            self._present | self._beats.answering,
            self._released,
            answered,
            self._canary,
            now,
            self._policy,
        )

    # -- what comes out ----------------------------------------------------------

    def _judge(
        self,
        granted: Mapping[str, verdict.Granted],
        replies: ping.Replies,
        now: float,
    ) -> dict[str, verdict.Verdict]:
        verdicts = {}
        for host, g in granted.items():
            if self._outage is not None or g.zone in self._losses.zones:
                words = verdict.judge_words(g)
                if words is not None:
                    verdicts[host] = words
                continue
            heard = verdict.Heard(
                replies.answered.get(host),
                replies.unanswered.get(host),
                replies.not_asked.get(host),
            )
            if g.by_beats:
                since = self._beats.watched_from(host, now)
                verdicts[host] = verdict.judge_beat(g, since, heard, now, self._policy)
                continue
            sight = self._sights.get(host)
            if sight is not None and sight.missing_since is not None:
                asked = heard.unanswered
                sight.unheard |= asked is not None and asked >= sight.missing_since
            hold = self._flaps.hold(host, now)
            said = verdict.judge(g, sight, heard, now, self._policy, hold)
            if sight is not None and sight.missing_since is not None:
                _keep_in_mind(sight, said, now)
            verdicts[host] = said
        return verdicts

    def _freezes(self) -> dict[str, freeze.Freeze]:
        freezes = self._losses.freezes()
        if self._outage is not None:
            freezes[freeze.FLEET] = self._outage.freeze
        return freezes

    def _to_ping(
        self,
        granted: Mapping[str, verdict.Granted],
        asked: Mapping[str, float],
        now: float,
    ) -> tuple[str, ...]:
        every = self._ping_every
        outage = self._outage
        if outage is not None and outage.vanished:
            return ping.due(outage.awaited, {}, asked, now, every)
        if outage is not None and outage.blind:
            return ()  # anybody may be missing: there is no end of asking
        missing = {
            host: sight
            for host, sight in self._sights.items()
            if sight.missing_since is not None
            and verdict.judge_words(granted[host]) is None
        }
        late = {
            h for h in self._beats.late() if verdict.judge_words(granted[h]) is None
        }
        hosts = set(missing) | late
        if self._losses.zones:
            present = self._present | self._beats.answering
            hosts |= ping.controls(present, now, every)
        down = {h: s.down_since for h, s in missing.items() if s.down_since is not None}
        for host in late:
            if granted[host].stored(verdict.State.DOWN):
                down[host] = float("-inf")
        return ping.due(hosts, down, asked, now, every)


def _was_there(granted: verdict.Granted) -> bool:
    """Return whether it counts as lost when a new leader doesn't find it.

    Also when it was missed before: the former leader may have seen a mass loss by half.
    Not who was known to be out of the group, and to live: one after the other may have
    got there. Who was granted its host and has yet to join wasn't there: a fleet that
    starts at once is no mass loss.
    """
    if granted.stored(verdict.State.UP):
        return True
    previous = granted.previous
    return (
        granted.stored(verdict.State.SUSPECT)
        and previous is not None
        and previous.cause not in _NOT_THERE
    )


_NOT_THERE = {verdict.Cause.NOT_YET_JOINED, verdict.Cause.NOT_YET_BACK}


def _keep_in_mind(sight: verdict.Sight, said: verdict.Verdict, now: float) -> None:
    """Take in what was said of a host that is missing."""
    if said.cause is verdict.Cause.SILENT:
        sight.down_since = now if sight.down_since is None else sight.down_since
    else:
        sight.down_since = None
    if said.cause is verdict.Cause.NOT_YET_BACK:
        sight.cause = said.cause
