"""Small helpers that any test may use."""

from collections.abc import Callable
import random
import socket
import time
from typing import TypeVar

_T = TypeVar("_T")


def free_port() -> int:
    """Return a port on 127.0.0.1 that nobody listens on right now.

    It lies below the range from which the kernel gives ports to outgoing
    connections, so that no client takes it before the server does.
    """
    while True:
        port = random.randint(15_000, 32_000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def wait_until(
    condition: Callable[[], _T], timeout: float = 30.0, what: str = "the condition"
) -> _T:
    """Return the first true answer of the condition, asked every 20 ms.

    :param timeout: seconds; generous, as it only costs time when a test fails
    :param what: is waited for, for the message of the failure
    :raises AssertionError: when the time is over
    """
    deadline = time.monotonic() + timeout
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout:g} s")
        time.sleep(0.02)
