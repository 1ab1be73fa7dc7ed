"""The reader of the fault tests can find what they say never happens."""

import pathlib

import pytest

from tests import util
from tests.functional.servicegroup import agents


def test_a_host_that_leaves_is_down(tmp_path: pathlib.Path) -> None:
    place = f"file://{tmp_path}?timeout=2"
    with (
        pytest.raises(AssertionError, match="node-0"),
        agents.running(place, 2, service_down_time=4.0) as two,
    ):
        assert two.beats[0].stop()
        util.wait_until(lambda: two.step() or two.downs, 60.0, what="down")
