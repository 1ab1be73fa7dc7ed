"""Fixtures that hand out places on real servers; see tests.keeper."""

from collections.abc import Iterator
import contextlib
import importlib
import logging
import os
import pathlib
import shutil
from typing import Any
from typing import cast
from typing import TypeVar

import hypothesis
import pytest

from tests import keeper
from tests import process
from tests import whole_run

_KEEPER = pytest.StashKey[keeper.Keeper]()
_COMPLAINT = pytest.StashKey[str]()
_S = TypeVar("_S", bound=process.Server)

# What a test finds doesn't depend on how busy the machine is.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the servers of the run, unless this is a worker of pytest-xdist."""
    if not hasattr(config, "workerinput"):
        process.raise_file_limit()
        config.stash[_KEEPER] = keeper.Keeper()
        config.stash[_KEEPER].start()


@pytest.fixture(autouse=True)
def same_root_level() -> Iterator[None]:
    """Give the next test the root logger's level as it was; `debug` changes it."""
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a new worker of pytest-xdist where the keeper is."""
    node.workerinput["keeper"] = str(node.config.stash[_KEEPER].address)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a whole run in CI that didn't prove what it is for; see tests.whole_run."""
    if _KEEPER in session.config.stash:
        kept = session.config.stash[_KEEPER]
        said = whole_run.complaint(session.config, kept)
        if said is not None:
            session.config.stash[_COMPLAINT] = said
            whole_run.fail(session)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say why."""
    if _COMPLAINT in config.stash:
        whole_run.tell(terminalreporter, config.stash[_COMPLAINT])


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the servers; pytest calls this after failures and Ctrl-C as well."""
    if _KEEPER in config.stash:
        config.stash[_KEEPER].stop()


@contextlib.contextmanager
def missing_server_skips() -> Iterator[None]:
    """Turn a missing program into a skip; in CI, which installs it, a failure."""
    try:
        yield
    except process.ServerMissing as exc:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{exc}; .ci/run should have installed it", pytrace=False)
        pytest.skip(str(exc))


@pytest.fixture
def libvirt_bindings() -> Any:
    """Return libvirt's Python bindings, whose test driver needs no daemon."""
    with missing_server_skips():
        try:
            return importlib.import_module("libvirt")
        except ImportError as exc:
            reason = f"libvirt's Python bindings are not installed ({exc})"
            raise process.ServerMissing(reason) from None


@pytest.fixture(scope="session")
def keeper_address(pytestconfig: pytest.Config) -> pathlib.Path:
    """Return where the keeper of the run listens."""
    if _KEEPER in pytestconfig.stash:
        return pytestconfig.stash[_KEEPER].address
    return pathlib.Path(cast("Any", pytestconfig).workerinput["keeper"])


@contextlib.contextmanager
def leased(address: pathlib.Path, kind: str) -> Iterator[str]:
    """Give the URL of a place on the run's shared server of a kind."""
    with missing_server_skips():
        lease = keeper.Lease(address, kind)
    try:
        yield lease.url
    finally:
        lease.release()


@pytest.fixture
def mariadb_url(keeper_address: pathlib.Path) -> Iterator[str]:
    """Give a new empty MariaDB database (utf8mb4): mysql+pymysql://..."""
    with leased(keeper_address, "mariadb") as url:
        yield url


@pytest.fixture
def postgresql_url(keeper_address: pathlib.Path) -> Iterator[str]:
    """Give a new empty PostgreSQL database: postgresql+psycopg2://..."""
    with leased(keeper_address, "postgresql") as url:
        yield url


@pytest.fixture
def sqlite_url(tmp_path: pathlib.Path) -> str:
    """Return the URL of a SQLite file that doesn't exist yet."""
    return f"sqlite:///{tmp_path / 'musterbook.sqlite'}"


@pytest.fixture(params=["sqlite", "mariadb", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """Run the test once on an empty database of each kind."""
    return cast("str", request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def redis_url(keeper_address: pathlib.Path) -> Iterator[str]:
    """Give an empty logical database: redis://127.0.0.1:PORT?db=N.

    tooz takes the number only as an option; a test adds others with "&".
    """
    with leased(keeper_address, "redis") as url:
        yield url


@pytest.fixture
def memcached_url(keeper_address: pathlib.Path) -> Iterator[str]:
    """Give memcached://127.0.0.1:PORT, which other tests use as well."""
    with leased(keeper_address, "memcached") as url:
        yield url


@pytest.fixture
def etcd_url(keeper_address: pathlib.Path) -> Iterator[str]:
    """Give etcd3+http://127.0.0.1:PORT, which other tests use as well."""
    with leased(keeper_address, "etcd") as url:
        yield url


@pytest.fixture
def zookeeper_url(keeper_address: pathlib.Path) -> Iterator[str]:
    """Give a namespace that no other test uses: kazoo://127.0.0.1:PORT?namespace=N."""
    with leased(keeper_address, "zookeeper") as url:
        yield url


@pytest.fixture
def rabbit_url(keeper_address: pathlib.Path) -> Iterator[str]:
    """Give a virtual host that no other test uses: rabbit://..."""
    with leased(keeper_address, "rabbitmq") as url:
        yield url


@pytest.fixture
def own_server() -> Iterator[process.Starter]:
    """Give a function that starts a server for this test alone.

    The test may kill, freeze, empty or restart it.
    """
    with contextlib.ExitStack() as cleanup:

        def start(kind: type[_S], **options: Any) -> _S:
            folder = process.make_folder()
            cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
            server = kind(folder, **options)
            cleanup.callback(server.close)
            with missing_server_skips():
                server.start()
            return server

        yield start
