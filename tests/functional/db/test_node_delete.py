"""musterbook-manage node delete: what an operator does about a node that is left."""

import pathlib

import pytest
import sqlalchemy as sa

from conductor.db import store as db_store
from musterbook import errors
from tests.functional.db import command
from tests.functional.db import juno


def test_a_node_in_use_only_by_force(
    engine: sa.Engine,
    store: db_store.DatabaseStore,
    database_url: str,
    tmp_path: pathlib.Path,
) -> None:
    with engine.begin() as c:
        juno.service(c, 1, "h1")
        juno.service(c, 2, "h2")
        juno.node(c, 1, 1, "hv")
        # Whose it is nothing tells.
        juno.service(c, 3, None)
        juno.node(c, 2, 3, "lost", memory_mb_used=0, vcpus_used=0, local_gb_used=0)
        juno.node(c, 3, 2, "other")
    uuids = {n: store.compute_node_get(id=n)["uuid"] for n in (1, 2)}

    def delete(*words: str) -> tuple[int, str]:
        done = command.inside(tmp_path, database_url, "node", "delete", *words)
        assert done.stderr == ""
        return done.returncode, done.stdout

    before = command.content(engine)
    code, said = delete(uuids[1])
    assert code == 1
    assert "is in use (vcpus_used 2, 0 reserved" in said
    assert "musterbook-manage node delete --force" in said
    assert command.content(engine) == before
    done = "deleted: compute node {} (host {}, name {})\n"
    assert delete("--force", uuids[1].upper()) == (0, done.format(1, "h1", "hv"))
    assert delete(uuids[2]) == (0, done.format(2, "-", "lost"))
    for unknown in (uuids[1], "no-uuid", "x" * 300, "a\nb"):
        code, said = delete("--force", unknown)
        assert (code, said.count("\n")) == (2, 1)
    assert [n["id"] for n in store.compute_nodes()] == [3]
    with pytest.raises(errors.ComputeNodeNotFound):
        store.compute_node_get(uuid=uuids[1])
    # It comes back with what runs there.
    back = store.compute_node_create({"host": "h1", "hypervisor_hostname": "hv"})
    assert (back["uuid"], back["vcpus_used"]) == (uuids[1], 2)
