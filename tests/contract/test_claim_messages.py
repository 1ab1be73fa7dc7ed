"""Claims as they cross the wire, written by hand; see test_messages."""

from collections.abc import Mapping
from typing import Any

import oslo_messaging
import pytest

from compute_agent import rpcapi as compute_rpcapi
from conductor import claims as conductor_claims
from conductor import rpcapi as conductor_rpcapi
from conductor.db import claim_rules
from musterbook import context
from musterbook import errors
from musterbook import rpc
from objects import base
from tests.contract import samples
from tests.contract import wires

UUID = "3c2f9d53-7f0c-4c4e-8f5b-6d1f2a3b4c5d"
OTHER = "3c2f9d53-7f0c-4c4e-8f5b-6d1f2a3b4c5e"
NODE = "7d9f9f2e-5a4a-4d15-8f9f-5a0b3bb0a001"
REQUEST = {
    "uuid": UUID,
    "resources": {"vcpus": 2, "CUSTOM_FPGA": 1},
    "candidates": [NODE],
    "owner": "me",
    "seconds": 30,
}
CLAIM = {"method": "claim", "version": "1.2", "args": {"request": REQUEST}}
CLAIM_MANY = {
    "method": "claim_many",
    "version": "1.2",
    "args": {"requests": [REQUEST], "atomic": True},
}
MOVE = {
    "method": "claim",
    "version": "1.2",
    "args": {"request": {"uuid": OTHER, "candidates": [NODE], "replaces": UUID}},
}
CONFIRM = {"method": "confirm_claim", "version": "1.2", "args": {"uuid": UUID}}
RELEASE = {
    "method": "release_claim",
    "version": "1.2",
    "args": {"uuid": UUID, "owner": None, "attempt": None},
}
LIST = {
    "method": "list_claims",
    "version": "1.2",
    "args": {
        "owner": "me",
        "host": None,
        "limit": 3,
        "marker": UUID,
        "finished": False,
    },
}
CLAIM_OF_AGENT = {"method": "claim", "version": "1.1", "args": {"request": REQUEST}}
NOTE_CLAIMS = {"method": "note_claims", "version": "1.1", "args": {}}


def test_what_is_sent_to_a_conductor(
    wire: wires.Wire, transport: rpc.Transport
) -> None:
    api = conductor_rpcapi.ConductorAPI(transport, 10)
    me = wires.a_context()
    listener = wire.listen("conductor", "c1", None)
    api.claim(me, REQUEST)
    api.claim_many(me, [REQUEST], atomic=True)
    api.move_claim(me, UUID, {"uuid": OTHER, "candidates": [NODE]})
    api.confirm_claim(me, UUID)
    api.release_claim(me, UUID)
    api.list_claims(me, owner="me", limit=3, marker=UUID)
    listener.stop()
    sent = [message for _, message in wire.got]
    assert sent == [CLAIM, CLAIM_MANY, MOVE, CONFIRM, RELEASE, LIST]


def test_what_is_sent_to_an_agent(wire: wires.Wire, transport: rpc.Transport) -> None:
    listener = wire.listen("compute", "web1", {"uuid": UUID})
    api = compute_rpcapi.ComputeAPI(transport, 10)
    assert api.claim(wires.a_context(), "web1", REQUEST) == {"uuid": UUID}
    api.note_claims(wires.a_context(), "web1")
    for _ in range(2):
        assert wire.arrived.acquire(timeout=10)
    listener.stop()
    assert [message for _, message in wire.got] == [CLAIM_OF_AGENT, NOTE_CLAIMS]


def test_an_older_agent_is_not_told_of_claims(
    wire: wires.Wire, transport: rpc.Transport
) -> None:
    listener = wire.listen("compute", "web1", None)
    api = compute_rpcapi.ComputeAPI(transport, 10, rpc.Pin("1.1", fixed="1.0"))
    with pytest.raises(errors.VersionPinned):
        api.note_claims(wires.a_context(), "web1")
    listener.stop()
    assert wire.got == []


class Store:
    """Notes what it is asked, and answers with one outcome."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.outcome: dict[str, Any] = {"outcome": "claimed", "node": NODE}

    def claim(
        self,
        requests: list[claim_rules.Request],
        *,
        atomic: bool,
        grant: context.Grant | None,
    ) -> list[dict[str, Any]]:
        assert grant is not None
        self.asked.append((grant.host, atomic, requests))
        return [{"uuid": request.uuid, **self.outcome} for request in requests]

    def confirm(self, uuid: str) -> None:
        self.asked.append(("confirm", uuid))

    def release(self, uuid: str, owner: str | None, attempt: str | None) -> None:
        self.asked.append(("release", uuid, owner, attempt))

    def claims(self, **asked: Any) -> list[Any]:
        self.asked.append(asked)
        return [{"uuid": OTHER}]


def test_what_a_conductor_understands(
    wire: wires.Wire, transport: rpc.Transport
) -> None:
    store = Store()
    endpoint = conductor_claims.ClaimsManager(store, lambda: 600.0)  # type: ignore[arg-type]  # as much as is used
    serializer = rpc.ContextSerializer(base.ConductorSerializer())
    server = rpc.Server(transport, "conductor", "c1", [endpoint], serializer)
    server.start()
    try:
        claimed = {"uuid": UUID, "outcome": "claimed", "node": NODE}
        assert wire.ask(CLAIM) == claimed
        assert wire.ask(CLAIM_MANY) == [claimed]
        assert wire.ask(MOVE)["uuid"] == OTHER
        assert wire.ask(CONFIRM) is None
        assert wire.ask(RELEASE) is None
        assert wire.ask(LIST) == [{"uuid": OTHER}]
        check_errors(store, transport)
    finally:
        server.stop()
        server.wait()
    wanted = claim_rules.Request(
        UUID, {"vcpus": 2, "CUSTOM_FPGA": 1}, (NODE,), "me", 30.0
    )
    moved = claim_rules.Request(OTHER, None, (NODE,), None, 600.0, UUID)
    assert store.asked[:6] == [
        ("web1", False, [wanted]),
        ("web1", True, [wanted]),
        ("web1", False, [moved]),
        ("confirm", UUID),
        ("release", UUID, None, None),
        {
            "owner": "me",
            "host": None,
            "finished": False,
            "limit": 3,
            "marker": UUID,
        },
    ]


def check_errors(store: Store, transport: rpc.Transport) -> None:
    """See that what is refused crosses the wire with all its facts."""
    api = conductor_rpcapi.ConductorAPI(transport, 10)
    reasons = [
        {"node": NODE, "reason": "disabled", "message": "its host is disabled"},
        {
            "node": NODE,
            "reason": "no-room",
            "message": "vcpus: 2 requested, 1 free of 8",
            "resource": "vcpus",
            "requested": 2,
            "free": 1,
            "capacity": 8,
        },
    ]
    expected: Mapping[str, type[errors.MusterbookError]] = {
        "refused": errors.ClaimRefused,
        "conflict": errors.ClaimConflict,
    }
    for outcome, kind in expected.items():
        store.outcome = {"outcome": outcome, "reasons": reasons}
        with pytest.raises(kind) as caught:
            api.claim(wires.a_context(), REQUEST)
        assert caught.value.kwargs == {"uuid": UUID, "reasons": reasons}
        assert "its host is disabled; node" in caught.value.message
        assert "1 free of 8" in caught.value.message
    store.outcome = {"outcome": "gone", "reasons": [{"reason": "expired"}]}
    with pytest.raises(errors.ClaimGone) as gone:
        api.claim(wires.a_context(), REQUEST)
    assert (gone.value.uuid, gone.value.state) == (UUID, "expired")


def test_an_agent_hands_its_request_on(
    wire: wires.Wire, transport: rpc.Transport
) -> None:
    """Whatever the agent doesn't look at is the conductor's to judge."""
    asked: list[Any] = []

    class Endpoint:
        target = oslo_messaging.Target(version=compute_rpcapi.VERSION)

        @rpc.exposed
        def claim(self, context: Any, request: Any) -> Any:
            asked.append(request)
            return {"uuid": UUID}

    serializer = rpc.ContextSerializer(base.ObjectSerializer())
    server = rpc.Server(transport, "compute", "web1", [Endpoint()], serializer)
    server.start()
    try:
        target = oslo_messaging.Target(topic="compute", server="web1")
        answer = wire.driver.send(
            target,
            dict(samples.CONTEXT),
            CLAIM_OF_AGENT,
            wait_for_reply=True,
            timeout=10,
        )
    finally:
        server.stop()
        server.wait()
    assert (answer, asked) == ({"uuid": UUID}, [REQUEST])
