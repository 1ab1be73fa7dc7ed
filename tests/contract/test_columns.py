"""docs/columns.md says what the models say, of every column."""

import pytest
import sqlalchemy as sa

from conductor.db import models
from tests import columns


def test_the_document_is_that_of_the_models() -> None:
    written = columns.DOCUMENT.read_text(encoding="utf-8")
    assert written == columns.render(), f"write it anew: {columns.COMMAND}"


def test_every_column_is_in_it() -> None:
    written = columns.DOCUMENT.read_text(encoding="utf-8")
    sections = {
        name.partition("\n")[0]: name for name in written.split("\n## ")[1:]
    }  # fmt: skip
    assert sections.keys() == models.METADATA.tables.keys()
    for name, table in models.METADATA.tables.items():
        for column in table.columns:
            assert f"| `{column.name}` |" in sections[name]


@pytest.mark.parametrize(
    ("told", "doc", "named"),
    [({"doc": "x"}, None, "column odd.a:"), ({}, "x", "table odd:")],
)
def test_what_says_nothing_is_named(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, str], doc: str | None, named: str
) -> None:
    metadata = sa.MetaData()
    sa.Table("odd", metadata, sa.Column("a", sa.Integer, doc=doc), info=told)
    monkeypatch.setattr(models, "METADATA", metadata)
    with pytest.raises(columns.Undocumented, match=named):
        columns.render()
