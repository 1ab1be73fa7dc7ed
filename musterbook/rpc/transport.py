"""Transports: which URLs there are, what is wrong with a bad one, making one."""

from collections.abc import Sequence
import re
from typing import Any
from urllib import parse

from oslo_config import cfg
import oslo_messaging
from oslo_messaging import opts as oslo_opts
from oslo_messaging import transport as oslo_transport
from oslo_messaging._metrics import client as metrics_client
from oslo_messaging._tracing import client as tracing_client
from oslo_utils import netutils

from musterbook import errors
from musterbook import inproc
from musterbook.conf import rpc as conf_rpc
from musterbook.rpc import failure
from musterbook.rpc import rabbit

# What oslo.messaging reads from a ConfigOpts: its own list, and the two groups that
# 18.3 registers on the global one only (every call fails without them).
OPTS: list[tuple[str | None, Sequence[cfg.Opt]]] = [
    *oslo_opts.list_opts(),
    ("oslo_messaging_tracing", tracing_client.oslo_messaging_tracing),
    ("oslo_messaging_metrics", metrics_client.oslo_messaging_metrics),
    *conf_rpc.GROUPS,
]
# A fleet loses its broker at one moment: it is back within splay + most seconds of the
# broker's return, less than a third of it in the same second.
_RABBIT_DEFAULTS = {"rabbit_interval_max": 3, "kombu_reconnect_splay": 6.0}
# What our driver has other means for.
_UNUSED = {
    "rpc_ping_enabled",
    "conn_pool_min_size",
    "kombu_missing_consumer_retry_timeout",
    "kombu_reconnect_delay",
}

# By the URL's scheme: the transports that RPC is known to work over.
_DRIVERS = {"rabbit": rabbit.RabbitDriver, "inproc": inproc.InProcessDriver}
_EXAMPLE = "for instance rabbit://user:password@192.0.2.1:5672/"
_SAMPLES = {
    # The library's default, rabbit://, is refused: it names no broker.
    "transport_url": "rabbit://musterbook:secret@controller:5672/",
    "hostname": "<this machine's host name>",
    "processname": "<the command's name>",
}
_HELP = {
    "kombu_reconnect_splay": "A connection that was lost is made again after up to so "
    "many seconds, at random, and each further attempt is put off by up to as many "
    "more. A larger value spares a broker that a large fleet comes back to, and delays "
    "the return of each by as much.",
    "rabbit_interval_max": "Seconds to which the pause between two attempts to connect "
    "grows, besides kombu_reconnect_splay. A larger value delays the return after a "
    "long outage by as much.",
}
_ENCODE = "percent-encode special characters in user and password"
_HOSTNAME = re.compile(r"[A-Za-z0-9._-]{1,255}", re.ASCII)

#: In a call's context: seconds that its caller waits. A server drops what has waited
#: longer than that for one of its threads; one that doesn't know it doesn't look.
REPLY_TIMEOUT = "reply_timeout"

# Sending failed, or the broker says that nobody is there.
UNDELIVERED = (
    oslo_messaging.MessageDeliveryFailure,
    oslo_messaging.MessageUndeliverable,
    oslo_messaging.ClientSendError,
)


class Transport(oslo_transport.RPCTransport):  # type: ignore[misc]  # untyped base
    """A transport that fails clearly. Any thread may use it; its maker cleans it up.

    :ivar retry: how often sending is tried again, enough to try every broker host
    """

    def __init__(self, driver: Any, retry: int) -> None:
        super().__init__(driver)
        self.retry = retry
        self._closed = False

    def cleanup(self) -> None:
        """Give back connections and threads; calls made afterwards fail at once.

        Waits some seconds at most, also for a broker that hangs. Twice does no harm.
        """
        if not self._closed:
            self._closed = True
            super().cleanup()

    def _send(self, target: Any, ctxt: Any, message: Any, **kwargs: Any) -> Any:
        try:
            if self._closed:
                raise oslo_messaging.MessageDeliveryFailure("the transport is closed")
            if kwargs.get("wait_for_reply") and kwargs.get("timeout"):
                ctxt = ctxt | {REPLY_TIMEOUT: kwargs["timeout"]}
            return super()._send(target, ctxt, message, **kwargs)
        except errors.MusterbookError:
            raise
        except Exception as exc:
            if self._closed and not isinstance(exc, oslo_messaging.MessagingException):
                # The driver stumbles over what it has just given back.
                raise oslo_messaging.MessageDeliveryFailure(
                    "the transport was closed"
                ) from None
            if not failure.is_json([ctxt, message]):
                raise errors.InvalidInput(
                    field=f"arguments of {message.get('method')}",
                    reason="they can't be sent as JSON",
                ) from None
            raise


def register_options(conf: cfg.ConfigOpts) -> None:
    """Register what oslo.messaging reads; doing it twice is harmless."""
    for group, options in OPTS:
        conf.register_opts(options, group=group)
    for name, value in _RABBIT_DEFAULTS.items():
        conf.set_default(name, value, group="oslo_messaging_rabbit")


def list_opts() -> list[tuple[str | None, list[cfg.Opt]]]:
    """Return those of oslo.messaging's options that an operator may set.

    For the samples: no driver but RabbitMQ's, no notifications, nothing that the
    library is about to drop, that our driver doesn't use or that, like
    rpc_ping_enabled, is read from the global configuration only.
    """
    listed = []
    for group, opts in oslo_opts.list_opts():  # copies
        if group not in {None, "oslo_messaging_rabbit"}:
            continue
        for opt in opts:
            opt.sample_default = _SAMPLES.get(opt.dest, opt.sample_default)
            opt.help = _HELP.get(opt.dest, opt.help)
        if group is not None:
            cfg.set_defaults(opts, **_RABBIT_DEFAULTS)
        useful = [
            opt
            for opt in opts
            if not opt.deprecated_for_removal and opt.dest not in _UNUSED
        ]
        listed.append((group, useful))
    return listed


def make_transport(conf: cfg.ConfigOpts, *, to_others: bool = False) -> Transport:
    """Return a transport for the option transport_url; nothing is connected yet.

    Make it in the process that uses it: it doesn't survive a fork.

    :param conf: a ConfigOpts, also a private one; oslo.messaging's options are
        registered on it
    :param to_others: other processes have to be reached by it: refuse inproc://
    :raises ConfigurationError: for a URL that can't be used; says why and shows
        nothing of it
    """
    register_options(conf)
    reason = fault(conf.transport_url)
    if reason is None and to_others and is_inproc(conf.transport_url):
        reason = f"inproc:// reaches nobody outside this process; {_EXAMPLE}"
    transport = None
    if reason is None:
        try:
            transport = _make(conf)
        except Exception as exc:  # noqa: BLE001  what it says may quote the URL
            reason = (
                "has an option after '?' that is not known or has a senseless value"
                if "?" in conf.transport_url
                else f"can't be used ({type(exc).__name__}; see the rabbit options)"
            )
    if transport is None:
        raise errors.ConfigurationError(option="transport_url", reason=reason)
    return transport


def check(conf: cfg.ConfigOpts) -> None:
    """Refuse a transport_url that can't be used to reach others; connects to nothing.

    :raises ConfigurationError: as make_transport
    """
    make_transport(conf, to_others=True).cleanup()


def _make(conf: cfg.ConfigOpts) -> Transport:
    url = oslo_messaging.TransportURL.parse(conf)
    driver = _DRIVERS[url.transport](
        conf,
        url,
        default_exchange=conf.control_exchange,
        allowed_remote_exmods=[failure.MODULE],
    )
    return Transport(driver, retry=max(1, len(url.hosts)))


def fault(url: object) -> str | None:
    """Return what is wrong with a transport URL, None if nothing is.

    The answer never holds a part of the URL other than the scheme: what looks like a
    host or a port may be half a password that should have been encoded.
    """
    if not isinstance(url, str) or not url:
        return f"is empty; {_EXAMPLE}"
    if re.search(r"[\s\x00-\x1f\x7f]", url):
        return "has a space or a control character in it"
    scheme, separator, _ = url.partition("://")
    scheme = scheme.lower()
    if not separator:
        return f"has no scheme; {_EXAMPLE}"
    if scheme not in _DRIVERS:
        shown = scheme if re.fullmatch(r"[a-z0-9+.-]{1,30}", scheme) else "given"
        known = " and ".join(f"{name}://" for name in _DRIVERS)
        return f"the scheme {shown} is not known; there are {known}"
    try:
        parts = parse.urlsplit(url)
    except ValueError:
        return f"can't be parsed; {_ENCODE}"
    if scheme == "inproc":
        return _inproc_fault(parts)
    return _rabbit_fault(parts)


def is_inproc(url: str) -> bool:
    """Return whether a transport URL, which was checked, is within one process."""
    return url.lower().startswith("inproc:")


def _inproc_fault(parts: parse.SplitResult) -> str | None:
    if parts.netloc or parts.query or parts.fragment:
        return "takes no host and no options: inproc:// or inproc:///name"
    return None


def _rabbit_fault(parts: parse.SplitResult) -> str | None:
    if parts.fragment or "@" in parts.path + parts.query:
        return f"has '#', or '@' after a '/' or '?'; {_ENCODE}"
    hosts = [host for host in parts.netloc.split(",") if host]
    if not hosts:
        return f"names no broker host; {_EXAMPLE}"
    for host in hosts:
        reason = _host_fault(host.rpartition("@")[2])
        if reason:
            return reason
    return None


def _host_fault(address: str) -> str | None:
    try:
        name, port = netutils.parse_host_port(address, default_port=5672)
    except ValueError:
        return f"has a port that is no number; {_ENCODE}"
    if not name:
        return f"names no broker host; {_EXAMPLE}"
    if not _HOSTNAME.fullmatch(name) and not netutils.is_valid_ipv6(name):
        return f"has a host that is no host name; {_ENCODE}"
    if not 1 <= port <= 65535:
        return "has a port that is not between 1 and 65535"
    return None
