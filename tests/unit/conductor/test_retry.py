"""What a call says when its attempts failed in different ways."""

from collections.abc import Iterator
import contextlib

from oslo_db import exception as oslo_exc
import pytest
import sqlalchemy as sa
from sqlalchemy import exc as sa_exc

from conductor.db import retry
from musterbook import errors

LOST = oslo_exc.DBConnectionError()
BUSY = oslo_exc.DBDeadlock()
NO_CONNECTION = sa_exc.TimeoutError("QueuePool limit")
NO_TABLE = oslo_exc.DBNonExistentTable("leases")


def outcome(
    monkeypatch: pytest.MonkeyPatch, *failures: Exception
) -> errors.MusterbookError:
    """Return what a call ends in whose attempts end like this, one after the other."""
    monkeypatch.setattr(retry, "_FIRST_PAUSE", 0.0)
    monkeypatch.setattr(retry, "_ATTEMPTS", len(failures))
    left = list(failures)
    engine = sa.create_engine("sqlite://")

    @contextlib.contextmanager
    def begin() -> Iterator[None]:
        yield
        raise left.pop(0)

    monkeypatch.setattr(engine, "begin", begin)
    with pytest.raises(errors.MusterbookError) as caught:
        retry.run(engine, lambda connection: None)
    assert left == []
    return caught.value


@pytest.mark.parametrize("last", [BUSY, NO_CONNECTION, NO_TABLE])
@pytest.mark.parametrize("before", [(LOST,), (BUSY, LOST), (LOST, BUSY)])
def test_what_may_have_been_made_is_unknown(
    monkeypatch: pytest.MonkeyPatch, before: tuple[Exception, ...], last: Exception
) -> None:
    error = outcome(monkeypatch, *before, last)
    assert isinstance(error, errors.DatabaseUnavailable)
    assert "its answer was lost, then" in error.message
    assert "not made" not in error.message


@pytest.mark.parametrize(
    ("last", "wanted"),
    [
        (BUSY, errors.DatabaseBusy),
        (NO_CONNECTION, errors.DatabaseBusy),
        (NO_TABLE, errors.DatabaseShape),
        (LOST, errors.DatabaseUnavailable),
    ],
)
def test_nothing_lost_before_it_is_told_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
    last: Exception,
    wanted: type[errors.MusterbookError],
) -> None:
    assert type(outcome(monkeypatch, BUSY, last)) is wanted
