"""A-INV-1, second and third step: a create that fails halfway, and a deleted row.

Nova bug 1839674: the node was cached before its creation had succeeded, and every
later save failed for want of an id.
"""

from collections.abc import Iterator
import logging
import pathlib
import time

import pytest
import sqlalchemy as sa

from conductor.db import engine as db_engine
from conductor.db import liveness
from conductor.db import store as db_store
from objects import base
from objects import store as object_store
from tests import proxy
from tests import util
from tests.unit.compute_agent import test_agent


@pytest.fixture
def link(engine: sa.Engine) -> Iterator[proxy.Proxy]:
    if engine.dialect.name == "sqlite":
        pytest.skip("there is no connection to drop")
    assert engine.url.port is not None
    made = proxy.Proxy(engine.url.port)
    yield made
    made.close()


@pytest.fixture
def world(
    engine: sa.Engine,
    link: proxy.Proxy,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[test_agent.World]:
    """Yield an agent's world, whose conductor has its database behind the link."""
    made = test_agent.World(tmp_path)
    made.engine.dispose()
    url = engine.url.set(port=link.port)
    made.engine = db_engine.make_engine(url.render_as_string(hide_password=False))
    made.records = liveness.LivenessStore(made.engine)
    monkeypatch.setattr(base.MusterObject, "indirection_api", made.api)
    object_store.bind(db_store.DatabaseStore(made.engine))
    made.serve()
    yield made
    for one in made.agents:
        one.stop()
    assert made.server is not None
    made.server.stop()
    made.server.wait()
    for transport in made.transports:
        transport.cleanup()
    object_store.unbind()
    made.engine.dispose()


#: A creation is tried eight times by each of the three conductors that an agent asks.
@pytest.mark.parametrize("drops", [1, 30], ids=["once", "for long"])
def test_a_connection_lost_at_the_insert(
    store: db_store.DatabaseStore,
    world: test_agent.World,
    link: proxy.Proxy,
    caplog: pytest.LogCaptureFixture,
    drops: int,
) -> None:
    caplog.set_level(logging.INFO)
    world.write("node-y")
    link.drop_at(b"INSERT INTO compute_nodes", drops)
    began = time.monotonic()
    world.agent("node-y").start()
    (row,) = util.wait_until(store.compute_nodes)
    assert time.monotonic() - began < 20
    assert link.drops_left == 0
    # Saves go on, with the id that the last attempt got.
    world.write("node-y", {"node-y": {**test_agent.NODE, "memory_mb": 32768}})
    util.wait_until(lambda: store.compute_nodes()[0]["memory_mb"] == 32768)
    assert [node["id"] for node in store.compute_nodes()] == [row["id"]]
    of_the_agent = [
        r.getMessage()
        for r in caplog.records
        if r.levelno >= logging.WARNING and r.name.startswith("compute_agent")
    ]
    said = [m for m in of_the_agent if "not saved" in m]
    assert len(said) == (drops > 1)
    assert " id" not in "".join(of_the_agent)
    assert "Traceback" not in caplog.text

    store.compute_node_destroy(row["id"], None)
    world.write("node-y", {"node-y": {**test_agent.NODE, "memory_mb": 4096}})
    (back,) = util.wait_until(store.compute_nodes)
    assert (back["id"], back["uuid"]) == (row["id"], row["uuid"])
