"""Schedulers that claim, repeat, confirm and release at random, and record it.

``python -m tests.history.scheduler`` runs several in a process of their own:

    --rabbit URL --out FILE --nodes JSON --threads N --seed N --stop FILE
"""

import argparse
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import json
import pathlib
import random
import threading
from typing import Any
from typing import Protocol
import uuid as uuidlib

from compute_agent import rpcapi as compute_rpcapi
from conductor import rpcapi as conductor_rpcapi
from musterbook import context
from musterbook import errors
from musterbook import rpc
from tests import rpc_lab
from tests.history import events

#: After these it isn't known what became of a call.
_UNKNOWN = (
    errors.ConductorUnavailable,
    errors.AgentUnavailable,
    errors.DatabaseUnavailable,
    errors.RemoteFailure,
)
_ANSWERS: Mapping[type[errors.MusterbookError], str] = {
    errors.ClaimRefused: "refused",
    errors.ClaimConflict: "conflict",
    errors.ClaimGone: "gone",
    errors.ClaimNotFound: "gone",
    # The transaction was rolled back.
    errors.DatabaseBusy: "refused",
}


class Book(Protocol):
    """Who is asked."""

    def claim(self, request: dict[str, Any]) -> Mapping[str, Any]:
        """Book a claim; the answer has its node."""

    def confirm(self, uuid: str) -> None:
        """Confirm one."""

    def release(self, uuid: str) -> None:
        """Release one."""


class Scheduler:
    """Asks one thing after the other; one thread.

    :param nodes: uuids of the nodes that it chooses from
    """

    def __init__(
        self,
        book: Book,
        recorder: events.Recorder,
        nodes: Sequence[str],
        rng: random.Random,
    ) -> None:
        self._book = book
        self._recorder = recorder
        self._nodes = nodes
        self._rng = rng
        self._live: list[str] = []
        self._over: list[dict[str, Any]] = []

    def turn(self) -> None:
        """Claim, and now and then say again what was said, confirm, and release."""
        rng = self._rng
        uuid = str(uuidlib.UUID(int=rng.getrandbits(128), version=4))
        request: dict[str, Any] = {
            "uuid": uuid,
            "resources": {"vcpus": rng.randint(1, 3)},
            "candidates": rng.sample(self._nodes, rng.randint(1, len(self._nodes))),
            "seconds": 3600,
        }
        answer = self._claim(request)
        for _ in range(3):
            if answer != "unknown" and rng.random() > 0.2:
                break
            answer = self._claim(request)
        if answer != "refused":
            self._live.append(uuid)
        if rng.random() < 0.5 and self._live:
            self._end("confirm", rng.choice(self._live))
        while len(self._live) > rng.randint(0, 2):
            uuid = self._live.pop(rng.randrange(len(self._live)))
            for _ in range(rng.choice([1, 1, 2, 3])):
                if self._end("release", uuid) == "unknown":
                    self._live.append(uuid)  # asked again until it is answered
                    break
        self._over = [*self._over[-20:], request]
        if rng.random() < 0.1:
            self._claim(rng.choice(self._over))  # a message that comes late

    def _claim(self, request: dict[str, Any]) -> str:
        begin = events.now()
        node = None
        try:
            node = self._book.claim(request)["node"]
            answer = "claimed"
        except errors.MusterbookError as exc:
            answer = _answer(exc)
        self._record("claim", request["uuid"], begin, answer, node, request)
        return answer

    def _end(self, kind: str, uuid: str) -> str:
        begin = events.now()
        try:
            (self._book.confirm if kind == "confirm" else self._book.release)(uuid)
            answer = "done"
        except errors.MusterbookError as exc:
            answer = _answer(exc)
        self._record(kind, uuid, begin, answer, None, None)
        return answer

    def _record(
        self,
        kind: str,
        uuid: str,
        begin: float,
        answer: str,
        node: str | None,
        request: dict[str, Any] | None,
    ) -> None:
        amount = 0 if request is None else request["resources"]["vcpus"]
        end = events.now()
        event = events.Ask(kind, uuid, begin, end, answer, amount, node)
        self._recorder.add(event)


def _answer(exc: errors.MusterbookError) -> str:
    if isinstance(exc, _UNKNOWN):
        return "unknown"
    return _ANSWERS[type(exc)]


class OverRpc:
    """Asks conductors over RPC, and now and then the agent of a candidate.

    :param hosts: uuid of a node to its host
    """

    def __init__(
        self,
        conductor: conductor_rpcapi.ConductorAPI,
        agents: compute_rpcapi.ComputeAPI,
        hosts: Mapping[str, str],
        rng: random.Random,
    ) -> None:
        self._conductor = conductor
        self._agents = agents
        self._hosts = hosts
        self._rng = rng
        self._by_agent: dict[str, str] = {}

    def claim(self, request: dict[str, Any]) -> Mapping[str, Any]:
        """Claim by an agent if the uuid was claimed so before, or by chance."""
        me = context.service_context()
        uuid, node = request["uuid"], request["candidates"][0]
        if uuid not in self._by_agent:
            self._by_agent[uuid] = node if self._rng.random() < 0.25 else ""
        if not self._by_agent[uuid]:
            return self._conductor.claim(me, request)
        asked = {**request, "candidates": [node]}
        return self._agents.claim(me, self._hosts[node], asked)

    def confirm(self, uuid: str) -> None:
        """Confirm one."""
        self._conductor.confirm_claim(context.service_context(), uuid)

    def release(self, uuid: str) -> None:
        """Release one."""
        self._conductor.release_claim(context.service_context(), uuid)


def main() -> None:
    """Run schedulers until there is the file that stops them."""
    parser = argparse.ArgumentParser()
    for name in ("rabbit", "out", "nodes", "stop"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("threads", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    hosts = json.loads(options.nodes)
    transport = rpc.make_transport(rpc_lab.make_conf(options.rabbit))
    stop = pathlib.Path(options.stop)

    def work(number: int, recorder: events.Recorder) -> None:
        rng = random.Random(options.seed * 1000 + number)
        book = OverRpc(
            conductor_rpcapi.ConductorAPI(transport, 5.0),
            compute_rpcapi.ComputeAPI(transport, 5.0),
            hosts,
            rng,
        )
        scheduler = Scheduler(book, recorder, sorted(hosts), rng)
        while not stop.exists():
            scheduler.turn()

    with contextlib.ExitStack() as stack:
        stack.callback(transport.cleanup)
        file = stack.enter_context(pathlib.Path(options.out).open("w"))
        recorder = events.Recorder(file)
        threads = [
            threading.Thread(target=work, args=(n, recorder))
            for n in range(options.threads)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
