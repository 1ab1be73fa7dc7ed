"""Which connection a message leaves by, and what becomes of one that failed."""

from collections.abc import Callable
from collections.abc import Iterator
import threading
import time
from typing import Any
from typing import cast

from oslo_messaging import exceptions
from oslo_messaging._drivers import impl_rabbit
import pytest

from musterbook import errors
from musterbook.rpc import outage
from musterbook.rpc import pool as rpc_pool
from musterbook.rpc import publisher
from tests import util

MESSAGE = publisher.Message(b"{}", publisher.Exchange(""), "queue")


class FakePublisher:
    """Stands for a connection; fails as it is told.

    :param faults: what each next use raises; nothing left: it succeeds
    """

    address = "h:5672"

    def __init__(self, faults: list[Exception], made: list["FakePublisher"]) -> None:
        self.channel: object | None = None
        self.blocked = False
        self.used = time.monotonic()
        self.published = 0
        self.dropped = self.closed = False
        self._faults = faults
        made.append(self)

    def open(self, deadline: float) -> None:
        self.channel = object()

    def publish(self, message: publisher.Message, deadline: float) -> None:
        assert not self.dropped
        if self._faults:
            fault = self._faults.pop(0)
            self.blocked = isinstance(fault, Blocked)
            raise fault
        self.published += 1

    def beat(self) -> None:
        assert not self.dropped

    def drop(self) -> None:
        self.dropped = True

    def close(self) -> None:
        self.closed = True


class Blocked(TimeoutError):
    """The broker said that it takes nothing, and then didn't."""


class World:
    def __init__(self, size: int = 2) -> None:
        self.faults: list[Exception] = []
        self.made: list[FakePublisher] = []
        make = cast("Callable[[], Any]", lambda: FakePublisher(self.faults, self.made))
        pauses = outage.Pauses(0.01, 0, 0.01, 0.01)
        self.pool = rpc_pool.Pool(make, size, 1200, outage.Outage(), pauses)

    def publish(self, seconds: float = 5.0, retries: int = 0) -> None:
        self.pool.publish(MESSAGE, time.monotonic() + seconds, retries)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.pool.close()
    assert not [t for t in threading.enumerate() if t.name == "rpc-keeper"]


def test_one_connection_is_used_again(world: World) -> None:
    for _ in range(3):
        world.publish()
    assert [made.published for made in world.made] == [3]


def test_one_that_failed_is_never_used_again(world: World) -> None:
    world.publish()
    world.faults.append(OSError("gone"))
    world.publish()  # it was an old one: another is tried at once
    assert [(made.published, made.dropped) for made in world.made] == [
        (1, True),
        (1, False),
    ]


def test_a_fresh_one_s_failure_is_the_broker_s(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.faults.append(OSError("gone"))
    with pytest.raises(exceptions.MessageDeliveryFailure):
        world.publish()
    assert "The message broker is lost" in caplog.text
    # Nobody publishes; the keeper finds that it is back.
    util.wait_until(lambda: "The message broker is back" in caplog.text)
    world.faults.append(OSError("gone"))
    world.publish(retries=1)


def test_a_returned_message_is_no_fault_of_the_connection(world: World) -> None:
    world.faults.append(exceptions.MessageUndeliverable(None, "", "", None))
    with pytest.raises(exceptions.MessageUndeliverable):
        world.publish()
    world.publish()
    assert len(world.made) == 1


def test_one_too_large_is_not_tried_again(world: World) -> None:
    text = "message size 2097152 is larger than configured max size 1048576"
    refused = impl_rabbit.amqp_ex.PreconditionFailed(text)
    world.publish()
    world.faults.append(refused)
    with pytest.raises(errors.MessageTooLarge) as caught:
        world.publish(retries=3)
    assert (caught.value.size, caught.value.limit) == (2097152, 1048576)
    assert world.made[0].dropped
    world.publish()


def test_a_blocked_broker_is_asked_once(world: World) -> None:
    world.faults.append(Blocked())
    with pytest.raises(exceptions.MessageDeliveryFailure):
        world.publish(0.01)
    started = time.monotonic()
    for _ in range(3):
        with pytest.raises(exceptions.MessageDeliveryFailure, match="takes nothing"):
            world.publish(60)
    assert time.monotonic() - started < 5
    assert len(world.made) == 1
    world.made[0].blocked = False

    def publishes() -> bool:
        try:
            world.publish()
        except exceptions.MessageDeliveryFailure:
            return False
        return True

    util.wait_until(publishes)
    assert world.made[0].dropped


def test_nobody_waits_for_a_connection_past_the_deadline() -> None:
    world = World(size=1)
    holding, go_on = threading.Event(), threading.Event()

    class Slow(FakePublisher):
        def publish(self, message: publisher.Message, deadline: float) -> None:
            holding.set()
            assert go_on.wait(20)

    world.pool._make = cast("Any", lambda: Slow([], world.made))
    holder = threading.Thread(target=world.publish, args=(30,), name="holder")
    holder.start()
    assert holding.wait(20)
    with pytest.raises(exceptions.MessageDeliveryFailure, match="no connection"):
        world.publish(0.1)
    go_on.set()
    holder.join()
    world.publish()
    world.pool.close()
    with pytest.raises(exceptions.MessageDeliveryFailure, match="closed"):
        world.publish()
    assert world.made[0].closed
