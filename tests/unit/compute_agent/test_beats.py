"""The ways by which an agent with the db driver beats and reads."""

import datetime
from typing import Any

import pytest

from compute_agent import beats
from compute_agent import tenure
from musterbook import context
from musterbook import errors

OLD = context.Grant(host="a", incarnation=1, secret="old-secret")
NEW = context.Grant(host="a", incarnation=2, secret="new-secret")
STAMP = datetime.datetime(2026, 11, 30, 12, 0, 3, 250_000, tzinfo=datetime.UTC)


class Conductor:
    """Stands in for the RPC client; notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, float | None]] = []
        self.error: errors.MusterbookError | None = None

    def beat(
        self, asking: context.RequestContext, timeout: float | None = None
    ) -> None:
        self.told.append((asking.grant, timeout))
        if self.error is not None:
            raise self.error

    def get_beats(
        self, asking: context.RequestContext, timeout: float | None = None
    ) -> list[list[Any]]:
        return [["a", 2, STAMP.isoformat(), 1.5], ["b", 7, STAMP.isoformat(), -3.0]]


def test_a_beat_carries_the_present_grant() -> None:
    conductor, held = Conductor(), tenure.Tenure(OLD)
    tell = beats.teller(conductor, held, lambda: None)  # type: ignore[arg-type]
    tell(2.0)
    held.renew(NEW)
    tell(1.0)
    assert conductor.told == [(OLD, 2.0), (NEW, 1.0)]


@pytest.mark.parametrize(
    ("error", "looked"),
    [
        (errors.Superseded(host="a", incarnation=1), 1),
        (errors.GrantForgotten(host="a", incarnation=1), 1),
        (errors.DatabaseUnavailable(reason="gone"), 0),
        (errors.ConductorUnavailable(method="beat", seconds=2.0, asked=True), 0),
    ],
)
def test_a_grant_that_is_refused_is_looked_into(
    error: errors.MusterbookError, looked: int
) -> None:
    conductor = Conductor()
    conductor.error = error
    looks: list[None] = []
    tell = beats.teller(
        conductor,  # type: ignore[arg-type]  # the method that is called
        tenure.Tenure(OLD),
        lambda: looks.append(None),
    )
    with pytest.raises(type(error)):
        tell(2.0)
    assert len(looks) == looked


def test_beats_are_read_by_member() -> None:
    found = beats.reader(Conductor())(2.0)  # type: ignore[arg-type]
    assert found["a#2"].at == STAMP
    assert {member: seen.age for member, seen in found.items()} == {
        "a#2": 1.5, "b#7": -3.0,
    }  # fmt: skip


def test_who_has_no_grant_has_no_way() -> None:
    with pytest.raises(errors.GroupUnavailable):
        beats.NO_WAYS.beat(1.0)
    with pytest.raises(errors.GroupUnavailable):
        beats.NO_WAYS.read(1.0)
