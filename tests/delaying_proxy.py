"""A TCP proxy that delays what a server answers, or holds what it is asked."""

import contextlib
import socket
import threading
import time


class DelayingProxy:
    """Forwards connections; each piece of an answer waits for the delay first.

    :ivar delay: seconds; a smaller one also shortens the waits under way
    :ivar holding: whether what clients send waits until it is False again; it comes
        to the server even if the client has gone meanwhile
    :param port: of the server, on 127.0.0.1
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._changed = threading.Condition()
        self._delay = 0.0
        self._holding = False
        self._held: list[bytes] = []
        self._closing = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = [self._listener]
        self._threads = [self._spawn(self._accept)]

    @property
    def delay(self) -> float:
        """Seconds that each piece of an answer waits."""
        return self._delay

    @delay.setter
    def delay(self, seconds: float) -> None:
        with self._changed:
            self._delay = seconds
            self._changed.notify_all()

    @property
    def holding(self) -> bool:
        """Whether what clients send waits."""
        return self._holding

    @holding.setter
    def holding(self, value: bool) -> None:
        with self._changed:
            self._holding = value
            self._changed.notify_all()

    def holds(self, text: bytes) -> bool:
        """Tell whether something with this text in it waits."""
        with self._changed:
            return any(text in data for data in self._held)

    def close(self) -> None:
        """End every connection and the threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for made in list(self._sockets):
            with contextlib.suppress(OSError):
                made.shutdown(socket.SHUT_RDWR)
            made.close()
        for thread in list(self._threads):
            thread.join(30)

    def _spawn(self, target: object, *args: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, name="proxy")  # type: ignore[arg-type]
        thread.start()
        return thread

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target), 5)
            except OSError:
                client.close()  # this one; the next may find the server again
                continue
            server.settimeout(None)
            self._sockets += [client, server]
            self._threads.append(self._spawn(self._pump, client, server, False))
            self._threads.append(self._spawn(self._pump, server, client, True))

    def _pump(self, source: socket.socket, sink: socket.socket, slow: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if slow:
                    self._wait()
                else:
                    self._hold(data)
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _hold(self, data: bytes) -> None:
        with self._changed:
            if not self._holding:
                return
            self._held.append(data)
            self._changed.wait_for(lambda: self._closing or not self._holding)
            self._held.remove(data)

    def _wait(self) -> None:
        came = time.monotonic()
        with self._changed:
            while not self._closing:
                left = came + self._delay - time.monotonic()
                if left <= 0:
                    return
                self._changed.wait(left)
