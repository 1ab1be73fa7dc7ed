"""A legacy agent lives through a conductor of today, until it is upgraded."""

from collections.abc import Iterator
import contextlib
import pathlib
import time
from typing import Any

import pytest
import sqlalchemy as sa

from conductor.db import engine as db_engine
from musterbook import context
from musterbook import errors
from musterbook import levels
from tests import process
from tests import servers
from tests import util
from tests.functional import lab as lab_module
from tests.functional import legacy
from tests.functional.db import juno


@contextlib.contextmanager
def running(
    folder: pathlib.Path, rabbit: str, redis: str, database: str
) -> Iterator[lab_module.Lab]:
    made = lab_module.Lab(folder, rabbit, redis, database)
    with lab_module.opened(made):
        made.sync()
        made.start_conductor()
        yield made


@contextlib.contextmanager
def peer_of(lab: lab_module.Lab, *names: str) -> Iterator[legacy.LegacyPeer]:
    made = legacy.LegacyPeer(lab, *names)
    try:
        yield made
    finally:
        made.kill()


def rows(lab: lab_module.Lab, query: str) -> list[Any]:
    engine = sa.create_engine(lab.database)
    with engine.connect() as connection:
        found = connection.execute(sa.text(query)).all()
    engine.dispose()
    return [tuple(row) for row in found]


def lowest_level(lab: lab_module.Lab) -> Any:
    return lab.conductor.get_versions(context.service_context())["lowest_level"]


def save(node: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the arguments of a node's save."""
    return {
        "objinst": {
            "versioned_object.name": "ComputeNode",
            "versioned_object.namespace": "musterbook",
            "versioned_object.version": "1.0",
            "versioned_object.data": {**node, **changes},
            "versioned_object.changes": sorted(changes),
        },
        "objmethod": "save",
        "args": [],
        "kwargs": {},
    }


def test_from_juno_to_its_upgrade(
    tmp_path: pathlib.Path, rabbit_url: str, redis_url: str, mariadb_url: str
) -> None:
    """Its records are taken over from Juno's database."""
    engine = db_engine.make_engine(mariadb_url)
    juno.make(engine)
    with juno.unchecked(engine) as connection:
        juno.service(connection, 41, "old1")
        juno.node(connection, 17, 41, "old1")
    engine.dispose()
    nodes = "SELECT id, host, service_id FROM compute_nodes WHERE deleted = 0"
    with running(tmp_path, rabbit_url, redis_url, mariadb_url) as lab:
        with peer_of(lab, "old1") as peer:
            assert (peer.service["id"], peer.service["report_count"]) == (41, 7)
            assert (peer.node["id"], peer.node["memory_mb"]) == (17, 16000)
            assert peer.node["service_id"] == 41
            assert "host" not in peer.node
            lab.wait_state("old1", "up")
            assert lab.fleet()["old1"]["state_cause"] == "db-beat"
            assert lowest_level(lab) == 0
            # Capacity and usage are the agent's to write until it is upgraded.
            changes = {"memory_mb": 32768, "memory_mb_used": 4096, "vcpus_used": 3}
            told = peer.ask("object_action", **save(peer.node, **changes))
            assert "error" not in told, told
            found = lab.fleet()["old1"]
            assert {name: found[name] for name in changes} == changes
            assert rows(lab, nodes) == [(17, "old1", None)]
        lab.wait_state("old1", "down")
        assert lowest_level(lab) is None
        with peer_of(lab, "old1") as again:
            assert (again.service["id"], again.node["id"]) == (41, 17)
            assert again.node["memory_mb_used"] == 4096
            lab.wait_state("old1", "up")
            before = len(lab.transitions("old1"))
            # The upgrade, with the legacy agent still running beside it.
            lab.start_agent("old1")
            util.wait_until(
                lambda: lab.fleet()["old1"]["state_cause"] == "in-group", 60
            )
        since = lab.transitions("old1")[before:]
        assert ("up", "in-group") in since
        assert "down" not in [state for state, _ in since]
        assert lowest_level(lab) == levels.SERVICE_LEVEL
        assert rows(lab, nodes) == [(17, "old1", None)]


@pytest.mark.slow  # tests/unit/servicegroup/test_beats.py has the rule
def test_an_outage_of_the_database_takes_no_legacy_host_down(
    tmp_path: pathlib.Path,
    rabbit_url: str,
    redis_url: str,
    own_server: process.Starter,
) -> None:
    server = own_server(servers.PostgreSQL)
    with (
        running(tmp_path, rabbit_url, redis_url, server.lease(0)) as lab,
        peer_of(lab, "old1", "Node-1") as peer,
    ):
        # It has created both.
        assert peer.node["service_id"] == peer.service["id"]
        assert "host" not in peer.node
        lab.wait_state("Node-1", "up")
        assert lowest_level(lab) == 0
        nodes = "SELECT host, service_id, hypervisor_hostname FROM compute_nodes"
        assert rows(lab, nodes) == [("old1", None, "Node-1")]
        server.kill()
        enough = time.monotonic() + lab_module.SERVICE_DOWN_TIME + 1
        util.wait_until(lambda: time.monotonic() > enough)
        server.start()

        def beats_again() -> bool:
            with contextlib.suppress(errors.DatabaseUnavailable):
                return bool(lab.fleet()["Node-1"]["state"] == "up")
            return False

        beat = "SELECT last_seen_up FROM services"
        before = rows(lab, beat)
        util.wait_until(lambda: rows(lab, beat) != before, 60)
        util.wait_until(beats_again, 60)
        assert "down" not in [state for state, _ in lab.transitions("old1")]
