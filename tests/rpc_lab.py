"""Transports, endpoints and callers for the tests of RPC."""

import contextlib
import socket
import sqlite3
import threading
from typing import Any
import uuid

from oslo_config import cfg
import oslo_messaging

from musterbook import context
from musterbook import errors
from musterbook import rpc

LIMIT = 20.0


def make_conf(url: str | None, **overrides: Any) -> cfg.ConfigOpts:
    """Return a private ConfigOpts; overrides are of [DEFAULT]."""
    conf = cfg.ConfigOpts()
    rpc.register_options(conf)
    conf([], default_config_files=[])
    if url is not None:
        conf.set_override("transport_url", url)
    for name, value in overrides.items():
        conf.set_override(name, value)
    return conf


def longer(items: list[Any], count: int) -> bool:
    return len(items) > count


def unavailable(method: str, seconds: float, asked: bool) -> errors.MusterbookError:
    return errors.ConductorUnavailable(method=method, seconds=seconds, asked=asked)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class HoldsSocket(Exception):
    def __init__(self) -> None:
        with socket.socket() as held:  # a closed one can't be sent either
            super().__init__(held)
        self.kwargs = {"held": held}


class LocalName(errors.HostTaken):
    """A class that only the server's room knows."""


def sql_error() -> Exception:
    return sqlite3.IntegrityError(
        "UNIQUE failed\n[SQL: INSERT INTO secrets VALUES (?)]\n[parameters: CANARY]"
    )


class Endpoint:
    target = oslo_messaging.Target(version="1.3")

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.seen: list[Any] = []
        self.holding = 0
        self._lock = threading.Lock()
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.raises: BaseException | None = None
        self.touched = False

    @rpc.exposed
    def echo(self, ctxt: context.RequestContext, value: Any) -> Any:
        self.seen.append(value)
        return value

    @rpc.exposed
    def who(self, ctxt: context.RequestContext) -> str:
        return self.name

    @rpc.exposed
    def show_context(self, ctxt: context.RequestContext) -> dict[str, Any]:
        assert isinstance(ctxt, context.RequestContext)
        return ctxt.to_dict()

    @rpc.exposed
    def fail(self, ctxt: context.RequestContext) -> None:
        assert self.raises is not None
        try:
            raise sql_error()
        except sqlite3.IntegrityError:
            raise self.raises  # noqa: B904  the context is the point: it mustn't cross

    @rpc.exposed
    def hold(self, ctxt: context.RequestContext) -> str:
        with self._lock:
            self.holding += 1
        self.entered.set()
        assert self.go_on.wait(LIMIT)
        return "held"

    @rpc.exposed
    def give(self, ctxt: context.RequestContext, size: int) -> str:
        return "x" * size

    @rpc.exposed
    def give_socket(self, ctxt: context.RequestContext) -> object:
        return object()

    def not_exposed(self, ctxt: context.RequestContext) -> None:
        self.touched = True

    @property
    def secret(self) -> str:
        self.touched = True
        return "secret"

    def _private(self, ctxt: context.RequestContext) -> None:
        self.touched = True


class Lab:
    """Servers and clients on separate transports to one place."""

    def __init__(self, url: str, **overrides: Any) -> None:
        self.topic = f"conductor-{uuid.uuid4().hex[:8]}"
        self._url = url
        self._overrides = overrides
        self._transports: list[rpc.Transport] = []
        self._servers: list[rpc.Server] = []

    def transport(self) -> rpc.Transport:
        conf = make_conf(self._url, **self._overrides)
        conf.set_override("control_exchange", self.topic)
        made = rpc.make_transport(conf)
        self._transports.append(made)
        return made

    def server(self, name: str = "one", endpoint: Any = None) -> "Served":
        endpoint = endpoint if endpoint is not None else Endpoint(name)
        server = rpc.Server(
            self.transport(), self.topic, name, [endpoint], rpc.ContextSerializer()
        )
        server.start()
        self._servers.append(server)
        return Served(server, endpoint)

    def client(
        self,
        version: str = "1.0",
        timeout: float = 10.0,
        transport: rpc.Transport | None = None,
    ) -> rpc.Client:
        return rpc.Client(
            transport or self.transport(),
            self.topic,
            version,
            rpc.ContextSerializer(),
            unavailable,
            timeout,
        )

    def close(self) -> None:
        for server in self._servers:
            server.stop()
        for server in self._servers:
            server.wait()
        for transport in self._transports:
            transport.cleanup()


class Served:
    def __init__(self, server: rpc.Server, endpoint: Endpoint) -> None:
        self.server = server
        self.endpoint = endpoint

    def stop(self) -> None:
        self.server.stop()
        self.server.wait()


class Callers:
    """Threads that call without a pause until told to stop."""

    def __init__(self, client: rpc.Client, count: int) -> None:
        self.answers = 0
        self.failures: list[Exception] = []
        self._client = client
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(i,), name=f"caller-{i}")
            for i in range(count)
        ]

    def __enter__(self) -> "Callers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        ctxt = context.service_context()
        value = 0
        while not self._end.is_set():
            value += 1
            try:
                answer = self._client.call(ctxt, "echo", value=[number, value])
                assert answer == [number, value]
            except Exception as exc:  # noqa: BLE001  the test reads them
                with self._lock:
                    self.failures.append(exc)
            else:
                with self._lock:
                    self.answers += 1


@contextlib.contextmanager
def lab(url: str, **overrides: Any) -> Any:
    made = Lab(url, **overrides)
    try:
        yield made
    finally:
        made.close()
