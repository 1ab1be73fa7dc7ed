"""The looks of the verifier, with a conductor that answers as it is told."""

from collections.abc import Iterator
import logging
import threading
from typing import Any
from typing import cast

import pytest

from compute_agent import tenure
from compute_agent import verifier
from conductor import rpcapi as conductor_rpcapi
from musterbook import context
from musterbook import errors
from tests import util


class Conductor:
    """Counts the looks; fails as it is told."""

    def __init__(self) -> None:
        self.faults: list[Exception] = []
        self.asked = 0

    def verify(self, asking: context.RequestContext, *, timeout: float) -> None:
        self.asked += 1
        if self.faults:
            raise self.faults.pop(0)


class World:
    def __init__(self) -> None:
        self.conductor = Conductor()
        self.verified = threading.Event()
        self.forgotten: list[errors.GrantForgotten] = []
        self.looker = verifier.Verifier(
            cast("conductor_rpcapi.ConductorAPI", self.conductor),
            tenure.Tenure(context.Grant(host="web1", incarnation=1, secret="s")),
            86400.0,
            1.0,
            on_superseded=lambda exc: None,
            on_forgotten=self.forgotten.append,
            on_verified=self.verified.set,
        )


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(verifier, "_FIRST_PAUSE", 0.01)
    made = World()
    yield made
    made.looker.stop()


def unexpected() -> list[Exception]:
    return [ZeroDivisionError("a"), ZeroDivisionError("b")]


def said(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [r for r in caplog.records if r.levelno >= logging.INFO]


def test_what_nobody_expected_does_not_end_it(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.conductor.faults += unexpected()
    world.looker.start()
    assert world.verified.wait(30)
    assert world.conductor.asked == 3
    # Said once, with what is needed to find the bug.
    (record,) = said(caplog)
    assert record.levelno == logging.ERROR
    assert record.exc_info[0] is ZeroDivisionError


def test_a_conductor_that_is_away_is_for_others_to_say(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.conductor.faults += [
        errors.ConductorUnavailable(method="verify", seconds=1)
    ] * 2
    world.looker.start()
    assert world.verified.wait(30)
    util.wait_until(lambda: world.conductor.asked == 3)
    assert said(caplog) == []
