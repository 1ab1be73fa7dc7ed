"""What is refused when the configuration is loaded, and what is told of it."""

import math
import pathlib

from oslo_config import cfg
import pytest

from conductor.db import engine as db_engine
from musterbook import conf as conf_module
from musterbook import daemon
from musterbook import errors
from musterbook import logs
from musterbook import rpc
from musterbook.conf import bounds

PREPARE = (
    logs.register_options,
    daemon.register_options,
    rpc.register_options,
    db_engine.register_options,
)


def load(folder: pathlib.Path, text: str | bytes) -> cfg.ConfigOpts:
    path = folder / "some.conf"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return conf_module.load(
        ["--config-file", str(path)], "musterbook-test", prepare=PREPARE
    )


def refused(folder: pathlib.Path, text: str | bytes) -> str:
    with pytest.raises(errors.ConfigurationError) as caught:
        load(folder, text)
    return caught.value.message


@pytest.mark.parametrize(
    "name", ["transport_url", "servicegroup_tooz_url", "host", "database/connection"]
)
def test_a_dollar_is_told_without_what_follows_it(
    tmp_path: pathlib.Path, name: str
) -> None:
    group, _, option = name.rpartition("/")
    text = f"[{group or 'DEFAULT'}]\n{option} = x://u:SEC$RET4@h/d\n"
    message = refused(tmp_path, text)
    assert option in message
    assert "write $$ for one" in message
    assert "RET4" not in message.upper()
    assert "SEC" not in message


@pytest.mark.parametrize("value", ["$host", "$database", "$nothing"])
def test_a_dollar_that_leads_nowhere(tmp_path: pathlib.Path, value: str) -> None:
    assert "write $$" in refused(tmp_path, f"[DEFAULT]\nhost = {value}\n")


def test_a_doubled_dollar_is_one(tmp_path: pathlib.Path) -> None:
    text = "[DEFAULT]\ntransport_url = rabbit://u:a$$b@h/\n"
    assert load(tmp_path, text).transport_url == "rabbit://u:a$b@h/"


def test_a_secret_of_a_library_is_never_shown(tmp_path: pathlib.Path) -> None:
    def prepare(conf: cfg.ConfigOpts) -> None:
        conf.register_opt(cfg.IntOpt("pin", secret=True), group="library")

    path = tmp_path / "some.conf"
    path.write_text("[library]\npin = CANARY\n")
    with pytest.raises(errors.ConfigurationError) as caught:
        conf_module.load(["--config-file", str(path)], "x", prepare=[prepare])
    assert "[library]pin" in caught.value.message
    assert "CANARY" not in caught.value.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[DEFAULT]\nhost = a\nCANARY\n", "line 3"),
        ("CANARY = x\n", "line 1"),
        (b"[DEFAULT]\nhost = \xff\xfe\n", "utf-8"),
    ],
)
def test_a_file_that_can_not_be_read_is_told_without_its_lines(
    tmp_path: pathlib.Path, text: str | bytes, said: str
) -> None:
    message = refused(tmp_path, text)
    assert said in message
    assert "CANARY" not in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("executor_thread_pool_size", 0),
        ("graceful_shutdown_timeout", -1),
        ("graceful_shutdown_timeout", 0),
        ("rpc_response_timeout", 0),
        ("rpc_response_timeout", -5),
        ("database/max_overflow", -2),
        ("database/max_pool_size", 0),
        ("database/pool_timeout", 0),
        ("oslo_messaging_rabbit/conn_pool_min_size", 0),
        ("oslo_messaging_rabbit/heartbeat_rate", 0),
        ("oslo_messaging_rabbit/heartbeat_timeout_threshold", -1),
        ("oslo_messaging_rabbit/rpc_conn_pool_size", 0),
    ],
)
def test_a_number_of_a_library_that_makes_no_sense(
    tmp_path: pathlib.Path, name: str, value: int
) -> None:
    group, _, option = name.rpartition("/")
    message = refused(tmp_path, f"[{group or 'DEFAULT'}]\n{option} = {value}\n")
    assert option in message


def test_every_bound_is_of_an_option_whose_default_keeps_it() -> None:
    conf = cfg.ConfigOpts()
    for function in PREPARE:
        function(conf)
    conf([], default_config_files=[])
    for group, name in bounds._BOUNDS:
        value = conf[group][name] if group else conf[name]
        assert bounds.fault(group, name, value) is None


def test_infinity_is_no_number() -> None:
    assert bounds.fault("", "anything", math.inf)
    assert bounds.fault("", "anything", math.nan)
    assert bounds.fault("", "anything", 10**400) is None


@pytest.mark.parametrize("name", ["conductor", "compute"])
@pytest.mark.parametrize(
    "value", ["banana", "1", "2.0", "1.99", "0.9", "1.0.0", "AUTO"]
)
def test_a_version_that_there_is_not(
    tmp_path: pathlib.Path, name: str, value: str
) -> None:
    message = refused(tmp_path, f"[upgrade_levels]\n{name} = {value}\n")
    assert f"[upgrade_levels]{name}" in message
    assert repr(value) in message
    assert "1.0" in message


@pytest.mark.parametrize("value", ["1.0", "auto"])
def test_a_version_that_there_is(tmp_path: pathlib.Path, value: str) -> None:
    text = f"[upgrade_levels]\nconductor = {value}\ncompute = {value}\n"
    found = load(tmp_path, text).upgrade_levels
    assert (found.conductor, found.compute) == (value, value)


def test_without_a_pin_there_is_none(tmp_path: pathlib.Path) -> None:
    found = load(tmp_path, "").upgrade_levels
    assert (found.conductor, found.compute) == (None, None)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("custom_resources = GPU:4", "'GPU' is no name of a custom resource"),
        ("custom_resources = CUSTOM_GPU:-1", "CUSTOM_GPU: -1 is not between 0 and"),
        ("custom_resources = CUSTOM_GPU:2147483648", "is not between 0 and"),
        ("custom_resources = CUSTOM_GPU:1.5", "'1.5'"),
        ("custom_resources = CUSTOM_GPU:four", "'four'"),
        ("custom_resources = CUSTOM_GPU", "NAME:VALUE pairs"),
        ("custom_resources = CUSTOM_A:1,CUSTOM_A:2", "Duplicate key CUSTOM_A"),
        ("labels = rack", "NAME:VALUE pairs"),
        ("labels = -rack:r1", "'-rack' is no key of a label"),
        ("labels = rack:", "rack: '' is no value of a label"),
        ("labels = a:1,a:2", "Duplicate key a"),
    ],
)
def test_nonsense_about_a_node_is_told_in_one_line(
    tmp_path: pathlib.Path, line: str, says: str
) -> None:
    message = refused(tmp_path, f"[inventory]\n{line}\n")
    assert f"[inventory]{line.split(' ')[0]}" in message
    assert says in message
    assert "\n" not in message


def test_custom_resources_and_labels_are_read(tmp_path: pathlib.Path) -> None:
    text = (
        "[inventory]\ncustom_resources = CUSTOM_GPU:4, CUSTOM_A:0\n"
        "labels = rack: r 1,mac:00:11:22\n"
    )
    conf = load(tmp_path, text)
    assert conf.inventory.custom_resources == {"CUSTOM_GPU": 4, "CUSTOM_A": 0}
    assert conf.inventory.labels == {"rack": "r 1", "mac": "00:11:22"}
    assert load(tmp_path, "[inventory]\nlabels =\n").inventory.labels == {}
