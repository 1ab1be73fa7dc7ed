"""What liveness keeps in the database, in one class for the conductor."""

import sqlalchemy as sa

from conductor.db import fleet
from conductor.db import grants
from conductor.db import leases
from conductor.db import levels
from conductor.db import node_moves
from conductor.db import releases
from conductor.db import verdicts

#: Name of the leader's lease.
LEASE = "liveness"

GrantConflict = grants.GrantConflict
KnownService = grants.KnownService
GrantedRow = verdicts.GrantedRow
BeatRow = verdicts.BeatRow
Outlook = verdicts.Outlook
LeaseMark = leases.LeaseMark
Claim = node_moves.Claim
Unsettled = verdicts.Unsettled
without_twins = verdicts.without_twins
Transition = verdicts.Transition
Fleet = fleet.Fleet


class LivenessStore(
    grants.GrantStore,
    leases.LeaseStore,
    verdicts.VerdictStore,
    fleet.FleetStore,
    levels.LevelStore,
    node_moves.NodeMoveStore,
    releases.ReleaseStore,
):
    """Grants, the lease, verdicts, the fleet's rows, levels, and whose nodes are.

    Any thread may call any method; each call is one transaction of its own. All
    raise DatabaseUnavailable and DatabaseBusy after their own retries.
    """

    def __init__(self, engine: sa.Engine) -> None:
        super().__init__(engine)
