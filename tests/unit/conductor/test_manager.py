"""What the conductor's endpoint does beyond handing on."""

import datetime
from typing import Any

import pytest

from conductor import grants
from conductor import manager
from conductor.db import liveness
from musterbook import context
from musterbook import errors

SINCE = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
NAMES = (
    "host", "state", "state_cause", "state_since", "state_evidence", "forced_down",
    "said_goodbye", "incarnation", "state_incarnation",
)  # fmt: skip


class Thawing:
    """A fleet whose freeze ends, with the verdict that it kept back, in between.

    The first question finds it frozen with web1 up, all later ones thawed with
    web1 down.
    """

    def __init__(self) -> None:
        self.frozen = True

    def outlook(self, name: str) -> liveness.Outlook:
        frozen, self.frozen = self.frozen, False
        found = liveness.Outlook(lease_fresh=True, lease_age=1.0, freezes=[])
        if frozen:
            found.freezes.append(("", "group-unreachable", SINCE, None))
        return found

    def frozen_for(self) -> float | None:
        return 40.0 if self.frozen else None

    def fleet(self) -> liveness.Fleet:
        frozen, self.frozen = self.frozen, False
        state, cause = ("up", "in-group") if frozen else ("down", "silent")
        row = ("web1", state, cause, SINCE, None, False, False, 1, 1)
        return liveness.Fleet(NAMES, [row])


def test_a_freeze_that_ends_meanwhile_vouches_for_nothing_older() -> None:
    store = Thawing()
    granter = grants.Granter(store, lambda *_: {})  # type: ignore[arg-type]  # unused
    endpoint = manager.ConductorManager(granter, store)  # type: ignore[arg-type]
    answer = endpoint.get_fleet(context.service_context(), None)
    assert answer["columns"]["state"] == ["unknown"]


@pytest.mark.parametrize("max_age", ["30", -1, float("nan"), True])
def test_an_age_that_is_none_is_refused(max_age: Any) -> None:
    store = Thawing()
    endpoint = manager.ConductorManager(None, store)  # type: ignore[arg-type]  # unused
    with pytest.raises(errors.InvalidInput, match="max_age"):
        endpoint.get_fleet(context.service_context(), None, max_age)


def test_older_than_the_caller_allows() -> None:
    store = Thawing()
    endpoint = manager.ConductorManager(None, store)  # type: ignore[arg-type]  # unused
    answer = endpoint.get_fleet(context.service_context(), None, max_age=60)
    assert answer["columns"]["state"] == ["unknown"]
    store.outlook = lambda name: liveness.Outlook(False, 61.0, [])  # type: ignore[method-assign]
    with pytest.raises(errors.LivenessUnknown):
        endpoint.get_fleet(context.service_context(), None, max_age=60)
