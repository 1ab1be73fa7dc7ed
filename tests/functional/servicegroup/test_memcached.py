"""A memcached that forgets, is full, or lies: agents notice and come back."""

from collections.abc import Iterator
import contextlib
import random
import socket
import threading
import time

import pymemcache
import pytest

from musterbook import errors
from musterbook.servicegroup import beat
from musterbook.servicegroup import tooz_driver
from musterbook.servicegroup import url as group_url
from tests import group_servers
from tests import process
from tests import util

GROUP = "compute"
MEMBER_TIMEOUT = 3
INTERVAL = 1.0


class Agents:
    """Beats of several members, each with a driver of its own."""

    def __init__(self, url: str, count: int) -> None:
        self._url = group_url.parse(url)
        self.names = {f"node-{number}#1" for number in range(count)}
        self.reader = tooz_driver.ToozDriver(self._url, "reader")
        self.beats = [self._beat(name) for name in sorted(self.names)]
        for running in self.beats:
            running.start()

    def _beat(self, name: str) -> beat.Beat:
        return beat.Beat(
            lambda: tooz_driver.ToozDriver(self._url, name),
            GROUP,
            INTERVAL,
            rng=random.Random(name),
        )

    def seen(self) -> set[str]:
        with contextlib.suppress(errors.GroupError):
            return set(self.reader.get_all(GROUP))
        return set()

    def wait_all_back(self) -> float:
        """Return the seconds that it took."""
        began = time.monotonic()
        util.wait_until(lambda: self.seen() == self.names, what="return of all")
        return time.monotonic() - began

    def stop(self) -> None:
        for running in self.beats:
            assert running.stop()
        self.reader.stop()


@contextlib.contextmanager
def agents(place: str, count: int = 5) -> Iterator[Agents]:
    made = Agents(f"{place}?timeout={MEMBER_TIMEOUT}", count)
    try:
        made.wait_all_back()
        yield made
    finally:
        made.stop()


@pytest.fixture
def server(own_server: process.Starter) -> group_servers.Memcached:
    return own_server(group_servers.Memcached)


def test_flushed(server: group_servers.Memcached) -> None:
    with agents(server.lease(0)) as five:
        for _ in range(3):
            assert server.ask("flush_all") == "OK"
            assert five.wait_all_back() < MEMBER_TIMEOUT + 2 * INTERVAL


def test_flushed_under_many(server: group_servers.Memcached) -> None:
    with agents(server.lease(0), 50) as many:
        assert server.ask("flush_all") == "OK"
        assert many.wait_all_back() < MEMBER_TIMEOUT + 2 * INTERVAL


def test_group_value_that_was_replaced(server: group_servers.Memcached) -> None:
    """What one member makes anew after an eviction lacks the others."""
    with agents(server.lease(0)) as five:
        client = pymemcache.Client(("127.0.0.1", server.port))
        assert client.delete(f"_TOOZ_GROUP_{GROUP}", noreply=False)
        newcomer = tooz_driver.ToozDriver(group_url.parse(server.lease(0)), "new#1")
        newcomer.join(GROUP)
        newcomer.leave(GROUP)
        newcomer.stop()
        assert five.wait_all_back() < MEMBER_TIMEOUT + 2 * INTERVAL


def test_full_cache_that_evicts(own_server: process.Starter) -> None:
    server = own_server(group_servers.Memcached, megabytes=2)
    with agents(server.lease(0)) as five:
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
        assert five.wait_all_back() < MEMBER_TIMEOUT + 2 * INTERVAL


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
