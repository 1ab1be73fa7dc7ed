"""How new a version of their interface a conductor speaks to agents."""

from typing import Any

import oslo_messaging
import pytest

from compute_agent import rpcapi
from conductor import main
from musterbook import context
from musterbook import errors
from musterbook import levels
from musterbook import rpc
from tests import rpc_lab


class OldAgent:
    target = oslo_messaging.Target(version="1.0")

    @rpc.exposed
    def ping(self, _: Any) -> dict[str, Any]:
        return {"incarnation": 4}


class Records:
    def __init__(self, lowest: int | None) -> None:
        self.lowest = lowest
        self.asked = 0

    def lowest_level(self, binary: str) -> int | None:
        assert binary == "nova-compute"
        self.asked += 1
        return self.lowest


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make it a release whose agents speak 1.2, after some of 1.0 and 1.1."""
    made_up = tuple(
        levels.Level("1.0", compute, {}) for compute in ("1.0", "1.1", "1.2")
    )
    monkeypatch.setattr(levels, "HISTORY", made_up)
    monkeypatch.setattr(levels, "SERVICE_LEVEL", 2)
    monkeypatch.setattr(rpcapi, "VERSION", "1.2")


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize(
    ("lowest", "version"),
    [(None, "1.2"), (0, "1.0"), (1, "1.1"), (2, "1.2"), (9, "1.2")],
)
def test_auto_is_the_version_of_the_oldest_that_runs(
    lowest: int | None, version: str
) -> None:
    records: Any = Records(lowest)
    pin = main._compute_pin("auto", records)
    for _ in range(3):
        assert pin.version() == version
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
        with pytest.raises(errors.VersionPinned):
            api._client.cast(context.service_context(), "claim", interface="1.7")
    assert caught.value.message == (
        "claim needs version 1.7 of the RPC interface, and no newer one than 1.6 may "
        "be spoken ([upgrade_levels])"
    )


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("pinned", [None, "1.0"])
def test_old_agents_are_asked_in_the_first_version(pinned: str | None) -> None:
    """What they have from the start isn't sent as of a version they don't know."""
    pin = main._compute_pin(pinned, Records(0))  # type: ignore[arg-type]  # a fake
    with rpc_lab.lab("inproc:///later") as lab:
        agent = OldAgent()
        transport = lab.transport()
        serializer = rpc.ContextSerializer()
        server = rpc.Server(transport, "compute", "web1", [agent], serializer)
        server.start()
        api = rpcapi.ComputeAPI(transport, 10.0, pin)
        assert api.ping(context.service_context(), "web1") == {"incarnation": 4}
        # What is newer they refuse, if it is sent at all.
        refused = errors.UnsupportedObject if pinned is None else errors.VersionPinned
        with pytest.raises(refused):
            api._client.call(
                context.service_context(), "ping", server="web1", interface="1.1"
            )
        server.stop()
        server.wait()
