"""Zones that lose too many hosts at once for them to have died one by one.

Nothing here reads a clock; all instants are seconds on one observer's monotonic clock.
"""

import collections
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from musterbook.servicegroup import freeze
from musterbook.servicegroup import verdict


class Losses:
    """Who vanished lately, and in which zones that is a mass loss; for one thread.

    A zone is frozen for as long as one of its mass losses is held. Each is held on its
    own: hosts that vanish in a later one get the whole time, however long the first
    has been held.
    """

    def __init__(self) -> None:
        self._vanished: dict[str, float] = {}
        self._waves: dict[str, list[freeze.Wave]] = {}

    def __bool__(self) -> bool:
        """Whether anything is waited for: a zone is frozen, or may be soon."""
        return bool(self._vanished or self._waves)

    @property
    def zones(self) -> AbstractSet[str]:
        """The frozen zones."""
        return self._waves.keys()

    @property
    def vanished(self) -> AbstractSet[str]:
        """Who vanished within the last member timeout, and isn't back."""
        return self._vanished.keys()

    def hosts(self) -> set[str]:
        """Return all hosts that count as vanished or lost."""
        lost = (wave.lost for waves in self._waves.values() for wave in waves)
        return set(self._vanished).union(*lost)

    def freezes(self) -> dict[str, freeze.Freeze]:
        """Return why each frozen zone is."""
        return {zone: waves[0].freeze for zone, waves in self._waves.items()}

    def vanish(self, hosts: Iterable[str], now: float) -> None:
        """Note that these hosts were there, and are not any more."""
        self._vanished.update(dict.fromkeys(hosts, now))

    def explain(self, hosts: AbstractSet[str]) -> None:
        """Count these hosts no longer: they are back, or it is known why they left."""
        for host in self._vanished.keys() & hosts:
            del self._vanished[host]
        for waves in self._waves.values():
            for wave in waves:
                wave.lost -= hosts

    def forgive(self) -> None:
        """Count nobody who vanished till now; what is frozen stays so."""
        self._vanished.clear()

    def weigh(
        self,
        granted: Mapping[str, verdict.Granted],
        there: frozenset[str],
        now: float,
        policy: verdict.Policy,
    ) -> None:
        """Begin a freeze where too many have vanished.

        :param granted: every host that is there, vanished or lost
        :param there: hosts that are in the group, or beat as legacy ones
        """
        self._vanished = {
            host: when
            for host, when in self._vanished.items()
            if now - when <= policy.member_timeout and host not in there
        }
        if not self._vanished:
            return
        present = collections.Counter(granted[host].zone for host in there)
        by_zone: dict[str, set[str]] = {}
        for host in self._vanished:
            by_zone.setdefault(granted[host].zone, set()).add(host)
        for zone, hosts in by_zone.items():
            self._weigh_zone(zone, hosts, present[zone], now, policy)

    def _weigh_zone(
        self,
        zone: str,
        hosts: set[str],
        present: int,
        now: float,
        policy: verdict.Policy,
    ) -> None:
        waves = self._waves.get(zone, [])
        new = hosts.difference(*(wave.lost for wave in waves))
        if waves and now - waves[-1].freeze.since <= policy.member_timeout:
            waves[-1].lost |= new
        elif policy.is_mass_loss(len(new), present):
            said = (
                f"{len(new)} of {len(new) + present} hosts of zone {zone} left "
                f"the group within {policy.member_timeout:g} s"
            )
            began = freeze.Freeze(verdict.Cause.MASS_LOSS, now, said)
            self._waves.setdefault(zone, []).append(freeze.Wave(began, frozenset(new)))

    def end(
        self,
        granted: Mapping[str, verdict.Granted],
        there: frozenset[str],
        controls: frozenset[str],
        released: AbstractSet[str],
        answered: Mapping[str, float],
        canary: freeze.Canary,
        now: float,
        policy: verdict.Policy,
    ) -> None:
        """End what is over; its hosts are judged one by one, and not counted again.

        :param there: as of weigh()
        :param controls: those of them that are in the group
        :param released: zones of which an operator says so
        :param answered: when each host has last answered a ping
        """
        present = collections.Counter(
            granted[host].zone for host in (there if self._waves else ())
        )
        for zone, waves in list(self._waves.items()):
            held = []
            for wave in waves:
                if wave.lost & there:
                    wave.lost -= there
                    wave.returned_at = now
                if (
                    zone in released
                    or freeze.settled(wave, present[zone], now, policy)
                    or freeze.hold_over(
                        now - wave.freeze.since, controls, answered, canary, now, policy
                    )
                ):
                    for host in wave.lost:
                        self._vanished.pop(host, None)
                else:
                    held.append(wave)
            if held:
                self._waves[zone] = held
            else:
                del self._waves[zone]
