"""Stops, a hung broker, a lost virtual host: our RPC beside stock oslo.messaging's."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
import functools
import logging
import shutil
import threading
import time
from typing import Any
from typing import cast

from oslo_config import cfg
import oslo_messaging

from musterbook import context
from musterbook import rpc
from tests import process
from tests import rpc_lab
from tests import servers
from tests import util
from tests.bench import machine
from tests.bench import options
from tests.bench import report

_CALLERS = 8
_TIMEOUT = 5.0
_LOGGERS = ("amqp", "oslo_messaging", "oslo.messaging", "oslo_utils", "musterbook")
#: What is measured of each side; lower is better for all.
FIGURES = {
    "lost_calls": "calls lost in the stops",
    "calls": "calls meanwhile",
    "idle_stop_s": "stop of an idle server, s",
    "hung_call_s": "call of 5 s, hung broker, s",
    "hung_cast_s": "cast, hung broker, s",
    "log_lines": "log lines in 5 s without vhost",
}


@dataclasses.dataclass(frozen=True)
class _Scale:
    """How much is done, by the option --seconds (4: what the bounds are stated for)."""

    stops: int
    idle: float
    patience: float


def run(chosen: options.Options) -> report.Report:
    """Measure, on servers of its own, and end all it has started."""
    share = min(1.0, chosen.seconds / options.Options().seconds)
    scale = _Scale(max(1, round(8 * share)), 6 * share, max(8.0, 45 * share))
    for logged in _LOGGERS:
        logging.getLogger(logged).addHandler(logging.NullHandler())
        logging.getLogger(logged).propagate = False
    folder = process.make_folder()
    broker = servers.RabbitMQ(folder)
    try:
        broker.start()
        sides = {
            name: _measure(broker, side(broker.lease(number)), scale, f"lease_{number}")
            for number, (name, side) in enumerate(_SIDES.items())
        }
        version = broker.control("version").strip()
    finally:
        broker.close()
        shutil.rmtree(folder, ignore_errors=True)
    return _report(chosen, scale, sides, version)


class _Ours:
    """Servers and clients of ours; each has a transport of its own."""

    def __init__(self, url: str) -> None:
        self._lab = rpc_lab.Lab(url)

    def server(self, name: str) -> tuple[Any, rpc_lab.Endpoint]:
        served = self._lab.server(name)
        return served.server, served.endpoint

    def client(self) -> Any:
        return self._lab.client(timeout=_TIMEOUT)

    def close(self) -> None:
        self._lab.close()


class _Stock:
    """The same with oslo.messaging as it is, and its defaults."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._made: list[Any] = []

    def _transport(self) -> Any:
        conf = cfg.ConfigOpts()
        for group, opts in rpc.OPTS:
            conf.register_opts(opts, group=group)
        conf([], default_config_files=[])
        self._made.append(oslo_messaging.get_rpc_transport(conf, self._url))
        return self._made[-1]

    def server(self, name: str) -> tuple[Any, rpc_lab.Endpoint]:
        endpoint = rpc_lab.Endpoint(name)
        target = oslo_messaging.Target(topic="stock", server=name)
        server = oslo_messaging.get_rpc_server(
            self._transport(), target, [endpoint], serializer=rpc.ContextSerializer()
        )
        server.start()
        return server, endpoint

    def client(self) -> Any:
        return oslo_messaging.get_rpc_client(
            self._transport(),
            oslo_messaging.Target(topic="stock"),
            serializer=rpc.ContextSerializer(),
            timeout=_TIMEOUT,
        )

    def close(self) -> None:
        for transport in self._made:
            # A stock one may hang here after all that was done to it.
            thread = threading.Thread(target=transport.cleanup, daemon=True)
            thread.start()
            thread.join(5)


_SIDES: dict[str, Callable[[str], Any]] = {"floor": _Stock, "ours": _Ours}


def _measure(
    broker: servers.RabbitMQ, side: Any, scale: _Scale, vhost: str
) -> dict[str, float]:
    idle = _idle_stop(side, scale)
    first, _ = side.server("first")
    lost, calls = _stops(side, scale)
    client = side.client()
    client.call(context.service_context(), "echo", value=1)
    with _frozen(broker):
        hung_call = _seconds(lambda: client.call(*_ECHO, value=1), scale.patience)
    _answers_again(client)
    with _frozen(broker):
        hung_cast = _seconds(lambda: client.cast(*_ECHO, value=1), scale.patience)
    _answers_again(client)
    with _counted() as lines:
        broker.control("delete_vhost", vhost)
        time.sleep(5)
        counted = len(lines)
    broker.control("add_vhost", vhost)
    broker.control("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
    _answers_again(client)
    _stop(first)
    side.close()
    return {
        "lost_calls": lost,
        "calls": calls,
        "idle_stop_s": idle,
        "hung_call_s": hung_call,
        "hung_cast_s": hung_cast,
        "log_lines": counted,
    }


_ECHO = (context.service_context(), "echo")


def _stops(side: Any, scale: _Scale) -> tuple[int, int]:
    """Return lost and answered calls while one of two servers stops now and then."""
    client = cast("rpc.Client", side.client())
    with rpc_lab.Callers(client, _CALLERS) as callers:
        for number in range(scale.stops):
            server, endpoint = side.server(f"second-{number}")
            util.wait_until(
                functools.partial(rpc_lab.longer, endpoint.seen, 50), 30, "calls"
            )
            _stop(server)
    return len(callers.failures), callers.answers


def _idle_stop(side: Any, scale: _Scale) -> float:
    servers_made = [side.server(f"idle-{number}")[0] for number in range(3)]
    time.sleep(scale.idle)
    longest = 0.0
    for server in servers_made:
        started = time.monotonic()
        _stop(server)
        longest = max(longest, time.monotonic() - started)
    return longest


def _stop(server: Any) -> None:
    server.stop()
    server.wait()


@contextlib.contextmanager
def _frozen(broker: servers.RabbitMQ) -> Iterator[None]:
    broker.freeze()
    try:
        yield
    finally:
        broker.thaw()


def _seconds(send: Callable[[], Any], patience: float) -> float:
    """Return the seconds until it returned or raised, or those that were waited."""

    def work() -> None:
        with contextlib.suppress(Exception):
            send()

    thread = threading.Thread(target=work, name="hung", daemon=True)
    started = time.monotonic()
    thread.start()
    thread.join(patience)
    return time.monotonic() - started


def _answers_again(client: Any) -> None:
    def answers() -> bool:
        try:
            return bool(client.call(*_ECHO, value=2) == 2)
        except Exception:  # noqa: BLE001  either side's own
            return False

    util.wait_until(answers, 120, "an answer after the outage")


@contextlib.contextmanager
def _counted() -> Iterator[list[str]]:
    """Collect what is logged at WARNING and above."""
    lines: list[str] = []

    class Counting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.name)

    handler = Counting(logging.WARNING)
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield lines
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


def _report(
    chosen: options.Options,
    scale: _Scale,
    sides: dict[str, dict[str, float]],
    version: str,
) -> report.Report:
    ours = sides["ours"]
    bounds = [
        report.Bound("calls lost in graceful stops", ours["lost_calls"], 0),
        report.Bound("stop of an idle server, s", ours["idle_stop_s"], 1.5),
        report.Bound("call of 5 s while the broker hangs, s", ours["hung_call_s"], 6),
        report.Bound("cast while the broker hangs, s", ours["hung_cast_s"], 6),
        report.Bound("log lines in 5 s without the vhost", ours["log_lines"], 5),
    ]
    rows: list[list[str | float]] = [
        [label, sides["floor"][name], ours[name]] for name, label in FIGURES.items()
    ]
    return report.Report(
        bench="rpc_stop",
        options={"seconds": chosen.seconds},
        figures={**sides, "scale": dataclasses.asdict(scale)},
        ratios={},
        machine=machine.describe({"rabbitmq": version}),
        bounds=bounds,
        tables=[report.Table("rpc_stop", ["", "stock", "ours"], rows)],
        notes=[
            f"{scale.stops} stops under {_CALLERS} callers; hung calls are waited for "
            f"{scale.patience:g} s at most."
        ],
    )
