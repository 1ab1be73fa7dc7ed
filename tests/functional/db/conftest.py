"""Fresh databases on three kinds of servers."""

from collections.abc import Iterator
import os
import pathlib
import uuid

import pytest
import sqlalchemy as sa

from conductor.db import engine as db_engine
from conductor.db import migration
from conductor.db import store as db_store

MARIADB = os.environ.get(
    "MUSTERBOOK_TEST_MARIADB", "mysql+pymysql://root@127.0.0.1:3306"
)
POSTGRESQL = os.environ.get(
    "MUSTERBOOK_TEST_POSTGRESQL", "postgresql+psycopg2://postgres@127.0.0.1:5432"
)


@pytest.fixture(params=["sqlite", "mariadb", "postgresql"])
def database_url(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path
) -> Iterator[str]:
    """Yield the URL of an empty database, dropped afterwards."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/musterbook.db"
        return
    server = MARIADB if request.param == "mariadb" else POSTGRESQL
    name = f"mb_{uuid.uuid4().hex[:16]}"
    admin_url = server if request.param == "mariadb" else f"{server}/postgres"
    admin = sa.create_engine(admin_url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    try:
        yield f"{server}/{name}"
    finally:
        force = " WITH (FORCE)" if request.param == "postgresql" else ""
        with admin.connect() as connection:
            connection.execute(sa.text(f"DROP DATABASE {name}{force}"))
        admin.dispose()


@pytest.fixture
def empty(database_url: str) -> Iterator[sa.Engine]:
    """Yield an engine on a database without tables."""
    engine = db_engine.make_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def engine(empty: sa.Engine) -> sa.Engine:
    """Return an engine on a database of today's shape."""
    migration.sync(empty)
    return empty


@pytest.fixture
def store(engine: sa.Engine) -> db_store.DatabaseStore:
    return db_store.DatabaseStore(engine)
