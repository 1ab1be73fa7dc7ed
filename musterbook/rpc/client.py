"""The calling side."""

from collections.abc import Callable
import logging
import time
from typing import Any

import oslo_messaging

from musterbook import context
from musterbook import errors
from musterbook.rpc import failure
from musterbook.rpc import pin as rpc_pin
from musterbook.rpc import transport as rpc_transport

LOG = logging.getLogger(__name__)

# Without it a call to a queue that doesn't exist waits for its whole timeout.
_MUST_ARRIVE = oslo_messaging.TransportOptions(at_least_once=True)


class Client:
    """Calls the servers of one topic. Any thread may call it; making one is cheap.

    :param transport: from make_transport; belongs to the caller
    :param topic: the topic, such as ``conductor``
    :param version: lowest version of the RPC interface that the other side must have
    :param serializer: a ContextSerializer
    :param unavailable: makes the error for "nobody answered", from the method, the
        seconds that were waited, and whether anybody could be asked: False when the
        message didn't leave because the broker is lost or the transport closed, or was
        lost while the answer was waited for, True when it was sent and not answered, or
        the broker says that nobody is there
    :param not_there: makes it when the broker has no queue of the server that was
        named, from the method and the seconds; None: as nobody's answer
    :param timeout: seconds a call waits for its answer; may be set anew at any time
    :param pin: how new a version of the interface may be spoken; None: any
    """

    def __init__(
        self,
        transport: rpc_transport.Transport,
        topic: str,
        version: str,
        serializer: oslo_messaging.Serializer,
        unavailable: Callable[[str, float, bool], errors.MusterbookError],
        timeout: float,
        pin: rpc_pin.Pin | None = None,
        not_there: Callable[[str, float], errors.MusterbookError] | None = None,
    ) -> None:
        self.timeout = timeout
        self._not_there = not_there
        self._pin = pin
        self._unavailable = unavailable
        self._client = oslo_messaging.get_rpc_client(
            transport,
            oslo_messaging.Target(topic=topic, version=version),
            serializer=serializer,
            retry=transport.retry,
        )

    def call(
        self,
        ctxt: context.RequestContext,
        method: str,
        *,
        server: str | None = None,
        timeout: float | None = None,
        interface: str | None = None,
        **args: Any,
    ) -> Any:
        """Call a method and return its result.

        :param server: the one server to ask; None: any server of the topic
        :param interface: lowest version of the RPC interface that has the method, or
            takes these arguments; None: the client's
        :param timeout: seconds for this call instead of the client's
        :raises MusterbookError: what the method raised, as its own class; what
            ``unavailable`` makes when nobody answered or the server stops (whether the
            method ran is then unknown) or no such server exists; RemoteFailure when
            the other side failed unexpectedly; MethodNotRemotable or UnsupportedObject
            when it doesn't serve this; InvalidInput for arguments that can't be sent;
            VersionPinned when the interface is newer than the pin, and nothing is sent
        """
        seconds = self.timeout if timeout is None else timeout
        options = {"timeout": seconds, "transport_options": _MUST_ARRIVE}
        if server is not None:
            options["server"] = server
        if interface is not None:
            self._check(method, interface)
            options["version"] = interface
        return self._run("call", options, ctxt, method, args)

    def cast(
        self,
        ctxt: context.RequestContext,
        method: str,
        *,
        server: str | None = None,
        fanout: bool = False,
        interface: str | None = None,
        **args: Any,
    ) -> None:
        """Send a method's arguments without waiting; nobody need be there.

        :param server: the one server that shall get it; None: any of the topic
        :param fanout: every server of the topic gets it
        :param interface: as in call
        :raises MusterbookError: what ``unavailable`` makes when the broker can't be
            reached; InvalidInput for arguments that can't be sent; VersionPinned when
            the interface is newer than the pin, and nothing is sent
        """
        options: dict[str, Any] = {"fanout": True} if fanout else {}
        if interface is not None:
            self._check(method, interface)
            options["version"] = interface
        if server is not None:
            options["server"] = server
        self._run("cast", options, ctxt, method, args)

    def _check(self, method: str, interface: str) -> None:
        if self._pin is not None and not self._pin.allows(interface):
            raise errors.VersionPinned(
                what=method, needs=interface, speaks=self._pin.version()
            )

    def _run(
        self,
        kind: str,
        options: dict[str, Any],
        ctxt: context.RequestContext,
        method: str,
        args: dict[str, Any],
    ) -> Any:
        started = time.monotonic()
        try:
            send = getattr(self._client.prepare(**options), kind)
            return send(ctxt, method, **args)
        except Exception as exc:  # noqa: BLE001  every one becomes an error of ours
            waited = round(time.monotonic() - started, 2)
            error = self._translated(exc, method, options.get("timeout"), waited)
        # Raised out here so that no cause hangs on to it: oslo.messaging's holds the
        # message, and with it the arguments.
        raise error

    def _translated(
        self, exc: Exception, method: str, timeout: float | None, waited: float
    ) -> errors.MusterbookError:
        if isinstance(exc, oslo_messaging.MessagingTimeout):
            seconds = waited if timeout is None else timeout
            return self._unavailable(method, seconds, True)
        if isinstance(exc, rpc_transport.UNDELIVERED):
            LOG.debug("RPC %s was not delivered: %s", method, type(exc).__name__)
            nobody_there = isinstance(exc, oslo_messaging.MessageUndeliverable)
            if nobody_there and self._not_there is not None:
                return self._not_there(method, waited)
            return self._unavailable(method, waited, nobody_there)
        LOG.debug("RPC %s ended with %s", method, type(exc).__name__)
        error = failure.from_wire(exc)
        if isinstance(error, errors.Stopping):
            gone = self._unavailable(method, waited, True)
            return type(gone)(error.message, **gone.kwargs)
        return error
