"""A-RPC-1: an older update that comes to the server after a newer one."""

from collections.abc import Iterator
from concurrent import futures
import contextlib

import pytest
import sqlalchemy as sa

from conductor.db import engine as db_engine
from conductor.db import store as db_store
from musterbook import errors
from tests import delaying_proxy
from tests import util


@pytest.fixture
def between(engine: sa.Engine) -> Iterator[delaying_proxy.DelayingProxy]:
    if engine.dialect.name == "sqlite":
        pytest.skip("there is no network before it")
    assert engine.url.port is not None
    made = delaying_proxy.DelayingProxy(engine.url.port)
    yield made
    made.close()


@pytest.fixture
def slow(
    engine: sa.Engine, between: delaying_proxy.DelayingProxy
) -> Iterator[db_store.DatabaseStore]:
    """Give another conductor's store, behind the proxy and already connected."""
    url = engine.url.set(port=between.port)
    made = db_engine.make_engine(url.render_as_string(hide_password=False))
    store = db_store.DatabaseStore(made)
    store.compute_nodes()
    yield store
    made.dispose()


#: With the name it isn't one statement but a transaction, whose first is a SELECT.
@pytest.mark.parametrize("more", [{}, {"hypervisor_hostname": "n"}])
def test_it_changes_nothing(
    more: dict[str, str],
    store: db_store.DatabaseStore,
    slow: db_store.DatabaseStore,
    between: delaying_proxy.DelayingProxy,
) -> None:
    values = {"host": "h", "hypervisor_hostname": "n", "memory_mb": 1}
    node_id = store.compute_node_create(values)["id"]
    with contextlib.ExitStack() as cleanup:
        pool = cleanup.enter_context(futures.ThreadPoolExecutor(1))
        cleanup.callback(setattr, between, "holding", False)
        between.holding = True
        late = pool.submit(
            slow.compute_node_update, node_id, {"memory_mb": 1024, **more}, 0
        )
        wanted = b"BEGIN" if more else b"UPDATE compute_nodes"
        util.wait_until(lambda: between.holds(wanted) or late.done(), 120)
        assert not late.done(), late.exception()
        store.compute_node_update(node_id, {"memory_mb": 2048}, 0)
        newest = store.compute_node_get(id=node_id)
        assert not late.done()
        between.holding = False
        with pytest.raises(errors.InventoryChanged):
            late.result(120)
    assert newest["memory_mb"] == 2048
    assert store.compute_node_get(id=node_id) == newest
