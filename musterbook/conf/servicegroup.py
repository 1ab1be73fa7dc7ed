"""[DEFAULT]: how a process shows that it lives, and when silence means down."""

from typing import Any

from oslo_config import cfg
from oslo_config import types

from musterbook.conf import presets

#: Drivers of Nova's that this release doesn't have.
_LATER = ("mc", "zk")


class _Driver(types.String):
    """A driver that there is; of one that is to come it is said so."""

    def __init__(self) -> None:
        super().__init__(
            choices=[
                ("tooz", "membership of a tooz group"),
                ("db", "beats through the conductor, which notes them in the database"),
            ],
            type_name="group driver",
        )

    def __call__(self, value: Any) -> Any:
        if value in _LATER:
            raise ValueError(f"{value} is not there yet; use tooz or db")
        return super().__call__(value)


OPTS = [
    cfg.Opt(
        "servicegroup_driver",
        type=_Driver(),
        default="tooz",
        help="How liveness is shown and observed. With db each beat is an RPC and a "
        "write to the database; no group backend is needed, and a dead host stays up "
        "for service_down_time. Agents may have either while the conductors have "
        "tooz; conductors with db see no member of a group.",
    ),
    cfg.StrOpt(
        presets.OPTION,
        default=presets.LAN.name,
        choices=[
            (p.name, f"{p.fits}. Costs: {p.costs}") for p in presets.PRESETS.values()
        ],
        help="Times that go together: gives the defaults of report_interval, of the "
        "member timeout of a servicegroup_tooz_url without 'timeout', of "
        "service_down_time and of the mass_loss options; each that is set wins. The "
        "defaults shown there are those of lan. Agents and conductors must have the "
        "same.",
    ),
    cfg.StrOpt(
        "servicegroup_tooz_url",
        secret=True,
        help="The group backend as a tooz URL, for instance "
        "redis://127.0.0.1:6379?timeout=10, kazoo://127.0.0.1:2181?timeout=10 or "
        "file:///var/lib/musterbook/groups?timeout=10. An empty host means "
        "localhost. 'timeout' is the member timeout in seconds (that of "
        "servicegroup_preset when left out): a larger one forgives longer pauses and "
        "notices a death later. Agents and conductors must use the same URL. Not "
        "needed with servicegroup_driver db.",
    ),
    cfg.FloatOpt(
        "report_interval",
        mutable=True,
        default=presets.LAN.report_interval,
        min=0.1,
        max=3600.0,
        help="Seconds between two beats of a member. A larger value loads the "
        "backend less and leaves fewer chances before the member timeout; beats "
        "come at least every third of that timeout. Must be shorter than the "
        "member timeout; with servicegroup_driver db, at most a 2.5th of "
        "service_down_time.",
    ),
    cfg.FloatOpt(
        "service_down_time",
        mutable=True,
        default=presets.LAN.service_down_time,
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
        default=presets.LAN.mass_loss_minimum,
        min=2,
        help="Fewest hosts whose loss at once counts as a mass loss, which freezes "
        "verdicts instead of declaring them down.",
    ),
    cfg.FloatOpt(
        "mass_loss_threshold",
        mutable=True,
        default=presets.LAN.mass_loss_threshold,
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
        default=presets.LAN.mass_loss_hold,
        min=1.0,
        help="Seconds a mass loss is held before hosts that do not answer RPC pings, "
        "while others do, become down. A larger value gives people more time and "
        "delays action after a real loss of power.",
    ),
]
GROUPS = [(None, OPTS), (None, MASS_LOSS_OPTS)]
