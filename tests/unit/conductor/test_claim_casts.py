"""Telling agents of claims: gathered, bounded, and never in anybody's way."""

from collections.abc import Iterator
from collections.abc import Sequence
import threading

import pytest

from conductor import claim_casts
from musterbook import errors
from tests import util


class Agents:
    """Notes who is told; ``old`` ones don't understand it."""

    def __init__(self) -> None:
        self.old: set[str] = set()
        self.told: list[str] = []
        self.asked: list[list[str]] = []
        self.fails: Exception | None = None
        self.free = threading.Event()
        self.free.set()

    def knowing(self, hosts: Sequence[str]) -> list[str]:
        self.asked.append(list(hosts))
        self.free.wait(60)
        if self.fails is not None:
            raise self.fails
        return [host for host in hosts if host not in self.old]


@pytest.fixture
def agents() -> Agents:
    return Agents()


@pytest.fixture
def teller(agents: Agents) -> Iterator[claim_casts.Teller]:
    made = claim_casts.Teller(agents.knowing, agents.told.append, gather=0.01)
    yield made
    agents.free.set()
    made.stop()


def test_many_claims_of_a_host_are_one_cast(
    agents: Agents, teller: claim_casts.Teller
) -> None:
    for _ in range(100):
        teller.tell(["h1", "h2"])
    teller.start()
    util.wait_until(lambda: agents.told == ["h1", "h2"])
    assert agents.asked == [["h1", "h2"]]
    teller.tell(["h1"])
    util.wait_until(lambda: agents.told == ["h1", "h2", "h1"])


def test_older_agents_are_left_out(agents: Agents, teller: claim_casts.Teller) -> None:
    agents.old = {"h1"}
    teller.tell(["h1", "h2"])
    teller.start()
    util.wait_until(lambda: agents.told == ["h2"])


def test_a_turn_has_a_bound_and_so_has_what_waits(
    agents: Agents, teller: claim_casts.Teller
) -> None:
    hosts = [f"h{n}" for n in range(claim_casts.MOST_WAITING + 10)]
    teller.tell(hosts)
    teller.start()
    util.wait_until(lambda: agents.told == hosts[:-10])
    assert max(len(asked) for asked in agents.asked) == 50


@pytest.mark.parametrize(
    "exc", [errors.DatabaseUnavailable(reason="gone"), RuntimeError("odd")]
)
def test_it_goes_on_after_errors(
    agents: Agents, teller: claim_casts.Teller, exc: Exception
) -> None:
    agents.fails = exc
    teller.start()
    teller.tell(["h1"])
    util.wait_until(lambda: agents.asked)
    agents.fails = None
    teller.tell(["h2"])
    util.wait_until(lambda: "h2" in agents.told)


def test_nobody_waits_for_it(agents: Agents, teller: claim_casts.Teller) -> None:
    agents.free.clear()
    teller.start()
    teller.tell(["h1"])
    util.wait_until(lambda: agents.asked)
    teller.tell(["h2"])  # returns while the database hangs
    assert agents.told == []
