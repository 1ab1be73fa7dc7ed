"""How errors cross: what is sent for an exception, and what a caller gets to see.

Pure functions. On the wire there is only ever an error of musterbook.errors, without
cause, context and traceback: oslo.messaging would send all of these as text.
"""

from collections.abc import Iterator
import traceback
from typing import Any

import oslo_messaging
from oslo_serialization import jsonutils

from musterbook import errors

MODULE = errors.__name__
# A message is one line for a person, whatever it was filled in with.
_MAX_MESSAGE = 2000
_MAX_NAME = 100


def to_wire(exc: BaseException) -> errors.MusterbookError:
    """Return the error to send for an exception of any kind.

    Errors of ours stay what they are (a class that only this room knows becomes its
    nearest base in musterbook.errors); of others the class name is all that is told:
    their text may hold SQL, paths or secrets, or may not be obtainable at all.
    """
    if isinstance(exc, errors.MusterbookError):
        try:
            message = _shortened(str(exc.message), _MAX_MESSAGE)
            return _own_class(exc)(message, **_json_facts(exc.kwargs))
        except Exception:  # noqa: BLE001  an error that can't even be read
            return unforeseen(exc)
    return unforeseen(exc)


def unforeseen(exc: BaseException) -> errors.RemoteFailure:
    """Return the error that tells only an exception's class name."""
    return errors.RemoteFailure(class_name=_shortened(type(exc).__name__, _MAX_NAME))


def from_wire(exc: Exception) -> errors.MusterbookError:
    """Return the error of ours for what oslo.messaging rebuilt from an answer.

    Of our own class exactly (oslo.messaging makes a subclass ``*_Remote``), or
    RemoteFailure for what a peer sent that is no error of ours.
    """
    if isinstance(exc, errors.MusterbookError):
        own = _own_class(exc)
        return exc if own is type(exc) else own(exc.message, **exc.kwargs)
    if isinstance(exc, oslo_messaging.RemoteError):
        return _from_name(str(exc.exc_type))
    return _from_name(type(exc).__name__.removesuffix("_Remote"))


def method_unknown(method: object) -> errors.MethodNotRemotable:
    """Return the error for a method that no endpoint exposes."""
    shown = _shortened(ascii(method), _MAX_NAME)
    return errors.MethodNotRemotable(f"there is no RPC method {shown}", method=shown)


def version_unknown(version: object, method: object) -> errors.UnsupportedObject:
    """Return the error for a version of the RPC interface that isn't served."""
    return errors.UnsupportedObject(
        reason=f"version {_shortened(ascii(version), _MAX_NAME)} of the RPC interface, "
        f"asked for by {_shortened(ascii(method), _MAX_NAME)}"
    )


def describe(exc: BaseException) -> str:
    """Return the traceback of an exception and its causes as text for the log.

    Of each message only the start of the first line is shown: the rest of a database
    error is its SQL with the parameters.
    """
    parts = []
    for link in _chain(exc):
        frames = "".join(traceback.format_tb(link.__traceback__))
        parts.append(f"{frames}{type(link).__qualname__}: {_first_line(link)}")
    return "\nwhich led to\n".join(reversed(parts))


def is_json(value: object) -> bool:
    """Return whether a value can be sent."""
    try:
        jsonutils.dumps(value)
    except Exception:  # noqa: BLE001  conversion calls the value's own code
        return False
    return True


def _chain(exc: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = exc
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (
            None if link.__suppress_context__ else link.__context__
        )


def _first_line(exc: BaseException) -> str:
    try:
        return _shortened(str(exc).partition("\n")[0], 300)
    except Exception:  # noqa: BLE001  text conversion is the exception's own code
        return "(has no text)"


def _own_class(exc: errors.MusterbookError) -> type[errors.MusterbookError]:
    for found in type(exc).__mro__:
        if found.__module__ == MODULE and issubclass(found, errors.MusterbookError):
            return found
    return errors.MusterbookError


def _json_facts(facts: dict[str, object]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if is_json(value)}


def _from_name(class_name: str) -> errors.MusterbookError:
    # A server that isn't ours sends oslo.messaging's own two refusals like this.
    if class_name == "NoSuchMethod":
        return errors.MethodNotRemotable("the other side has no such RPC method")
    if class_name == "UnsupportedVersion":
        return errors.UnsupportedObject("the other side serves another RPC version")
    return errors.RemoteFailure(class_name=_shortened(class_name, _MAX_NAME))


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
