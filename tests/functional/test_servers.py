"""The test servers answer, are shared, can be ill-treated, and leave nothing."""

from collections.abc import Iterator
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import textwrap

from kombu import connection as kombu_connection
import psutil
import pytest
import sqlalchemy as sa

from tests import conftest
from tests import process
from tests import servers
from tests import util

ROOT = pathlib.Path(__file__).parents[2]
KINDS = list(servers.KINDS.values())


# -- leases on the shared servers --


def test_a_database_is_empty_and_usable(database_url: str) -> None:
    engine = sa.create_engine(database_url)
    assert sa.inspect(engine).get_table_names() == []
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE book (name VARCHAR(40))"))
        connection.execute(sa.text("INSERT INTO book VALUES ('Käthe 🚢')"))
        assert connection.scalar(sa.text("SELECT name FROM book")) == "Käthe 🚢"
    engine.dispose()


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_a_database_is_dropped_even_if_the_test_left_it_locked(
    kind: str, keeper_address: pathlib.Path
) -> None:
    with conftest.leased(keeper_address, kind) as url:
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        with engine.begin() as connection:
            connection.execute(sa.text("CREATE TABLE book (page INTEGER)"))
        connection = engine.connect()
        connection.execute(sa.text("SELECT * FROM book"))
    connection.invalidate()
    connection.close()
    with pytest.raises(sa.exc.OperationalError, match=r"(?i)database"):
        engine.connect()


def test_redis_is_empty_and_usable(redis_url: str) -> None:
    address, _, database = redis_url.removeprefix("redis://").partition("?db=")
    host, _, port = address.partition(":")
    with (
        socket.create_connection((host, int(port)), timeout=10) as connection,
        connection.makefile("rw", newline="\r\n") as stream,
    ):
        for command, answer in [
            (f"SELECT {database}", "+OK"),
            ("DBSIZE", ":0"),
            ("SET page 1", "+OK"),
            ("DBSIZE", ":1"),
        ]:
            print(command, file=stream, flush=True)
            assert stream.readline().strip() == answer


def test_a_virtual_host_is_usable_however_many_were_leased(
    own_server: process.Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers.RabbitMQ, "batch", 1)
    broker = own_server(servers.RabbitMQ)
    urls = [broker.lease(number) for number in (0, 1)]
    assert len(set(urls)) == 2
    for url in urls:
        kombu_url = url.replace("rabbit://", "amqp://")
        with kombu_connection.Connection(  # type: ignore[no-untyped-call]  # kombu's
            kombu_url, connect_timeout=10
        ) as connection:
            queue = connection.SimpleQueue("page")
            queue.put("1")
            assert queue.get(timeout=10).payload == "1"
            assert queue.qsize() == 0  # the other virtual host has its own


# -- a server of one's own --


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_a_server_freezes_thaws_dies_and_comes_back(
    kind: type[process.Server], own_server: process.Starter
) -> None:
    server = own_server(kind)
    port = server.port
    server.freeze()
    assert not server.answers()
    server.thaw()
    util.wait_until(server.answers, what="an answer after the thaw")
    server.kill()
    assert not server.answers()
    server.start()
    assert server.answers()
    assert server.port == port


@pytest.mark.parametrize("how", ["restart", "kill"])
@pytest.mark.parametrize("kind", [servers.MariaDB, servers.PostgreSQL])
def test_a_database_server_keeps_what_was_committed(
    kind: type[process.Server], how: str, own_server: process.Starter
) -> None:
    server = own_server(kind)
    engine = sa.create_engine(server.lease(0), poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE book (page INTEGER)"))
    if how == "kill":
        server.kill()
    server.restart()
    assert sa.inspect(engine).get_table_names() == ["book"]
    server.restart(empty=True)
    with pytest.raises(sa.exc.OperationalError, match=r"(?i)database"):
        engine.connect()


@pytest.mark.parametrize("persistent", [True, False])
def test_redis_keeps_its_data_only_if_told(
    *, persistent: bool, own_server: process.Starter
) -> None:
    server = own_server(servers.Redis, persistent=persistent)
    assert server.ask("SET page 1") == ["+OK"]
    server.kill()
    server.start()
    assert server.ask("DBSIZE") == [f":{persistent:d}"]


def test_a_server_that_cannot_start_says_why(
    own_server: process.Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        servers.Redis, "_command", lambda _: ["redis-server", "--no-such-setting", "1"]
    )
    with pytest.raises(process.ServerFailed, match="no-such-setting"):
        own_server(servers.Redis)


# -- a whole run --

ALL = "mariadb postgresql rabbit redis"

_RUN = """
import json
import os
import pathlib
import pytest
import time

KINDS = os.environ["KINDS"].split()

@pytest.fixture(params=[f"{kind}_url" for kind in KINDS])
def url(request):
    return request.getfixturevalue(request.param)

@pytest.mark.parametrize("number", [0, 1, 2])
def test_lease(url, number, worker):
    with open("leases", "a") as file:
        file.write(json.dumps([worker, url]) + chr(10))

@pytest.fixture
def worker():
    return os.environ.get("PYTEST_XDIST_WORKER", "")

def test_last(worker):
    if os.path.exists("hang"):
        pathlib.Path("hanging").touch()
        time.sleep(600)
"""


@pytest.fixture
def run_folder() -> Iterator[pathlib.Path]:
    """Give the folder of an inner test run, which its servers can reach."""
    folder = process.make_folder()
    (folder / "test_run.py").write_text(textwrap.dedent(_RUN))
    yield folder
    assert _left_over(folder) == []
    shutil.rmtree(folder)


def _inner_run(
    folder: pathlib.Path, *arguments: str, ci: str = "true", kinds: str = ALL
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "pytest", "-p", "tests.conftest"),
            *("-p", "no:cacheprovider", *arguments, "test_run.py"),
        ],
        cwd=folder,
        env={
            "CI": ci,
            "KINDS": kinds,
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(folder),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _left_over(folder: pathlib.Path) -> list[str]:
    """Return the processes that an inner run has started and that still are."""
    found = []
    for candidate in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = [candidate.cwd(), *candidate.cmdline(), candidate.environ()]
            if str(folder) in f"{words}":
                found.append(f"{candidate.pid} {candidate.name()}")
    return found


def test_all_workers_of_a_run_share_the_servers(run_folder: pathlib.Path) -> None:
    run = _inner_run(run_folder, "-n", "2")
    output, _ = run.communicate(timeout=150)
    assert run.returncode == 0, output
    lines = (run_folder / "leases").read_text().splitlines()
    leases = [tuple(json.loads(line)) for line in lines]
    urls = [sa.make_url(url) for _, url in leases]
    assert {worker for worker, _ in leases} == {"gw0", "gw1"}
    assert len(set(urls)) == 12  # nobody got another one's place
    assert len({(url.drivername, url.port) for url in urls}) == 4
    assert [path.name for path in run_folder.glob("musterbook-*")] == []


# How each kind ends in order is a test above, how it ends as an orphan the first
# one here: the others ask who ends it, and are content with the quick ones.
@pytest.mark.parametrize(
    ("name", "kinds", "programs"),
    [
        ("SIGKILL", ALL, "mariadbd postgres redis-server beam.smp epmd"),
        ("SIGINT", "postgresql redis", "postgres redis-server"),
        ("SIGTERM", "postgresql redis", "postgres redis-server"),
    ],
    ids=["SIGKILL", "SIGINT", "SIGTERM"],
)
def test_an_interrupted_run_leaves_no_process(
    name: str, kinds: str, programs: str, run_folder: pathlib.Path
) -> None:
    (run_folder / "hang").touch()
    run = _inner_run(run_folder, "-n", "2", kinds=kinds)
    try:
        util.wait_until((run_folder / "hanging").exists, 120, "the last test")
        names = " ".join(_left_over(run_folder))
        for program in programs.split():
            assert program in names
        run.send_signal(signal.Signals[name])
        run.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
    util.wait_until(lambda: not _left_over(run_folder), 30, "the end of all")


_MISSING = """
from tests import servers

def missing(self):
    servers.process.find_program("no-such-server")

servers.Redis.check_installed = missing

def test_it(redis_url):
    raise AssertionError
"""


@pytest.mark.parametrize(
    ("ci", "outcome"), [("true", "1 error in"), ("", "1 skipped in")]
)
def test_a_missing_program_skips_the_test_but_fails_it_in_ci(
    ci: str, outcome: str, run_folder: pathlib.Path
) -> None:
    (run_folder / "test_run.py").write_text(_MISSING)
    output, _ = _inner_run(run_folder, "-rs", ci=ci).communicate(timeout=60)
    assert "no-such-server is not installed" in output
    assert outcome in output
