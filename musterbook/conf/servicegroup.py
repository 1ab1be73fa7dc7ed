"""[DEFAULT]: how a process shows that it lives, and when silence means down."""

from oslo_config import cfg

OPTS = [
    cfg.StrOpt(
        "servicegroup_driver",
        default="tooz",
        choices=[("tooz", "membership of a tooz group")],
        help="How liveness is observed.",
    ),
    cfg.StrOpt(
        "servicegroup_tooz_url",
        secret=True,
        help="The group backend as a tooz URL, for instance "
        "redis://127.0.0.1:6379?timeout=10, kazoo://127.0.0.1:2181?timeout=10 or "
        "file:///var/lib/musterbook/groups?timeout=10. An empty host means "
        "localhost. 'timeout' is the member timeout in seconds (10 when left "
        "out): a larger one forgives longer pauses and notices a death later. "
        "Agents and conductors must use the same URL.",
    ),
    cfg.FloatOpt(
        "report_interval",
        mutable=True,
        default=3.0,
        min=0.1,
        max=3600.0,
        help="Seconds between two beats of a member. A larger value loads the "
        "backend less and leaves fewer chances before the member timeout; beats "
        "come at least every third of that timeout. Must be shorter than the "
        "member timeout.",
    ),
    cfg.FloatOpt(
        "service_down_time",
        mutable=True,
        default=40.0,
        min=0.5,
        max=86400.0,
        help="Seconds of silence after which a host is down and others may act on "
        "it (until then it is suspect: not offered, nothing else). A larger value "
        "forgives longer outages and delays evacuation. Must be longer than the "
        "member timeout.",
    ),
]

# Only the conductors look for a mass loss.
MASS_LOSS_OPTS = [
    cfg.IntOpt(
        "mass_loss_minimum",
        mutable=True,
        default=5,
        min=2,
        help="Fewest hosts whose loss at once counts as a mass loss, which freezes "
        "verdicts instead of declaring them down.",
    ),
    cfg.FloatOpt(
        "mass_loss_threshold",
        mutable=True,
        default=0.2,
        min=0.01,
        max=1.0,
        help="Share of the hosts of which more have to vanish at once for a mass loss, "
        "together with mass_loss_minimum. Racks or rooms that fail as a whole are only "
        "noticed if each is more than that: with five equal ones set it below 0.2. A "
        "larger value believes bigger losses without question; 1.0 never freezes.",
    ),
    cfg.FloatOpt(
        "mass_loss_hold",
        mutable=True,
        default=300.0,
        min=1.0,
        help="Seconds a mass loss is held before hosts that do not answer RPC pings, "
        "while others do, become down. A larger value gives people more time and "
        "delays action after a real loss of power.",
    ),
]
GROUPS = [(None, OPTS), (None, MASS_LOSS_OPTS)]
