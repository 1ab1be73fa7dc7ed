"""The tracker's shell against everything that can go wrong around it.

A state machine drives the real tracker, holdings and bounded reader on the real store
(SQLite). Sources fail in every way, calls get lost before and after they ran, arrive
late or twice, rows are changed, deleted and moved behind the agent's back, agents
restart with and without their state. Whatever happened: nothing that failed is
remembered as done, no node suffers from another one's failure, nothing is written
without need, and when the faults stop the book equals the source.
"""

from collections.abc import Mapping
import contextlib
import dataclasses
import pathlib
import tempfile
import threading
from typing import Any

from hypothesis import settings
from hypothesis import stateful
from hypothesis import strategies as st
import pytest
import sqlalchemy as sa

from compute_agent import core
from compute_agent import holdings
from compute_agent import resource_tracker
from compute_agent import tenure
from compute_agent.inventory import bounded
from compute_agent.inventory import source
from conductor.db import engine as db_engine
from conductor.db import liveness
from conductor.db import migration
from conductor.db import models
from conductor.db import store as db_store
from musterbook import conf as conf_module
from musterbook import errors
from musterbook.context import Grant
from objects import store as object_store
from tests.unit.compute_agent import deliveries
from tests.unit.compute_agent import test_resource_tracker

HOST, OTHER = "web1", "web2"
NAMES = ("n1", "n2", "n3")
_T = models.compute_nodes
#: A reading that is in order ends long before it; a blocked one is given up soon.
_PATIENT, _SHORT = 60.0, 0.02
_RATIOS = ("cpu_allocation_ratio", "ram_allocation_ratio", "disk_allocation_ratio")


class Source(source.InventorySource):
    """Says what the test says, or fails as it says."""

    def __init__(self) -> None:
        super().__init__(conf_module.load([], "test", config_files=[]))
        self.nodes: dict[str, source.NodeInventory] = {}
        self.gone: set[str] = set()
        self.fault: str | None = None
        self.go_on = threading.Event()

    def read(self) -> source.Reading:
        fault, self.fault = self.fault, None
        if fault == "raise":
            raise RuntimeError("a bug in a source")
        if fault == "not-ready":
            raise errors.InventoryUnavailable(source="test", reason="is not ready")
        reading = source.Reading(dict(self.nodes), gone=self.gone)
        if fault == "block":
            self.go_on.wait()
        return reading

    def close(self) -> None:
        self.go_on.set()


class Machine(stateful.RuleBasedStateMachine):
    """One host with up to three nodes."""

    engine: sa.Engine

    def __init__(self) -> None:
        super().__init__()
        self.book = db_store.DatabaseStore(self.engine)
        self.records = liveness.LivenessStore(self.engine)
        with self.engine.begin() as connection:
            for table in (models.allocations, _T, models.services):
                connection.execute(table.delete())
        self.wire = deliveries.Deliveries(self.book)
        object_store.bind(self.wire)
        self.source = Source()
        self.reader = bounded.BoundedReader(self.source, _PATIENT, "test")
        self.policy = core.Policy.from_conf(self.source.conf)
        self.kept: dict[str, str] = {}
        self.starts = 0
        self.vcpus = 0
        #: Nodes whose rows were changed since the agent looked.
        self.behind: set[str] = set()
        self.start()

    def start(self) -> None:
        had = self.starts or None
        self.starts += 1
        number = self.records.grant(
            HOST, "nova-compute", "compute", f"p{self.starts}", None, "1", "s", had
        )
        held = tenure.Tenure(Grant(HOST, number, "s"))
        self.tracker = resource_tracker.ResourceTracker(
            self.reader,
            self.policy,
            holdings.Holdings(held, lambda *_: None, self.kept),
            lambda nodes: setattr(self, "kept", dict(nodes)),
        )
        self.behind.clear()

    # -- the hardware --------------------------------------------------------------

    @stateful.initialize(names=st.sets(st.sampled_from(NAMES), min_size=2))
    def begins(self, names: set[str]) -> None:
        for name in sorted(names):
            self.hardware(name, 1024, "b1")
        self.audit()

    @stateful.rule(
        name=st.sampled_from(NAMES),
        memory_mb=st.sampled_from([0, 1024]),
        boot_id=st.sampled_from(["b1", "b2"]),
    )
    def hardware(self, name: str, memory_mb: int, boot_id: str) -> None:
        self.vcpus += 1  # never what it was before
        made = test_resource_tracker.node(
            name, vcpus=self.vcpus, memory_mb=memory_mb, boot_id=boot_id
        )
        self.source.nodes[name] = made
        self.source.gone.discard(name)

    @stateful.rule(name=st.sampled_from(NAMES), known=st.booleans())
    def removed(self, name: str, known: bool) -> None:
        self.source.nodes.pop(name, None)
        (self.source.gone.add if known else self.source.gone.discard)(name)

    @stateful.rule(reserved=st.integers(0, 2), ratio=st.sampled_from([None, 2.0, 16.0]))
    def configured(self, reserved: int, ratio: float | None) -> None:
        self.policy = dataclasses.replace(
            self.policy, reserved_vcpus=reserved, cpu=core.Ratio(ratio, 4.0)
        )
        self.tracker.set_policy(self.policy)

    # -- faults --------------------------------------------------------------------

    @stateful.rule(fault=st.sampled_from(["raise", "not-ready", "block"]))
    def source_fails(self, fault: str) -> None:
        self.source.fault = fault

    @stateful.rule(
        name=st.sampled_from([*NAMES, HOST]),  # of the host, the list of its nodes
        kind=st.sampled_from(["read", "write"]),
        fault=st.sampled_from(deliveries.FAULTS),
    )
    def call_fails(self, name: str, kind: str, fault: str) -> None:
        self.wire.due[name, kind] = fault

    @stateful.rule(
        name=st.sampled_from(NAMES), fault=st.sampled_from(deliveries.FAULTS)
    )
    def save_fails(self, name: str, fault: str) -> None:
        """Both at once, which is what matters most; then all is well again."""
        self.hardware(name, 1024, "b1")
        self.call_fails(name, "write", fault)
        self.audit()
        self.audit()

    @stateful.rule()
    def late_calls_arrive(self) -> None:
        before = self.rows()
        late = self.wire.arrive()
        after = self.rows()
        now = {name: row["inventory_generation"] for name, row in before.items()}
        current = {name for name, was in late if was in (None, now.get(name))}
        for name in {name for name, _ in late} - current:
            assert after.get(name) == before.get(name)  # it came too late
        self.behind |= {name for name, _ in late}

    @stateful.rule(
        name=st.sampled_from(NAMES),
        what=st.sampled_from(["edit", "generation", "ratio", "delete", "move"]),
    )
    def behind_its_back(self, name: str, what: str) -> None:
        row = self.rows().get(name)
        if row is None:
            return
        self.behind.add(name)
        if what == "delete":
            # In use or not: an operator may.
            self.book.compute_node_destroy(row["id"], None, force=True)
            return
        edits: dict[str, dict[str, Any]] = {
            "edit": {"vcpus": 77},
            "generation": {},
            "ratio": {"cpu_allocation_ratio": 0.0},
            "move": {"host": OTHER},
        }
        values = edits[what] | {"inventory_generation": _T.c.inventory_generation + 1}
        with (
            contextlib.suppress(sa.exc.IntegrityError),  # it has one of that name
            self.engine.begin() as connection,
        ):
            update = _T.update().where(_T.c.id == row["id"]).values(values)
            connection.execute(update)

    @stateful.rule(identity=st.booleans())
    def restarts(self, identity: bool) -> None:
        if not identity:
            self.kept = {}
        self.start()

    @stateful.rule()
    def verified(self) -> None:
        self.tracker.reread()

    # -- audits --------------------------------------------------------------------

    @stateful.rule()
    def audit(self) -> None:
        before = self.rows()
        self.wire.forget()
        wanted = dict(self.source.nodes)
        blocks = self.source.fault == "block"
        fails = self.source.fault is not None
        self.reader.set_timeout(_SHORT if blocks else _PATIENT)
        try:
            result = self.tracker.audit()
        except errors.InventoryUnavailable:
            assert fails
            assert self.wire.calls == []
            assert self.rows() == before
            if blocks:
                self.unblock()
            return
        assert not fails
        self.behind -= self.wire.read
        self.check(result, wanted, before)

    def unblock(self) -> None:
        """Let a reading that hung come back: what it says is thrown away."""
        self.source.go_on.set()
        thread = self.reader._thread
        assert thread is not None
        thread.join(60)
        self.source.go_on.clear()

    def check(
        self,
        result: resource_tracker.AuditResult,
        wanted: Mapping[str, source.NodeInventory],
        before: Mapping[str, Mapping[str, Any]],
    ) -> None:
        after = self.rows()
        done = {*result.created, *result.saved, *result.unchanged}
        for name in done - self.behind:
            self.assert_equal(after[name], wanted[name])
        failed = {name for name, _ in result.failed}
        assert done | failed | {*result.elsewhere} >= wanted.keys()
        silent = any(f in deliveries.SILENT for f in self.wire.fired.values())
        if not silent:
            # Only who had a fault, or was changed meanwhile, may have failed.
            assert failed <= self.wire.fired.keys() | self.behind
        for name in wanted.keys() - self.wire.fired.keys():
            assert self.wire.writes.count(name) <= 1 + (name in self.behind)
            if name in before and name not in self.behind:
                same = self.equal(before[name], wanted[name])
                assert self.wire.writes.count(name) == 0 or not same

    def rows(self) -> dict[str, dict[str, Any]]:
        """Return the host's live rows by node name."""
        query = sa.select(_T).where(_T.c.host == HOST, models.live(_T))
        with self.engine.connect() as connection:
            found = connection.execute(query).mappings().all()
        return {row["hypervisor_hostname"]: dict(row) for row in found}

    def equal(self, row: Mapping[str, Any], wanted: source.NodeInventory) -> bool:
        """Tell whether a row says what the hardware and the operator say."""
        says = {name: row[name] for name in ("vcpus", "memory_mb", "local_gb")}
        has = {name: getattr(wanted, name) for name in says}
        cpu = self.policy.cpu.configured
        ratios = [row[name] for name in _RATIOS]
        return (
            says == has
            and row["boot_id"] == wanted.boot_id
            and row["reserved_vcpus"] == self.policy.reserved_vcpus
            and all(ratios)
            and (cpu is None or ratios[0] == cpu)
        )

    def assert_equal(
        self, row: Mapping[str, Any], wanted: source.NodeInventory
    ) -> None:
        assert self.equal(row, wanted), (dict(row), wanted)
        used = row["reserved_memory_mb"]
        assert row["free_ram_mb"] == row["memory_mb"] - used  # also where negative

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            self.reader.close()
            object_store.unbind()

    def settle(self) -> None:
        """Let the faults stop, and see that all is right then."""
        self.wire.due.clear()
        self.wire.arrive()
        self.source.fault = None
        self.reader.set_timeout(_PATIENT)
        self.tracker.reread()
        for _ in range(len(NAMES) + 1):
            result = self.tracker.audit()
            if not result.failed:
                break
        assert result.failed == ()
        rows = self.rows()
        for name in self.source.nodes.keys() - {*result.elsewhere}:
            self.assert_equal(rows[name], self.source.nodes[name])
        assert not self.source.gone & rows.keys()
        self.wire.forget()
        result = self.tracker.audit()
        assert self.wire.writes == []
        if not result.elsewhere:
            assert self.wire.calls == []


def run(examples: int, steps: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        engine = db_engine.make_engine(f"sqlite:///{pathlib.Path(folder)}/a.sqlite")
        migration.sync(engine)
        Machine.engine = engine
        try:
            stateful.run_state_machine_as_test(
                Machine,
                settings=settings(
                    deadline=None,
                    max_examples=examples,
                    stateful_step_count=steps,
                    database=None,
                ),
            )
        finally:
            engine.dispose()


def test_whatever_happens_the_book_ends_equal_to_the_source() -> None:
    run(examples=40, steps=30)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_whatever_happens_at_length() -> None:
    run(examples=1000, steps=60)
