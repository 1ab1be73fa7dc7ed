"""What one beat asks of the database, as the database itself counts it.

The whole way of a beat, from an agent's turn on: by tooz to the group backend, or by
RPC to a conductor and on. A leader's look and its lease come by the second, not by the
beat, and aren't part of it.
"""

from collections.abc import Callable
import contextlib
import random
import time

from compute_agent import beats
from compute_agent import tenure
from conductor import grants
from conductor import manager
from conductor import rpcapi
from conductor.db import engine as db_engine
from conductor.db import liveness
from conductor.db import migration
from musterbook import context
from musterbook import rpc
from musterbook.servicegroup import db_driver
from musterbook.servicegroup import driver as group_driver
from musterbook.servicegroup import pulse
from musterbook.servicegroup import tooz_driver
from musterbook.servicegroup import url as group_url
from objects import service as service_obj
from tests import rpc_lab
from tests import servers
from tests import statements
from tests.bench import options

_BEATS = 200
_GRANT = context.Grant(host="beater", incarnation=1, secret="known")


def statements_per_beat(server: servers.MariaDB, backend: str) -> dict[str, float]:
    """Return how many statements a MariaDB ran for one beat, by driver.

    :param server: runs, and is used by nobody else
    """
    with contextlib.ExitStack() as cleanup:
        url = server.lease(1)
        ways = _conductor(url, cleanup)
        drivers: dict[str, Callable[[], group_driver.GroupDriver]] = {
            "tooz": lambda: tooz_driver.ToozDriver(
                group_url.parse(backend), _GRANT.member, call_timeout=30.0
            ),
            "db": lambda: db_driver.DbDriver(
                ways, _GRANT.member, lambda: db_driver.Times(9.0, 40.0, 30.0)
            ),
        }
        counted = statements.Statements(url)
        return {name: _count(make, counted) for name, make in drivers.items()}


def _conductor(url: str, cleanup: contextlib.ExitStack) -> db_driver.Ways:
    """Start a conductor on this database; return an agent's ways to it."""
    engine = db_engine.make_engine(url)
    cleanup.callback(engine.dispose)
    migration.sync(engine)
    records = liveness.LivenessStore(engine)
    records.grant(
        _GRANT.host, service_obj.COMPUTE_BINARY, service_obj.COMPUTE_TOPIC, "a-process",
        None, None, _GRANT.secret, None,
    )  # fmt: skip
    transport = rpc.make_transport(rpc_lab.make_conf("inproc://"))
    cleanup.callback(transport.cleanup)

    def nobody(_: context.RequestContext, host: str) -> dict[str, object]:
        raise options.BenchFailed(f"{host} was asked who it is")

    endpoint = manager.ConductorManager(grants.Granter(records, nobody), records)
    served = manager.make_server(transport, "c1", endpoint)
    served.start()
    cleanup.callback(served.wait)
    cleanup.callback(served.stop)
    api = rpcapi.ConductorAPI(transport, 30.0)
    held = tenure.Tenure(_GRANT)
    return db_driver.Ways(beats.teller(api, held, lambda: None), beats.reader(api))


def _count(
    make_driver: Callable[[], group_driver.GroupDriver], counted: statements.Statements
) -> float:
    agent = pulse.Pulse(
        make_driver,
        service_obj.COMPUTE_TOPIC,
        3.0,
        rng=random.Random(1),  # jitter
        clock=time.monotonic,
        wait=lambda seconds: False,
    )
    agent.turn()  # which joins
    counted.begin()
    for _ in range(_BEATS):
        agent.turn()
        if agent.status().error is not None:
            raise options.BenchFailed(f"a beat failed: {agent.status().error}")
    found = counted.end()
    agent.leave()
    return len(found) / _BEATS
