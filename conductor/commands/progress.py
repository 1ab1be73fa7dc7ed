"""Lines for the person who waits, and for names out of a database."""

import time

from conductor import commands

_EVERY = 2.0


class Progress:
    """Says how far a run is, every few seconds; one thread.

    :param total: rows by table; rows that come up later may exceed it
    """

    def __init__(self, say: commands.Say, total: dict[str, int]) -> None:
        self._say = say
        self._total = total
        self._done = dict.fromkeys(total, 0)
        self._said = time.monotonic()

    def add(self, table: str, rows: int) -> None:
        """Count rows that are dealt with, and say so if it is time."""
        self._done[table] += rows
        if time.monotonic() - self._said >= _EVERY:
            self._said = time.monotonic()
            self._say(f"{table}: {self._done[table]} of {self._total[table]}")


def shown(value: object) -> str:
    """Return a value out of the database as one word's worth of harmless text."""
    if value is None:
        return "-"
    return "".join(c if c.isprintable() else "?" for c in str(value)) or "''"


def rows(number: int) -> str:
    """Return "1 row" or "N rows"."""
    return "1 row" if number == 1 else f"{number} rows"
