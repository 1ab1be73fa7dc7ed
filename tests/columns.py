"""The document of the tables: python -m tests.columns writes docs/columns.md anew."""

import pathlib
import sys
import tempfile

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from conductor.db import engine as db_engine
from conductor.db import migration
from conductor.db import models

DOCUMENT = pathlib.Path(__file__).parents[1] / "docs" / "columns.md"
COMMAND = "python -m tests.columns"
_HEAD = f"""# Columns

What the tables hold: generated from `conductor/db/models.py` by `{COMMAND}`.
Keys and indexes stand in `conductor/db/migrations`, whose revisions are those of the
column `since` (revision 0001 is Juno's shape). Types are MariaDB's and MySQL's;
other databases have their like. Instants are UTC. `created_at`, `updated_at` and
`deleted_at` are for people: nothing is decided by them.
"""


class Undocumented(Exception):
    """A table or a column says nothing about itself; the message names it."""


def render() -> str:
    """Return the document; Undocumented if a table or a column has no doc."""
    since = _since()
    tables = models.METADATA.tables.values()
    return "\n".join([_HEAD, *(_table(table, since) for table in tables)])


def _since() -> dict[tuple[str, str], str]:
    """Return the revision that brought each column, by table and name.

    Seen on a database that is brought from revision to revision.
    """
    found: dict[tuple[str, str], str] = {}
    with tempfile.TemporaryDirectory() as folder:
        engine = db_engine.make_engine(
            db_engine.sqlite_url(pathlib.Path(folder) / "columns.sqlite")
        )
        for revision in migration._known():
            migration.sync(engine, revision)
            inspector = sa.inspect(engine)
            for table in inspector.get_table_names():
                for column in inspector.get_columns(table):
                    found.setdefault((table, column["name"]), revision)
        engine.dispose()
    return found


def _table(table: sa.Table, since: dict[tuple[str, str], str]) -> str:
    if not table.info.get("doc"):
        raise Undocumented(f'table {table.name}: give it info={{"doc": ...}}')
    lines = [
        f"## {table.name}",
        "",
        str(table.info["doc"]),
        "",
        "| column | type | since | meaning |",
        "| --- | --- | --- | --- |",
        *(_row(c, since.get((table.name, c.name), "")) for c in table.columns),
    ]
    return "\n".join(lines) + "\n"


def _row(column: sa.Column[object], since: str) -> str:
    if not column.doc:
        raise Undocumented(f"column {column.table.name}.{column.name}: give it a doc")
    kind = column.type.compile(mysql.dialect())
    null = "" if column.nullable else ", not NULL"
    meaning = column.doc.replace("|", "&#124;")  # a bar would make two cells of it
    return f"| `{column.name}` | {kind}{null} | {since} | {meaning} |"


def main() -> int:
    """Write the document."""
    try:
        DOCUMENT.write_text(render(), encoding="utf-8")
    except Undocumented as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
