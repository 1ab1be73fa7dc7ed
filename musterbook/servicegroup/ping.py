"""Which hosts to ask over RPC now, without asking too often or too many."""

from collections.abc import Iterable

# Pings that one step asks for at most: each costs the leader and the broker about
# 1.5 ms of CPU, and a step comes every second.
PER_STEP = 100
# Seconds between two pings of a host that is down, for as long as it is.
DOWN_EVERY = 60.0
# Present hosts that are pinged as well while a mass loss is held.
CONTROLS = 3


class Pings:
    """Who was asked when; for one thread.

    :param every: seconds between two pings of a host that isn't down
    """

    def __init__(self, every: float) -> None:
        self._every = every
        self._asked: dict[str, float] = {}

    def forget(self, hosts: Iterable[str]) -> None:
        """Count these hosts as never asked."""
        for host in hosts:
            self._asked.pop(host, None)

    def due(
        self, hosts: Iterable[str], down: frozenset[str], now: float
    ) -> frozenset[str]:
        """Return whom to ask now, those not asked for the longest time first.

        :param hosts: whom it makes sense to ask
        :param down: those of them that are down already
        """
        never = float("-inf")
        waiting = sorted(
            (self._asked.get(host, never), host)
            for host in hosts
            if now - self._asked.get(host, never)
            >= (DOWN_EVERY if host in down else self._every)
        )
        chosen = frozenset(host for _, host in waiting[:PER_STEP])
        self._asked.update(dict.fromkeys(chosen, now))
        return chosen

    def controls(self, present: Iterable[str], now: float) -> set[str]:
        """Return a few present hosts, others each time: one may itself be deaf."""
        names = sorted(present)
        if not names:
            return set()
        first = int(now // self._every) * CONTROLS
        return {names[(first + i) % len(names)] for i in range(CONTROLS)}
