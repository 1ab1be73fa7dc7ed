"""How large the messages of a call are."""

from collections.abc import Callable
import json
from typing import Any
from typing import NamedTuple


class Sizes(NamedTuple):
    """Bytes of JSON, without oslo.messaging's envelope."""

    request: int
    answer: int


def measure(transport: Any, call: Callable[[], object]) -> Sizes:
    """Return the sizes of the one call that is made over this transport."""
    seen: list[Sizes] = []
    send = transport._send

    def noting(target: Any, ctxt: Any, message: Any, **kwargs: Any) -> Any:
        answer = send(target, ctxt, message, **kwargs)
        seen.append(Sizes(_size(ctxt) + _size(message), _size(answer)))
        return answer

    transport._send = noting
    try:
        call()
    finally:
        del transport._send
    (sizes,) = seen
    return sizes


def _size(value: Any) -> int:
    return len(json.dumps(value))
