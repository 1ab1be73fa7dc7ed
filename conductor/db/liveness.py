"""What liveness keeps in the database, in one class for the conductor."""

import sqlalchemy as sa

from conductor.db import fleet
from conductor.db import grants
from conductor.db import verdicts

#: Name of the leader's lease.
LEASE = "liveness"

GrantConflict = grants.GrantConflict
KnownService = grants.KnownService
GrantedRow = verdicts.GrantedRow
Outlook = verdicts.Outlook
Unsettled = verdicts.Unsettled
Transition = verdicts.Transition
Fleet = fleet.Fleet


class LivenessStore(grants.GrantStore, verdicts.VerdictStore, fleet.FleetStore):
    """Grants, the lease, verdicts and the fleet's rows.

    Any thread may call any method; each call is one transaction of its own. All
    raise DatabaseUnavailable and DatabaseBusy after their own retries.
    """

    def __init__(self, engine: sa.Engine) -> None:
        super().__init__(engine)
