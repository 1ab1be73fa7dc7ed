"""One connection to RabbitMQ: made when told to, each step of it bounded in time."""

from collections.abc import Callable
import contextlib
import functools
import time
from typing import Any
from urllib import parse

from kombu import exceptions as kombu_exceptions
from oslo_messaging._drivers import common
from oslo_messaging._drivers import impl_rabbit
from oslo_utils import netutils

from musterbook import errors
from musterbook.rpc import readahead

#: What is raised when the broker is absent, lost or refuses.
FAULTS = (
    OSError,
    kombu_exceptions.KombuError,
    impl_rabbit.amqp_ex.AMQPError,
)
#: A broker that is there does not let this user in, or not into this virtual host.
REFUSED = (impl_rabbit.amqp_ex.AccessRefused, impl_rabbit.amqp_ex.NotAllowed)

#: Seconds for one host to take a connection, and again for it to let us in.
HOST_SECONDS = 3.0
#: Seconds for the broker to answer a goodbye.
_CLOSE_SECONDS = 1.0


def left(deadline: float) -> float:
    """Return the seconds until a monotonic time.

    :raises TimeoutError: it has passed
    """
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("the time is up")
    return seconds


class Connection(impl_rabbit.Connection):  # type: ignore[misc]  # untyped base
    """One connection; unlike the original's it connects only when it is opened.

    One thread at a time uses it. It has no thread of its own.

    :param conf: oslo.messaging's options
    :param url: an oslo_messaging.TransportURL with at least one host
    :raises RuntimeError: an option of the driver can't be used
    """

    channel: Any

    def __init__(self, conf: Any, url: Any) -> None:
        # For listening: the original starts a heartbeat thread for the other purpose.
        super().__init__(conf, url, common.PURPOSE_LISTEN)
        self._hosts = max(1, len(url.hosts))

    @property
    def address(self) -> str:
        """The host and port that was tried last."""
        host = netutils.escape_ipv6(self.connection.hostname)
        return f"{host}:{self.connection.port}"

    def ensure_connection(self) -> None:
        """Do nothing yet: the original connects, for ever, as soon as it is made."""

    def open(
        self, deadline: float, going_on: Callable[[], bool] = lambda: True
    ) -> None:
        """Connect to the first host that lets us in and open a channel there.

        :param deadline: monotonic time
        :param going_on: asked between two hosts
        :raises Exception: one of FAULTS, from the last host that was tried
        """
        self.connect(left(deadline) / self._hosts, going_on)
        self.connection.connection.sock.settimeout(left(deadline))
        self._set_current_channel(self.connection.channel())

    def _set_current_channel(self, new_channel: Any) -> None:
        if new_channel is not None and new_channel is not self.channel:
            readahead.enable(new_channel.connection)
        super()._set_current_channel(new_channel)

    def connect(self, seconds: float, going_on: Callable[[], bool]) -> None:
        """Try each host once.

        :param seconds: for each host at most
        :param going_on: asked between two hosts
        :raises Exception: one of FAULTS, from the last host that was tried
        """

        def before_next_host(exc: Exception, _interval: float) -> None:
            if not going_on():
                raise exc

        self.connection.connect_timeout = min(seconds, HOST_SECONDS)
        self.connection.ensure_connection(
            errback=before_next_host,
            max_retries=self._hosts - 1,
            reraise_as_library_errors=False,
        )

    def drop(self) -> None:
        """Forget the connection without a word to the broker, which may hang.

        It can be opened again.
        """
        self.channel = None
        self._producer = None
        self._declared_queues.clear()
        self._declared_exchanges.clear()
        if self.connection is None:
            return
        with contextlib.suppress(Exception):  # whatever state it was left in
            if self.connection.connected:
                self.connection.connection.sock.settimeout(0.1)  # TLS says goodbye
            self.connection.collect()

    def close(self) -> None:
        """Disconnect for good; waits for the broker to agree, a second at most."""
        with contextlib.suppress(Exception):
            if self.connection is not None and self.connection.connected:
                self.connection.connection.sock.settimeout(_CLOSE_SECONDS)
                super().close()
        if self.connection is not None:
            self.drop()

    def _transform_transport_url(
        self,
        url: Any,
        host: Any,
        default_username: str = "",
        default_password: str = "",
        default_hostname: str = "",
    ) -> str:
        # The original leaves a slash as it is when it builds the URL for kombu, which
        # then takes the rest of the password for a path (and its start for a port, in
        # the error).
        quote = functools.partial(parse.quote, safe="")
        user = quote(host.username or default_username)
        password = quote(host.password or default_password)
        name = netutils.escape_ipv6(host.hostname) or default_hostname
        path = quote(url.virtual_host or "")
        return f"amqp://{user}:{password}@{name}:{host.port or 5672}/{path}"


def refusal(exc: Exception) -> str:
    """Return what a broker refused; '' if it didn't, or for what passes by itself."""
    text = str(exc)
    if not isinstance(exc, REFUSED) or "limit" in text:
        return ""
    if "vhost" in text:
        return "refuses the virtual host: it doesn't exist, or isn't this user's"
    # Not at login, but later, at a queue or an exchange.
    if "access to" in text:
        return "refuses this user a right on the virtual host"
    return "refuses the user or the password"


def why(exc: Exception) -> str:
    """Return in a few words what was wrong, without anything that was sent."""
    refused = refusal(exc)
    if refused:
        return refused
    if isinstance(exc, REFUSED):
        return "has too many connections"
    if isinstance(exc, TimeoutError):
        return "doesn't answer"
    # Of a library's own error only the class: its text may quote what was sent.
    if isinstance(exc, OSError) and exc.strerror:
        return errors.one_line(exc.strerror)
    return type(exc).__name__
