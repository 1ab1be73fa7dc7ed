"""Engines and a store on an empty database of each kind."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from conductor.db import engine as db_engine
from conductor.db import store as db_store
from tests import schema


@pytest.fixture
def empty(database_url: str) -> Iterator[sa.Engine]:
    """Yield an engine on a database without tables."""
    engine = db_engine.make_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def engine(empty: sa.Engine) -> sa.Engine:
    """Return an engine on a database of today's shape."""
    schema.make(empty)
    return empty


@pytest.fixture
def store(engine: sa.Engine) -> db_store.DatabaseStore:
    return db_store.DatabaseStore(engine)
