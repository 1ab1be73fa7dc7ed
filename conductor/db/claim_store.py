"""What the conductor does with claims, in one class."""

from collections.abc import Callable

import sqlalchemy as sa

from conductor.db import claim_ends
from conductor.db import claim_list
from conductor.db import claims


class ClaimStore(claims.ClaimWriter, claim_ends.ClaimEnds, claim_list.ClaimReader):
    """Books, ends and lists claims; any thread may call any method.

    Each call is one transaction of its own. All raise DatabaseUnavailable and
    DatabaseBusy after their own retries.
    """

    def __init__(
        self, engine: sa.Engine, unknown_after: Callable[[], float] = lambda: 60.0
    ) -> None:
        super().__init__(engine, unknown_after)
