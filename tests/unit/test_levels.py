"""The service level stands for versions that are the code's own."""

import pathlib
import re

import pytest

from compute_agent import rpcapi as compute_rpcapi
from conductor import rpcapi as conductor_rpcapi
from musterbook import levels
from objects import base


def test_the_newest_level_is_what_this_code_speaks() -> None:
    """Raise SERVICE_LEVEL with each version: its history is what pins go by."""
    newest = levels.HISTORY[levels.SERVICE_LEVEL]
    assert len(levels.HISTORY) == levels.SERVICE_LEVEL + 1
    assert newest.conductor == conductor_rpcapi.VERSION
    assert newest.compute == compute_rpcapi.VERSION
    ours = {
        name: classes[0].VERSION
        for name, classes in base.VersionedObjectRegistry.obj_classes().items()
        if issubclass(classes[0], base.MusterObject)
    }
    assert newest.objects == ours


@pytest.mark.parametrize(
    ("level", "conductor"), [(0, "1.0"), (1, "1.1"), (2, "1.3"), (99, "1.3")]
)
def test_what_a_level_speaks(level: int, conductor: str) -> None:
    assert levels.of(level).conductor == conductor


def test_objects_of_a_pin() -> None:
    assert levels.objects_with("1.0")["Service"] == "1.1"
    assert levels.objects_with("1.1")["Service"] == "1.2"
    assert levels.conductor_versions() == ["1.0", "1.1", "1.3"]
    assert levels.compute_versions() == ["1.0"]


def test_the_guide_says_what_each_version_has() -> None:
    guide = pathlib.Path(__file__).parents[2] / "docs/upgrading.md"
    told = guide.read_text().partition("| conductor | adds | objects |")[2]
    found = {
        version: dict(pair.split() for pair in objects.split(", ") if pair != "-")
        for version, objects in re.findall(
            r"^\| (\d\.\d) \|.*\| (.+) \|$", told.partition("\n\n")[0], re.M
        )
    }
    assert list(found) == levels.conductor_versions()
    before: dict[str, str] = {}
    for version, objects in found.items():
        now = levels.objects_with(version)
        assert objects == {n: v for n, v in now.items() if before.get(n) != v}
        before = dict(now)
