import builtins
import pathlib
import subprocess
import sys
from typing import Any

from oslo_config import cfg
from oslo_config import types
import pytest

from musterbook import conf as conf_module
from musterbook import errors
from musterbook.conf import servicegroup
from musterbook.servicegroup import clients
from musterbook.servicegroup import factory
from musterbook.servicegroup import tooz_driver
from musterbook.servicegroup import traits
from musterbook.servicegroup import url as group_url


def load(**values: Any) -> Any:
    def override(conf: cfg.ConfigOpts) -> None:
        for name, value in values.items():
            conf.set_override(name, value)

    return conf_module.load([], "test", config_files=[], defaults=override)


def test_defaults_go_together() -> None:
    conf = load(servicegroup_tooz_url="redis://:6379")
    assert factory.member_timeout(conf) == 10


def test_beat_slower_than_the_member_timeout() -> None:
    conf = load(servicegroup_tooz_url="redis://:6379?timeout=3", report_interval=5.0)
    with pytest.raises(errors.ConfigurationError) as caught:
        factory.check(conf)
    assert "report_interval" in caught.value.message
    assert "servicegroup_tooz_url" in caught.value.message


def test_down_before_it_can_be_missed() -> None:
    conf = load(
        servicegroup_tooz_url="redis://:6379?timeout=10", service_down_time=10.0
    )
    with pytest.raises(errors.ConfigurationError) as caught:
        factory.check(conf)
    assert "service_down_time" in caught.value.message
    assert "servicegroup_tooz_url" in caught.value.message


def test_no_url() -> None:
    with pytest.raises(errors.ConfigurationError, match="servicegroup_tooz_url"):
        factory.make_driver(load(), "a#1")


def test_the_option_decides_which_driver_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    made: list[str] = []
    monkeypatch.setattr(
        factory, "DRIVERS", {"tooz": lambda _, member, ways: made.append(member)}
    )
    factory.make_driver(load(), "a#1")
    assert made == ["a#1"]


def test_every_choice_has_its_driver_and_nothing_else_has() -> None:
    (option,) = [o for o in servicegroup.OPTS if o.name == "servicegroup_driver"]
    assert isinstance(option.type, types.String)
    assert set(option.type.choices or ()) == factory.DRIVERS.keys()
    with pytest.raises(ValueError, match="pigeon"):
        load(servicegroup_driver="pigeon")


def test_driver_is_made_without_connecting(tmp_path: pathlib.Path) -> None:
    conf = load(servicegroup_tooz_url=group_url.file_url(tmp_path / "none"))
    driver = factory.make_driver(conf, "a#1")
    assert isinstance(driver, tooz_driver.ToozDriver)
    assert driver.traits is traits.TRAITS["file"]
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("report", "member", "interval"), [(3.0, 10.0, 3.0), (3.0, 6.0, 2.0), (1, 30, 1)]
)
def test_beat_interval(report: float, member: float, interval: float) -> None:
    assert factory.beat_interval(report, member) == interval


@pytest.mark.parametrize(
    "text",
    [
        "redis://:6379",
        "memcached://:11211",
        "kazoo://:2181",
        "etcd3+http://:2379",
        "file:///tmp/x",
    ],
)
def test_every_scheme_has_its_driver(text: str) -> None:
    clients.factory(group_url.parse(text), "o")


def test_missing_client_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "redis":
            raise ModuleNotFoundError("No module named 'redis'", name="redis")
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(errors.ConfigurationError, match=r"musterbook\[redis\]"):
        clients.factory(group_url.parse("redis://:6379"), "servicegroup_tooz_url")


WITHOUT_CLIENTS = """
import sys
for name in ("kazoo", "pymemcache", "etcd3gw"):
    sys.modules[name] = None  # importing it fails
from musterbook import errors
from musterbook.servicegroup import clients
from musterbook.servicegroup import url
for text in ("kazoo://", "memcached://", "etcd3+http://", "etcd3+https://"):
    try:
        clients.factory(url.parse(text), "servicegroup_tooz_url")
    except errors.ConfigurationError as exc:
        print(exc.message)
"""


def test_each_missing_client_names_its_extra() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_CLIENTS],
        check=True,
        capture_output=True,
        text=True,
        cwd=pathlib.Path(__file__).parents[3],
    )
    wanted = ["zookeeper", "memcached", "etcd", "etcd"]
    lines = done.stdout.splitlines()
    for line, extra in zip(lines, wanted, strict=True):
        assert f"pip install musterbook[{extra}]" in line


@pytest.mark.parametrize("scheme", traits.TRAITS)
def test_extra_of_the_traits_is_the_one_that_is_named(scheme: str) -> None:
    target = group_url.parse(f"{scheme}://{'/d' * (scheme == 'file')}").target
    assert traits.TRAITS[scheme].extra == clients.EXTRAS.get(target.scheme, "")


def test_a_certificate_that_cannot_be_read(tmp_path: pathlib.Path) -> None:
    present, absent = tmp_path / "there.pem", tmp_path / "nowhere.pem"
    present.write_text("x")
    url = "rediss://h?ssl_ca_certs={}"
    assert factory.prepare(load(servicegroup_tooz_url=url.format(present))) is not None
    with pytest.raises(errors.ConfigurationError, match="ssl_ca_certs: can't read"):
        factory.prepare(load(servicegroup_tooz_url=url.format(absent)))
