"""The agents' process of the audit bench: real trackers, a source in memory.

python -m tests.bench.audit_agent
"""

from collections.abc import Mapping
import contextlib
import functools
import random
from typing import Any
import uuid

from compute_agent import core
from compute_agent import holdings
from compute_agent import resource_tracker
from compute_agent import tenure
from compute_agent.inventory import bounded
from compute_agent.inventory import source
from conductor import rpcapi
from musterbook import conf as conf_module
from musterbook import context
from musterbook import errors
from musterbook import rpc
from objects import base
from tests import rpc_lab
from tests import util
from tests.bench import child
from tests.bench import loop
from tests.bench import rpc_nodes
from tests.bench import wire

_TIMEOUT = 60.0
_START_SECONDS = 90.0
#: Rows for the floor, so that it doesn't change what is audited.
_FLOOR_ROWS = 64


class _Source(source.InventorySource):
    """One node, which has what the bench says."""

    def __init__(self, host: str) -> None:
        super().__init__(conf_module.load([], "bench", config_files=[]))
        self._host = host
        self.change(random.Random())

    def change(self, rng: random.Random) -> None:
        """Let the machine have other amounts of three resources."""
        amounts = rpc_nodes.changes(rng)
        self._node = source.NodeInventory(
            hypervisor_hostname=self._host,
            vcpus=amounts["vcpus"],
            memory_mb=amounts["memory_mb"],
            local_gb=amounts["local_gb"],
            disk_available_least=None,
            hypervisor_type="QEMU",
            hypervisor_version=8_002_000,
            cpu_info=source.canonical({"arch": "x86_64", "features": ["x"] * 100}),
            host_ip="192.0.2.17",
            supported_instances=source.canonical([["x86_64", "kvm", "hvm"]]),
            numa_topology=source.canonical({"cells": []}),
            boot_id="1",
        )

    def read(self) -> Mapping[str, source.NodeInventory]:
        """Return it."""
        return {self._host: self._node}


class _Host:
    """One host's tracker, with the grant of a real hello."""

    def __init__(self, api: rpcapi.ConductorAPI, number: int) -> None:
        name, secret = f"audited-{number:03}", "a secret of the bench"
        answer = api.hello(
            context.service_context(),
            host=name,
            process_uuid=str(uuid.uuid4()),
            boot_id=None,
            release="bench",
            secret=secret,
        )
        grant = context.Grant(answer["host"], answer["incarnation"], secret)
        held = tenure.Tenure(grant)
        # It isn't in the group: a leader would ask for it again and again.
        api.goodbye(held.context)
        self.source = _Source(name)
        self.reader = bounded.BoundedReader(self.source, _TIMEOUT, "bench")
        self._tracker = resource_tracker.ResourceTracker(
            self.reader,
            core.Policy.from_conf(self.source.conf),
            holdings.Holdings(held, lambda *_: None, {}),
            lambda _: None,
        )

    def audit(self, changed: bool, rng: random.Random) -> None:
        """Do one cycle."""
        if changed:
            self.source.change(rng)
        result = self._tracker.audit()
        assert not result.failed, result.failed


class Agents:
    """What the bench asks this process for."""

    def connect(self, rabbit: str) -> None:
        """Wait until the conductor answers."""
        self._transport = rpc.make_transport(rpc_lab.make_conf(rabbit))
        self._api = rpcapi.ConductorAPI(self._transport, _TIMEOUT)
        util.wait_until(self._answers, _START_SECONDS, "the conductor")
        base.MusterObject.indirection_api = self._api

    def _answers(self) -> bool:
        with contextlib.suppress(errors.ConductorUnavailable):
            self._api.ping(context.service_context(), timeout=2)
            return True
        return False

    def create(self, hosts: int) -> dict[str, Any]:
        """Start so many hosts; return the floor's rows and a save's sizes."""
        self._hosts = [_Host(self._api, number) for number in range(hosts)]
        rng = random.Random()
        for host in self._hosts:
            host.audit(False, rng)  # which creates its node
        rows = [
            rpc_nodes.new(context.service_context(), number)
            for number in range(_FLOOR_ROWS)
        ]
        for row in rows:
            row.create()
        first = self._hosts[0]
        sizes = wire.measure(self._transport, lambda: first.audit(True, rng))
        return {**sizes._asdict(), "ids": [row.id for row in rows]}

    def count(self, cycles: int, changed: bool) -> int:
        """Do so many cycles; return how many RPCs they made."""
        sent = 0
        transport: Any = self._transport
        send = transport._send

        def counting(*args: Any, **kwargs: Any) -> Any:
            nonlocal sent
            sent += 1
            return send(*args, **kwargs)

        transport._send = counting
        try:
            for number in range(cycles):
                host = self._hosts[number % len(self._hosts)]
                host.audit(changed, random.Random())
        finally:
            del transport._send
        return sent

    def run(
        self, callers: int, seconds: float, count: int, changed: bool
    ) -> dict[str, Any]:
        """Run the closed loop; each thread is a host of its own."""
        calls: list[loop.Call] = [
            functools.partial(self._hosts[number].audit, changed)
            for number in range(callers)
        ]
        return loop.run(calls, seconds=seconds, count=count)


if __name__ == "__main__":
    made = Agents()
    child.serve(
        {
            "connect": made.connect,
            "create": made.create,
            "count": made.count,
            "run": made.run,
        }
    )
