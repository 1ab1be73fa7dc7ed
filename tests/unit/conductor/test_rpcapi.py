"""A call goes to another conductor when the first has lost the database."""

from typing import Any
from typing import cast

import pytest

from conductor import rpcapi
from musterbook import context
from musterbook import errors
from tests import rpc_lab

LOST = errors.DatabaseUnavailable(reason="there is no connection to it")


class Conductors:
    """Answers each call with the next of some results; time goes on with each.

    :param taken: seconds that an answer takes
    """

    def __init__(self, results: list[Exception | None], taken: float) -> None:
        self._results = results
        self._taken = taken
        self.now = 0.0
        self.given: list[float] = []

    def call(self, _: object, method: str, *, timeout: float, **args: Any) -> str:
        self.given.append(timeout)
        self.now += self._taken
        result = self._results.pop(0)
        if result is not None:
            raise result
        return method

    def monotonic(self) -> float:
        return self.now


def ask(
    monkeypatch: pytest.MonkeyPatch, *results: Exception | None, taken: float = 0.001
) -> tuple[Conductors, rpcapi.ConductorAPI]:
    conductors = Conductors(list(results), taken)
    with rpc_lab.lab("inproc:///turns") as lab:
        api = rpcapi.ConductorAPI(lab.transport(), 10.0)
    api._client = cast("Any", conductors)
    monkeypatch.setattr(rpcapi, "time", conductors)
    return conductors, api


def test_another_one_may_reach_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    conductors, api = ask(monkeypatch, LOST, LOST, None)
    api.ping(context.service_context())
    assert conductors.given == [10.0, pytest.approx(9.999), pytest.approx(9.998)]


def test_when_all_have_lost_it_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    conductors, api = ask(monkeypatch, LOST, LOST, LOST, None)
    with pytest.raises(errors.DatabaseUnavailable):
        api.ping(context.service_context())
    assert len(conductors.given) == 3


def test_it_does_not_outlast_the_time_of_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conductors, api = ask(monkeypatch, LOST, LOST, None, taken=3.0)
    with pytest.raises(errors.DatabaseUnavailable):
        api.ping(context.service_context(), timeout=7.0)
    assert conductors.given == [7.0, 4.0]


def test_other_errors_are_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = errors.DatabaseBusy(reason="r")
    conductors, api = ask(monkeypatch, busy, None)
    with pytest.raises(errors.DatabaseBusy):
        api.ping(context.service_context())
    assert len(conductors.given) == 1


def test_a_second_one_that_is_busy_says_nothing_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conductors, api = ask(monkeypatch, LOST, errors.DatabaseBusy(reason="r"), None)
    with pytest.raises(errors.DatabaseUnavailable):
        api.ping(context.service_context())
    assert len(conductors.given) == 2
