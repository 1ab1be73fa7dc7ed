"""Many servers behind one connection to a real RabbitMQ."""

from collections.abc import Iterator
import threading

import pytest

from musterbook import context
from musterbook import errors
from musterbook import rpc
from tests import rpc_lab
from tests import util

TOPIC = "things"


class World:
    def __init__(self, url: str) -> None:
        self.transport = rpc.make_transport(rpc_lab.make_conf(url))
        self.server = rpc.SharedServer(self.transport, TOPIC, "shared")
        self.client = rpc.Client(
            self.transport,
            TOPIC,
            "1.0",
            rpc.ContextSerializer(),
            unavailable=rpc_lab.unavailable,
            timeout=10.0,
        )
        self.asking = context.service_context()
        self.endpoints: dict[str, rpc_lab.Endpoint] = {}

    def seat(self, name: str) -> rpc.AnyServer:
        self.endpoints[name] = rpc_lab.Endpoint(name)
        seat = self.server.seat(name, [self.endpoints[name]], rpc.ContextSerializer())
        seat.start()
        return seat

    def who(self, name: str, timeout: float = 10.0) -> str:
        answer: str = self.client.call(self.asking, "who", server=name, timeout=timeout)
        return answer


@pytest.fixture
def world(rabbit_url: str) -> Iterator[World]:
    made = World(rabbit_url)
    made.server.start()
    yield made
    made.server.stop()
    made.transport.cleanup()


def test_each_answers_under_its_name(world: World) -> None:
    seats = {name: world.seat(name) for name in ("a", "b", "c")}
    assert [world.who(name) for name in ("a", "b", "c")] == ["a", "b", "c"]
    # All have a fanout, one of them a call to the topic.
    world.client.cast(world.asking, "echo", fanout=True, value=7)
    util.wait_until(
        lambda: all(e.seen == [7] for e in world.endpoints.values()), 10, "the fanout"
    )
    assert world.client.call(world.asking, "who") in seats

    seats["b"].stop()
    seats["b"].wait()
    with pytest.raises(errors.ConductorUnavailable):
        world.who("b", timeout=1.0)
    assert world.who("a") == "a"
    # The name can be taken again.
    world.seat("b")
    assert world.who("b") == "b"


def test_a_stop_waits_for_a_call_in_hand(world: World) -> None:
    seat = world.seat("a")
    answers: list[str] = []
    caller = threading.Thread(
        target=lambda: answers.append(
            world.client.call(world.asking, "hold", server="a")
        )
    )
    caller.start()
    assert world.endpoints["a"].entered.wait(10)
    threading.Timer(0.5, world.endpoints["a"].go_on.set).start()
    seat.stop()
    seat.wait()
    caller.join()
    assert answers == ["held"]


def test_a_call_that_is_abandoned_is_answered(world: World) -> None:
    seat = world.seat("a")
    others = world.seat("b")
    caught: list[errors.MusterbookError] = []

    def call() -> None:
        try:
            world.client.call(world.asking, "hold", server="a")
        except errors.MusterbookError as exc:
            caught.append(exc)

    caller = threading.Thread(target=call)
    caller.start()
    assert world.endpoints["a"].entered.wait(10)
    others.abandon()
    seat.abandon()
    caller.join(10)
    assert [type(exc) for exc in caught] == [errors.ConductorUnavailable]
    world.endpoints["a"].go_on.set()
