"""What each group backend guarantees when our drivers use it (tooz 9.1), as data.

Measured against real servers; table() makes the one in docs/backends.md.
"""

from collections.abc import Callable

from musterbook.servicegroup import driver

_ZOOKEEPER = driver.Traits(
    name="ZooKeeper",
    extra="zookeeper",
    visibility_check=True,
    check="one request",
    join="one request",
    read="grows with the group, little",
    clock="the server's",
    survives_restart=True,
    notices_dead_server=True,
    forgets=False,
    max_members=10_000,
    note="the client's own thread keeps the session, so that a member stays one as "
    "long as its process runs; with 10,000 members use a member timeout of 30 s or "
    "more (10 s cost the server a whole core)",
    late_beat_counts=True,
)
_REDIS = driver.Traits(
    name="Redis",
    extra="redis",
    visibility_check=True,
    check="one request",
    join="one request",
    read="grows with the group",
    clock="the server's",
    survives_restart=True,
    notices_dead_server=True,
    forgets=False,
    max_members=10_000,
    note="members survive a restart only with AOF, and only one shorter than the "
    "member timeout; without it everybody joins again in two beats. A maxmemory "
    "with a policy that evicts would lose members: give it a Redis that doesn't",
    keeps_what_it_is_sent=True,
)
_ETCD = driver.Traits(
    name="etcd",
    extra="etcd",
    visibility_check=True,
    check="one transaction",
    join="one transaction",
    read="grows with the group, much",
    clock="the server's",
    survives_restart=True,
    notices_dead_server=True,
    forgets=False,
    max_members=2_000,
    note="each beat goes through HTTP and a log on disk: 10,000 members at a timeout "
    "of 10 s cost it more than a core; no user and password can be given, only "
    "certificates",
    late_beat_counts=True,
    keeps_what_it_is_sent=True,
)
_MEMCACHED = driver.Traits(
    name="memcached",
    extra="memcached",
    visibility_check=True,
    check="one request, which grows with the group",
    join="grows with the group",
    read="grows with the group, much",
    clock="the server's",
    survives_restart=False,
    notices_dead_server=True,
    forgets=True,
    max_members=500,
    note="a cache: what it evicts or loses is missing until the member's next beat. "
    "The group is one value, of 1 MB at most (some 9,000 members) unless memcached "
    "runs with a larger -I",
    keeps_what_it_is_sent=True,
)
_FILE = driver.Traits(
    name="files",
    extra="",
    visibility_check=True,
    check="one file is read",
    join="one file is written",
    read="all files are read, under a lock that beats need as well",
    clock="the machine's wall clock",
    survives_restart=True,
    notices_dead_server=True,
    forgets=False,
    max_members=100,
    note="one machine only; a jump of its wall clock hides everybody until the next "
    "beat",
)

#: Not of a group: beats through the conductor. Nova's take 2.4 ms of a conductor's CPU
#: each, so that 1,200 hosts fill a core at report_interval 3.
DB = driver.Traits(
    name="db driver",
    extra="",
    visibility_check=True,
    check="nothing: an answered beat is stored",
    join="one RPC",
    read="grows with the fleet; no poll besides the leader's look at the services",
    clock="the database's",
    survives_restart=True,
    notices_dead_server=True,
    forgets=False,
    max_members=1_000,
    note="each beat is an RPC and a write to the database, and the leader reads the "
    "row of each such host with every look; a dead host is up for service_down_time. "
    "Nobody is called down for an outage of the database or the broker",
)

#: By the scheme of the group's URL.
TRAITS = {
    "etcd3+http": _ETCD,
    "etcd3+https": _ETCD,
    "file": _FILE,
    "kazoo": _ZOOKEEPER,
    "memcached": _MEMCACHED,
    "redis": _REDIS,
    "rediss": _REDIS,
    "zookeeper": _ZOOKEEPER,
}


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _schemes(traits: driver.Traits) -> str:
    if traits is DB:
        return "none: `servicegroup_driver = db`"
    return ", ".join(f"`{name}://`" for name, one in TRAITS.items() if one is traits)


#: Each line of the table: its heading, and what it says of a backend.
_LINES: tuple[tuple[str, Callable[[driver.Traits], str]], ...] = (
    ("schemes", _schemes),
    ("extra to install", lambda t: f"`{t.extra}`" if t.extra else "none"),
    ("members advised, at most", lambda t: f"{t.max_members:,}"),
    ("a member can see itself", lambda t: _yes(t.visibility_check)),
    ("... which costs, each beat", lambda t: t.check),
    ("joining and leaving cost", lambda t: t.join),
    ("reading the group", lambda t: t.read),
    ("whose clock measures silence", lambda t: t.clock),
    ("members outlive a restart with its data", lambda t: _yes(t.survives_restart)),
    ("a beat fails when the server is gone", lambda t: _yes(t.notices_dead_server)),
    ("may lose members though all is well", lambda t: _yes(t.forgets)),
    ("limits", lambda t: t.note),
)


def table() -> str:
    """Return what is stated about each backend as a table in Markdown."""
    backends = (_REDIS, _ZOOKEEPER, _ETCD, _MEMCACHED, _FILE, DB)
    rows = [
        "| | " + " | ".join(one.name for one in backends) + " |",
        "| --- " * (len(backends) + 1) + "|",
    ]
    for heading, say in _LINES:
        cells = " | ".join(say(one) for one in backends)
        rows.append(f"| {heading} | {cells} |")
    return "\n".join(rows) + "\n"
