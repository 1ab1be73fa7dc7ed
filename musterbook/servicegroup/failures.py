"""What an error of tooz, or of the client below it, means."""

from collections.abc import Iterator
import json

import tooz
from tooz import coordination

#: The clients' errors for a user or password that the server doesn't take, by class:
#: redis-py's and kazoo's. memcached has no users.
_REFUSALS = frozenset(
    {
        "AuthenticationError",
        "AuthenticationWrongNumberOfArgsError",
        "NoPermissionError",
        "AuthFailedError",
        "NoAuthError",
    }
)
#: etcd3gw has no class of its own for it; the server's text tells.
_REFUSAL_TEXTS = (
    "etcdserver: user name is empty",
    "etcdserver: permission denied",
    "etcdserver: invalid auth token",
)


class Clamped(tooz.ToozError):
    """The server grants another member timeout than the URL asks for."""

    def __init__(self, asked: float, granted: float, server_options: str) -> None:
        super().__init__(
            f"it grants a member timeout of {granted:g} s, not of {asked:g} s: change "
            f"'timeout' in the URL, or {server_options} of the server"
        )


def refusal(exc: BaseException) -> str | None:
    """Return why the backend doesn't let us in as configured; None: it isn't that."""
    for found in _chain(exc):
        if isinstance(found, Clamped):
            return str(found)
        text = getattr(found, "detail_text", None) or ""
        if type(found).__name__ in _REFUSALS or any(t in text for t in _REFUSAL_TEXTS):
            return "it refused the user or the password"
    return None


def describe(exc: BaseException) -> str:
    """Return what went wrong; the class where the text says nothing."""
    text = str(exc).strip()
    if not text or text == "Bad Request":
        text = next(filter(None, map(_detail, _chain(exc))), "")
    if isinstance(exc, coordination.ToozError) and text:
        return text
    if text:
        return f"{type(exc).__name__}: {text}"
    if "Time" in type(exc).__name__:  # KazooTimeoutError, OperationTimedOut
        return "no answer in time"
    cause = exc.__cause__
    below = f" ({type(cause).__name__})" if cause is not None else ""
    return type(exc).__name__ + below


def _detail(exc: BaseException) -> str:
    """Return etcd3gw's text, which str() doesn't give (2.7)."""
    text = getattr(exc, "detail_text", None)
    if not isinstance(text, str):
        return ""
    try:
        answer = json.loads(text)
    except ValueError:
        return text.strip()
    return str(answer.get("error", "")) if isinstance(answer, dict) else text


def _chain(exc: BaseException) -> Iterator[BaseException]:
    """Give the error and those that it came from."""
    seen: set[int] = set()
    found: BaseException | None = exc
    while found is not None and id(found) not in seen:
        yield found
        seen.add(id(found))
        # tooz keeps the client's error as ``cause`` (9.1).
        found = getattr(found, "cause", None) or found.__cause__ or found.__context__
