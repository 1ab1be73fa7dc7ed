from etcd3gw import exceptions as etcd_errors
from kazoo import exceptions as kazoo_errors
from kazoo.handlers import threading as kazoo_threading
import pytest
from redis import exceptions as redis_errors
from tooz import coordination
from tooz import utils

from musterbook.servicegroup import failures


def wrapped(error: Exception) -> Exception:
    """Return the error as tooz hands it on."""
    with pytest.raises(coordination.ToozConnectionError) as caught:
        utils.raise_with_cause(
            coordination.ToozConnectionError, str(error), cause=error
        )
    return caught.value


NOBODY = etcd_errors.Etcd3Exception(
    '{"error":"etcdserver: user name is empty","code":3}', "Bad Request"
)


@pytest.mark.parametrize(
    "error",
    [
        redis_errors.AuthenticationError("WRONGPASS"),
        redis_errors.NoPermissionError("NOPERM"),
        kazoo_errors.NoAuthError(),
        NOBODY,
    ],
)
def test_refused_login(error: Exception) -> None:
    for found in (error, wrapped(error)):
        assert failures.refusal(found) == "it refused the user or the password"


def test_refused_member_timeout() -> None:
    found = failures.refusal(failures.Clamped(30, 20.0, "some option"))
    assert found is not None
    assert "20 s, not of 30 s" in found
    assert "some option of the server" in found


@pytest.mark.parametrize(
    "error",
    [
        OSError("no"),
        kazoo_errors.ConnectionLoss(),
        etcd_errors.Etcd3Exception("no JSON", "Bad Request"),
        etcd_errors.ConnectionFailedError("refused"),
    ],
)
def test_no_refusal(error: Exception) -> None:
    assert failures.refusal(error) is None
    assert failures.refusal(wrapped(error)) is None


def test_errors_that_came_from_each_other() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert failures.refusal(one) is None


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (coordination.ToozError("what"), "what"),
        (OSError("what"), "OSError: what"),
        (ValueError(), "ValueError"),
        (kazoo_threading.KazooTimeoutError(), "no answer in time"),
        (coordination.OperationTimedOut(""), "no answer in time"),
        (NOBODY, "Etcd3Exception: etcdserver: user name is empty"),
        (wrapped(NOBODY), "etcdserver: user name is empty"),
        (wrapped(etcd_errors.ConnectionFailedError("refused")), "refused"),
        (wrapped(etcd_errors.ConnectionFailedError("[1]")), "[1]"),
        (
            wrapped(kazoo_errors.ConnectionLoss()),
            "ToozConnectionError (ConnectionLoss)",
        ),
    ],
)
def test_what_went_wrong(error: Exception, text: str) -> None:
    assert failures.describe(error) == text
