"""What the conductor does with claims, in one class."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence

import sqlalchemy as sa

from conductor.db import claim_ends
from conductor.db import claim_list
from conductor.db import claim_rules
from conductor.db import claims
from musterbook.context import Grant

#: For who makes a store.
ANSWER_BYTES = claims.ANSWER_BYTES


class ClaimStore(claims.ClaimWriter, claim_ends.ClaimEnds, claim_list.ClaimReader):
    """Books, ends and lists claims; any thread may call any method.

    Each call is one transaction of its own. All raise DatabaseUnavailable and
    DatabaseBusy after their own retries.

    :param unknown_after: see ClaimWriter
    :param tell: told of the hosts whose nodes' claims were changed by somebody else
        than their agents, after the commit; must not wait
    :param answer_bytes: that reasons of one answer may have, or a page of a list
    """

    def __init__(
        self,
        engine: sa.Engine,
        unknown_after: Callable[[], float] = lambda: 60.0,
        tell: Callable[[Iterable[str]], None] = lambda _: None,
        answer_bytes: int = ANSWER_BYTES,
    ) -> None:
        claims.ClaimWriter.__init__(
            self, engine, unknown_after, answer_bytes=answer_bytes
        )
        claim_list.ClaimReader.__init__(self, engine, answer_bytes)
        claim_ends.ClaimEnds.__init__(self, engine, tell)

    def claim(
        self,
        requests: Sequence[claim_rules.Request],
        *,
        atomic: bool = False,
        grant: Grant | None = None,
    ) -> list[claims.Answer]:
        """Book claims, as ClaimWriter does; tell of those that no agent asked for."""
        answers = super().claim(requests, atomic=atomic, grant=grant)
        if grant is None:
            self._tell({a["host"] for a in answers if a["outcome"] == claims.CLAIMED})
        return answers
