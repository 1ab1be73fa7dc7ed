"""The process of our callers: objects, carried to the conductor by RPC.

python -m tests.bench.rpc_caller save|get
"""

from collections.abc import Callable
from concurrent import futures
import functools
import random
import sys
from typing import Any

from conductor import rpcapi
from musterbook import context
from musterbook import errors
from musterbook import rpc
from objects import base
from objects import compute_node as compute_node_obj
from tests import rpc_lab
from tests import util
from tests.bench import child
from tests.bench import loop
from tests.bench import rpc_nodes
from tests.bench import wire

_TIMEOUT = 60.0
_START_SECONDS = 90.0
_CREATORS = 8
Node = compute_node_obj.ComputeNode


def save(nodes: list[Node], rng: random.Random) -> None:
    """Save five fields of one of the nodes."""
    node = rng.choice(nodes)
    for field, value in rpc_nodes.changes(rng).items():
        setattr(node, field, value)
    node.save()


def get(nodes: list[Node], rng: random.Random) -> None:
    """Get one of the nodes by its identity."""
    node = rng.choice(nodes)
    host, name = node.host, node.hypervisor_hostname
    assert host is not None
    assert name is not None
    Node.get_by_host_and_nodename(node._context, host, name)


OPERATIONS: dict[str, Callable[[list[Node], random.Random], None]] = {
    "save": save,
    "get": get,
}


class Callers:
    """What the bench asks this process for.

    :param operation: of OPERATIONS
    """

    def __init__(self, operation: str) -> None:
        self._call = OPERATIONS[operation]
        self._nodes: list[Node] = []

    def connect(self, rabbit: str) -> None:
        """Wait until the conductor answers."""
        self._transport = rpc.make_transport(rpc_lab.make_conf(rabbit))
        api = rpcapi.ConductorAPI(self._transport, _TIMEOUT)
        ctxt = context.service_context()
        util.wait_until(lambda: _answers(api, ctxt), _START_SECONDS, "the conductor")
        base.MusterObject.indirection_api = api

    def create(self, nodes: int) -> dict[str, Any]:
        """Create the nodes; return their ids and the sizes of a call's messages."""
        ctxt = context.service_context()
        with futures.ThreadPoolExecutor(_CREATORS) as pool:
            make = functools.partial(_create, ctxt)
            self._nodes = list(pool.map(make, range(nodes)))
        rng = random.Random()
        sizes = wire.measure(self._transport, lambda: self._call(self._nodes, rng))
        return {**sizes._asdict(), "ids": [node.id for node in self._nodes]}

    def run(self, callers: int, seconds: float, count: int) -> dict[str, Any]:
        """Run the closed loop; each thread has nodes of its own."""
        calls: list[loop.Call] = [
            functools.partial(self._call, self._nodes[number::callers])
            for number in range(callers)
        ]
        return loop.run(calls, seconds=seconds, count=count)


def _create(ctxt: context.RequestContext, number: int) -> Node:
    node = rpc_nodes.new(ctxt, number)
    node.create()
    return node


def _answers(api: rpcapi.ConductorAPI, ctxt: context.RequestContext) -> bool:
    try:
        api.ping(ctxt, timeout=2)
    except errors.ConductorUnavailable:
        return False
    return True


if __name__ == "__main__":
    made = Callers(sys.argv[1])
    child.serve({"connect": made.connect, "create": made.create, "run": made.run})
