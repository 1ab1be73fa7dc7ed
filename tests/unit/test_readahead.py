"""Fewer reads, the same frames."""

from collections.abc import Iterator
import socket
import struct
from types import SimpleNamespace
from typing import Any

from kombu.transport import pyamqp
import pytest

from musterbook.rpc import readahead


def frame(payload: bytes) -> bytes:
    return struct.pack(">BHI", 3, 1, len(payload)) + payload + b"\xce"


class Counting:
    """A socket that counts reads."""

    def __init__(self, real: socket.socket) -> None:
        self.reads = 0
        self._real = real

    def recv(self, size: int) -> bytes:
        self.reads += 1
        return self._real.recv(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Any]]:
    """Yield a broker's end of a connection and py-amqp's transport at the other."""
    theirs, ours = socket.socketpair()
    with theirs, ours:
        ours.settimeout(5)
        library: Any = pyamqp
        made = library.amqp.transport.TCPTransport("nowhere")
        made.sock = Counting(ours)
        made._setup_transport()
        readahead.enable(SimpleNamespace(transport=made))
        readahead.enable(SimpleNamespace(transport=made))
        yield theirs, made
        made.sock = None


def test_frames_that_are_there_are_one_read(ends: tuple[socket.socket, Any]) -> None:
    theirs, ours = ends
    theirs.sendall(frame(b"one") + frame(b"") + frame(b"three"))
    assert [ours.read_frame()[2] for _ in range(3)] == [b"one", b"", b"three"]
    assert ours.sock.reads == 1


def test_a_frame_in_pieces_survives_a_timeout(
    ends: tuple[socket.socket, Any],
) -> None:
    theirs, ours = ends
    large = bytes(range(256)) * 500
    sent = frame(b"first") + frame(large)
    theirs.sendall(sent[:30])
    ours.sock.settimeout(0.05)
    assert ours.read_frame()[2] == b"first"
    with pytest.raises(TimeoutError):
        ours.read_frame()
    theirs.sendall(sent[30:])
    ours.sock.settimeout(5)
    assert ours.read_frame()[2] == large


def test_the_end_is_noticed(ends: tuple[socket.socket, Any]) -> None:
    theirs, ours = ends
    theirs.sendall(frame(b"last"))
    theirs.close()
    assert ours.read_frame()[2] == b"last"
    with pytest.raises(OSError, match="closed"):
        ours.read_frame()
