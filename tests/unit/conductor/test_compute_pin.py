"""How new a version of their interface a conductor speaks to agents."""

from typing import Any

import pytest

from compute_agent import rpcapi
from conductor import main
from musterbook import context
from musterbook import errors
from musterbook import levels
from musterbook import rpc
from tests import rpc_lab


class Records:
    def __init__(self, lowest: int | None) -> None:
        self.lowest = lowest
        self.asked = 0

    def lowest_level(self, binary: str) -> int | None:
        assert binary == "nova-compute"
        self.asked += 1
        return self.lowest


@pytest.mark.parametrize("lowest", [None, 0, levels.SERVICE_LEVEL])
def test_auto_is_the_version_of_the_oldest_that_runs(lowest: int | None) -> None:
    records: Any = Records(lowest)
    pin = main._compute_pin("auto", records)
    level = levels.SERVICE_LEVEL if lowest is None else lowest
    for _ in range(3):
        assert pin.version() == levels.HISTORY[level].compute
    # Lesson 36: that nobody runs isn't kept.
    assert records.asked == (3 if lowest is None else 1)


def test_a_pin_asks_nobody() -> None:
    records: Any = Records(0)
    assert main._compute_pin("1.0", records).version() == "1.0"
    assert main._compute_pin(None, records).version() == rpcapi.VERSION
    assert records.asked == 0


def test_what_is_newer_than_the_pin_is_not_sent() -> None:
    with rpc_lab.lab("inproc:///pinned") as lab:
        api = rpcapi.ComputeAPI(lab.transport(), 1.0, rpc.Pin("1.7", fixed="1.6"))
        with pytest.raises(errors.VersionPinned) as caught:
            api._client.call(context.service_context(), "claim", interface="1.7")
    assert caught.value.message == (
        "claim needs version 1.7 of the RPC interface, and no newer one than 1.6 may "
        "be spoken ([upgrade_levels])"
    )
