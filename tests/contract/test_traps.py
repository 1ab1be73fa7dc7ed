"""docs/traps.md names tests that exist."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
NAMED = re.findall(
    r"`(tests/\S+\.py)::(\w+)`", (ROOT / "docs/traps.md").read_text(encoding="utf-8")
)

pytestmark = pytest.mark.docs


def test_each_row_names_a_test() -> None:
    rows = re.findall(r"^\| (?!trap|---).*", (ROOT / "docs/traps.md").read_text(), re.M)
    assert len(rows) > 20
    assert [row for row in rows if "::test_" not in row] == []


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_the_named_test_exists(path: str, name: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert re.search(rf"^ *def {name}\(", text, re.M)
