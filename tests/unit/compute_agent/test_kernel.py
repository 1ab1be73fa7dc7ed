from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from compute_agent.inventory import kernel


@settings(deadline=None)
@given(st.frozensets(st.integers(0, 5000), min_size=1))
def test_id_set_reads_what_the_kernel_would_write(ids: frozenset[int]) -> None:
    parts: list[str] = []
    for first in sorted(n for n in ids if n - 1 not in ids):
        last = first
        while last + 1 in ids:
            last += 1
        parts.append(f"{first}" if first == last else f"{first}-{last}")
    assert kernel.id_set(",".join(parts)) == ids


@pytest.mark.parametrize("listing", [None, "", "a", "-1", "1,,2", "3-1"])
def test_id_set_without_a_list(listing: str | None) -> None:
    assert kernel.id_set(listing) is None
