"""A fleet of real processes over RabbitMQ, a real database and a real group."""

from collections.abc import Iterator
import pathlib
import signal
import time

import pytest
import sqlalchemy as sa

from tests import util
from tests.functional import lab as labs

#: What a state may be late by: poll, lease, a busy machine.
SLACK = 8.0


@pytest.fixture(params=["mariadb", "postgresql"])
def lab(
    request: pytest.FixtureRequest,
    tmp_path: pathlib.Path,
    rabbit_url: str,
    redis_url: str,
) -> Iterator[labs.Lab]:
    database = request.getfixturevalue(f"{request.param}_url")
    made = labs.Lab(tmp_path, rabbit_url, redis_url, database)
    with labs.opened(made):
        made.sync()
        yield made


def test_two_conductors_and_two_agents(lab: labs.Lab) -> None:
    """Started in the wrong order, they find each other; then each thing happens."""
    first = lab.start_agent("web1")
    lab.start_agent("web2", {"n1": labs.NODE, "n2": {**labs.NODE, "vcpus": 4}})
    conductors = [lab.start_conductor("c1"), lab.start_conductor("c2")]
    for node in ("web1", "n1", "n2"):
        lab.wait_state(node, "up", timeout=60)
    fleet = lab.fleet()
    assert {name: row["host"] for name, row in fleet.items()} == {
        "web1": "web1",
        "n1": "web2",
        "n2": "web2",
    }
    assert fleet["n2"]["vcpus"] == 4
    # 512 MiB are reserved by default and counted as used.
    assert fleet["web1"]["memory_mb_used"] == 512
    assert fleet["web1"]["free_ram_mb"] == 16384 - 512
    identity = {name: (row["id"], row["uuid"]) for name, row in fleet.items()}

    check_memory_change(lab)
    check_kill(lab, first)
    check_restart_changes_nothing(lab, identity)
    check_goodbye(lab)
    # One conductor goes; the other one leads and serves on.
    assert conductors[0].stop() == 0
    lab.start_agent("web1")
    lab.wait_state("web1", "up")
    assert conductors[1].stop() == 0


def check_memory_change(lab: labs.Lab) -> None:
    lab.write_nodes("web1", {"web1": {**labs.NODE, "memory_mb": 32768}})
    util.wait_until(lambda: lab.fleet()["web1"]["memory_mb"] == 32768)
    row = lab.fleet()["web1"]
    assert row["free_ram_mb"] == 32768 - 512
    # Nothing changes: no write moves the row any more.
    assert row["updated_at"] == lab.fleet()["web1"]["updated_at"]


def check_kill(lab: labs.Lab, agent: labs.Process) -> None:
    agent.kill()
    killed = time.monotonic()
    suspect = lab.wait_state("web1", "suspect") - killed
    assert lab.fleet()["web1"]["state_cause"] == "vanished"
    down = lab.wait_state("web1", "down") - killed
    assert lab.fleet()["web1"]["state_cause"] == "silent"
    # The member expires at most one timeout after its last beat, is missed at the
    # next poll, and is down service_down_time after that beat.
    assert suspect <= labs.MEMBER_TIMEOUT + SLACK
    earliest = labs.SERVICE_DOWN_TIME - labs.REPORT_INTERVAL - labs.MEMBER_TIMEOUT
    assert earliest <= down <= labs.SERVICE_DOWN_TIME + labs.MEMBER_TIMEOUT + SLACK
    assert lab.fleet()["n1"]["state"] == "up"


def check_restart_changes_nothing(
    lab: labs.Lab, identity: dict[str, tuple[int, str]]
) -> None:
    before = lab.fleet()["web1"]["updated_at"]
    lab.write_nodes("again", {"web1": {**labs.NODE, "memory_mb": 32768}})
    nodes = {"web1": {**labs.NODE, "memory_mb": 32768}}
    lab.start_agent("web1", nodes, file="again")
    lab.wait_state("web1", "up")
    fleet = lab.fleet()
    assert {n: (r["id"], r["uuid"]) for n, r in fleet.items()} == identity
    assert fleet["web1"]["updated_at"] == before


def check_goodbye(lab: labs.Lab) -> None:
    again = lab.processes[-1]
    again.send(signal.SIGTERM)
    sent = time.monotonic()
    assert lab.wait_state("web1", "down") - sent < 2.0 + SLACK
    assert lab.fleet()["web1"]["state_cause"] == "goodbye"
    assert again.wait() == 0
    assert "Traceback" not in again.errors()


#: Which database it is doesn't matter where only the agents and the leader act.
ONE_DATABASE = pytest.mark.parametrize(
    "lab",
    ["mariadb", pytest.param("postgresql", marks=pytest.mark.slow)],
    indirect=True,
)


@ONE_DATABASE
def test_a_second_agent_is_refused_and_a_restart_is_not(lab: labs.Lab) -> None:
    lab.start_conductor()
    first = lab.start_agent("web1")
    lab.wait_state("web1", "up", timeout=60)
    second = lab.start_agent("WEB1", {"web1": labs.NODE}, file="second")
    assert second.wait(30) == 1
    said = second.errors().splitlines()[-1]
    assert "web1" in said
    assert "another living process" in said
    assert "Traceback" not in second.errors()
    assert lab.fleet()["web1"]["state"] == "up"
    assert lab.fleet()["web1"]["incarnation"] == 1
    # After kill -9 the next one takes over, whatever of the first is left.
    first.kill()
    lab.start_agent("web1", file="third")
    util.wait_until(lambda: lab.fleet()["web1"]["incarnation"] == 2)
    lab.wait_state("web1", "up")


@ONE_DATABASE
def test_a_frozen_leader_is_replaced_and_writes_nothing_more(lab: labs.Lab) -> None:
    first = lab.start_conductor("c1")
    lab.start_agent("web1")
    lab.wait_state("web1", "up", timeout=60)
    second = lab.start_conductor("c2")
    first.freeze()
    try:
        util.wait_until(lambda: "Leading with term 2" in second.errors(), timeout=60)
        lab.processes[-2].kill()  # the agent
        lab.wait_state("web1", "down", timeout=60)
    finally:
        first.thaw()
    util.wait_until(lambda: "No longer leading" in first.errors(), what="step down")
    assert lab.transitions("web1") == [
        ("suspect", "not-yet-joined"),
        ("up", "in-group"),
        ("suspect", "vanished"),
        ("down", "silent"),
    ]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_leader_that_is_frozen_while_it_writes_is_refused_by_its_term(
    tmp_path: pathlib.Path, rabbit_url: str, redis_url: str, mariadb_url: str
) -> None:
    """Thawed, it is in the middle of a write that was decided under an old term."""
    made = labs.Lab(tmp_path, rabbit_url, redis_url, mariadb_url)
    made.lease_interval = 5.0
    engine = sa.create_engine(mariadb_url, isolation_level="READ COMMITTED")
    with labs.opened(made), engine.connect() as locker, engine.connect() as looker:
        made.sync()
        first = made.start_conductor("c1")
        agent = made.start_agent("web1")
        made.wait_state("web1", "up", timeout=60)
        second = made.start_conductor("c2")
        # Right after a renewal, so that the lock below stops the write, not the next.
        wait_renewal(looker)
        agent.kill()
        locker.execute(sa.text("SELECT * FROM leases FOR UPDATE"))
        waiting = sa.text(
            "SELECT COUNT(*) FROM information_schema.innodb_trx"
            " WHERE trx_state = 'LOCK WAIT' AND trx_query LIKE '%leases%FOR UPDATE%'"
        )
        util.wait_until(lambda: looker.execute(waiting).scalar(), what="the write")
        first.freeze()
        try:
            locker.rollback()  # the frozen leader's transaction has the lock now
            util.wait_until(
                lambda: "Leading with term 2" in second.errors(), timeout=120
            )
            made.wait_state("web1", "down", timeout=60)
        finally:
            first.thaw()
        util.wait_until(lambda: "No longer leading" in first.errors())
        history = made.transitions("web1")
    engine.dispose()
    assert history[:2] == [("suspect", "not-yet-joined"), ("up", "in-group")]
    # Missed by the second, not by the first: nothing twice, nothing left out.
    assert [state for state, _ in history[2:]] == ["suspect", "down"]


def wait_renewal(connection: sa.Connection) -> None:
    """Return right after the leader has renewed its lease."""
    query = sa.text("SELECT renewed_at FROM leases")
    before = connection.execute(query).scalar()
    connection.rollback()

    def renewed() -> bool:
        found = connection.execute(query).scalar()
        connection.rollback()
        return bool(found != before)

    util.wait_until(renewed, what="the renewal")
