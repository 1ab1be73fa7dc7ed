"""Started before the database or the group is there, or with what they refuse."""

from collections.abc import Callable
from collections.abc import Iterator
import pathlib
import re
import signal
import time

import pytest
import sqlalchemy as sa

from tests import process
from tests import servers
from tests import util
from tests.functional import lab as labs
from tests.functional import outages
from tests.functional import test_readiness as readiness

CANARY = "CANARY"
pytestmark = pytest.mark.timeout(600)
#: Seconds for what a machine that isn't busy says within 5 s of its start.
SOON = 90.0
KINDS: dict[str, type[process.Server]] = {
    "mariadb": servers.MariaDB,
    "postgresql": servers.PostgreSQL,
}


@pytest.fixture
def manager(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[readiness.Manager]:
    """Give the socket that daemons started from here on tell that they are ready."""
    made = readiness.Manager(tmp_path, "systemd")
    monkeypatch.setenv("NOTIFY_SOCKET", made.path)
    yield made
    made.close()


@pytest.fixture
def make_lab(
    tmp_path: pathlib.Path, rabbit_url: str
) -> Iterator[Callable[..., labs.Lab]]:
    made: list[labs.Lab] = []

    def make(database: str = "", group: str = "") -> labs.Lab:
        lab = labs.Lab(
            tmp_path,
            rabbit_url,
            group or f"file://{tmp_path}/groups",
            database or f"sqlite:///{tmp_path}/some.sqlite",
        )
        made.append(lab)
        return lab

    yield make
    for lab in made:
        with labs.opened(lab):
            pass


@pytest.mark.parametrize("kind", KINDS)
def test_a_conductor_before_its_database(
    kind: str,
    make_lab: Callable[..., labs.Lab],
    own_server: process.Starter,
    manager: readiness.Manager,
) -> None:
    """It waits for the server, then for the schema, and is ready after both."""
    database = own_server(KINDS[kind])
    lab = make_lab(database.lease(0))
    database.stop()
    conductor = lab.start_conductor()
    waiting = "Waiting for the database: "
    outages.wait_said([conductor], f"{waiting}there is no connection to it", 1)
    # The waiting is long enough for several attempts, and they are not told.
    assert not manager.listen(3.0)
    database.start()
    outages.wait_said([conductor], f"{waiting}it is empty; run musterbook-manage", 1)
    assert not manager.listen(1.0)
    lab.sync()
    util.wait_until(lambda: manager.listen(1.0), outages.BUSY)
    assert [text for text, _ in manager.heard] == [b"READY=1"]
    # MySQL shows what a sync has made so far, which is one reason more.
    assert 2 <= conductor.errors().count(waiting) <= 3
    outages.check_said([conductor], "The database can be used, after", 1)
    assert outages.fleet(lab) == {}
    outages.check_alive([conductor])


def test_a_conductor_that_waits_for_its_database_stops_at_once(
    make_lab: Callable[..., labs.Lab], own_server: process.Starter
) -> None:
    """Also while the server is there and says nothing."""
    database = own_server(servers.MariaDB)
    lab = make_lab(database.lease(0))
    database.freeze()
    conductor = lab.start_conductor()
    outages.wait_said([conductor], "Waiting for the database", 1)
    conductor.send(signal.SIGTERM)
    sent = time.monotonic()
    assert conductor.wait() == 0
    assert time.monotonic() - sent < SOON
    assert "Traceback" not in conductor.errors()


def refused_url(url: str, what: str) -> str:
    parsed = sa.make_url(url)
    changed = {
        "user": parsed.set(username=f"u{CANARY}", password="x"),
        "password": parsed.set(username="known", password=CANARY),
        "database": parsed.set(database=f"d{CANARY}"),
        "driver": parsed.set(drivername=f"{parsed.get_backend_name()}+{CANARY}"),
    }[what]
    return changed.render_as_string(hide_password=False)


def check_refused(run: labs.Process, option: str) -> str:
    """Check that a daemon ended by itself, and return the line that says why."""
    began = time.monotonic()
    assert run.wait(SOON) == 2, run.errors()
    assert time.monotonic() - began < SOON
    line = run.errors().splitlines()[-1]
    assert option in line
    assert CANARY not in run.errors()
    assert "Traceback" not in run.errors()
    return line


@pytest.mark.parametrize("what", ["user", "password", "database", "driver"])
def test_a_database_that_refuses(
    what: str, make_lab: Callable[..., labs.Lab], mariadb_url: str
) -> None:
    if what == "password":
        engine = sa.create_engine(mariadb_url)
        with engine.begin() as connection:
            connection.execute(
                sa.text("CREATE USER IF NOT EXISTS known IDENTIFIED BY 'right'")
            )
        engine.dispose()
    lab = make_lab(refused_url(mariadb_url, what))
    line = check_refused(lab.start_conductor(), "[database]connection")
    assert {"driver": "driver", "database": "does not exist"}.get(
        what, "user or the password"
    ) in line


@pytest.mark.parametrize("what", ["user", "database"])
def test_a_postgresql_that_refuses(
    what: str, make_lab: Callable[..., labs.Lab], postgresql_url: str
) -> None:
    # The tests' server trusts everybody who exists: there is no wrong password.
    lab = make_lab(refused_url(postgresql_url, what))
    line = check_refused(lab.start_conductor(), "[database]connection")
    said = {"user": "user or the password", "database": "does not exist"}
    assert said[what] in line


def test_a_database_that_is_newer(
    make_lab: Callable[..., labs.Lab], mariadb_url: str
) -> None:
    lab = make_lab(mariadb_url)
    lab.sync()
    engine = sa.create_engine(mariadb_url)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE musterbook_version SET version_num='9999'"))
    engine.dispose()
    line = check_refused(lab.start_conductor(), "[database]connection")
    assert "newer than this code" in line


def test_daemons_before_their_group(
    make_lab: Callable[..., labs.Lab],
    own_server: process.Starter,
    manager: readiness.Manager,
) -> None:
    """They do what needs no group, and are ready once it is there."""
    redis = own_server(servers.Redis)
    lab = make_lab(group=redis.lease(0))
    redis.stop()
    lab.sync()
    conductor, compute = lab.start_conductor(), lab.start_agent("web1")
    outages.wait_said([conductor], "Waiting: the group backend", 1)
    outages.wait_said([compute], "Group compute: beat failed", 1)
    util.wait_until(lambda: "web1" in outages.fleet(lab), outages.BUSY)
    assert lab.fleet()["web1"]["state"] == "unknown"
    assert lab.fleet()["web1"]["state_cause"] == "group-unreachable"
    assert not manager.listen(1.0), manager.heard
    redis.start()
    took = lab.wait_state("web1", "up", timeout=outages.BUSY)
    assert took
    util.wait_until(lambda: manager.listen(0.1) or len(manager.heard) == 2)
    util.wait_until(lambda: manager.listen(0.1) or len(manager.heard) == 2)
    assert {pid for _, pid in manager.heard} >= {compute.popen.pid}
    outages.check_said([conductor], "Waiting: the group backend", 1)
    outages.check_said([conductor], "The group backend answers, after", 1)
    outages.check_said([compute], "Group compute: beat failed", 1)
    outages.check_said([compute], "Joined group compute after", 1)
    outages.check_alive([conductor, compute])


@pytest.mark.parametrize("given", ["wrong password", "no password", "wrong user"])
def test_a_group_that_refuses(
    given: str, make_lab: Callable[..., labs.Lab], own_server: process.Starter
) -> None:
    redis = own_server(servers.Redis, password="right")
    login = {
        "wrong password": f":{CANARY}@",
        "no password": "",
        "wrong user": f"u{CANARY}:right@",
    }[given]
    lab = make_lab(group=re.sub(r"//.*@", f"//{login}", redis.lease(0)))
    lab.sync()
    check_refused(lab.start_agent("web1"), "servicegroup_tooz_url")
    check_refused(lab.start_conductor(), "servicegroup_tooz_url")
