"""A link that a test can hold up: a TCP proxy of one thread."""

import contextlib
import selectors
import socket
import threading


class Proxy:
    """Forwards from a free port of 127.0.0.1 to another port, as long as it may.

    :param port: where to
    """

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._peers: dict[socket.socket, socket.socket] = {}
        self._forwarding = threading.Event()
        self._forwarding.set()
        self._ended = threading.Event()
        self._to_forget = threading.Event()
        self._forgot = threading.Event()
        self._forgotten: list[socket.socket] = []
        self._fatal = b""
        self._fatal_left = 0
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    def hold(self) -> None:
        """Forward nothing; connections stay open, new ones are taken by the kernel."""
        self._forwarding.clear()

    def go_on(self) -> None:
        """Forward again, also what has come meanwhile."""
        self._forwarding.set()

    def drop_at(self, text: bytes, times: int) -> None:
        """End the next connections, so many, that send something with the text."""
        self._fatal, self._fatal_left = text, times

    @property
    def drops_left(self) -> int:
        """How many connections drop_at has yet to end."""
        return self._fatal_left

    def forget(self) -> None:
        """Forward nothing of the connections there are, for good, and tell nobody.

        As a firewall that was restarted; new connections are forwarded.
        """
        self._to_forget.set()
        self._forgot.wait()
        self._forgot.clear()

    def close(self) -> None:
        """Close all connections."""
        self._ended.set()
        self._forwarding.set()
        self._thread.join()
        for one in [self._listener, *self._peers, *self._forgotten]:
            one.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._ended.is_set():
                self._forwarding.wait()
                if self._to_forget.is_set():
                    for one in self._peers:
                        selector.unregister(one)
                    self._forgotten += self._peers
                    self._peers.clear()
                    self._to_forget.clear()
                    self._forgot.set()
                for key, _ in selector.select(0.05):
                    if not self._forwarding.is_set():
                        break
                    self._handle(selector, key.fileobj)

    def _handle(self, selector: selectors.BaseSelector, ready: object) -> None:
        if ready is self._listener:
            accepted, _ = self._listener.accept()
            try:
                target = socket.create_connection(self._target, 2)
            except OSError:
                accepted.close()
                return
            target.settimeout(None)
            for one, other in ((accepted, target), (target, accepted)):
                self._peers[one] = other
                selector.register(one, selectors.EVENT_READ)
            return
        assert isinstance(ready, socket.socket)
        if ready not in self._peers:
            return  # its peer has just ended
        try:
            data = ready.recv(65536)
            if self._fatal_left and self._fatal in data:
                self._fatal_left -= 1
                raise ConnectionAbortedError
            self._peers[ready].sendall(data)
        except OSError:
            data = b""
        if not data:
            for one in (ready, self._peers.pop(ready)):
                self._peers.pop(one, None)
                with contextlib.suppress(KeyError, ValueError):
                    selector.unregister(one)
                one.close()
