"""[conductor]: the process that owns the database."""

from oslo_config import cfg

OPTS = [
    cfg.IntOpt(
        "workers",
        default=2,
        min=1,
        max=64,
        help="Processes that serve, each with connections of its own to database and "
        "broker. One answers calls on one CPU only; more answer more at the same time "
        "and go on when one dies. Each takes about 50 MiB of memory of its own (100 "
        "MiB resident, of which the rest is shared), besides 40 MiB of the main "
        "process.",
    ),
    cfg.FloatOpt(
        "poll_interval",
        mutable=True,
        default=1.0,
        min=0.05,
        max=60.0,
        help="Seconds between two looks of the leader at the group. A larger value "
        "loads the backend less and delays every verdict by as much.",
    ),
    cfg.FloatOpt(
        "lease_interval",
        mutable=True,
        default=5.0,
        min=0.1,
        max=300.0,
        help="Seconds between two renewals of the leader's lease, the only write of "
        "an idle deployment. The lease lasts three times as long: a larger value "
        "means a longer gap (liveness unknown) when a leader dies.",
    ),
    cfg.IntOpt(
        "ping_workers",
        default=256,
        min=1,
        max=1024,
        help="Agents the leader may ping over RPC at the same time before it "
        "declares them down. Each takes a thread for up to ping_timeout while it is "
        "asked, and none otherwise. A smaller value delays the verdicts of many hosts "
        "that die at once: n silent ones take n * ping_timeout / ping_workers seconds.",
    ),
    cfg.FloatOpt(
        "ping_timeout",
        mutable=True,
        default=3.0,
        min=0.1,
        max=60.0,
        help="Seconds an agent has for the answer to a ping.",
    ),
    cfg.FloatOpt(
        "claim_hold_seconds",
        mutable=True,
        default=600.0,
        min=1.0,
        max=604800.0,
        help="Seconds for which a claim that doesn't say it itself is held. It must be "
        "confirmed in that time, or is given back. A larger value forgives slower "
        "callers and keeps what a dead one had claimed for longer.",
    ),
    cfg.FloatOpt(
        "claim_unknown_after",
        mutable=True,
        default=60.0,
        min=0.0,
        max=86400.0,
        help="Seconds for which hosts that were up may still be claimed when nobody "
        "can tell whether they are: there is no leader, or the group is not believed. "
        "A larger value books on through longer outages, perhaps on hosts that are "
        "gone; 0 claims nothing then.",
    ),
    cfg.FloatOpt(
        "claim_keep_seconds",
        mutable=True,
        default=86400.0,
        min=3600.0,
        max=31536000.0,
        help="Seconds for which claims that are over are still known, so that a late "
        "message about one books nothing. Longer than any message waits in a queue. "
        "A larger value keeps more rows.",
    ),
]
GROUPS = [("conductor", OPTS)]
