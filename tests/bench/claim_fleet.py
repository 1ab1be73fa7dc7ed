"""Hosts that are up and stay so, whose nodes can take any number of claims."""

from collections.abc import Mapping
import contextlib
import json
import pathlib
import threading
from typing import Any
import uuid as uuidlib

import sqlalchemy as sa

from conductor.db import engine as db_engine
from conductor.db import liveness
from conductor.db import models
from conductor.db import store as db_store
from musterbook import errors

#: More than a bench can claim.
_PLENTY = 2_000_000_000
_OWNER = "bench"
#: Of the leader's lease; it is renewed more often, as conductors look for it.
_LEASE_SECONDS = 60.0
_RENEWAL = 1.0
_RATIOS = ("cpu_allocation_ratio", "ram_allocation_ratio", "disk_allocation_ratio")


class Fleet:
    """Writes and reads the bench's database, and leads; one thread, and its own.

    :param url: of a database that has the schema
    """

    def __init__(self, url: str) -> None:
        self._engine = db_engine.make_engine(url)
        self._records = liveness.LivenessStore(self._engine)
        self._stopping = threading.Event()
        self._leading = threading.Thread(target=self._renew, name="bench-lease")
        self._lead()
        self._leading.start()

    def _lead(self) -> None:
        """Keep conductors from leading: what is written here of hosts stays."""
        self._records.acquire(liveness.LEASE, _OWNER, _LEASE_SECONDS)

    def _renew(self) -> None:
        while not self._stopping.wait(_RENEWAL):
            with contextlib.suppress(errors.MusterbookError):
                self._lead()

    def fill(self, hosts: int) -> list[dict[str, Any]]:
        """Make hosts with a node each; return ``id``, ``uuid``, ``host`` of these."""
        first = _host(0)
        self._records.grant(
            first, "nova-compute", "compute", "a process", None, "1", "secret", None
        )
        made = db_store.DatabaseStore(self._engine).compute_node_create(
            {
                "host": first,
                "hypervisor_hostname": first,
                **dict.fromkeys(("vcpus", "memory_mb", "local_gb"), _PLENTY),
                **dict.fromkeys(_RATIOS, 1.0),
            }
        )
        service = self._row(models.services, models.services.c.host == first)
        node = self._row(models.compute_nodes, models.compute_nodes.c.id == made["id"])
        with self._engine.begin() as connection:
            for number in range(1, hosts):
                host = _host(number)
                own = {"host": host, "hypervisor_hostname": host}
                own["uuid"] = str(uuidlib.uuid4())
                connection.execute(models.compute_nodes.insert(), {**node, **own})
                own = {"host": host, "uuid": str(uuidlib.uuid4())}
                connection.execute(models.services.insert(), {**service, **own})
        self.say_up()
        return self.nodes()

    def _row(
        self, table: sa.Table, condition: sa.ColumnElement[bool]
    ) -> dict[str, Any]:
        with self._engine.connect() as connection:
            row = connection.execute(table.select().where(condition)).mappings().one()
        return {name: value for name, value in row.items() if name != "id"}

    def say_up(self) -> None:
        """Write of all hosts that they are up, as a leader would."""
        services = models.services
        change = services.update().values(
            state="up", state_cause="in-group", state_incarnation=services.c.incarnation
        )
        with self._engine.begin() as connection:
            connection.execute(change)

    def nodes(self) -> list[dict[str, Any]]:
        """Return ``id``, ``uuid``, ``host`` of all nodes, the oldest first."""
        nodes = models.compute_nodes
        query = sa.select(nodes.c.id, nodes.c.uuid, nodes.c.host).order_by(nodes.c.id)
        with self._engine.connect() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def incorrect(self) -> int:
        """Return how many nodes have another usage than the sum of their claims."""
        query = sa.text(
            "SELECT COUNT(*) FROM compute_nodes n LEFT JOIN (SELECT node_id,"
            " SUM(vcpus) AS taken FROM allocations WHERE state = 'held'"
            " GROUP BY node_id) a ON a.node_id = n.id"
            " WHERE n.vcpus_used <> COALESCE(a.taken, 0)"
        )
        with self._engine.connect() as connection:
            return int(connection.execute(query).scalar_one())

    def close(self) -> None:
        """Lead no longer, and close its connections."""
        self._stopping.set()
        self._leading.join()
        self._engine.dispose()


def _host(number: int) -> str:
    return f"claimed-{number:05}"


def write_agent(folder: pathlib.Path, host: str, common: Mapping[str, str]) -> str:
    """Write an agent's configuration, and the node that it has; return the path.

    :param common: options of [DEFAULT]
    """
    source = folder / f"{host}.json"
    amounts = dict.fromkeys(("vcpus", "memory_mb", "local_gb"), _PLENTY)
    source.write_text(json.dumps({"nodes": {host: amounts}}), encoding="utf-8")
    state = folder / host
    state.mkdir()
    values = {**common, "host": host, "state_path": str(state)}
    values |= dict.fromkeys(_RATIOS, "1.0")
    values |= {"reserved_host_memory_mb": "0"}
    lines = ["[DEFAULT]", *(f"{name} = {value}" for name, value in values.items())]
    lines += ["[inventory]", "source = fake", "[inventory_fake]", f"file = {source}"]
    path = folder / f"{host}.conf"
    path.write_text("\n".join(lines).replace("%", "%%") + "\n", encoding="utf-8")
    return str(path)
