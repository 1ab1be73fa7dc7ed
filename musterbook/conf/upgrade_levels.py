"""[upgrade_levels]: which version this process speaks while others are older."""

from collections.abc import Sequence

from oslo_config import cfg
from oslo_config import types

from musterbook import levels

AUTO = "auto"


class _Version(types.String):
    """A version of an RPC interface that there is, or auto."""

    def __init__(self, known: Sequence[str]) -> None:
        self._known = known
        super().__init__(type_name="RPC version")

    def __call__(self, value: object) -> str:
        found = str(super().__call__(value))
        if found != AUTO and found not in self._known:
            raise ValueError(
                f"{found!a} is neither {AUTO} nor one of the versions that there are: "
                f"{', '.join(self._known)}"
            )
        return found


CONDUCTOR = cfg.Opt(
    "conductor",
    type=_Version(levels.conductor_versions()),
    help="Newest version of the conductor's RPC interface that this process speaks, "
    f"one of {', '.join(levels.conductor_versions())}, and with it the objects of "
    "that version. Set it to the version of the oldest conductor while they are "
    "upgraded after this process. 'auto' asks a conductor at each start and falls "
    "back when an older one refuses. Left out: the newest.",
)
COMPUTE = cfg.Opt(
    "compute",
    type=_Version(levels.compute_versions()),
    help="Newest version of the agents' RPC interface that this conductor speaks to "
    f"them, one of {', '.join(levels.compute_versions())}. 'auto' is that of the "
    "oldest agent that runs, as the database knows it. Left out: the newest.",
)
#: What asks a conductor, and what asks agents.
CLIENT_GROUPS = [("upgrade_levels", [CONDUCTOR])]
CONDUCTOR_GROUPS = [("upgrade_levels", [COMPUTE])]
GROUPS = [*CLIENT_GROUPS, *CONDUCTOR_GROUPS]
