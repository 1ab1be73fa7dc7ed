"""Which hosts to ask over RPC now, without asking too often or too many.

Pure functions; all instants are seconds on one observer's monotonic clock.
"""

from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses

# Pings that one step asks for at most: each costs the leader and the broker about
# 1.5 ms of CPU, and a step comes every second.
PER_STEP = 100
# Seconds between two pings of a host that is down, at most: who was called down a
# moment ago is asked nearly as often as before, in case that was wrong.
DOWN_EVERY = 60.0
# Present hosts that are pinged as well while a mass loss is held.
CONTROLS = 3


@dataclasses.dataclass(frozen=True)
class Replies:
    """What came of asking each host's granted incarnation, by host.

    :ivar asked: when it was last asked, be it in vain
    :ivar answered: when it last answered
    :ivar unanswered: when it was asked last, if that question was put and ended
        without an answer. A host that answered since, that answered with an error,
        or that could not be asked isn't in here
    :ivar not_asked: when it was last to be asked, and couldn't be or answered with
        an error: nothing can be told from that
    """

    asked: Mapping[str, float]
    answered: Mapping[str, float]
    unanswered: Mapping[str, float]
    not_asked: Mapping[str, float] = dataclasses.field(default_factory=dict)


def pause(down_for: float, every: float) -> float:
    """Return the seconds between two pings of a host that is down for so long.

    Never falls as time passes.

    :param every: the same of a host that isn't down
    """
    return max(every, min(down_for / 4, DOWN_EVERY))


def due(
    hosts: Iterable[str],
    down: Mapping[str, float],
    asked: Mapping[str, float],
    now: float,
    every: float,
) -> tuple[str, ...]:
    """Return whom to ask now: first those never asked, then the most overdue.

    Not all of them may get their turn before the next step, which asks anew: each
    becomes more overdue until it does.

    :param hosts: whom it makes sense to ask
    :param down: since when those of them are down that are; "-inf": for ever
    :param asked: when each was asked last
    :param every: seconds between two pings of a host that isn't down
    """
    never = float("-inf")
    overdue = {
        host: (now - asked.get(host, never)) / pause(now - down.get(host, now), every)
        for host in hosts
    }
    waiting = sorted((-share, host) for host, share in overdue.items() if share >= 1)
    return tuple(host for _, host in waiting[:PER_STEP])


def controls(present: Iterable[str], now: float, every: float) -> set[str]:
    """Return a few present hosts, others each time: one may itself be deaf."""
    names = sorted(present)
    if not names:
        return set()
    first = int(now // every) * CONTROLS
    return {names[(first + i) % len(names)] for i in range(CONTROLS)}
