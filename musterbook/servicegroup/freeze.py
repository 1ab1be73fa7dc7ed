"""When verdicts stand still because the observer may be the one who is blind.

Decisions only: what is frozen, and what ends it. All instants are seconds on one
observer's monotonic clock. Scopes are "" (the whole fleet) or a zone's name.
"""

from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses

from musterbook.servicegroup import verdict

FLEET = ""


@dataclasses.dataclass(frozen=True)
class Freeze:
    """Why and since when the verdicts of a scope stand still.

    :ivar since: on the observer's clock
    :ivar evidence: what was seen, for people
    """

    cause: verdict.Cause
    since: float
    evidence: str


@dataclasses.dataclass(slots=True)
class Outage:
    """The backend can't be seen, or has lost the group.

    :ivar freeze: what readers are told
    :ivar awaited: hosts that were up before, and so should come back
    :ivar back: whether the group was there at the last look
    :ivar answered_for: seconds for which it has been there again, None before; short
        gaps end no such count
    :ivar vanished_for: seconds for which the backend has answered without it; the same
    """

    freeze: Freeze
    awaited: frozenset[str]
    back: bool = False
    answered_for: float | None = None
    vanished_for: float | None = None

    @property
    def blind(self) -> bool:
        """Whether the backend didn't answer at the last look."""
        return not self.back and self.freeze.cause is verdict.Cause.GROUP_UNREACHABLE

    @property
    def vanished(self) -> bool:
        """Whether it answered, without the group."""
        return not self.back and self.freeze.cause is verdict.Cause.GROUP_VANISHED


@dataclasses.dataclass(slots=True)
class Wave:
    """Many hosts of a zone vanished at once.

    :ivar freeze: what readers are told
    :ivar lost: the hosts that are still gone
    :ivar returned_at: when the last of them came back, None if none has
    """

    freeze: Freeze
    lost: frozenset[str]
    returned_at: float | None = None


class Canary:
    """What was seen of a member that is there to prove that the backend keeps any."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._looked = 0.0
        self._allowed = 0.0

    def note(self, seen: bool | None, now: float, policy: verdict.Policy) -> None:
        """Take in one look.

        :param seen: whether it was there; None: nobody could look, or there is none
        """
        if seen is None:
            return
        if not seen:
            self._since = None
        elif self._since is None or self._lost(now):
            self._since = now
        self._looked, self._allowed = now, policy.member_timeout

    def proves(self, seconds: float, now: float) -> bool:
        """Return whether it was there at each look of so many last seconds.

        A member timeout without a look ends the proof: it may have been lost meanwhile.
        """
        since = self._since
        return since is not None and not self._lost(now) and now - since >= seconds

    def _lost(self, now: float) -> bool:
        return now - self._looked > self._allowed


def recovered(outage: Outage, missing: frozenset[str], policy: verdict.Policy) -> bool:
    """Return whether an outage is over, the backend having answered with a group.

    It is when everyone who was there is back, or has had the time to be: seconds in
    which the backend answered, be they in a row or not.

    :param missing: who is awaited and not back
    """
    assert outage.answered_for is not None
    return not missing or outage.answered_for >= policy.recovery_grace


def heard_lately(
    host: str, answered: Mapping[str, float], now: float, policy: verdict.Policy
) -> bool:
    """Return whether a host has answered a ping within service_down_time."""
    when = answered.get(host)
    return when is not None and now - when < policy.service_down_time


def hold_over(
    held_for: float,
    controls: Iterable[str],
    answered: Mapping[str, float],
    canary: Canary,
    now: float,
    policy: verdict.Policy,
) -> bool:
    """Return whether a loss has been held long enough for each host to be judged.

    It has when mass_loss_hold has passed, and one of the hosts that are in the group
    has answered a ping within service_down_time: the backend keeps members, and pings
    do arrive. With nobody present the canary has to have been there for that long.
    Whoever of the lost answers pings isn't down after it either.

    :param held_for: seconds since the loss began
    :param controls: hosts that are in the group
    """
    if held_for < policy.mass_loss_hold:
        return False
    present = list(controls)
    if not present:
        return canary.proves(policy.mass_loss_hold, now)
    return any(heard_lately(host, answered, now, policy) for host in present)


def settled(
    wave: Wave, present_in_zone: int, now: float, policy: verdict.Policy
) -> bool:
    """Return whether enough of the lost came back to judge the rest one by one.

    Not at once: who heals a network sees the first come back a beat before the
    last, which by then may have been silent for long enough to be called down.
    """
    if not wave.lost:
        return True
    return (
        wave.returned_at is not None
        and now - wave.returned_at >= policy.recovery_grace
        and not policy.is_mass_loss(len(wave.lost), present_in_zone)
    )
