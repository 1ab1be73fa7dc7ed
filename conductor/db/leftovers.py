"""Whether rows of Juno's shape are left that a query by host could find."""

import time

import sqlalchemy as sa

#: How long an answer is taken for true, in seconds, at the least and at the most.
_GOOD_FOR = 1.0
_AT_MOST = 60.0
#: The longest share of the time that is spent on asking. Soft-deleted rows of Juno's
#: shape have no host either, and the database may read them all: 0.1 s for 100,000.
_SHARE = 0.01


class Leftovers:
    """Remembers for a second whether there are such rows; any thread may ask.

    Once none is left, nothing of ours makes one: only Nova's own code can, by writing
    to this database itself. It is noticed within that second; where asking takes more
    than 10 ms, within a hundred times as long as it takes, and a minute at the most.
    So this is for readers only; what creates or changes a row looks in its own
    transaction.

    :param query: answers a row if there are any
    """

    def __init__(self, query: sa.Select[int]) -> None:
        self._query = query.limit(1)
        # One value, so that a thread never sees half of another's answer.
        self._known = (float("-inf"), True)

    def there_are(self, connection: sa.Connection) -> bool:
        """Return whether there are any, or were when it was last asked."""
        until, answer = self._known
        now = time.monotonic()
        if now >= until:
            answer = connection.execute(self._query).first() is not None
            after = time.monotonic()
            good_for = min(max(_GOOD_FOR, (after - now) / _SHARE), _AT_MOST)
            self._known = after + good_for, answer
        return answer
