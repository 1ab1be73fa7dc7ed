"""A fleet in which nothing happens: what its conductor asks of the database."""

from collections.abc import Iterator
import contextlib
import math
import pathlib
import time

import pytest
import sqlalchemy as sa

from tests import process
from tests import servers
from tests import statements
from tests import util
from tests.functional import lab as labs

#: Seconds between two looks of an agent whether it is known: the default, of which
#: up to a half is taken off.
VERIFY_INTERVAL = 600.0


class Changes:
    """How many rows of which table of a PostgreSQL were written, from a moment on."""

    def __init__(self, url: str) -> None:
        self._engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
        self._before: dict[str, int] = {}

    def begin(self) -> None:
        # A connection tells of what it did up to a second later.
        settled = self._read()

        def same() -> bool:
            nonlocal settled
            former, settled = settled, self._read()
            others = former.keys() - {"leases"}
            return all(former[name] == settled[name] for name in others)

        time.sleep(1.0)
        util.wait_until(same, 10, "the counts of writes to settle")
        self._before = settled

    def end(self) -> set[str]:
        """Return the tables that were written."""
        time.sleep(1.0)
        after = self._read()
        self._engine.dispose()
        return {name for name, count in after.items() if count != self._before[name]}

    def _read(self) -> dict[str, int]:
        query = (
            "SELECT relname, n_tup_ins + n_tup_upd + n_tup_del FROM pg_stat_user_tables"
        )
        with self._engine.connect() as connection:
            return {str(n): int(c) for n, c in connection.execute(sa.text(query))}


@pytest.fixture
def production(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let members have the times of production: a busy machine is no event."""
    for name, value in {
        "REPORT_INTERVAL": 3,
        "MEMBER_TIMEOUT": 10,
        "SERVICE_DOWN_TIME": 40,
        "POLL_INTERVAL": 1,
        "UPDATE_RESOURCES_INTERVAL": 10,
    }.items():
        monkeypatch.setattr(labs, name, value)
    monkeypatch.setattr(labs.Lab, "lease_interval", 5.0)


@contextlib.contextmanager
def idle_fleet(
    folder: pathlib.Path, rabbit: str, group: str, database: str, hosts: int
) -> Iterator[labs.Lab]:
    made = labs.Lab(folder, rabbit, group, database)
    with labs.opened(made):
        made.sync()
        made.start_conductor()
        made.start_hollow(hosts)

        def all_up() -> bool:
            return [r["state"] for r in made.fleet().values()] == ["up"] * hosts

        util.wait_until(all_up, 60 + hosts / 2, f"{hosts} hosts up")
        yield made


#: What a conductor reads all the while, however many hosts there are: who leads and
#: who lives, and which claims are due.
_READS = (" leases", " services", "from allocations where allocations.kind = 'claim'")


def strange(found: list[str]) -> set[str]:
    """Return those statements that an idle fleet has no cause for."""
    return {
        text
        for text in found
        if not text.startswith("update leases")
        and not (text.startswith("select") and any(part in text for part in _READS))
    }


def wait_idle(counted: statements.Statements) -> None:
    """Wait until what belongs to the start is over: several audits find it so."""

    def idle() -> bool:
        counted.begin()
        time.sleep(3 * labs.UPDATE_RESOURCES_INTERVAL)  # the length of a sample
        return not strange(counted.end())

    util.wait_until(idle, 90, "an idle fleet")


def run_mariadb(
    folder: pathlib.Path,
    rabbit: str,
    group: str,
    server: servers.MariaDB,
    hosts: int,
    seconds: float,
) -> None:
    url = server.lease(0)
    with idle_fleet(folder, rabbit, group, url, hosts):
        counted = statements.Statements(url)
        wait_idle(counted)
        counted.begin()
        began = time.monotonic()
        time.sleep(seconds)
        found = counted.end()
        took = time.monotonic() - began
    assert [t for t in found if t.startswith("update leases")], "the lease is renewed"
    reads = [t for t in found if t.startswith("select")]
    # An agent that looks whether it is known has its service and its node read.
    verified = hosts * math.ceil(took / (VERIFY_INTERVAL / 2))
    nodes = [t for t in reads if "from compute_nodes" in t]
    assert len(nodes) <= verified
    assert strange(found) == set(nodes)
    # The leader's two, however many hosts beat: none is a beat's.
    looks = [t for t in reads if "from services" in t]
    assert 0 < len(looks) <= 2 * (took / labs.POLL_INTERVAL + 1) + verified
    print(f"{len(found)} statements in {took:.1f} s, {len(looks)} of them looks")


def run_postgresql(
    folder: pathlib.Path,
    rabbit: str,
    group: str,
    url: str,
    hosts: int,
    seconds: float,
) -> None:
    with idle_fleet(folder, rabbit, group, url, hosts):
        # The looks and audits that belong to a start are over.
        time.sleep(3 * labs.UPDATE_RESOURCES_INTERVAL)
        counted = Changes(url)
        counted.begin()
        time.sleep(seconds)
        assert counted.end() == {"leases"}


def test_ten_hosts_write_nothing_but_the_lease(
    tmp_path: pathlib.Path,
    rabbit_url: str,
    redis_url: str,
    own_server: process.Starter,
) -> None:
    server = own_server(servers.MariaDB)
    run_mariadb(tmp_path, rabbit_url, redis_url, server, hosts=10, seconds=5)


@pytest.mark.slow  # twenty seconds of a gate that has the same on MariaDB
def test_ten_hosts_write_nothing_but_the_lease_on_postgresql(
    tmp_path: pathlib.Path, rabbit_url: str, redis_url: str, postgresql_url: str
) -> None:
    run_postgresql(tmp_path, rabbit_url, redis_url, postgresql_url, 10, seconds=3)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_hosts_write_nothing_but_the_lease_in_five_minutes(
    production: None,
    tmp_path: pathlib.Path,
    rabbit_url: str,
    redis_url: str,
    own_server: process.Starter,
) -> None:
    server = own_server(servers.MariaDB)
    run_mariadb(tmp_path, rabbit_url, redis_url, server, hosts=100, seconds=300)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_hosts_write_nothing_on_postgresql(
    production: None,
    tmp_path: pathlib.Path,
    rabbit_url: str,
    redis_url: str,
    postgresql_url: str,
) -> None:
    run_postgresql(tmp_path, rabbit_url, redis_url, postgresql_url, 100, seconds=300)
