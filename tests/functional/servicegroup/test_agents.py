"""The reader of the fault tests can find what they say never happens."""

import pathlib

import pytest

from tests import util
from tests.functional.servicegroup import agents


def let_one_leave(place: str) -> None:
    with agents.running(place, 2, service_down_time=4.0) as two:
        assert two.beats[0].stop()
        util.wait_until(lambda: two.step() or two.downs, 60.0, what="down")


def test_a_host_that_leaves_is_down(tmp_path: pathlib.Path) -> None:
    with pytest.raises(AssertionError, match="node-0"):
        let_one_leave(f"file://{tmp_path}?timeout=2")
