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
    :ivar answered_at: since when the backend answers again, None while it doesn't
    :ivar vanished_at: since when it answers without the group, None otherwise
    """

    freeze: Freeze
    awaited: frozenset[str]
    answered_at: float | None = None
    vanished_at: float | None = None


@dataclasses.dataclass(slots=True)
class Loss:
    """Many hosts of a zone vanished at once.

    :ivar freeze: what readers are told
    :ivar lost: the hosts that are still gone
    :ivar returned_at: when the last of them came back, None if none has
    """

    freeze: Freeze
    lost: frozenset[str]
    returned_at: float | None = None


def recovered(
    outage: Outage, missing: frozenset[str], now: float, policy: verdict.Policy
) -> bool:
    """Return whether an outage is over, the backend having answered with a group.

    It is when everyone who was there is back, or has had the time to be.

    :param missing: who is awaited and not back
    """
    assert outage.answered_at is not None
    return not missing or now - outage.answered_at >= policy.recovery_grace


def hold_over(
    since: float,
    lost: Iterable[str],
    controls: frozenset[str],
    answered: Mapping[str, float],
    now: float,
    policy: verdict.Policy,
) -> bool:
    """Return whether a loss has been held long enough to be believed.

    It has when mass_loss_hold has passed, none of the lost has answered a ping
    within service_down_time, and one of those that are present has: pings do
    arrive. With nobody present there is nobody to compare with, and the hold
    alone decides. (A canary member that proves the backend itself is not asked
    for here yet.)

    :param since: when the loss began
    :param lost: the hosts that are gone
    :param controls: hosts that are in the group
    """
    if now - since < policy.mass_loss_hold:
        return False

    def heard(host: str) -> bool:
        when = answered.get(host)
        return when is not None and now - when < policy.service_down_time

    if any(heard(host) for host in lost):
        return False
    return not controls or any(heard(host) for host in controls)


def settled(
    loss: Loss, present_in_zone: int, now: float, policy: verdict.Policy
) -> bool:
    """Return whether enough of the lost came back to judge the rest one by one.

    Not at once: who heals a network sees the first come back a beat before the
    last, which by then may have been silent for long enough to be called down.
    """
    if not loss.lost:
        return True
    return (
        loss.returned_at is not None
        and now - loss.returned_at >= policy.recovery_grace
        and not policy.is_mass_loss(len(loss.lost), present_in_zone)
    )
