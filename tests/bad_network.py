"""A network as bad as a test wants it: a TCP proxy with a choice of faults."""

import asyncio
from collections.abc import Coroutine
import contextlib
import random
import threading
from typing import Any

#: Seconds that a call of the test's thread to the proxy's may take.
_CALL = 30.0


class BadNetwork:
    """Forwards from a free port of 127.0.0.1 to another one; whole at first.

    Its methods may be called from one thread at a time.

    :param port: where to
    :param seed: of the faults that come by chance
    :ivar stalls: segments that it has held up
    :ivar resets: connections that it has reset
    """

    def __init__(self, port: int, seed: int = 1) -> None:
        self._target = port
        self._rng = random.Random(seed)
        self._stalling = self._resetting = 0.0
        self._stall_seconds = 1.0
        self.stalls = self.resets = 0
        self._away = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="bad-network", daemon=True
        )
        self._thread.start()
        self._server = self._do(self._listen())
        self.port: int = self._server.sockets[0].getsockname()[1]

    def be_away(self) -> None:
        """Lose all that comes, from now on, of connections old and new; say nothing."""
        self._away = True

    def be_back(self) -> None:
        """Forward what new connections send; those of before are reset by what comes.

        As behind a router that was replaced: it knows no connection any more.
        """
        self._do(self._forget())
        self._away = False

    def be_bad(self, stalling: float, resetting: float, seconds: float = 1.0) -> None:
        """Hold up this share of the segments, and let this share end its connection.

        :param seconds: that a segment is held up; what comes after it waits as well
        """
        self._stalling, self._resetting = stalling, resetting
        self._stall_seconds = seconds

    def close(self) -> None:
        """Close all connections."""
        self._server.close()
        self._do(self._forget())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL)
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL)

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=512)

    async def _forget(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        others = []
        try:
            there = await asyncio.open_connection("127.0.0.1", self._target)
            others.append(there[1])
            self._writers.add(there[1])
            await asyncio.gather(
                self._pump(reader, there[1]), self._pump(there[0], writer)
            )
        except (OSError, asyncio.CancelledError):
            pass  # the connection's end, one way or another
        finally:
            self._tasks.discard(task)
            for one in (writer, *others):
                self._writers.discard(one)
                one.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(65536):
            if self._away:
                continue
            chance = self._rng.random()
            if chance < self._resetting:
                self.resets += 1
                raise ConnectionResetError
            if chance < self._resetting + self._stalling:
                self.stalls += 1
                await asyncio.sleep(self._stall_seconds)
            writer.write(data)
            with contextlib.suppress(ConnectionResetError):
                await writer.drain()
        # The end of one direction is that of the connection, for all our backends.
        raise ConnectionAbortedError
