"""servicegroup_preset: times of liveness that go together, under one name.

A preset gives the defaults of the options that it names; what an operator sets wins.
docs/liveness.md has a table that is made from this.
"""

import dataclasses
import math

from oslo_config import cfg

OPTION = "servicegroup_preset"


@dataclasses.dataclass(frozen=True)
class Preset:
    """One set of times, in seconds but for the mass loss's first two.

    :ivar member_timeout: of a servicegroup_tooz_url without 'timeout'
    :ivar fits: for which fleets it is
    :ivar costs: what is paid for that, compared with the others
    """

    name: str
    report_interval: float
    member_timeout: float
    service_down_time: float
    mass_loss_minimum: int
    mass_loss_threshold: float
    mass_loss_hold: float
    fits: str
    costs: str

    def options(self) -> dict[str, float]:
        """Return the defaults that it gives, by option."""
        others = {"name", "fits", "costs", "member_timeout"}
        values = dataclasses.asdict(self)
        return {name: value for name, value in values.items() if name not in others}

    @property
    def beats_per_second(self) -> float:
        """Beats of 1,000 hosts; one comes at least every third of member_timeout."""
        return 1000 / min(self.report_interval, self.member_timeout / 3)


LAN = Preset(
    name="lan",
    report_interval=3.0,
    member_timeout=10.0,
    service_down_time=40.0,
    mass_loss_minimum=5,
    mass_loss_threshold=0.2,
    mass_loss_hold=300.0,
    fits="one site, up to about 2,000 hosts",
    costs="the most beats; a pause of more than 10 s makes a host suspect",
)
WAN = Preset(
    name="wan",
    report_interval=5.0,
    member_timeout=20.0,
    service_down_time=90.0,
    mass_loss_minimum=5,
    mass_loss_threshold=0.2,
    mass_loss_hold=600.0,
    fits="agents behind long or lossy lines, edge sites",
    costs="a dead host is offered for up to 20 s, and not acted on for 90 s",
)
LARGE = Preset(
    name="large",
    report_interval=10.0,
    member_timeout=30.0,
    service_down_time=90.0,
    mass_loss_minimum=20,
    mass_loss_threshold=0.1,
    mass_loss_hold=600.0,
    fits="2,000 to 10,000 hosts; ZooKeeper or etcd with more than 1,000",
    costs="a third of the beats of lan; a dead host is offered for up to 30 s",
)
PRESETS = {preset.name: preset for preset in (LAN, WAN, LARGE)}


def of(conf: cfg.ConfigOpts) -> Preset:
    """Return the preset of a configuration that has been checked."""
    return PRESETS[conf[OPTION]]


def member_timeout(conf: cfg.ConfigOpts) -> float:
    """Return the preset's member timeout in seconds, before anything is checked.

    Of one that isn't there, which conf.check() names, the default's.
    """
    try:
        return of(conf).member_timeout
    except (cfg.Error, ValueError, KeyError):
        return LAN.member_timeout


def apply(conf: cfg.ConfigOpts, preset: Preset | None = None) -> None:
    """Make a preset's values the defaults.

    :param preset: None: the configuration's; one that isn't there changes nothing
    """
    try:
        preset = preset or of(conf)
    except (cfg.Error, ValueError, KeyError):
        return  # conf.check() names it
    for name, value in preset.options().items():
        conf.set_default(name, value)


def origin(conf: cfg.ConfigOpts, name: str) -> str:
    """Return what to say of where an option's value comes from; '' if it was set."""
    location = conf.get_location(name)
    if location is None or location.location is not cfg.Locations.set_default:
        return ""
    return f" (of {OPTION} {conf[OPTION]})"


def table() -> str:
    """Return the presets as a table in Markdown."""
    presets = tuple(PRESETS.values())
    rows: list[tuple[str, list[object]]] = [
        ("for", [p.fits for p in presets]),
        ("`report_interval`, s", [f"{p.report_interval:g}" for p in presets]),
        (
            "member timeout, s (`timeout` in the URL)",
            [f"{p.member_timeout:g}" for p in presets],
        ),
        ("`service_down_time`, s", [f"{p.service_down_time:g}" for p in presets]),
        ("`mass_loss_minimum`", [p.mass_loss_minimum for p in presets]),
        ("`mass_loss_threshold`", [f"{p.mass_loss_threshold:g}" for p in presets]),
        ("`mass_loss_hold`, s", [f"{p.mass_loss_hold:g}" for p in presets]),
        (
            "beats a second of 1,000 hosts",
            [math.ceil(p.beats_per_second) for p in presets],
        ),
        ("what it costs", [p.costs for p in presets]),
    ]
    lines = ["| | " + " | ".join(f"`{p.name}`" for p in presets) + " |"]
    lines.append("| --- " * (len(presets) + 1) + "|")
    lines += [f"| {head} | {' | '.join(map(str, cells))} |" for head, cells in rows]
    return "\n".join(lines) + "\n"
