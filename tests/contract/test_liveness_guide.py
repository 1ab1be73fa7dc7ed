"""docs/liveness.md against the code that a part of it is made from."""

import pytest

from musterbook.servicegroup import verdict
from tests import liveness_guide


@pytest.mark.docs
def test_the_generated_part_is_that_of_the_code() -> None:
    text = liveness_guide.PATH.read_text(encoding="utf-8")
    assert text == liveness_guide.updated(text), "run python -m tests.liveness_guide"


@pytest.mark.docs
def test_it_names_every_state_and_every_cause() -> None:
    made = liveness_guide.generated()
    for name in (*verdict.State, *verdict.Cause):
        assert f"`{name}`" in made
    for state in verdict.State:
        assert f" --> {state}: " in made


@pytest.mark.docs
def test_what_is_not_generated_is_left_alone() -> None:
    text = f"before\n{liveness_guide.BEGIN}STALE TEXT\n{liveness_guide.END}after\n"
    made = liveness_guide.updated(text)
    assert made.startswith("before\n")
    assert made.endswith("after\n")
    assert "STALE TEXT" not in made
