"""Usage is the sum, whatever happens to a node in whatever order."""

from typing import Any

import hypothesis
from hypothesis import strategies as st
import sqlalchemy as sa

from conductor.db import audit
from conductor.db import online
from conductor.db import store as db_store
from tests.functional.db import juno
from tests.functional.db import sums

USED = ("vcpus_used", "memory_mb_used", "local_gb_used")
RESERVED = ("reserved_vcpus", "reserved_memory_mb", "reserved_local_gb")
RESOURCES = ("vcpus", "memory_mb", "local_gb")

amounts = st.tuples(*[st.integers(0, 40)] * 3)
written = st.dictionaries(st.sampled_from(USED), st.integers(0, 60), min_size=1)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("report"), amounts),
        st.tuples(st.just("save"), st.integers(1, 99)),
        st.tuples(st.just("juno"), written),
        st.tuples(st.just("confirm"), amounts),
        st.tuples(st.just("recreate"), amounts),
        st.tuples(st.just("recreate by juno"), amounts),
        st.tuples(st.just("migrate"), st.none()),
    ),
    max_size=8,
)  # fmt: skip


class Node:
    """A node, and what its usage must be by the rule of docs/usage.md.

    :param used: what Juno left
    """

    def __init__(
        self, store: db_store.DatabaseStore, engine: sa.Engine, used: Any
    ) -> None:
        self.store, self.engine = store, engine
        self.used: tuple[int, ...] = used
        self.reserved: tuple[int, ...] = (0, 0, 0)
        self.reported = False
        self.confirmed = False
        self.id = 1
        self.identity = {"host": "h1", "hypervisor_hostname": "hv"}
        row = dict(zip(USED, used, strict=True))
        row |= {"free_ram_mb": 16000 - used[1], "free_disk_gb": 500 - used[2]}
        with engine.begin() as connection:
            for table in ("allocations", "compute_nodes", "services"):
                # Of the example before.
                connection.execute(sa.table(table).delete())
            juno.service(connection, 1, "h1")
            juno.node(connection, 1, 1, "hv", **row)

    def take(self, step: str, value: Any) -> None:
        """Do it, and reckon what is used from now on."""
        getattr(self, step.replace(" ", "_"))(value)

    def report(self, reserved: tuple[int, ...]) -> None:
        self.store.compute_node_update(self.id, self._report(reserved), None)
        self._reckon_report(reserved)

    def _report(self, reserved: tuple[int, ...]) -> dict[str, Any]:
        return dict(zip(RESERVED, reserved, strict=True)) | {"ram_allocation_ratio": 1}

    def _reckon_report(self, reserved: tuple[int, ...]) -> None:
        vcpus, *others = (
            used - old + new
            for used, old, new in zip(self.used, self.reserved, reserved, strict=True)
        )
        if not self.reported and not self.confirmed:
            others = [
                max(used, new)
                for used, new in zip(self.used[1:], reserved[1:], strict=True)
            ]
        self.used = (vcpus, *others)
        self.reserved, self.reported = reserved, True

    def save(self, number: int) -> None:
        values = {"running_vms": number, "memory_mb": number, "local_gb": number}
        self.store.compute_node_update(self.id, values, None)

    def juno(self, written: dict[str, int]) -> None:
        self.store.compute_node_update(self.id, written, None, writes_usage=True)
        self._reckon_written(written)

    def _reckon_written(self, written: dict[str, int]) -> None:
        self.used = tuple(
            max(written.get(name, used), reserved)
            for name, used, reserved in zip(USED, self.used, self.reserved, strict=True)
        )
        self.confirmed = False

    def confirm(self, told: tuple[int, ...]) -> None:
        before = self.store.compute_node_get(id=self.id)["usage_confirmed"]
        self.store.compute_node_confirm_usage(
            self.id, dict(zip(RESOURCES, told, strict=True))
        )
        if self.used != self.reserved and not self.confirmed:
            assert not before
            self.used = tuple(map(sum, zip(self.reserved, told, strict=True)))
        else:
            assert before or self.used == self.reserved
        self.confirmed = self.used != self.reserved
        assert self.store.compute_node_get(id=self.id)["usage_confirmed"]

    def recreate(self, reserved: tuple[int, ...]) -> None:
        self.store.compute_node_destroy(self.id, None, force=True)
        self.store.compute_node_create(self.identity | self._report(reserved))
        self._reckon_report(reserved)

    def recreate_by_juno(self, used: tuple[int, ...]) -> None:
        self.store.compute_node_destroy(self.id, None, force=True)
        written = dict(zip(USED, used, strict=True))
        self.store.compute_node_create(self.identity | written, writes_usage=True)
        # It knows no reserved amounts: the row has none any more.
        self.reserved, self.reported = (0, 0, 0), False
        self._reckon_written(written)

    def migrate(self, _: None) -> None:
        list(online.migrate(self.engine))

    def check(self) -> None:
        row = self.store.compute_node_get(id=self.id)
        assert tuple(row[name] for name in USED) == self.used
        assert tuple(row[name] for name in RESERVED) == self.reserved
        assert row["free_ram_mb"] == row["memory_mb"] - row["memory_mb_used"]
        assert row["free_disk_gb"] == row["local_gb"] - row["local_gb_used"]


@hypothesis.settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(used=amounts, taken=steps)
def test_usage_is_the_sum(
    engine: sa.Engine,
    store: db_store.DatabaseStore,
    used: tuple[int, ...],
    taken: list[tuple[str, Any]],
) -> None:
    node = Node(store, engine, used)
    node.check()
    for step, value in taken:
        node.take(step, value)
        node.check()
        sums.check(engine)
    faults = {kind.name: list(rows) for kind, rows in audit.findings(engine)}
    assert faults["usage_not_the_sum"] == []
