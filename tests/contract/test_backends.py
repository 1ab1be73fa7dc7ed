"""docs/backends.md says of the backends what the code does."""

import pathlib
import re

import pytest

from musterbook.conf import presets
from musterbook.servicegroup import traits
from musterbook.servicegroup import url as group_url

TEXT = (pathlib.Path(__file__).parents[2] / "docs/backends.md").read_text("utf-8")

pytestmark = pytest.mark.docs


def test_the_table_is_the_one_of_the_traits() -> None:
    (found,) = re.findall(r"<!-- table: traits -->\n(.*?)<!-- end -->", TEXT, re.DOTALL)
    assert found == traits.table(), "write it anew: print(traits.table())"


def test_the_presets_are_those_of_the_code() -> None:
    text = (pathlib.Path(__file__).parents[2] / "docs/liveness.md").read_text("utf-8")
    (found,) = re.findall(
        r"<!-- table: presets -->\n(.*?)<!-- end -->", text, re.DOTALL
    )
    assert found == presets.table(), "write it anew: print(presets.table())"


def test_every_url_is_one() -> None:
    examples = re.findall(r"`([a-z0-9+]+://[^`]+)`", TEXT.partition("## The URL")[2])
    assert len(examples) > 9
    for text in examples:
        group_url.parse(text)
