import urllib.parse

import pytest

from musterbook import errors
from musterbook.servicegroup import traits
from musterbook.servicegroup import url as group_url

PASSWORD = "p@ss/w%rd"
ENCODED = "p%40ss%2Fw%25rd"


@pytest.mark.parametrize(
    ("text", "host", "port", "timeout", "label"),
    [
        ("redis://:6379?timeout=5", "localhost", 6379, 5, "redis://localhost:6379"),
        ("memcached://:11211?timeout=5", "localhost", 11211, 5, None),
        ("kazoo://127.0.0.1:2181?timeout=5", "127.0.0.1", 2181, 5, None),
        ("zookeeper://zk", "zk", None, 10, "zookeeper://zk"),
        ("redis://[::1]:6379", "::1", 6379, 10, "redis://[::1]:6379"),
        ("redis://", "localhost", None, 10, "redis://localhost"),
        ("REDIS://Host/", "Host", None, 10, "redis://Host"),
        ("rediss://h", "h", None, 10, "rediss://h"),
        ("etcd3+http://:2379", "localhost", 2379, 10, "etcd3+http://localhost:2379"),
        ("etcd3+https://e:1?ca_cert=/ca", "e", 1, 10, "etcd3+https://e:1"),
        ("etcd3+http://[::1]:2379", "::1", 2379, 10, None),
        ("memcached://[2001:db8::1]", "2001:db8::1", None, 10, None),
        ("kazoo://", "localhost", None, 10, "kazoo://localhost"),
        ("memcached://h?timeout=2592000", "h", None, 2592000, None),
        ("redis://h?timeout=0.5", "h", None, 0.5, None),
        ("redis://h?timeout=5&membership_timeout=30", "h", None, 30, None),
        ("  redis://h  ", "h", None, 10, None),
    ],
)
def test_usable(
    text: str, host: str, port: int | None, timeout: float, label: str | None
) -> None:
    url = group_url.parse(text)
    assert (url.target.hostname, url.target.port) == (host, port)
    assert url.member_timeout == timeout
    assert label in {None, url.label}
    assert url.scheme in traits.TRAITS


def test_password_arrives_decoded_and_is_shown_nowhere() -> None:
    url = group_url.parse(f"redis://us%40er:{ENCODED}@h:6379?timeout=5")
    assert url.target.username == "us@er"
    assert url.target.password == PASSWORD
    assert url.label == "redis://h:6379"
    for shown in (repr(url), repr(url.target)):
        assert PASSWORD not in shown
        assert ENCODED not in shown
    assert url.scrub(f"no {PASSWORD}\nand no {ENCODED}") == "no *** and no ***"


def test_the_normalised_url_means_the_same() -> None:
    url = group_url.parse(f"redis://:{ENCODED}@:6379?timeout=5&db=2")
    again = group_url.parse(url.url)
    assert again == url
    assert urllib.parse.urlsplit(url.url).hostname == "localhost"


def test_several_zookeeper_servers() -> None:
    url = group_url.parse("kazoo://a:1,b:2,[::1]:3?timeout=30")
    assert url.target.netloc == "a:1,b:2,[::1]:3"
    assert url.options["timeout"] == ["30"]


def test_zookeeper_gets_its_hosts_without_the_login() -> None:
    url = group_url.parse(f"zookeeper://me:{ENCODED}@zk:2181")
    assert url.target.netloc == "zk:2181"
    assert (url.target.username, url.target.password) == ("me", PASSWORD)


@pytest.mark.parametrize("scheme", ["redis", "memcached", "etcd3+http"])
def test_socket_timeouts_are_short_whatever_the_member_timeout(scheme: str) -> None:
    url = group_url.parse(f"{scheme}://h?timeout=300")
    assert url.options["membership_timeout"] == ["300"]
    assert url.options["timeout"] == [str(group_url.SOCKET_TIMEOUT)]


def test_redis_socket_file() -> None:
    url = group_url.parse("redis://:pw@/run/redis.sock?db=3")
    assert url.target.hostname is None
    assert url.target.path == "/run/redis.sock"
    assert url.target.password == "pw"
    assert url.options["db"] == ["3"]


def test_sentinels_of_redis() -> None:
    url = group_url.parse(
        "redis://a:26379?sentinel=m&sentinel_fallback=b:26379&sentinel_fallback=c:26379"
        "&sentinel_password=s3cret"
    )
    assert url.options["sentinel_fallback"] == ["b:26379", "c:26379"]
    assert url.scrub("AUTH s3cret") == "AUTH ***"
    assert "s3cret" not in repr(url)


def test_namespace_of_zookeeper() -> None:
    url = group_url.parse("kazoo://h?namespace=mine&use_ssl=1&ca=/etc/ca.pem")
    assert url.options["namespace"] == ["mine"]


def test_tls_of_redis_is_an_option_of_tooz() -> None:
    url = group_url.parse("rediss://h")
    assert url.target.scheme == "redis"
    assert url.options["ssl"] == ["1"]


def test_file_url_of_any_directory() -> None:
    text = group_url.file_url("/var/a b#c?d%e", 3)
    url = group_url.parse(text)
    assert url.target.path == "/var/a b#c?d%e"
    assert url.member_timeout == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "empty"),
        ("", "empty"),
        ("   ", "empty"),
        (PASSWORD, "scheme"),
        ("rabit://h", "unknown scheme rabit"),
        (f"mysql://u:{PASSWORD}@h/d", "no groups"),
        (f"postgresql://u:{PASSWORD}@h/d", "no groups"),
        ("mysql+pymysql://h/d", "no groups"),
        ("file://", "absolute path"),
        ("file:///", "absolute path"),
        ("file://relative/dir", "absolute path"),
        ("redis://h:99999", "port"),
        ("redis://h:0", "port"),
        ("redis://h:port", "port"),
        ("redis://h:-1", "port"),
        (f"redis://:{ENCODED}@ho st:1", "space"),
        ("redis://h\n:1", "space"),
        ("redis://h?timeout=10s", "timeout must be a number"),
        ("redis://h?timeout=", "timeout must be a number"),
        ("redis://h?timeout=0", "above 0"),
        ("redis://h?timeout=-1", "above 0"),
        ("redis://h?timeout=nan", "above 0"),
        ("redis://h?timeout=inf", "above 0"),
        ("kazoo://h?timeout=2.5", "whole number"),
        ("file:///d?timeout=0.5", "whole number"),
        ("redis://h?db=x", "db"),
        ("redis://h/2", "?db=2"),
        ("redis://[::1", "taken apart"),
        ("redis://[nonsense]", "taken apart|IPv6"),
        ("redis://[::1]x", "after the ]"),
        ("redis://ho$t", "host name"),
        ("kazoo://a,,b", "empty host"),
        ("redis://a,b", "sentinel_fallback"),
        ("memcached://a,b:1", "several hosts; memcached takes one"),
        ("etcd3+http://a:1,b:1", "several hosts; etcd3+http takes one"),
        ("etcd3://h:2379", "write etcd3+http://"),
        ("etcd://h:2379", "write etcd3+http://"),
        ("zake://", "stand-in"),
        ("ipc://", "file://"),
        ("consul://h", "no longer"),
        ("kubernetes://", "no groups"),
        ("redis://h?tiemout=5", "unknown option tiemout; redis has db, "),
        ("kazoo://h?db=2", "unknown option db; kazoo has ca, "),
        ("file:///d?namespace=x", "unknown option namespace; file has membership"),
        ("redis://h?executor=x", "unknown option executor"),
        (f"redis://h?{PASSWORD}", "unknown option;"),
        ("redis://h?timeout=5&timeout=6", "option timeout twice"),
        ("redis://h?membership_timeout=x&timeout=6", "membership_timeout must be"),
        ("kazoo://h?namespace=", "no value for namespace"),
        ("redis://h?socket_timeout=soon", "socket_timeout must be a number"),
        ("redis://h?health_check_interval=x", "health_check_interval must be a number"),
        ("redis://h?membership_timeout=5&timeout=abc", "timeout must be a number"),
        ("redis://h?sentinel=m&sentinel_fallback=nohostport", "must be host:port"),
        ("redis://h?sentinel=m&sentinel_fallback=h:x", "port"),
        ("memcached://h?timeout=2592001", "30 days"),
        (f"redis://:{PASSWORD}@h:1", "path"),
        ("redis://:se#cret@h", "%23"),
        (f"memcached://u:{ENCODED}@h", "can't log in"),
        (f"etcd3+http://u:{ENCODED}@h", "can't log in"),
    ],
)
def test_refused(text: str | None, says: str) -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        group_url.parse(text, option="some_option")
    message = caught.value.message
    assert caught.value.option == "some_option"
    assert message.startswith("option some_option: ")
    assert any(part in message for part in says.split("|"))
    assert "\n" not in message
    for secret in (PASSWORD, ENCODED, "w%rd", "se#cret"):
        assert secret not in message


def test_refusal_hides_its_cause() -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        group_url.parse("redis://[::1")
    assert caught.value.__suppress_context__
