"""What each group backend guarantees when tooz 9.1 drives it, as data.

Measured against real servers; the table in the documentation is made from this.
"""

from musterbook.servicegroup import driver

_ZOOKEEPER = driver.Traits(
    name="zookeeper",
    visibility_check=True,
    survives_restart=True,
    notices_dead_server=True,
    max_members=10_000,
    note="the server clamps the member timeout to 2 to 20 of its ticks; with "
    "10,000 members use 30 s or more (10 s cost it a whole core); the client's own "
    "thread keeps the session, so a member stays one as long as its process runs",
)
_REDIS = driver.Traits(
    name="redis",
    visibility_check=True,
    survives_restart=True,
    notices_dead_server=True,
    max_members=10_000,
    note="members survive a restart only with AOF, and only one shorter than the "
    "member timeout; without it everybody joins again within a beat",
)
_ETCD = driver.Traits(
    name="etcd",
    visibility_check=True,
    survives_restart=True,
    notices_dead_server=True,
    max_members=2_000,
    note="each join reads the whole group: 159 ms at 10,000 members, so a site "
    "that restarts at once takes minutes to come back",
)
TRAITS = {
    "etcd3+http": _ETCD,
    "etcd3+https": _ETCD,
    "file": driver.Traits(
        name="file",
        visibility_check=True,
        survives_restart=True,
        notices_dead_server=True,
        max_members=100,
        note="one machine only; ages are taken from the wall clock, so a jump of "
        "it hides everybody until the next beat",
    ),
    "kazoo": _ZOOKEEPER,
    "memcached": driver.Traits(
        name="memcached",
        visibility_check=False,
        survives_restart=False,
        notices_dead_server=True,
        max_members=500,
        note="the group is one value: every read and join costs as much as the "
        "group is long; a member that fell out joins again when the conductor "
        "asks it to",
    ),
    "redis": _REDIS,
    "rediss": _REDIS,
    "zookeeper": _ZOOKEEPER,
}
