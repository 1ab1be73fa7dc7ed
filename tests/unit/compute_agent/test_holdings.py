"""Nodes that come, go, move and get new names, on a real store of one process.

Each of Nova's bugs that a test stands for is named with its number.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import logging
import pathlib
from typing import Any

import pytest

from compute_agent import contest
from compute_agent import core
from compute_agent import holdings
from compute_agent import progress
from compute_agent import resource_tracker
from compute_agent import tenure
from compute_agent.inventory import bounded
from compute_agent.inventory import source
from conductor.db import engine as db_engine
from conductor.db import liveness
from conductor.db import store as db_store
from musterbook import conf as conf_module
from musterbook import errors
from musterbook.context import Grant
from objects import store as object_store
from tests import schema
from tests.functional.db import juno
from tests.unit.compute_agent import test_resource_tracker

UUIDS = [f"7d9f9f2e-5a4a-4d15-8f9f-5a0b3bb0a00{i}" for i in range(4)]
node = test_resource_tracker.node


class Clock:
    """A clock that stands still unless it is put forward."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Agent:
    """An agent's tracker with its source."""

    def __init__(self, book: "Book", host: str, known: dict[str, str]) -> None:
        conf = conf_module.load([], "test", config_files=[])
        conf.set_override("reserved_host_memory_mb", 0)
        self.source = test_resource_tracker.Source(conf)
        self.kept = known
        number = book.records.grant(
            host, "nova-compute", "compute", host, None, "1", "secret", book.had(host)
        )
        self.grant = Grant(host, number, "secret")
        self.reader = bounded.BoundedReader(self.source, 5.0, "test")
        self.held = holdings.Holdings(
            tenure.Tenure(self.grant),
            lambda *which: book.adopt(self.grant, *which),
            known,
            contest.Contest(book.clock),
        )
        self.tracker = resource_tracker.ResourceTracker(
            self.reader, core.Policy.from_conf(conf), self.held, self._keep
        )

    def report(
        self, *nodes: source.NodeInventory, **more: Any
    ) -> resource_tracker.AuditResult:
        """Audit while the source reports these."""
        by_name = {one.hypervisor_hostname: one for one in nodes}
        self.source.nodes = source.Reading(by_name, **more)
        return self.tracker.audit()

    def _keep(self, confirmed: Any) -> None:
        self.kept = dict(confirmed)


class Book:
    """A store on SQLite, and agents."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.engine = db_engine.make_engine(f"sqlite:///{folder}/a.sqlite")
        schema.make(self.engine)
        self.store = db_store.DatabaseStore(self.engine)
        self.records = liveness.LivenessStore(self.engine)
        self.clock = Clock()
        self.agents: list[Agent] = []
        self.adopted: list[str] = []

    def agent(self, host: str, **known: str) -> Agent:
        made = Agent(self, host, known)
        self.agents.append(made)
        return made

    def adopt(self, grant: Grant, *which: str) -> None:
        self.adopted.append(grant.host)
        self.records.adopt(grant, *which)

    def had(self, host: str) -> int | None:
        known = self.records.known(host, "nova-compute")
        return known.incarnation if known else None

    def rows(self) -> dict[tuple[str, str], dict[str, Any]]:
        return {
            (row["host"], row["hypervisor_hostname"]): dict(row)
            for row in self.store.compute_nodes()
        }

    def use(self, row: Mapping[str, Any], vcpus: int) -> None:
        """Let a node be in use, as its agent has confirmed."""
        values = {"vcpus_used": vcpus}
        self.store.compute_node_update(row["id"], values, None, writes_usage=True)
        used = {"vcpus": vcpus, "memory_mb": 0, "local_gb": 0}
        self.store.compute_node_confirm_usage(row["id"], used)


@pytest.fixture
def book(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> Iterator[Book]:
    made = Book(tmp_path)
    object_store.bind(made.store)
    caplog.set_level(logging.INFO)
    yield made
    for one in made.agents:
        one.reader.close()
    object_store.unbind()
    made.engine.dispose()


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    caplog.clear()
    return found


# -- deleted and gone --------------------------------------------------------------


def test_deleted_under_a_running_agent_it_comes_back(
    book: Book, caplog: pytest.LogCaptureFixture
) -> None:
    one = book.agent("a")
    one.report(node("n1"))
    (before,) = book.store.compute_nodes()
    book.use(before, 3)
    book.store.compute_node_destroy(before["id"], None, force=True)
    # The save says that it isn't there; in the same audit it is again.
    assert one.report(node("n1", vcpus=9)).created == ("n1",)
    (after,) = book.store.compute_nodes()
    assert (after["id"], after["uuid"]) == (before["id"], before["uuid"])
    assert (after["vcpus"], after["vcpus_used"]) == (9, 3)
    (line,) = warned(caplog)
    assert "n1" in line
    assert before["uuid"] in line
    # Or the look that comes now and then finds it out.
    book.store.compute_node_destroy(before["id"], None, force=True)
    one.tracker.reread()
    assert one.report(node("n1", vcpus=9)).created == ("n1",)
    assert [row["uuid"] for row in book.store.compute_nodes()] == [before["uuid"]]


def test_purged_or_with_a_new_database_it_gets_its_uuid_back(book: Book) -> None:
    one = book.agent("a")
    one.report(node("n1"))
    (before,) = book.store.compute_nodes()
    with book.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM compute_nodes")
    one.tracker.reread()
    assert one.report(node("n1")).created == ("n1",)
    assert [row["uuid"] for row in book.store.compute_nodes()] == [before["uuid"]]


def test_a_driver_that_is_out_deletes_nothing(book: Book) -> None:
    """Nova bug 1750450: an outage of the driver was taken for "no nodes"."""
    one = book.agent("a")
    one.report(node("n1"), node("n2"))
    before = book.store.compute_nodes()
    for fault in (
        errors.InventoryUnavailable(source="test", reason="not ready"),
        RuntimeError("libvirt is not connected"),
    ):
        one.source.fail = fault
        with pytest.raises(errors.InventoryUnavailable):
            one.tracker.audit()
    one.source.fail = None
    one.report()  # it answers, and knows of nothing
    assert book.store.compute_nodes() == before


def test_left_out_it_is_kept_which_is_said_once(
    book: Book, caplog: pytest.LogCaptureFixture
) -> None:
    one = book.agent("a")
    one.report(node("n1"), node("n2"))
    before = book.store.compute_nodes()
    for _ in range(3):
        one.report(node("n1"))
    (line,) = warned(caplog)
    assert "n2" in line
    assert "stays" in line
    assert book.store.compute_nodes() == before
    assert one.kept == {row["hypervisor_hostname"]: row["uuid"] for row in before}
    one.report(node("n1"), node("n2"))
    one.report(node("n1"))
    assert len(warned(caplog)) == 1  # it was there again in between


def test_gone_it_is_deleted_once(book: Book, caplog: pytest.LogCaptureFixture) -> None:
    one = book.agent("a")
    one.report(node("n1"), node("n2"))
    assert one.report(node("n1"), gone=["n2"]).deleted == ("n2",)
    assert list(book.rows()) == [("a", "n1")]
    assert list(one.kept) == ["n1"]
    assert one.report(node("n1"), gone=["n2"]).deleted == ()
    (line,) = warned(caplog)
    assert "n2" in line
    assert "deleted" in line
    # A later start finds it in the book by its name, and what is back is back.
    again = book.agent("a", **one.kept)
    assert again.report(node("n1"), node("n2")).created == ("n2",)
    assert again.report(node("n1"), gone=["n2"]).deleted == ("n2",)


def test_gone_and_in_use_it_is_kept_until_it_is_free(
    book: Book, caplog: pytest.LogCaptureFixture
) -> None:
    """Nova bugs 1763183, 1811726: a deletion left allocations without a node."""
    one = book.agent("a")
    one.report(node("n1"))
    (row,) = book.store.compute_nodes()
    book.use(row, 2)
    for _ in range(3):
        result = one.report(gone=["n1"])
        assert (result.deleted, result.failed) == ((), ())
    (line,) = warned(caplog)
    assert "vcpus_used 2" in line
    book.use(row, 0)
    assert one.report(gone=["n1"]).deleted == ("n1",)


def test_gone_here_and_adopted_elsewhere_it_is_not_deleted(book: Book) -> None:
    """Nova bug 1853009: the former host's cleanup deleted the adopted node."""
    a, b = book.agent("a"), book.agent("b")
    roams = node("n1", uuid=UUIDS[0], roams=True)
    a.report(roams)
    b.report(roams)
    assert a.report(gone=["n1"]).deleted == ()
    assert list(book.rows()) == [("b", "n1")]
    # Nor by its cache: a node of that name that it gets later is another one.
    assert a.report(node("n1", uuid=UUIDS[1])).created == ("n1",)
    assert book.rows()["b", "n1"]["uuid"] == UUIDS[0]


# -- failures are not remembered as done -------------------------------------------


def test_a_failed_save_is_not_remembered_as_saved(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nova bug 1834712: what a failed save should have stored was never sent again."""
    one = book.agent("a")
    one.report(node("n1"))

    def busy(*_: Any, **__: Any) -> None:
        raise errors.DatabaseBusy(reason="test")

    with monkeypatch.context() as patch:
        patch.setattr(book.store, "compute_node_update", busy)
        assert [name for name, _ in one.report(node("n1", vcpus=9)).failed] == ["n1"]
    assert one.report(node("n1", vcpus=9)).saved == ("n1",)
    assert book.rows()["a", "n1"]["vcpus"] == 9


def test_a_failed_create_is_neither_cached_nor_kept(
    book: Book, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nova bug 1839674: a node was cached before its creation had succeeded."""
    one = book.agent("a")

    def busy(*_: Any, **__: Any) -> None:
        raise errors.DatabaseBusy(reason="test")

    with monkeypatch.context() as patch:
        patch.setattr(book.store, "compute_node_create", busy)
        for _ in range(2):
            assert [name for name, _ in one.report(node("n1")).failed] == ["n1"]
    assert one.kept == {}
    assert one.report(node("n1")).created == ("n1",)
    assert one.report(node("n1", vcpus=9)).saved == ("n1",)
    said = warned(caplog)
    assert ["not saved" in said[0], "saved again" in said[1]] == [True, True], said
    assert len(said) == 2


# -- names -------------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("how", ["uuid", "machine"])
def test_a_node_with_a_new_name_keeps_its_record(
    book: Book, caplog: pytest.LogCaptureFixture, how: str, again: bool
) -> None:
    own: dict[str, Any] = {"uuid": UUIDS[0]} if how == "uuid" else {}
    more = {"one_machine": True} if how == "machine" else {}
    one = book.agent("a")
    one.report(node("old.example", **own), **more)
    (before,) = book.store.compute_nodes()
    book.use(before, 3)
    if again:
        one = book.agent("a", **one.kept)
    result = one.report(node("new.example", **own), **more)
    assert result.saved == ("new.example",)
    (after,) = book.store.compute_nodes()
    assert (after["id"], after["uuid"], after["vcpus_used"]) == (
        before["id"],
        before["uuid"],
        3,
    )
    assert after["hypervisor_hostname"] == "new.example"
    (line,) = warned(caplog)
    for word in ("new.example", "old.example", before["uuid"]):
        assert word in line
    assert one.kept == {"new.example": before["uuid"]}
    assert one.report(node("new.example", **own), **more).unchanged


def test_without_a_uuid_another_name_is_another_node(book: Book) -> None:
    one = book.agent("a")
    one.report(node("n1"))
    one.report(node("n2"))
    assert set(book.rows()) == {("a", "n1"), ("a", "n2")}


def test_where_the_new_name_has_a_record_that_one_wins(book: Book) -> None:
    one = book.agent("a")
    one.report(node("n1"), node("n2"))
    before = book.rows()
    one = book.agent("a", n1=before["a", "n1"]["uuid"])
    assert one.report(node("n2"), one_machine=True).unchanged == ("n2",)
    assert book.rows() == before


def test_a_uuid_under_two_names_renames_nothing(book: Book) -> None:
    one = book.agent("a")
    one.report(node("n1", uuid=UUIDS[0]))
    result = one.report(node("n1"), node("n2", uuid=UUIDS[0]))
    ((name, reason),) = result.failed
    assert name == "n2"
    assert "has the uuid of node n1" in reason
    assert list(book.rows()) == [("a", "n1")]


def test_the_former_name_that_is_gone_does_not_take_the_record_along(
    book: Book,
) -> None:
    one = book.agent("a")
    one.report(node("old", uuid=UUIDS[0]))
    (before,) = book.store.compute_nodes()
    result = one.report(node("new", uuid=UUIDS[0]), gone=["old"])
    assert (result.saved, result.deleted) == (("new",), ())
    assert {n: row["id"] for n, row in book.rows().items()} == {
        ("a", "new"): before["id"]
    }
    assert one.kept == {"new": UUIDS[0]}


def test_a_record_renamed_by_somebody_else_is_not_deleted_for_its_old_name(
    book: Book,
) -> None:
    one = book.agent("a")
    one.report(node("old"))
    (row,) = book.store.compute_nodes()
    book.store.compute_node_update(row["id"], {"hypervisor_hostname": "new"}, None)
    assert one.report(gone=["old"]).deleted == ()
    assert list(book.rows()) == [("a", "new")]


def test_another_node_that_gets_a_former_name_is_a_new_one(book: Book) -> None:
    one = book.agent("a")
    one.report(node("rack1", uuid=UUIDS[0]))
    one.report(node("rack2", uuid=UUIDS[0]))
    both = node("rack2", uuid=UUIDS[0]), node("rack1", uuid=UUIDS[1])
    assert one.report(*both).created == ("rack1",)
    for _ in range(2):
        assert {name: row["uuid"] for (_, name), row in book.rows().items()} == {
            "rack1": UUIDS[1],
            "rack2": UUIDS[0],
        }
        assert one.kept == {"rack1": UUIDS[1], "rack2": UUIDS[0]}
        one.report(*both)


# -- moves -------------------------------------------------------------------------


def test_a_node_that_roams_keeps_its_record(
    book: Book, caplog: pytest.LogCaptureFixture
) -> None:
    """Nova bug 1714248: a rebalance made a new uuid."""
    a, b = book.agent("a"), book.agent("b")
    roams = node("n1", uuid=UUIDS[0], roams=True)
    a.report(roams)
    (before,) = book.store.compute_nodes()
    assert before["uuid"] == UUIDS[0]
    book.use(before, 3)
    b.report(roams)
    (after,) = book.store.compute_nodes()
    assert (after["id"], after["uuid"], after["host"]) == (before["id"], UUIDS[0], "b")
    assert after["vcpus_used"] == 3
    assert len(warned(caplog)) == 1
    # The former agent's source doesn't have it any more: it finds out and lets go.
    assert a.report() == resource_tracker.AuditResult()
    (line,) = warned(caplog)
    assert "host b's now" in line
    assert a.kept == {}
    assert [row["host"] for row in book.store.compute_nodes()] == ["b"]


def test_the_former_agent_finds_out_by_its_next_save(
    book: Book, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = book.agent("a"), book.agent("b")
    roams = node("n1", uuid=UUIDS[0], roams=True)
    a.report(roams)
    b.report(roams)
    warned(caplog)
    changed = node("n1", uuid=UUIDS[0], roams=True, vcpus=1)
    for _ in range(3):
        result = a.report(changed)
        assert (result.elsewhere, result.failed) == (("n1",), ())
    (line,) = warned(caplog)
    assert "host b's now" in line
    assert book.rows()["b", "n1"]["vcpus"] == 8


def juno_node(book: Book, host: str, name: str) -> None:
    with book.engine.begin() as connection:
        juno.service(connection, 1, host)
        juno.node(connection, 1, 1, name)


def test_a_node_of_junos_roams_with_its_usage(
    book: Book, caplog: pytest.LogCaptureFixture
) -> None:
    juno_node(book, "ironic", "rack7")
    a, b = book.agent("ironic"), book.agent("ironic2")
    (before,) = book.store.compute_nodes()
    roams = node("rack7", uuid=UUIDS[0], roams=True)
    for _ in range(2):
        assert not a.report(roams).failed
        assert a.kept == {"rack7": UUIDS[0]}
    said = [line for line in warned(caplog) if UUIDS[0] in line]
    assert len(said) == 1
    assert before["uuid"] in said[0]
    a.report()
    b.report(roams)
    (row,) = book.store.compute_nodes()
    assert (row["id"], row["host"], row["uuid"]) == (1, "ironic2", UUIDS[0])
    assert row["memory_mb_used"] == before["memory_mb_used"] == 4608


def test_a_take_over_by_slow_calls_is_no_standstill(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its calls takes just as long as a call may."""
    juno_node(book, "a", "n1")
    book.agent("a")
    b = book.agent("b")
    (row,) = book.store.compute_nodes()
    marks = progress.Progress(25, book.clock)
    b.tracker._marks = marks
    stalled: list[str | None] = []

    def slow(call: Any) -> Any:
        def later(*args: Any, **kwargs: Any) -> Any:
            try:
                return call(*args, **kwargs)
            finally:
                book.clock.now += resource_tracker.CALL_SECONDS
                stalled.append(marks.standstill())

        return later

    for name in [n for n in dir(book.store) if n.startswith("compute_node_")]:
        monkeypatch.setattr(book.store, name, slow(getattr(book.store, name)))
    b.held._adopt = slow(b.held._adopt)
    marks.begin()
    used = source.Usage(vcpus=1, memory_mb=100, local_gb=1)
    b.report(node("n1", uuid=row["uuid"], roams=True, used=used))
    assert list(book.rows()) == [("b", "n1")]
    assert stalled == [None] * len(stalled)
    assert len(stalled) >= 6


def refusing(*_: str) -> None:
    raise errors.VersionPinned(what="adopt_node", needs="1.1", speaks="1.0")


def test_a_renamed_node_is_found_by_the_uuid_that_the_book_knows(
    book: Book, caplog: pytest.LogCaptureFixture
) -> None:
    """The conductors are too old to be told the source's."""
    juno_node(book, "a", "old")
    one = book.agent("a")
    one.held._adopt = refusing
    (before,) = book.store.compute_nodes()
    for _ in range(3):
        one.report(node("old", uuid=UUIDS[0]), one_machine=True)
        one.tracker.reread()
    said = [line for line in warned(caplog) if UUIDS[0] in line]
    assert len(said) == 1
    assert before["uuid"] in said[0]
    one.report(node("new", uuid=UUIDS[0]), one_machine=True)
    (row,) = book.store.compute_nodes()
    assert (row["id"], row["hypervisor_hostname"]) == (1, "new")
    assert row["memory_mb_used"] == 4608


def test_a_uuid_that_somebody_gave_is_not_replaced(
    book: Book, caplog: pytest.LogCaptureFixture
) -> None:
    one = book.agent("a")
    one.report(node("n1", uuid=UUIDS[0]))
    for _ in range(3):
        assert one.report(node("n1", uuid=UUIDS[1])).unchanged == ("n1",)
    (line,) = warned(caplog)
    assert UUIDS[0] in line
    assert UUIDS[1] in line
    (row,) = book.store.compute_nodes()
    assert row["uuid"] == UUIDS[0]
    assert book.adopted == ["a"]


def test_another_node_of_a_name_is_not_taken_for_the_one_that_moved(book: Book) -> None:
    a, b = book.agent("a"), book.agent("b")
    roams = node("n1", uuid=UUIDS[0], roams=True)
    a.report(roams)
    b.report(roams)
    a.tracker.reread()
    assert a.report(node("n1", uuid=UUIDS[1])).created == ("n1",)
    assert book.rows()["b", "n1"]["uuid"] == UUIDS[0]
    assert book.rows()["a", "n1"]["uuid"] == UUIDS[1]


def test_two_that_claim_one_node_do_not_make_a_storm(
    book: Book, caplog: pytest.LogCaptureFixture
) -> None:
    """An audit each minute, a change at each, and looks at the book, for two hours."""
    agents = [book.agent("a"), book.agent("b")]
    for round_ in range(120):
        book.clock.now += 60
        for index, one in enumerate(agents):
            one.tracker.reread()
            vcpus = round_ % 7 + index + 1
            one.report(node("n1", uuid=UUIDS[0], roams=True, vcpus=vcpus))
    assert 2 <= len(book.adopted) <= 16
    assert {*book.adopted} == {"a", "b"}
    assert len(book.store.compute_nodes()) == 1
    assert len(warned(caplog)) <= 2 * len(book.adopted) + 2


def test_a_node_that_does_not_roam_is_left_to_its_host(
    book: Book, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = book.agent("a"), book.agent("b")
    a.report(node("n1", uuid=UUIDS[0]))
    before = book.store.compute_nodes()
    for _ in range(2):
        assert b.report(node("n1", uuid=UUIDS[0])).elsewhere == ("n1",)
    assert len(warned(caplog)) == 1
    assert book.store.compute_nodes() == before
    assert book.adopted == []


def test_what_a_renamed_host_took_is_not_created_again(book: Book) -> None:
    """The agent of the former name was frozen, wakes up, and still has the source."""
    old = book.agent("web1")
    old.report(node("n1"))
    (row,) = book.store.compute_nodes()
    claim = liveness.Claim("web1", 1, frozenset([row["uuid"]]))
    book.records.grant(
        "web2", "nova-compute", "compute", "p2", None, "1", "s", None, claim=claim
    )
    for _ in range(2):
        assert old.report(node("n1", vcpus=1)).elsewhere == ("n1",)
        old.tracker.reread()
    assert list(book.rows()) == [("web2", "n1")]


def test_a_node_of_junos_that_roamed_unreported_keeps_its_usage(
    book: Book, caplog: pytest.LogCaptureFixture
) -> None:
    with book.engine.begin() as connection:
        for number, name in ((1, "n1"), (2, "n2"), (3, "n2")):
            juno.service(connection, number, f"gone{number}")
            juno.node(connection, number, number, name)
    agent = book.agent("b")
    told = agent.report(
        node("n1", uuid=UUIDS[0], roams=True),
        node("n2", uuid=UUIDS[1], roams=True),
        node("n3", uuid=UUIDS[2], roams=True),
    )
    kept = book.rows()[("b", "n1")]
    assert (kept["id"], kept["uuid"], kept["memory_mb_used"]) == (1, UUIDS[0], 4608)
    assert agent.kept["n1"] == UUIDS[0]
    assert any("n1: another host left its record" in text for text in warned(caplog))
    # Of two nobody guesses; what nobody left is new.
    ((name, reason),) = told.failed
    assert name == "n2"
    assert "2 (of host gone2), 3 (of host gone3)" in reason
    assert ("b", "n2") not in book.rows()
    assert book.rows()[("b", "n3")]["memory_mb_used"] == 0


def test_a_node_that_does_not_roam_is_not_known_by_its_name(book: Book) -> None:
    with book.engine.begin() as connection:
        juno.service(connection, 1, "gone")
        juno.node(connection, 1, 1, "n1")
    book.agent("b").report(node("n1", uuid=UUIDS[0]))
    assert set(book.rows()) == {("gone", "n1"), ("b", "n1")}
