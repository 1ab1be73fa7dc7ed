"""Members of the group who should look whether they are known, and when to tell them.

After a database was replaced or set back, the processes that it had granted their
hosts go on serving, and as long as nothing changes on them they ask no conductor. The
group still has them: whoever is in it without a grant is told to look. A process that
was superseded, or whose service was deleted, learns it by the same way.

A database that was set back may know everybody's grant, and hold an older state of
their nodes: once it was away, every member is told, once.
"""

from collections.abc import Mapping

#: Seconds between two times of telling the same member.
AGAIN = 5.0
#: Members told in one step: each says hello then, at 1 to 2 ms of a conductor's CPU.
PER_STEP = 100


class Strangers:
    """For one thread, the leader's; instants are on its monotonic clock."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}
        self._doubtful: set[str] = set()
        # When there was none, of which members and grants.
        self._none: tuple[frozenset[str], Mapping[str, int]] | None = None

    def doubt(self, members: frozenset[str]) -> None:
        """Have all of them told, once: the database may not be what it was."""
        self._doubtful |= members

    def due(
        self, members: frozenset[str], granted: Mapping[str, int], now: float
    ) -> list[str]:
        """Return the hosts to tell now.

        :param members: of the group, ``host#incarnation``
        :param granted: each host's incarnation, read after the members; the same
            object as the last time only if nothing in it has changed
        """
        if not self._doubtful and self._none is not None:
            seen, known = self._none
            if granted is known and (members is seen or members == seen):
                return []
        strangers = members - {f"{host}#{number}" for host, number in granted.items()}
        self._none = None if strangers else (members, granted)
        self._told = {m: when for m, when in self._told.items() if m in strangers}
        never = float("-inf")
        waiting = sorted(
            (self._told.get(member, never), member)
            for member in strangers
            if now - self._told.get(member, never) >= AGAIN
        )
        due = [member for _, member in waiting[:PER_STEP]]
        self._told.update(dict.fromkeys(due, now))
        self._doubtful = (self._doubtful & members) - strangers
        others = sorted(self._doubtful)[: PER_STEP - len(due)]
        self._doubtful.difference_update(others)
        due += others
        return [host for host, mark, _ in (m.rpartition("#") for m in due) if mark]
