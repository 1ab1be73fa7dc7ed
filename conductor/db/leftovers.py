"""Whether rows of Juno's shape are left that a query by host could find."""

import time

import sqlalchemy as sa

#: How long an answer is taken for true, in seconds.
_GOOD_FOR = 1.0


class Leftovers:
    """Remembers for a second whether there are such rows; any thread may ask.

    Once none is left, nothing of ours makes one: only Nova's own code can, by writing
    to this database itself. It is noticed within that second. So this is for readers
    only; what creates or changes a row looks in its own transaction.

    :param query: answers a row if there are any
    """

    def __init__(self, query: sa.Select[int]) -> None:
        self._query = query.limit(1)
        # One value, so that a thread never sees half of another's answer.
        self._known = (float("-inf"), True)

    def there_are(self, connection: sa.Connection) -> bool:
        """Return whether there are any, or were within the last second."""
        until, answer = self._known
        now = time.monotonic()
        if now >= until:
            answer = connection.execute(self._query).first() is not None
            self._known = now + _GOOD_FOR, answer
        return answer
