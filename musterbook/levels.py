"""Which versions the processes of a release speak: one number for all of them.

An agent's hello carries its service level, and the conductor stores it: the lowest
one that runs tells what may be asked of everybody. Level 0 is a legacy agent's, which
never says hello, and that of one that doesn't say.

Raise SERVICE_LEVEL, and describe the new one here, with each change of the version of
an RPC interface or of an object.
"""

from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses

SERVICE_LEVEL = 2


@dataclasses.dataclass(frozen=True)
class Level:
    """What the processes of one service level speak.

    :ivar conductor: version of the conductor's RPC interface
    :ivar compute: version of the agents' RPC interface
    :ivar objects: version of each object
    """

    conductor: str
    compute: str
    objects: Mapping[str, str]


#: By service level; a pin of a version is the newest level that has it.
HISTORY: tuple[Level, ...] = (
    # 0: the first ones
    Level(
        conductor="1.0",
        compute="1.0",
        objects={
            "ComputeNode": "1.1",
            "ComputeNodeList": "1.1",
            "Service": "1.1",
            "ServiceList": "1.1",
        },
    ),
    # 1: hello carries the service level and what the host was; adopt_node;
    # reset_flapping; Service.version; ComputeNode.confirm_usage
    Level(
        conductor="1.1",
        compute="1.0",
        objects={
            "ComputeNode": "1.2",
            "ComputeNodeList": "1.2",
            "Service": "1.2",
            "ServiceList": "1.2",
        },
    ),
    # 2: ComputeNode.custom_resources, labels, booted_at; claims, of a conductor and by
    # an agent; an agent can be told to audit; beat and get_beats: agents with
    # servicegroup_driver db; release_freeze; get_fleet takes max_age
    Level(
        conductor="1.2",
        compute="1.1",
        objects={
            "ComputeNode": "1.3",
            "ComputeNodeList": "1.3",
            "Service": "1.2",
            "ServiceList": "1.2",
        },
    ),
)


def of(level: int) -> Level:
    """Return what a service level speaks; a newer one than ours: at least as much."""
    return HISTORY[max(0, min(level, SERVICE_LEVEL))]


def conductor_versions() -> list[str]:
    """Return the versions of the conductor's RPC interface, oldest first."""
    return _ordered(level.conductor for level in HISTORY)


def compute_versions() -> list[str]:
    """Return the versions of the agents' RPC interface, oldest first."""
    return _ordered(level.compute for level in HISTORY)


def compute_with(version: str) -> int:
    """Return the first level whose agents speak this version of their interface."""
    return next(n for n, level in enumerate(HISTORY) if level.compute == version)


def objects_with(conductor_version: str) -> Mapping[str, str]:
    """Return the objects' versions of peers that speak this version to a conductor."""
    found = [lvl.objects for lvl in HISTORY if lvl.conductor == conductor_version]
    return found[-1]


def _ordered(versions: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(versions))
