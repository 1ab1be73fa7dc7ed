"""A memcached that forgets, is full, or lies: agents notice and come back."""

import contextlib
import re
import socket
import threading

import pymemcache
import pytest

from musterbook import errors
from musterbook.servicegroup import tooz_driver
from musterbook.servicegroup import url as group_url
from tests import group_servers
from tests import process
from tests import util
from tests.functional.servicegroup import agents

GROUP = agents.GROUP


def place(server: group_servers.Memcached) -> str:
    """Return the group's URL, of members that beat once a second."""
    return f"{server.lease(0)}?timeout=3"


@pytest.fixture
def server(own_server: process.Starter) -> group_servers.Memcached:
    return own_server(group_servers.Memcached)


def test_flushed(server: group_servers.Memcached) -> None:
    with agents.running(place(server), service_down_time=6.0) as five:
        for _ in range(3):
            assert server.ask("flush_all") == "OK"
            assert five.wait_all_up() < five.allowed


def test_flushed_under_many(server: group_servers.Memcached) -> None:
    with agents.running(place(server), 50, service_down_time=6.0) as many:
        assert server.ask("flush_all") == "OK"
        assert many.wait_all_up() < many.allowed


def test_group_value_that_was_replaced(server: group_servers.Memcached) -> None:
    """What one member makes anew after an eviction lacks the others."""
    with agents.running(place(server)) as five:
        client = pymemcache.Client(("127.0.0.1", server.port))
        assert client.delete(f"_TOOZ_GROUP_{GROUP}", noreply=False)
        newcomer = tooz_driver.ToozDriver(group_url.parse(server.lease(0)), "new#1")
        newcomer.join(GROUP)
        newcomer.leave(GROUP)
        newcomer.stop()
        assert five.wait_all_up() < five.allowed


def test_full_cache_that_evicts(own_server: process.Starter) -> None:
    server = own_server(group_servers.Memcached, megabytes=2)
    with agents.running(place(server)) as five:
        client = pymemcache.Client(("127.0.0.1", server.port))
        evicted = 0
        for number in range(400_000):
            # Of the sizes of a beat and of the group's value.
            client.set(f"other-{number}", b"x" * (20 if number % 2 else 300))
            if number % 1000 == 0:
                evicted = int(client.stats()[b"evictions"])
                if evicted > 5000:
                    break
        assert evicted > 5000
        assert five.wait_all_up() < five.allowed


def test_members_who_all_were_silent_need_no_join(
    server: group_servers.Memcached,
) -> None:
    """After a fault: each would change the one value that is the group."""
    url = group_url.parse(f"{server.lease(0)}?timeout=2")
    reader = tooz_driver.ToozDriver(url, "reader")
    many = [tooz_driver.ToozDriver(url, f"m{n}#1") for n in range(12)]
    client = pymemcache.Client(("127.0.0.1", server.port))
    for member in many:
        member.join(GROUP)
    for member in many:
        client.delete(f"_TOOZ_MEMBER_{member.member}", noreply=False)
    assert reader.get_all(GROUP) == frozenset()
    for member in many[:6]:
        member.beat()
        assert member.is_visible(GROUP)
    value = f"_TOOZ_GROUP_{GROUP}"
    before = client.gets(value)
    many[6].join(GROUP)
    assert client.gets(value) == before  # its version, too: nothing was changed
    # Who stays away is taken out in the end.
    util.wait_until(
        lambda: reader.get_all(GROUP) == frozenset() and not _names(client.get(value)),
        60,
        "an empty group",
    )
    for driver in (reader, *many):
        driver.stop()


def _names(value: bytes | None) -> list[bytes]:
    return [] if value is None else re.findall(rb"m\d+#1", value)


class Liar:
    """Answers as memcached does, and stores nothing that is set."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, name="liar", daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(
                    target=self._talk, args=(connection,), name="lie", daemon=True
                ).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rwb") as stream:
            for line in stream:
                words = line.split()
                if words[0] in {b"set", b"add", b"cas"}:
                    stream.readline()
                    stream.write(b"STORED\r\n")
                else:
                    stream.write(b"END\r\n")
                stream.flush()

    def close(self) -> None:
        self._listener.close()


def test_writes_that_are_confirmed_and_lost() -> None:
    liar = Liar()
    driver = tooz_driver.ToozDriver(
        group_url.parse(f"memcached://127.0.0.1:{liar.port}"), "a#1"
    )
    with pytest.raises(errors.GroupVanished):
        driver.join(GROUP)
    driver.beat()
    assert not driver.is_visible(GROUP)
    driver.stop()
    liar.close()


def test_no_room_for_a_beat(
    server: group_servers.Memcached, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = tooz_driver.ToozDriver(group_url.parse(server.lease(0)), "a#1")
    driver.join(GROUP)
    monkeypatch.setattr(pymemcache.PooledClient, "set", lambda *_, **__: False)
    with pytest.raises(errors.GroupUnavailable, match="did not store the beat"):
        driver.beat()
    driver.stop()
