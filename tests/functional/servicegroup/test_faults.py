"""Faults of a server, under five agents with the default times: nobody is down."""

from collections.abc import Callable

import pytest

from tests import process
from tests.functional.servicegroup import agents
from tests.functional.servicegroup import backends

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def restart(server: process.Server, five: agents.Agents) -> None:
    """With its data, where it keeps any."""
    server.kill()
    five.watch(2.0)
    server.start()


def restart_empty(server: process.Server, five: agents.Agents) -> None:
    server.kill()
    five.watch(2.0)
    server.restart(empty=True)


def outage(server: process.Server, five: agents.Agents) -> None:
    server.kill()
    five.watch(60.0)
    server.start()


def freeze(server: process.Server, five: agents.Agents) -> None:
    server.freeze()
    five.watch(25.0)
    server.thaw()


FAULTS: list[Callable[[process.Server, agents.Agents], None]] = [
    restart,
    restart_empty,
    outage,
    freeze,
]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", backends.WITH_SERVER)
def test_all_are_back_and_none_was_down(
    name: str,
    fault: Callable[[process.Server, agents.Agents], None],
    own_server: process.Starter,
) -> None:
    kind = backends.BACKENDS[name]
    assert kind.server is not None
    server = own_server(kind.server)
    place = server.lease(0)
    mark = "&" if "?" in place else "?"
    with agents.running(f"{place}{mark}timeout=10") as five:
        fault(server, five)
        took = five.wait_all_up()
        print(f"{name}: all up {took:.1f} s after {fault.__name__}")
        assert took < five.allowed
        # And they stay.
        five.watch(five.allowed)
        assert five.step()
