"""A wire between clients and a conductor of one process."""

from collections.abc import Iterator
import uuid

import pytest

from conductor import manager as conductor_manager
from musterbook import rpc
from objects import store
from tests import rpc_lab
from tests.contract import wires


@pytest.fixture
def transport() -> Iterator[rpc.Transport]:
    made = rpc.make_transport(rpc_lab.make_conf(f"inproc:///{uuid.uuid4()}"))
    yield made
    made.cleanup()


@pytest.fixture
def wire(transport: rpc.Transport) -> wires.Wire:
    return wires.Wire(transport)


@pytest.fixture
def served(transport: rpc.Transport) -> Iterator[tuple[wires.Nodes, wires.Records]]:
    nodes, records = wires.Nodes(), wires.Records()
    store.bind(nodes)  # type: ignore[arg-type]  # as much of a store as is used
    server = conductor_manager.make_server(
        transport,
        "c1",
        conductor_manager.ConductorManager(wires.Granter(), records),  # type: ignore[arg-type]
    )
    server.start()
    yield nodes, records
    server.stop()
    server.wait()
    store.unbind()
