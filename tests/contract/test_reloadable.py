"""What docs/operators.md says of a reload, against the options."""

import re

from oslo_config import cfg
import pytest

from compute_agent import main as compute_main
from conductor import main as conductor_main
from musterbook import conf as conf_module
from musterbook.conf import reload as conf_reload
from tests.contract import test_packaging

GUIDE = test_packaging.ROOT / "docs/operators.md"
ROW = re.compile(r"^\| `([][\w]+)` \| (conductor|agent|both) \|", re.MULTILINE)
#: Where they are listed for the samples, a daemon reads them.
LISTED = {
    "conductor": conf_module.list_conductor_opts,
    "agent": conf_module.list_compute_opts,
}


def documented() -> dict[str, str]:
    """Return who takes up what, by the guide's table."""
    rows = ROW.findall(GUIDE.read_text(encoding="utf-8"))
    assert len(dict(rows)) == len(rows)
    return dict(rows)


def mutable(prepare: tuple[object, ...]) -> set[str]:
    """Return the options that a command takes up, of ours and of libraries."""
    conf = cfg.ConfigOpts()
    conf_module.register(conf)
    for register in prepare:
        register(conf)  # type: ignore[operator]  # a tuple of functions
    conf([], default_config_files=[])
    return {
        conf_reload.label(group, opt)
        for group, opt in conf_reload.options(conf)
        if opt.mutable
    }


@pytest.mark.docs
def test_the_guide_names_what_a_reload_takes_up() -> None:
    found = mutable(conductor_main.PREPARE) | mutable(compute_main.PREPARE)
    assert set(documented()) == found


@pytest.mark.docs
def test_the_guide_says_who_takes_it_up() -> None:
    listed = {
        who: {
            conf_reload.label(group, opt)
            for group, opts in list_opts()
            for opt in opts
            if opt.mutable
        }
        for who, list_opts in LISTED.items()
    }
    for name, who in documented().items():
        readers = {w for w, names in listed.items() if name in names}
        if readers:  # one of ours
            assert who == ("both" if len(readers) == 2 else readers.pop()), name
