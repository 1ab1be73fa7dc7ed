"""servicegroup_preset: defaults that go together, and what wins over them."""

import pathlib
from typing import Any

from oslo_config import cfg
import pytest

from musterbook import conf as conf_module
from musterbook import errors
from musterbook.conf import presets
from musterbook.conf import reload as conf_reload
from musterbook.servicegroup import db_driver
from musterbook.servicegroup import factory

URL = "redis://:6379"


def load(folder: pathlib.Path, **values: Any) -> cfg.ConfigOpts:
    file = folder / "own.conf"
    lines = [f"{name} = {value}" for name, value in values.items()]
    file.write_text("\n".join(["[DEFAULT]", *lines]) + "\n")
    return conf_module.load(["--config-file", str(file)], "test")


@pytest.mark.parametrize("name", presets.PRESETS)
@pytest.mark.parametrize("driver", ["tooz", "db"])
def test_each_preset_goes_together(
    name: str, driver: str, tmp_path: pathlib.Path
) -> None:
    conf = load(
        tmp_path, servicegroup_preset=name, servicegroup_driver=driver,
        servicegroup_tooz_url=URL,
    )  # fmt: skip
    preset = presets.PRESETS[name]
    for option, value in preset.options().items():
        assert conf[option] == value
    factory.check(conf)
    if driver == "tooz":
        assert factory.member_timeout(conf) == preset.member_timeout


def test_nothing_is_lan(tmp_path: pathlib.Path) -> None:
    conf = load(tmp_path, servicegroup_tooz_url=URL)
    assert presets.of(conf) is presets.LAN
    assert conf.report_interval == 3
    assert conf.service_down_time == 40
    assert factory.member_timeout(conf) == 10


def test_what_is_set_wins(tmp_path: pathlib.Path) -> None:
    conf = load(
        tmp_path,
        servicegroup_preset="large",
        servicegroup_tooz_url=f"{URL}?timeout=12",
        report_interval=2,
        mass_loss_minimum=7,
    )
    assert factory.member_timeout(conf) == 12
    assert (conf.report_interval, conf.mass_loss_minimum) == (2, 7)
    assert conf.service_down_time == presets.LARGE.service_down_time


def test_what_makes_no_sense_is_refused_by_name_and_origin(
    tmp_path: pathlib.Path,
) -> None:
    conf = load(
        tmp_path,
        servicegroup_preset="large",
        servicegroup_tooz_url=f"{URL}?timeout=10",
    )
    with pytest.raises(errors.ConfigurationError) as caught:
        factory.check(conf)
    assert caught.value.option == "report_interval"
    assert "10 s (of servicegroup_preset large) must be shorter" in caught.value.message
    conf = load(tmp_path, servicegroup_tooz_url=URL, service_down_time=9)
    with pytest.raises(errors.ConfigurationError) as caught:
        factory.check(conf)
    assert caught.value.option == "service_down_time"
    assert "9 s must be longer" in caught.value.message
    conf = load(tmp_path, servicegroup_driver="db", service_down_time=7)
    with pytest.raises(errors.ConfigurationError) as caught:
        factory.check(conf)
    assert caught.value.option == "service_down_time"
    assert "2.5 times report_interval" in caught.value.message


def test_a_preset_that_is_not_there_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        load(tmp_path, servicegroup_preset="moon")
    assert caught.value.option == presets.OPTION
    assert "lan, wan, large" in caught.value.message


@pytest.mark.parametrize("name", ["mc", "zk"])
def test_a_driver_that_is_to_come_is_refused_in_one_line(
    name: str, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        load(tmp_path, servicegroup_driver=name)
    assert caught.value.option == "servicegroup_driver"
    assert f"{name} is not there yet; use tooz or db" in caught.value.message


def test_the_db_driver_needs_no_url_and_takes_its_own_times(
    tmp_path: pathlib.Path,
) -> None:
    conf = load(tmp_path, servicegroup_driver="db")
    assert factory.check(conf) is None
    assert factory.prepare(conf) is None
    assert factory.interval(conf) == 3
    assert factory.member_timeout(conf) == 9
    # Nova's own defaults.
    conf = load(
        tmp_path, servicegroup_driver="db", report_interval=10, service_down_time=60
    )
    assert factory.interval(conf) == 10
    assert factory.member_timeout(conf) == 30


def test_a_restart_alone_takes_a_preset_up(tmp_path: pathlib.Path) -> None:
    first = load(tmp_path, servicegroup_tooz_url=URL)
    reloader = conf_reload.Reloader(
        first,
        lambda: conf_module.load(["--config-file", str(tmp_path / "own.conf")], "test"),
        [factory.check],
    )
    load(tmp_path, servicegroup_tooz_url=URL, servicegroup_preset="large")
    assert reloader.reload()
    assert first.report_interval == presets.LAN.report_interval
    assert factory.member_timeout(first) == presets.LAN.member_timeout


def test_a_beat_is_given_less_than_the_interval_also_after_a_reload(
    tmp_path: pathlib.Path,
) -> None:
    conf = load(tmp_path, servicegroup_driver="db")
    given: list[float] = []
    ways = db_driver.Ways(given.append, lambda seconds: {})
    driver = factory.make_driver(conf, "a#1", ways)
    driver.beat()
    load(tmp_path, servicegroup_driver="db", report_interval=1)
    conf.mutate_config_files()
    driver.beat()
    load(tmp_path, servicegroup_driver="db", report_interval=30, service_down_time=90)
    conf.mutate_config_files()
    driver.beat()
    assert given == [2.25, 0.75, 10.0]
    assert driver.member_timeout == 45.0
