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
from musterbook.rpc import connection
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


def test_those_who_wait_for_a_connection_hear_that_the_broker_is_blocked() -> None:
    world = World(size=1)
    holding, go_on = threading.Event(), threading.Event()

    class Slow(FakePublisher):
        def publish(self, message: publisher.Message, deadline: float) -> None:
            holding.set()
            assert go_on.wait(20)
            self.blocked = True
            raise Blocked

    def refused() -> None:
        with pytest.raises(exceptions.MessageDeliveryFailure):
            world.publish(600)

    world.pool._make = cast("Any", lambda: Slow([], world.made))
    threads = [threading.Thread(target=refused, name=f"w-{i}") for i in range(3)]
    threads[0].start()
    assert holding.wait(20)
    for thread in threads[1:]:
        thread.start()
    util.wait_until(lambda: len(world.pool._changed._waiters) == 2)  # type: ignore[attr-defined]
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    world.pool.close()


def test_a_blocked_connection_that_dies_is_no_end(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    away = threading.Event()
    tried: list[object] = []

    class Dying(FakePublisher):
        def open(self, deadline: float) -> None:
            tried.append(self)
            if away.is_set():
                raise ConnectionRefusedError
            super().open(deadline)

        def beat(self) -> None:
            away.set()
            raise ConnectionResetError

    world.pool._make = cast("Any", lambda: Dying(world.faults, world.made))
    world.faults.append(Blocked())
    with pytest.raises(exceptions.MessageDeliveryFailure):
        world.publish(0.01)
    # The keeper looks for the broker over and over.
    util.wait_until(lambda: len(tried) > 5)
    assert "broker is back" not in caplog.text
    away.clear()
    util.wait_until(lambda: "broker is back" in caplog.text)
    assert caplog.text.count("broker is lost") == 1
    assert caplog.text.count("broker is back") == 1


@pytest.mark.parametrize(
    "fault",
    [connection.TimeUp("the time is up"), TimeoutError("timed out")],
    ids=["before it was tried", "a short deadline"],
)
def test_a_caller_whose_time_is_up_says_nothing_of_the_broker(
    world: World, caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    world.publish()
    kept = world.pool._take(time.monotonic() + 5)
    world.faults.append(fault)
    with pytest.raises(exceptions.MessageDeliveryFailure):
        world.publish(0)  # a fresh one
    world.pool._give(kept)
    world.publish()
    world.faults.append(fault)
    with pytest.raises(exceptions.MessageDeliveryFailure):
        world.publish(0)
    assert not caplog.records


def test_a_broker_that_did_not_answer_for_long_is_lost(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc_pool, "_SLOW_SECONDS", 0.0)
    world.faults.append(TimeoutError("timed out"))
    with pytest.raises(exceptions.MessageDeliveryFailure):
        world.publish()
    assert "doesn't answer" in caplog.text


def test_closing_waits_for_no_broker_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The keeper is in the middle of connecting, which takes seconds."""
    made = World()
    entered, go_on = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        entered.set()
        go_on.wait(60)

    made.faults.append(OSError("gone"))
    with pytest.raises(exceptions.MessageDeliveryFailure):
        made.publish()
    monkeypatch.setattr(FakePublisher, "open", hang)
    try:
        assert entered.wait(30)
        began = time.monotonic()
        made.pool.close()
        assert time.monotonic() - began < 20
    finally:
        go_on.set()
        util.wait_until(
            lambda: not [t for t in threading.enumerate() if t.name == "rpc-keeper"]
        )


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
