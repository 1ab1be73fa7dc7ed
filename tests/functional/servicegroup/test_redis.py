"""The driver and the beat on a real redis server."""

from collections.abc import Callable
from collections.abc import Iterator
import random
import threading
import time

import pytest
import redis
from tooz import coordination
from tooz.drivers import redis as redis_driver

from musterbook import errors
from musterbook.servicegroup import beat
from musterbook.servicegroup import tooz_driver
from musterbook.servicegroup import url as group_url
from tests import process
from tests import servers
from tests import util

GROUP = "compute"
MEMBER_TIMEOUT = 2.0
INTERVAL = 0.3
CALL_TIMEOUT = 3.0


@pytest.fixture
def server(own_server: process.Starter) -> servers.Redis:
    """Start a server that the test may ill-treat."""
    return own_server(servers.Redis)


@pytest.fixture
def backend(redis_url: str) -> str:
    """Return the URL of the redis of `connect`."""
    return redis_url


Connect = Callable[[str], tooz_driver.ToozDriver]


@pytest.fixture
def connect(backend: str) -> Iterator[Connect]:
    drivers: list[tooz_driver.ToozDriver] = []
    url = group_url.parse(f"{backend}&timeout={MEMBER_TIMEOUT:g}")

    def build(member: str) -> tooz_driver.ToozDriver:
        drivers.append(tooz_driver.ToozDriver(url, member, CALL_TIMEOUT))
        return drivers[-1]

    yield build
    for driver in drivers:
        driver.stop()


class Members:
    """Three members that beat, and a reader that polls throughout."""

    def __init__(self, connect: Connect) -> None:
        self.names = [f"node-{x}#1" for x in "abc"]
        self.reader = connect("reader")
        self.beats = [self._beat(connect, name) for name in self.names]
        for running in self.beats:
            running.start()
        self.all_back()

    def _beat(self, connect: Connect, name: str) -> beat.Beat:
        return beat.Beat(
            lambda: connect(name), GROUP, INTERVAL, rng=random.Random(name)
        )

    def seen(self) -> set[str] | None:
        """Return who is seen, None when nobody can tell."""
        try:
            return set(self.reader.get_all(GROUP))
        except errors.GroupError:
            return None

    def all_back(self) -> None:
        util.wait_until(lambda: self.seen() == set(self.names))


@pytest.fixture
def members(connect: Connect) -> Iterator[Members]:
    made = Members(connect)
    yield made
    for running in made.beats:
        assert running.stop()


def joined_again(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        r.threadName or ""
        for r in caplog.records
        if r.getMessage().startswith("Joined again")
    ]


def test_join_leave_and_nobody_in_a_group_that_is_not(connect: Connect) -> None:
    driver, reader = connect("a#1"), connect("reader")
    with pytest.raises(errors.GroupVanished):
        reader.get_all(GROUP)
    driver.start()
    driver.join(GROUP)
    driver.join(GROUP)
    assert driver.is_visible(GROUP)
    assert reader.get_all(GROUP) == {"a#1"}
    driver.leave(GROUP)
    driver.leave(GROUP)
    assert not driver.is_visible(GROUP)
    assert reader.get_all(GROUP) == frozenset()


def test_name_of_full_length(connect: Connect) -> None:
    name = "h" * 255 + "#1"
    driver = connect(name)
    driver.join(GROUP)
    assert driver.get_all(GROUP) == {name}


def test_silent_member_expires_and_can_join_again(connect: Connect) -> None:
    driver, reader = connect("a#1"), connect("reader")
    driver.join(GROUP)
    # Well below the 10 s that a URL without a timeout means.
    util.wait_until(lambda: reader.get_all(GROUP) == frozenset(), 8.0)
    driver.beat()  # tooz has no complaint
    assert not driver.is_visible(GROUP)
    driver.join(GROUP)
    assert reader.get_all(GROUP) == {"a#1"}


def test_driver_that_stops_without_leaving_expires(connect: Connect) -> None:
    driver, reader = connect("a#1"), connect("reader")
    driver.join(GROUP)
    driver.stop()
    assert reader.get_all(GROUP) == {"a#1"}
    util.wait_until(lambda: reader.get_all(GROUP) == frozenset())


def test_stopping_beat_leaves_at_once(members: Members) -> None:
    assert members.beats[0].stop()
    assert members.seen() == set(members.names[1:])


def test_no_thread_outlives_its_driver(connect: Connect) -> None:
    driver = connect("a#1")
    driver.join(GROUP)
    driver.stop()
    assert not [t for t in threading.enumerate() if t.name.startswith("group-")]


def test_password_with_special_characters(own_server: process.Starter) -> None:
    server = own_server(servers.Redis, password="p@ss/w%rd")
    where = f"127.0.0.1:{server.port}"
    driver = tooz_driver.ToozDriver(
        group_url.parse(f"redis://:p%40ss%2Fw%25rd@{where}"), "a#1"
    )
    driver.join(GROUP)
    assert driver.get_all(GROUP) == {"a#1"}
    driver.stop()
    wrong = tooz_driver.ToozDriver(
        group_url.parse(f"redis://:p%40ss%2Fwrong@{where}"), "a#1"
    )
    with pytest.raises(errors.GroupUnavailable) as caught:
        wrong.start()
    assert "p@ss" not in caught.value.message
    assert where in caught.value.message
    wrong.stop()


def asked(server: servers.Redis) -> int:
    """Return how many commands of drivers it has done since it was asked that last."""
    client = redis.Redis(port=server.port)
    counted = client.info("commandstats").items()
    client.config_resetstat()
    client.close()
    own = {"info", "config|resetstat", "hello", "client|setinfo", "flushall", "hdel"}
    names = {name.removeprefix("cmdstat_"): count["calls"] for name, count in counted}
    return sum(count for name, count in names.items() if name not in own)


def test_what_coming_back_asks_for(own_server: process.Starter) -> None:
    """At most twice the two commands of a beat: all members come back within one."""
    server = own_server(servers.Redis)
    driver = tooz_driver.ToozDriver(group_url.parse(server.lease(0)), "a#1")
    driver.join(GROUP)
    assert asked(server)
    driver.beat()
    assert driver.is_visible(GROUP)
    assert asked(server) == 2
    server.ask("FLUSHALL")
    driver.beat()
    with pytest.raises(errors.GroupVanished):
        driver.is_visible(GROUP)
    driver.join(GROUP)
    assert asked(server) == 4  # the fourth for the first one alone
    server.ask(f"HDEL _tooz_group:{GROUP} a#1")
    driver.beat()
    assert not driver.is_visible(GROUP)
    driver.join(GROUP)
    assert asked(server) == 3
    driver.stop()


def test_members_of_ours_and_of_tooz_share_a_group(
    connect: Connect, backend: str
) -> None:
    ours = connect("ours#1")
    ours.join(GROUP)
    url = group_url.parse(backend)
    theirs = redis_driver.RedisDriver(b"theirs#1", url.target, dict(url.options))
    theirs.start()
    assert theirs.get_groups().get() == [GROUP.encode()]
    with pytest.raises(coordination.GroupAlreadyExist):
        theirs.create_group(GROUP.encode()).get()
    theirs.join_group(GROUP.encode()).get()
    assert theirs.get_members(GROUP.encode()).get() == {b"ours#1", b"theirs#1"}
    theirs.get_member_capabilities(GROUP.encode(), b"ours#1").get()
    assert ours.get_all(GROUP) == {"ours#1", "theirs#1"}
    ours.leave(GROUP)
    theirs.leave_group(GROUP.encode()).get()
    theirs.delete_group(GROUP.encode()).get()
    with pytest.raises(errors.GroupVanished):
        ours.get_all(GROUP)
    theirs.stop()


class TestFaults:
    @pytest.fixture
    def backend(self, server: servers.Redis) -> str:
        return server.lease(0)

    def test_flushall(
        self,
        members: Members,
        server: servers.Redis,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        assert server.ask("FLUSHALL") == ["+OK"]
        members.all_back()
        time.sleep(3 * INTERVAL)  # for a second warning to be missed, not to decide
        assert len(joined_again(caplog)) == 3

    def test_member_entry_deleted(
        self,
        members: Members,
        server: servers.Redis,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        assert server.ask(f"HDEL _tooz_group:{GROUP} node-b#1") == [":1"]
        members.all_back()
        util.wait_until(lambda: len(joined_again(caplog)) == 1)

    def test_frozen_longer_than_the_member_timeout(
        self,
        members: Members,
        server: servers.Redis,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        server.freeze()
        began = time.monotonic()
        with pytest.raises(errors.GroupUnavailable):
            members.reader.get_all(GROUP)
        assert time.monotonic() - began < CALL_TIMEOUT + 3
        # Beats that were on their way when the server froze may still arrive.
        util.wait_until(lambda: all((b.status().age or 0) > 5 for b in members.beats))
        server.thaw()
        members.all_back()
        util.wait_until(lambda: all(b.status().error is None for b in members.beats))
        assert len(joined_again(caplog)) == 3

    def test_restarted_empty(
        self,
        members: Members,
        server: servers.Redis,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        server.kill()
        assert members.seen() is None
        util.wait_until(
            lambda: all(b.status().error is not None for b in members.beats)
        )
        server.start()
        members.all_back()
        util.wait_until(lambda: len(joined_again(caplog)) == 3)

    def test_beat_waits_for_a_server_that_is_not_there_yet(
        self, connect: Connect, server: servers.Redis
    ) -> None:
        server.kill()
        running = beat.Beat(
            lambda: connect("a#1"), GROUP, INTERVAL, rng=random.Random(1)
        )
        running.start()
        util.wait_until(lambda: running.status().error is not None)
        assert not running.joined.is_set()
        server.start()
        assert running.wait_joined(15)
        assert running.stop()
