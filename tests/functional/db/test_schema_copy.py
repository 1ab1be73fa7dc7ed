"""The copy of the schema that tests get is what a sync makes."""

from collections.abc import Iterator
import contextlib
import pathlib
from typing import Any

import pytest
import sqlalchemy as sa

from conductor.db import engine as db_engine
from conductor.db import migration
from conductor.db import models
from tests import conftest
from tests import schema


def shape(engine: sa.Engine) -> dict[str, Any]:
    """Return what the database says of each table, and what is in it."""
    found: dict[str, Any] = {}
    with engine.connect() as connection:
        inspector = sa.inspect(connection)
        for name in inspector.get_table_names():
            rows = sa.text(f"SELECT * FROM {name}")  # noqa: S608  # their own names
            found[name] = (
                [{**c, "type": repr(c["type"])} for c in inspector.get_columns(name)],
                sorted(inspector.get_indexes(name), key=repr),
                sorted(inspector.get_unique_constraints(name), key=repr),
                sorted(inspector.get_foreign_keys(name), key=repr),
                inspector.get_pk_constraint(name),
                inspector.get_table_options(name),
                [drawn_alike(row) for row in connection.execute(rows)],
            )
    return found


def drawn_alike(row: sa.Row[Any]) -> dict[str, Any]:
    """Return a row, of whose nonce only the length matters."""
    found = dict(row._mapping)
    if "nonce" in found:
        found["nonce"] = len(found["nonce"])
    return found


def nonce(engine: sa.Engine) -> str:
    with engine.connect() as connection:
        return str(connection.scalar(sa.select(models.fleet_head.c.nonce)))


def engines(
    kind: str, folder: pathlib.Path, keeper: pathlib.Path, cleanup: contextlib.ExitStack
) -> Iterator[sa.Engine]:
    """Yield engines on empty databases of a kind."""
    for number in range(3):
        url = f"sqlite:///{folder / str(number)}"
        if kind != "sqlite":
            url = cleanup.enter_context(conftest.leased(keeper, kind))
        engine = db_engine.make_engine(url)
        cleanup.callback(engine.dispose)
        yield engine


@pytest.mark.parametrize("kind", ["sqlite", "mariadb"])
def test_a_copy_is_what_a_sync_makes(
    kind: str, tmp_path: pathlib.Path, keeper_address: pathlib.Path
) -> None:
    with contextlib.ExitStack() as cleanup:
        synced, first, copied = engines(kind, tmp_path, keeper_address, cleanup)
        migration.sync(synced)
        wanted = shape(synced)
        assert wanted["compute_nodes"]
        schema.make(first)  # at the latest now there is something to copy
        schema.make(copied)
        assert shape(copied) == wanted
        assert len({nonce(synced), nonce(first), nonce(copied)}) == 3
        schema.make(copied)  # not empty any more: synced
        assert shape(copied) == wanted
