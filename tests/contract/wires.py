"""Both ends of the wire, and what a conductor serves there."""

from collections.abc import Mapping
import datetime
import threading
from typing import Any
from typing import ClassVar

import oslo_messaging

from conductor import rpcapi as conductor_rpcapi
from conductor.db import liveness
from musterbook import context
from musterbook import errors
from musterbook import rpc
from tests.contract import samples


class Nodes:
    """A store with the one node, that notes what is saved."""

    def __init__(self) -> None:
        self.saved: list[Any] = []
        self.grants: list[context.Grant | None] = []
        self.writes_usage: list[bool] = []
        self.confirmed: list[Any] = []
        self.looked_up: list[str | None] = []
        self.answer: Mapping[str, Any] = {"inventory_generation": 3}
        self.listed: list[Mapping[str, Any]] = [
            samples.NODE_ROW,
            {**samples.NODE_ROW, "id": 4, "host": "web2"},
        ]

    def compute_node_get_by_host_and_nodename(
        self, host: str, nodename: str
    ) -> Mapping[str, Any]:
        if (host, nodename) != ("web1", "web1"):
            raise errors.ComputeNodeNotFound(what=f"host {host} and name {nodename}")
        return samples.NODE_ROW

    def compute_node_update(
        self,
        node_id: int,
        values: Mapping[str, Any],
        generation: int | None,
        grant: context.Grant | None = None,
        *,
        writes_usage: bool,
    ) -> Mapping[str, Any]:
        self.grants.append(grant)
        self.writes_usage.append(writes_usage)
        self.saved.append((node_id, dict(values), generation))
        return self.answer

    def compute_node_create(
        self,
        values: Mapping[str, Any],
        grant: context.Grant | None = None,
        *,
        writes_usage: bool,
    ) -> Mapping[str, Any]:
        self.grants.append(grant)
        self.writes_usage.append(writes_usage)
        self.saved.append(dict(values))
        return {
            **samples.NODE_ROW,
            **values,
            "host": "web1",
            "service_id": None,
            "id": 3,
        }

    def compute_node_confirm_usage(
        self, node_id: int, used: Mapping[str, int], grant: context.Grant | None
    ) -> Mapping[str, Any]:
        self.grants.append(grant)
        self.confirmed.append((node_id, dict(used)))
        return {"usage_confirmed": True, "vcpus_used": 3}

    def compute_nodes(self, *, with_service: bool = False) -> list[Mapping[str, Any]]:
        return self.listed

    def services(
        self, *, host: str | None = None, binary: str | None = None
    ) -> list[Mapping[str, Any]]:
        self.looked_up.append(host)
        assert binary == "nova-compute"
        return [{"id": 7, "host": "web1"}]


class Records:
    """Liveness records that note what they are told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.refuse: Exception | None = None

    def lowest_level(self, binary: str) -> int | None:
        assert binary == "nova-compute"
        return 0

    def goodbye(self, *args: Any) -> None:
        self.told.append(("goodbye", *args))

    def stalled(self, *args: Any) -> None:
        self.told.append(("stalled", *args))

    def reset_flapping(self, *args: Any) -> None:
        self.told.append(("reset_flapping", *args))

    def release_freeze(self, *args: Any) -> tuple[list[str], list[str]]:
        self.told.append(("release_freeze", *args))
        return ["nova"], [""]

    def adopt(self, grant: context.Grant, *args: Any) -> None:
        self.told.append(("adopt", grant.host, *args))

    def beat(self, *args: Any) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.told.append(("beat", *args))

    def beats(self, binary: str) -> list[liveness.BeatRow]:
        at = datetime.datetime(2026, 11, 30, 12, 0, 3, 250_000, tzinfo=datetime.UTC)
        return [liveness.BeatRow("web1", 4, at, 1.5)]

    def verify(self, *args: Any) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.told.append(("verify", *args))


class Granter:
    """Grants incarnation 4 to everybody, and notes the service levels."""

    levels: ClassVar[list[int | None]] = []

    def hello(
        self,
        _: Any,
        *,
        host: str,
        version: int | None,
        formerly: Any = None,
        **__: Any,
    ) -> dict[str, Any]:
        self.levels.append(version)
        answer = {"host": host, "incarnation": 4}
        if formerly is None:
            return answer
        assert formerly.host == "old1"
        return {**answer, "nodes": [list(pair) for pair in formerly.nodes]}


class Wire:
    """Both ends of a transport, at the level of the driver."""

    def __init__(self, transport: rpc.Transport) -> None:
        self.driver = transport._driver
        self.got: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.arrived = threading.Semaphore(0)

    def listen(self, topic: str, server: str, answer: Any) -> Any:
        def receive(batch: list[Any]) -> None:
            for incoming in batch:
                self.got.append((incoming.ctxt, incoming.message))
                incoming.reply(answer)
                self.arrived.release()

        target = oslo_messaging.Target(topic=topic, server=server)
        listener = self.driver.listen(target, None, None)
        listener.start(receive)
        return listener

    def ask(
        self, message: Mapping[str, Any], ctxt: Mapping[str, Any] = samples.CONTEXT
    ) -> Any:
        target = oslo_messaging.Target(topic="conductor")
        return self.driver.send(
            target, dict(ctxt), dict(message), wait_for_reply=True, timeout=10
        )


def a_context() -> context.RequestContext:
    return context.RequestContext.from_dict(samples.CONTEXT)


def sent_to_conductor(wire: Wire, call: Any, answer: Any = None) -> Any:
    listener = wire.listen("conductor", "c1", answer)
    try:
        call()
    finally:
        listener.stop()
    ((ctxt, message),) = wire.got
    assert ctxt == {**samples.CONTEXT, "reply_timeout": 10}
    return message


def say_hello(api: conductor_rpcapi.ConductorAPI) -> Any:
    return api.hello(
        a_context(),
        host="web1",
        process_uuid=samples.PROCESS_UUID,
        boot_id=None,
        release="0.1.0",
        secret="the-secret",
        version=1,
    )
