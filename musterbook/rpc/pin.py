"""How new a version of an RPC interface may be that is spoken to the other side."""

from collections.abc import Callable
import time

from oslo_utils import versionutils

#: Seconds for which a version that was found out is relied upon.
KEPT = 600.0


class Pin:
    """The newest version that may be spoken; any thread may ask.

    :param newest: the one that this code knows
    :param fixed: an operator's; None: the newest, or what ask finds out
    :param ask: finds out what the other side speaks; None: it can't be told now, so
        the newest is spoken and the next time it is asked again
    """

    def __init__(
        self,
        newest: str,
        fixed: str | None = None,
        ask: Callable[[], str | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._newest = newest
        self._fixed = fixed
        self._ask = ask
        self._clock = clock
        self._found: tuple[str, float] | None = None

    def version(self) -> str:
        """Return the newest version that may be spoken now."""
        if self._fixed is not None or self._ask is None:
            return self._fixed or self._newest
        found = self._found
        if found is not None and self._clock() - found[1] < KEPT:
            return found[0]
        asked = self._ask()
        if asked is None:
            return self._newest
        version = asked if _number(asked) < _number(self._newest) else self._newest
        self._found = version, self._clock()
        return version

    def allows(self, version: str) -> bool:
        """Return whether a method of this version may be called."""
        return _number(version) <= _number(self.version())

    def refused(self, lower: str) -> bool:
        """Note that one of several refuses what is newer than lower.

        :returns: whether to ask again in the lower version; only what was found out
            is changed, an operator's word stands
        """
        if self._fixed is not None or self._ask is None:
            return False
        self._found = lower, self._clock()
        return True


def _number(version: str) -> tuple[int, ...]:
    return versionutils.convert_version_to_tuple(version)
