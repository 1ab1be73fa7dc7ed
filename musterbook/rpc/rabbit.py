"""oslo.messaging's RabbitMQ driver with the faults of 18.3 that we met mended.

Each class says which fault it is for; all were seen against RabbitMQ 3.10.
"""

from collections.abc import Callable
import functools
from typing import Any
from urllib import parse

from kombu import exceptions as kombu_exceptions
import oslo_messaging
from oslo_messaging._drivers import amqpdriver
from oslo_messaging._drivers import common
from oslo_messaging._drivers import impl_rabbit
from oslo_utils import netutils

from musterbook.rpc import readahead

# An idle listener looks this often (seconds) whether it shall stop; the original one
# up to every 5 s, which is how long stop() then took.
_MAX_POLL = 0.5

# Seconds for one host to take a connection, and again for it to let us in.
_PROBE_SECONDS = 3

# What is raised when the broker is absent, lost or refuses.
BROKER_FAULTS = (
    OSError,
    kombu_exceptions.KombuError,
    impl_rabbit.amqp_ex.AMQPError,
)
# A broker that is there does not let this user in, or not into this virtual host.
REFUSED = (impl_rabbit.amqp_ex.AccessRefused, impl_rabbit.amqp_ex.NotAllowed)


class RabbitDriver(impl_rabbit.RabbitDriver):  # type: ignore[misc]  # untyped base
    """The driver for ``rabbit://`` URLs."""

    def __init__(self, conf: Any, url: Any, **kwargs: Any) -> None:
        super().__init__(conf, url, **kwargs)
        self._connection_pool.connection_cls = _Connection

    def send(self, target: Any, *args: Any, **kwargs: Any) -> Any:
        """Send as the original does, failing in one way when the broker is lost.

        :raises MessageDeliveryFailure: instead of kombu's and py-amqp's own errors
        """
        try:
            return super().send(target, *args, **kwargs)
        except BROKER_FAULTS as exc:
            name = type(exc).__name__
        raise oslo_messaging.MessageDeliveryFailure(f"the broker is lost ({name})")

    def listen(self, target: Any, batch_size: int, batch_timeout: float | None) -> Any:
        """Return the listener of a server, mended as _Listener says."""
        adapter = super().listen(target, batch_size, batch_timeout)
        adapter._poll_style_listener.__class__ = _Listener
        return adapter

    def _get_reply_q(self) -> Any:
        # Before its first call the original connects for the answers, and tries that
        # for ever whatever the call's timeout and retry say.
        if self._reply_q is None:
            retry = len(self._url.hosts)
            with self._get_connection(common.PURPOSE_SEND, retry=retry):
                pass
        return super()._get_reply_q()


class _Connection(impl_rabbit.Connection):  # type: ignore[misc]  # untyped base
    """Survives any user, password and virtual host; reads ahead.

    The original leaves a slash as it is when it builds the URL for kombu, which then
    takes the rest of the password for a path (and its start for a port, in the error).
    """

    def _set_current_channel(self, new_channel: Any) -> None:
        if new_channel is not None and new_channel is not self.channel:
            readahead.enable(new_channel.connection)
        super()._set_current_channel(new_channel)

    def _transform_transport_url(
        self,
        url: Any,
        host: Any,
        default_username: str = "",
        default_password: str = "",
        default_hostname: str = "",
    ) -> str:
        quote = functools.partial(parse.quote, safe="")
        user = quote(host.username or default_username)
        password = quote(host.password or default_password)
        name = netutils.escape_ipv6(host.hostname) or default_hostname
        path = quote(url.virtual_host or "")
        return f"amqp://{user}:{password}@{name}:{host.port or 5672}/{path}"


class Probe(_Connection):
    """Connects as the driver does, but once, within a time, and only when told to.

    One thread uses it.

    :param stopping: asked between two hosts whether to go on
    :raises RuntimeError: an option of the driver can't be used
    """

    def __init__(self, conf: Any, url: Any, stopping: Callable[[], bool]) -> None:
        super().__init__(conf, url, common.PURPOSE_LISTEN)
        self._hosts = max(1, len(url.hosts))
        self._stopping = stopping
        self.connection.connect_timeout = _PROBE_SECONDS

    @property
    def address(self) -> str:
        """The host and port that was tried last."""
        host = netutils.escape_ipv6(self.connection.hostname)
        return f"{host}:{self.connection.port}"

    def ensure_connection(self) -> None:
        """Do nothing yet: the original connects, for ever, as soon as it is made."""

    def connect(self) -> None:
        """Try each host once.

        :raises Exception: one of BROKER_FAULTS, from the last host that was tried
        """
        self.connection.ensure_connection(
            errback=self._before_next_host,
            max_retries=self._hosts - 1,
            reraise_as_library_errors=False,
        )

    def close(self) -> None:
        """Disconnect; waits a moment at most for the broker to agree."""
        if self.connection.connected:
            self.connection.connection.sock.settimeout(_PROBE_SECONDS)
        self.connection.release()

    def _before_next_host(self, exc: Exception, _interval: float) -> None:
        if self._stopping():
            raise exc


class _Listener(amqpdriver.RpcAMQPListener):  # type: ignore[misc]  # untyped base
    """Takes nothing once it has stopped, and stops soon.

    The original acknowledges what arrives between the end of its polling and the end
    of its connection, and nobody ever handles it: each graceful stop lost calls.
    Unacknowledged, the broker gives them to another server.
    """

    @property
    def _current_timeout(self) -> float:
        return float(self.__dict__.get("_current_timeout", _MAX_POLL))

    @_current_timeout.setter
    def _current_timeout(self, seconds: float) -> None:
        self.__dict__["_current_timeout"] = min(seconds, _MAX_POLL)

    def __call__(self, message: Any) -> None:
        if not self._shutoff.is_set():
            super().__call__(message)
