"""The leader's loop on a real (SQLite) store and a group that the test makes up."""

from collections.abc import Callable
from collections.abc import Iterator
import dataclasses
import itertools
import pathlib
import socket
import threading
import time
import uuid

import pytest
import sqlalchemy as sa

from conductor import leader
from conductor import pings
from conductor.db import engine as db_engine
from conductor.db import liveness
from conductor.db import store as db_store
from musterbook import errors
from musterbook.servicegroup import driver as group_driver
from musterbook.servicegroup import tooz_driver
from musterbook.servicegroup import traits
from musterbook.servicegroup import url as group_url
from musterbook.servicegroup import verdict
from tests import schema
from tests import util

POLICY = verdict.Policy(
    member_timeout=0.5,
    service_down_time=1.5,
    mass_loss_minimum=5,
    mass_loss_threshold=0.2,
    mass_loss_hold=300.0,
)
MISSED = {("suspect", "vanished"), ("down", "silent")}
TIMING = leader.Timing(poll_interval=0.02, lease_interval=0.2)


class Group(group_driver.GroupDriver):
    """A group that holds what the test puts in; or that can't be reached."""

    traits = traits.TRAITS["file"]
    member = "reader"
    member_timeout = 0.5

    def __init__(self) -> None:
        self.members: set[str] = set()
        self.fail: errors.GroupError | None = None
        self.polls = 0

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def join(self, group: str) -> None: ...

    def leave(self, group: str) -> None: ...

    def beat(self) -> None: ...

    def is_visible(self, group: str) -> bool:
        return True

    def get_all(self, group: str) -> frozenset[str]:
        self.polls += 1
        if self.fail is not None:
            raise self.fail
        return frozenset(self.members)


class World:
    """A store, a group, and leaders that stand for it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.engine = db_engine.make_engine(f"sqlite:///{folder}/l.sqlite")
        schema.make(self.engine)
        self.store = liveness.LivenessStore(self.engine)
        self.group = Group()
        self.answers: dict[str, int] = {}
        self.broker_lost = False
        self.told: list[tuple[str, int]] = []
        self.leaders: list[leader.Leader] = []
        self.looking: list[str] = []

    def lead(
        self, make_driver: Callable[[], group_driver.GroupDriver] | None = None
    ) -> leader.Leader:
        pinger = pings.Pinger(self.ask, lambda *item: self.told.append(item), workers=2)
        made = leader.Leader(
            self.store,
            make_driver or (lambda: self.group),
            pinger,
            POLICY,
            TIMING,
            str(uuid.uuid4()),
            on_stranger=self.looking.append,
        )
        self.leaders.append(made)
        made.start()
        return made

    def ask(self, host: str) -> int:
        if self.broker_lost:
            raise errors.AgentNotAsked(host=host, method="ping", reason="no broker")
        if host not in self.answers:
            raise errors.AgentUnavailable(host=host, method="ping", seconds=0)
        return self.answers[host]

    def hello(self, host: str) -> str:
        known = self.store.known(host, "nova-compute")
        number = self.store.grant(
            host,
            "nova-compute",
            "compute",
            str(uuid.uuid4()),
            None,
            "1",
            "secret-" + host,
            expected=known.incarnation if known else None,
        )
        return f"{host}#{number}"

    def states(self) -> dict[str, tuple[str | None, str | None]]:
        rows = self.store.granted("nova-compute")
        return {row.host: (row.state, row.state_cause) for row in rows}

    def wait(self, host: str, state: str, cause: str) -> None:
        util.wait_until(
            lambda: self.states().get(host) == (state, cause), what=f"{host} {state}"
        )

    def history(self) -> list[tuple[str, str]]:
        with self.engine.connect() as connection:
            rows = connection.exec_driver_sql(
                "SELECT host, state FROM transitions ORDER BY id"
            ).all()
        return [(row.host, row.state) for row in rows]


@pytest.fixture
def world(tmp_path: pathlib.Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    for standing in made.leaders:
        standing.stop()
    made.engine.dispose()


def test_a_member_is_up_and_its_loss_is_suspect_then_down(world: World) -> None:
    member = world.hello("web1")
    world.lead()
    world.wait("web1", "suspect", "not-yet-joined")
    world.group.members.add(member)
    world.wait("web1", "up", "in-group")
    world.group.members.clear()
    world.wait("web1", "suspect", "vanished")
    world.wait("web1", "down", "silent")
    assert [state for _, state in world.history()] == [
        "suspect", "up", "suspect", "down",
    ]  # fmt: skip


def test_who_answers_is_not_down_and_is_told_to_rejoin(world: World) -> None:
    member = world.hello("web1")
    world.group.members.add(member)
    world.answers["web1"] = 1
    world.lead()
    world.wait("web1", "up", "in-group")
    world.group.members.clear()
    world.wait("web1", "suspect", "not-yet-back")
    util.wait_until(lambda: len(world.told) >= 8)  # longer than service_down_time
    assert world.told[0] == ("web1", 1)
    assert world.states()["web1"] == ("suspect", "not-yet-back")


def test_nobody_is_down_while_the_leader_has_lost_the_broker(world: World) -> None:
    world.group.members.add(world.hello("web1"))
    world.lead()
    world.wait("web1", "up", "in-group")
    world.broker_lost = True
    world.group.members.clear()
    world.wait("web1", "suspect", "vanished")
    polls = world.group.polls
    util.wait_until(lambda: world.group.polls > polls + 100)  # over service_down_time
    assert world.states()["web1"] == ("suspect", "vanished")
    world.broker_lost = False
    world.wait("web1", "down", "silent")


def register(world: World, host: str) -> Callable[[], None]:
    """Make a legacy agent's service; return what beats for it, once."""
    store = db_store.DatabaseStore(world.engine)
    values = {"host": host, "binary": "nova-compute", "topic": "compute"}
    service = store.service_create(values | {"report_count": 0})["id"]
    counts = itertools.count(1)

    def beat() -> None:
        store.service_update(service, {"report_count": next(counts)})

    return beat


def legacy_state(world: World, host: str) -> tuple[str | None, str | None]:
    store = db_store.DatabaseStore(world.engine)
    row = store.service_get_by_host_and_binary(host, "nova-compute")
    return row["state"], row["state_cause"]


def test_a_legacy_host_is_judged_by_its_beats(world: World) -> None:
    beat = register(world, "old1")
    world.lead()
    polls = world.group.polls

    def beaten_for_long() -> bool:
        beat()
        return world.group.polls > polls + 100  # longer than service_down_time

    util.wait_until(beaten_for_long)
    assert world.history() == [("old1", "up")]
    world.broker_lost = True
    util.wait_until(lambda: legacy_state(world, "old1") == ("suspect", "no-db-beat"))
    world.broker_lost = False
    util.wait_until(lambda: legacy_state(world, "old1") == ("down", "no-db-beat"))
    beat()
    util.wait_until(lambda: legacy_state(world, "old1") == ("up", "db-beat"))
    # From its first hello on, beats count for nothing.
    member = world.hello("old1")
    world.wait("old1", "suspect", "not-yet-joined")
    beat()
    world.group.members.add(member)
    world.wait("old1", "up", "in-group")
    assert [state for _, state in world.history()] == [
        "up", "suspect", "down", "up", "suspect", "up",
    ]  # fmt: skip


def test_a_goodbye_is_down_at_once(world: World) -> None:
    world.group.members.add(world.hello("web1"))
    world.lead()
    world.wait("web1", "up", "in-group")
    world.store.goodbye("web1", "nova-compute", 1, "secret-web1")
    world.wait("web1", "down", "goodbye")
    assert "suspect" not in [state for _, state in world.history()[1:]]


def test_a_host_that_comes_and_goes_is_held_by_whoever_leads(world: World) -> None:
    member = world.hello("web1")
    world.group.members.add(member)
    first = world.lead()
    world.wait("web1", "up", "in-group")
    for cause in ("in-group", "in-group", "flapping"):
        world.group.members.clear()
        # It doesn't answer: looked at late, it is down already.
        util.wait_until(lambda: world.states()["web1"] in MISSED)
        world.group.members.add(member)
        world.wait("web1", "suspect" if cause == "flapping" else "up", cause)
    (row,) = world.store.granted("nova-compute")
    assert row.state_evidence is not None
    assert "came back 3 times within 15 min: held suspect for 60 s" in (
        row.state_evidence
    )
    history = world.history()
    first.stop()
    world.lead()
    polls = world.group.polls
    util.wait_until(lambda: world.group.polls > polls + 20)
    assert world.history() == history
    world.store.reset_flapping("web1", "nova-compute", "somebody")
    world.wait("web1", "up", "in-group")


def test_a_stalled_agent_is_suspect_and_never_down_for_it(world: World) -> None:
    world.group.members.add(world.hello("web1"))
    world.lead()
    world.wait("web1", "up", "in-group")
    world.store.stalled("web1", "nova-compute", 1, "secret-web1", "no inventory")
    world.wait("web1", "suspect", "stalled")
    world.store.stalled("web1", "nova-compute", 1, "secret-web1", None)
    world.wait("web1", "up", "in-group")


def test_an_unreachable_group_freezes_and_says_so(world: World) -> None:
    world.group.members.add(world.hello("web1"))
    world.lead()
    world.wait("web1", "up", "in-group")
    world.group.fail = errors.GroupUnavailable(backend="test", reason="gone")
    util.wait_until(lambda: world.store.outlook(liveness.LEASE).freezes)
    ((scope, cause, _, _),) = world.store.outlook(liveness.LEASE).freezes
    assert (scope, cause) == ("", "group-unreachable")
    polls = world.group.polls
    util.wait_until(lambda: world.group.polls > polls + 100)  # over service_down_time
    assert world.states()["web1"] == ("up", "in-group")
    world.group.fail = None
    util.wait_until(lambda: not world.store.outlook(liveness.LEASE).freezes)
    assert world.states()["web1"] == ("up", "in-group")


def test_a_new_leader_repeats_nothing(world: World) -> None:
    world.group.members.add(world.hello("web1"))
    world.hello("web2")
    first = world.lead()
    world.wait("web1", "up", "in-group")
    world.wait("web2", "down", "silent")
    before = world.history()
    first.stop()
    polls = world.group.polls
    world.lead()
    util.wait_until(lambda: world.group.polls > polls + 20)
    assert world.history() == before


def test_one_of_two_leads_and_hands_over_when_it_stops(world: World) -> None:
    first = world.lead()
    util.wait_until(lambda: world.store.outlook(liveness.LEASE).lease_fresh)
    world.lead()
    world.group.members.add(world.hello("web1"))
    world.wait("web1", "up", "in-group")
    first.stop()
    world.store.goodbye("web1", "nova-compute", 1, "secret-web1")
    world.wait("web1", "down", "goodbye")


def test_idle_it_writes_the_lease_and_nothing_else(world: World) -> None:
    world.group.members.add(world.hello("web1"))
    world.lead()
    world.wait("web1", "up", "in-group")
    polls = world.group.polls
    util.wait_until(lambda: world.group.polls > polls + 2)
    written: list[str] = []

    @sa.event.listens_for(world.engine, "before_cursor_execute")
    def note(_c: object, _u: object, statement: str, *_: object) -> None:
        if not statement.lstrip().upper().startswith(("SELECT", "PRAGMA", "BEGIN")):
            written.append(statement)

    polls = world.group.polls
    util.wait_until(lambda: world.group.polls > polls + 50)
    util.wait_until(lambda: written, what="a renewal of the lease")
    assert [s for s in written if not s.startswith("UPDATE leases")] == []


def test_a_restart_of_the_host_is_the_next_incarnation(world: World) -> None:
    world.group.members.add(world.hello("web1"))
    world.lead()
    world.wait("web1", "up", "in-group")
    second = world.hello("web1")
    assert second == "web1#2"
    # The old entry still has to expire; it isn't the granted one.
    world.wait("web1", "suspect", "not-yet-joined")
    world.group.members.add(second)
    world.wait("web1", "up", "in-group")


def test_a_verdict_of_another_release_keeps_nobody_from_being_judged(
    world: World,
) -> None:
    world.group.members |= {world.hello("web1"), world.hello("web2")}
    with world.engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE services SET state_cause = 'of-tomorrow' WHERE host = 'web1'"
        )
    world.lead()
    world.wait("web2", "up", "in-group")
    world.wait("web1", "up", "in-group")


def test_it_takes_up_other_times_as_it_goes(world: World) -> None:
    made = world.lead()
    world.group.members.add(world.hello("web1"))
    world.wait("web1", "up", "in-group")
    slow = dataclasses.replace(POLICY, service_down_time=86400.0)
    made.take_up(slow, TIMING)
    polls = world.group.polls
    util.wait_until(lambda: world.group.polls > polls + 2)
    world.group.members.clear()
    world.wait("web1", "suspect", "vanished")
    vanished = time.monotonic()
    util.wait_until(lambda: time.monotonic() - vanished > 2 * POLICY.service_down_time)
    assert world.states()["web1"] == ("suspect", "vanished")
    # What it has seen is kept: the host was silent for long enough by now.
    made.take_up(POLICY, TIMING)
    world.wait("web1", "down", "silent")


def test_it_takes_up_another_pace(world: World) -> None:
    made = world.lead()
    util.wait_until(lambda: world.group.polls > 3)
    made.take_up(POLICY, leader.Timing(poll_interval=3600.0, lease_interval=3600.0))
    time.sleep(0.5)  # the look that is under way
    polls = world.group.polls
    time.sleep(0.5)  # many intervals of the former
    assert world.group.polls == polls


def test_a_group_that_cant_be_connected_costs_no_threads(world: World) -> None:
    """Each driver has a thread, which nobody but its stop() ends."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = group_url.parse(f"redis://127.0.0.1:{port}?timeout=2")
    made: list[tooz_driver.ToozDriver] = []

    def make() -> tooz_driver.ToozDriver:
        made.append(tooz_driver.ToozDriver(url, f"reader-{len(made)}"))
        return made[-1]

    before = set(threading.enumerate())
    standing = world.lead(make)
    util.wait_until(lambda: len(made) > 20)
    standing.stop()
    new = [t for t in threading.enumerate() if t not in before]
    assert not [t.name for t in new if t.daemon], new


def test_a_member_without_a_grant_is_told_to_look(world: World) -> None:
    world.group.members |= {world.hello("web1"), "web2#7"}
    world.lead()
    util.wait_until(lambda: world.looking)
    assert set(world.looking) == {"web2"}


def test_when_the_database_was_away_all_members_are_told_to_look(
    world: World,
) -> None:
    """It may have been set back to an earlier state, with everybody's grant in it."""
    world.group.members |= {world.hello("web1"), world.hello("web2")}
    world.lead()
    world.wait("web2", "up", "in-group")
    assert world.looking == []
    with world.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE leases RENAME TO away")
    util.wait_until(lambda: world.leaders[0]._failing is not None)
    with world.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE away RENAME TO leases")
    util.wait_until(lambda: sorted(world.looking) == ["web1", "web2"])


def test_after_a_fault_freezes_are_written_again(world: World) -> None:
    """The database may be another one, in which nothing of them is stored."""
    world.group.fail = errors.GroupUnavailable(backend="b", reason="r")
    world.hello("web1")
    world.lead()
    util.wait_until(lambda: world.store.outlook(liveness.LEASE).freezes)
    with world.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM freezes")
        connection.exec_driver_sql("ALTER TABLE leases RENAME TO away")
    polls = world.group.polls
    util.wait_until(lambda: world.leaders[0]._failing is not None)
    with world.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE away RENAME TO leases")
    util.wait_until(lambda: world.group.polls > polls)
    util.wait_until(lambda: world.store.outlook(liveness.LEASE).freezes)
