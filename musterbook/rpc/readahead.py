"""Reading from the broker as much as is there, instead of piece by piece.

py-amqp 5.4 asks the system for the 7 bytes of a frame's head, then for its body, then
for the last byte, and a message is three frames: 9 reads, in each of which the thread
gives the interpreter's lock away and has to wait for it again. It keeps what it read
too much, so it is enough to ask for more.
"""

from typing import Any

_BYTES = 65_536


def enable(connection: Any) -> None:
    """Let a py-amqp connection, over TCP or TLS, read ahead; twice is harmless.

    Only by the thread that uses the connection.
    """
    transport = connection.transport
    read = transport._quick_recv
    if getattr(read, "reads_ahead", False):
        return

    def read_ahead(size: int) -> bytes:
        found: bytes = read(max(size, _BYTES))
        return found

    read_ahead.reads_ahead = True  # type: ignore[attr-defined]  # a mark of ours
    transport._quick_recv = read_ahead
