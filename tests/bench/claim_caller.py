"""The process of the schedulers: claims by the conductor, by batch, by the agent.

python -m tests.bench.claim_caller
"""

from collections.abc import Callable
import functools
import itertools
import random
from typing import Any
import uuid as uuidlib

from compute_agent import rpcapi as compute_rpcapi
from conductor import rpcapi as conductor_rpcapi
from musterbook import context
from musterbook import errors
from musterbook import rpc
from tests import rpc_lab
from tests import util
from tests.bench import child
from tests.bench import loop
from tests.bench import wire

_TIMEOUT = 60.0
_START_SECONDS = 90.0
Node = dict[str, Any]
Way = Callable[[list[Node], int, random.Random], None]


class Callers:
    """What the bench asks this process for."""

    def connect(self, rabbit: str) -> None:
        """Wait until the conductor answers."""
        self._transport = rpc.make_transport(rpc_lab.make_conf(rabbit))
        self._conductor = conductor_rpcapi.ConductorAPI(self._transport, _TIMEOUT)
        self._agents = compute_rpcapi.ComputeAPI(self._transport, _TIMEOUT)
        util.wait_until(self._answers, _START_SECONDS, "the conductor")
        self._ways: dict[str, Way] = {
            "conductor": self._by_conductor,
            "batch": self._by_batch,
            "agent": self._by_agent,
        }

    def _answers(self) -> bool:
        try:
            self._conductor.ping(context.service_context(), timeout=2)
        except errors.ConductorUnavailable:
            return False
        return True

    def sizes(self, way: str, nodes: list[Node], batch: int) -> dict[str, int]:
        """Make one call; return the sizes of its messages."""
        one = functools.partial(self._ways[way], nodes, batch, random.Random())
        return wire.measure(self._transport, one)._asdict()

    def run(
        self,
        way: str,
        nodes: list[Node],
        batch: int,
        callers: int,
        seconds: float,
        count: int,
    ) -> dict[str, Any]:
        """Run the closed loop; ``calls`` are calls, of ``batch`` claims each.

        Who is told that the database is busy asks again at once, and waits for longer:
        ``busy`` says how often.
        """
        self._busy = itertools.count()
        call = functools.partial(self._until_answered, self._ways[way], nodes, batch)
        done = loop.run([call] * callers, seconds=seconds, count=count)
        return {**done, "busy": next(self._busy)}

    def _until_answered(
        self, call: Way, nodes: list[Node], batch: int, rng: random.Random
    ) -> None:
        while True:
            try:
                return call(nodes, batch, rng)
            except errors.DatabaseBusy:
                next(self._busy)

    def _by_conductor(self, nodes: list[Node], _: int, rng: random.Random) -> None:
        self._conductor.claim(context.service_context(), _request(nodes, rng))

    def _by_batch(self, nodes: list[Node], batch: int, rng: random.Random) -> None:
        asked = [_request(nodes, rng) for _ in range(batch)]
        answers = self._conductor.claim_many(context.service_context(), asked)
        assert all(answer["outcome"] == "claimed" for answer in answers), answers[0]

    def _by_agent(self, nodes: list[Node], _: int, rng: random.Random) -> None:
        request, host = _request(nodes, rng), nodes[0]["host"]
        self._agents.claim(context.service_context(), host, request)


def _request(nodes: list[Node], rng: random.Random) -> dict[str, Any]:
    return {
        "uuid": str(uuidlib.uuid4()),
        "resources": {"vcpus": 1, "memory_mb": 1},
        "candidates": [rng.choice(nodes)["uuid"]],
        "owner": "bench",
    }


if __name__ == "__main__":
    made = Callers()
    child.serve({"connect": made.connect, "sizes": made.sizes, "run": made.run})
