"""etc/musterbook/*.sample: written by oslo.config's generator, and true."""

from collections.abc import Mapping
import pathlib
import re
import subprocess
import sys

from oslo_config import cfg
import pytest

from compute_agent import main as compute_main
from conductor import main as conductor_main
from musterbook import conf as conf_module
from tests.contract import test_packaging

ROOT = test_packaging.ROOT
FOLDER = ROOT / "etc/musterbook"
PREPARE = {
    "musterbook-conductor": conductor_main.PREPARE,
    "musterbook-compute": compute_main.PREPARE,
}
# As on another machine: a default that is taken from this one would differ.
GENERATE = """
import os, socket, sys
socket.gethostname = socket.getfqdn = lambda *_: "planted-host-name"
os.cpu_count = lambda: 4321
from oslo_config import generator
generator.main(sys.argv[1:])
"""


@pytest.mark.parametrize("prog", PREPARE)
def test_the_sample_is_what_the_generator_writes(
    prog: str, tmp_path: pathlib.Path
) -> None:
    made = tmp_path / "sample"
    config = FOLDER / f"{prog}-config-generator.conf"
    subprocess.run(
        [
            *(sys.executable, "-c", GENERATE, "--config-file", config),
            *("--output-file", made),
        ],
        cwd=ROOT,
        check=True,
        env={"HOME": "/planted-home", "PYTHONPATH": str(ROOT)},
    )
    sample = FOLDER / f"{prog}.conf.sample"
    assert _own_text(sample.read_text()) == _own_text(made.read_text()), (
        "write it anew: tox -e genconfig"
    )


def _own_text(sample: str) -> list[str]:
    """Return the parts of a sample that come from our own options.

    The rest is the libraries' text: a release of theirs must not fail our gate.
    """
    parts = re.split(r"(?m)^#\n# From ", sample)
    return [
        part for part in parts if re.match(r"musterbook\.(compute|conductor)\n", part)
    ]


@pytest.mark.parametrize("prog", PREPARE)
def test_tox_writes_the_sample(prog: str) -> None:
    config = f"etc/musterbook/{prog}-config-generator.conf"
    assert f"oslo-config-generator --config-file {config}\n" in (
        ROOT / "tox.ini"
    ).read_text(encoding="utf-8")
    output = f"output_file = etc/musterbook/{prog}.conf.sample\n"
    assert output in (ROOT / config).read_text(encoding="utf-8")


def _load(prog: str, file: pathlib.Path) -> cfg.ConfigOpts:
    return conf_module.load(["--config-file", str(file)], prog, prepare=PREPARE[prog])


def _values(conf: cfg.ConfigOpts) -> dict[str, object]:
    """Return every option's value by its label."""
    found: dict[str, object] = {}
    for name in conf:
        if isinstance(conf[name], Mapping):
            found |= {f"[{name}]{inner}": conf[name][inner] for inner in conf[name]}
        else:
            found[name] = conf[name]
    return found


def _labels(prog: str) -> set[str]:
    """Return the labels of a sample's options."""
    group, found = "", set()
    for line in (FOLDER / f"{prog}.conf.sample").read_text().splitlines():
        if header := re.fullmatch(r"\[(\w+)\]", line):
            group = "" if header[1] == "DEFAULT" else header[0]
        elif option := re.fullmatch(r"#(\w+) =.*", line):
            found.add(group + option[1])
    return found


def _uncommented(prog: str) -> str:
    """Return the sample with each value that is one written as if it were set."""
    text = (FOLDER / f"{prog}.conf.sample").read_text()
    return re.sub(r"(?m)^#(\w+ =(?! <).*)$", r"\1", text)


@pytest.mark.parametrize("prog", PREPARE)
def test_what_the_sample_shows_is_what_the_daemon_does(
    prog: str, tmp_path: pathlib.Path
) -> None:
    """With all its lines set, nothing is other than with none."""
    empty, full = tmp_path / "empty.conf", tmp_path / "full.conf"
    empty.write_text("")
    full.write_text(_uncommented(prog))
    # It shows a URL of the form that is wanted; the default is refused at start.
    own = {"config_file", "transport_url"}
    without, with_all = _values(_load(prog, empty)), _values(_load(prog, full))
    ours = {
        f"[{group}]{opt.dest}" if group else opt.dest
        for group, opts in conf_module.list_opts()
        for opt in opts
    }
    differing = {
        name: (without[name], value)
        for name, value in with_all.items()
        if value != without[name] and name in ours - own
    }
    assert differing == {}


@pytest.mark.parametrize("prog", PREPARE)
def test_the_daemon_knows_what_the_sample_shows(
    prog: str, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "empty.conf").write_text("")
    known = set(_values(_load(prog, tmp_path / "empty.conf")))
    assert _labels(prog) - known == set()


def test_each_option_of_ours_is_in_a_sample() -> None:
    listed = {
        f"[{group}]{opt.dest}" if group else opt.dest
        for group, opts in conf_module.list_opts()
        for opt in opts
    }
    assert listed <= set().union(*map(_labels, PREPARE))


def test_an_agent_is_not_told_of_a_database() -> None:
    text = (FOLDER / "musterbook-compute.conf.sample").read_text()
    assert "[database]" not in text
