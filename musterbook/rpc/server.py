"""The answering side: only what is exposed, always an answer, nothing lost on stop."""

from collections.abc import Callable
from collections.abc import Sequence
from concurrent import futures
import functools
import inspect
import logging
import threading
import time
from typing import Any
from typing import Protocol
from typing import TypeVar

import oslo_messaging
from oslo_messaging.rpc import dispatcher as rpc_dispatcher
from oslo_messaging.rpc import server as rpc_server

from musterbook import context
from musterbook import errors
from musterbook.rpc import backlog
from musterbook.rpc import failure
from musterbook.rpc import transport as rpc_transport

LOG = logging.getLogger(__name__)

_MARK = "_musterbook_exposed"
_Method = TypeVar("_Method", bound=Callable[..., Any])


def exposed(fn: _Method) -> _Method:
    """Mark a method of an endpoint class as callable over RPC.

    It is called with the RequestContext and the arguments sent by name. Nothing
    without this mark can be called; a method that overrides a marked one needs its own.
    """
    setattr(fn, _MARK, True)
    return fn


def is_exposed(endpoint: object, method: object) -> bool:
    """Return whether the endpoint's class has a marked method of this name.

    Looks without running any code of the endpoint's, such as a property's.
    """
    if not isinstance(method, str):
        return False
    found = inspect.getattr_static(type(endpoint), method, None)
    return inspect.isfunction(found) and getattr(found, _MARK, False) is True


class AnyServer(Protocol):
    """What answers calls; Server says what each method means."""

    def start(self) -> None:
        """Listen."""

    def stop(self) -> None:
        """Take nothing new."""

    def wait(self) -> None:
        """Return when all calls in hand are answered."""

    def abandon(self) -> None:
        """Answer the calls in hand with Stopping."""

    def full_since(self) -> float | None:
        """Return since when all threads are busy and none has finished anything."""


class Server:
    """Answers calls to a topic.

    One thread starts it, once; another may stop it and wait, also meanwhile or before.

    :param transport: from make_transport; belongs to the caller
    :param topic: the topic, such as ``conductor``
    :param server: the name by which this server alone can be called
    :param endpoints: objects with exposed methods and, as ``target``, an
        oslo_messaging.Target with the version of the interface that they serve
    :param serializer: a ContextSerializer
    """

    def __init__(
        self,
        transport: rpc_transport.Transport,
        topic: str,
        server: str,
        endpoints: Sequence[object],
        serializer: oslo_messaging.Serializer,
    ) -> None:
        self._name = f"{topic}.{server}"
        self._started = False
        self._start_lock = threading.Lock()  # guards it, and the setting of stopping
        self._target = _Target(topic=topic, server=server)
        self._server = oslo_messaging.get_rpc_server(
            transport,
            self._target,
            list(endpoints),
            serializer=_Noting(serializer),
            access_policy=_OnlyExposed,
            server_cls=_AnsweringServer,
        )

    def start(self) -> None:
        """Listen. Over RabbitMQ this waits for the broker, until stop() at most.

        :raises ConfigurationError: the broker refuses
        """
        with self._start_lock:
            # What is started after it was stopped would never end.
            if self._target.stopping.is_set():
                return
            self._started = True
        self._server.start()

    def stop(self) -> None:
        """Take nothing new; what is not yet taken goes to the topic's other servers.

        Calls in hand go on: wait() waits for them.
        """
        with self._start_lock:
            self._target.stopping.set()
            if not self._started:
                return
        self._server.stop()
        if self._server.listener is None:
            return  # start() failed
        # At once rather than in wait(): the broker hands on what it has already sent
        # here only when the connection closes, and calls in hand don't use it.
        try:
            self._server.listener.cleanup()
        except Exception as exc:  # noqa: BLE001  a lost broker raises whatever it likes
            LOG.warning(
                "server %s: closing its connection failed (%s)",
                self._name,
                type(exc).__name__,
            )

    def wait(self) -> None:
        """Return when all calls in hand are answered. Only after stop()."""
        if self._started:
            self._server.wait()

    def full_since(self) -> float | None:
        """Return since when all threads are busy and none has finished anything.

        On the monotonic clock; None while one is free. Any thread.
        """
        return self._server.full_since()  # type: ignore[no-any-return]  # untyped

    def abandon(self) -> None:
        """Answer the calls in hand with Stopping, in place of what they still do.

        For a process that can't wait any longer and is about to end; any thread.
        """
        for message in self._server.in_hand():
            message.give_up(self._name)


class _Target(oslo_messaging.Target):  # type: ignore[misc]  # untyped base
    """What a server listens to.

    :ivar stopping: set: our drivers don't wait for a broker any more to do so
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stopping = threading.Event()


class _OnlyExposed(rpc_dispatcher.RPCAccessPolicyBase):  # type: ignore[misc]  # untyped base
    def is_allowed(self, endpoint: object, method: str) -> bool:
        return is_exposed(endpoint, method)


class _AnsweringServer(rpc_server.RPCServer):  # type: ignore[misc]  # untyped base
    """oslo.messaging's RPC server, which loses calls that end in odd ways."""

    def __init__(
        self, transport: Any, target: Any, dispatcher: Any, executor: Any = None
    ) -> None:
        # ``executor`` is deprecated: native threads are all there is.
        super().__init__(transport, target, _Guard(dispatcher))
        self._backlog = backlog.Backlog(f"{target.topic}.{target.server}")
        # futurist's pool wakes each idle thread once a second and takes up to a second
        # to stop; the standard one does neither.
        self._executor_cls = functools.partial(
            futures.ThreadPoolExecutor, thread_name_prefix=f"rpc-{target.topic}"
        )
        self._in_hand: set[_Answering] = set()
        self._full_since: float | None = None
        self._in_hand_lock = threading.Lock()

    def in_hand(self) -> "list[_Answering]":
        with self._in_hand_lock:
            return list(self._in_hand)

    def full_since(self) -> float | None:
        with self._in_hand_lock:
            return self._full_since

    def _note_full(self, *, finished: bool) -> None:
        """Note since when as many are in hand as there are threads; locked."""
        if len(self._in_hand) < self.conf.executor_thread_pool_size:
            self._full_since = None
        elif finished or self._full_since is None:
            self._full_since = time.monotonic()

    def _on_incoming(self, incoming: list[Any]) -> None:
        arrived = time.monotonic()
        answering = [_Answering(message) for message in incoming]
        with self._in_hand_lock:
            self._in_hand.update(answering)
            self._note_full(finished=False)
        self._work_executor.submit(self._process_arrived, answering, arrived)

    def _process_arrived(self, answering: "list[_Answering]", arrived: float) -> None:
        """Process what somebody still waits for; a cast, whenever it may be."""
        waited = time.monotonic() - arrived
        try:
            for message in answering:
                patience = message.ctxt.get(rpc_transport.REPLY_TIMEOUT)
                if message.msg_id is None or self._backlog.take(waited, patience):
                    self._process_incoming([message])
        finally:
            with self._in_hand_lock:
                self._in_hand.difference_update(answering)
                self._note_full(finished=True)


class _Noting(oslo_messaging.Serializer):  # type: ignore[misc]  # untyped base
    """A serializer that makes each call's context its thread's; _Guard ends it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def serialize_entity(self, ctxt: Any, entity: Any) -> Any:
        return self._inner.serialize_entity(ctxt, entity)

    def deserialize_entity(self, ctxt: Any, entity: Any) -> Any:
        return self._inner.deserialize_entity(ctxt, entity)

    def serialize_context(self, ctxt: Any) -> Any:
        return self._inner.serialize_context(ctxt)

    def deserialize_context(self, ctxt: Any) -> Any:
        asking = self._inner.deserialize_context(ctxt)
        asking.make_current()
        return asking


class _Guard:
    """Lets nothing but an expected error of ours, and no context, out of a call."""

    def __init__(self, dispatcher: Any) -> None:
        self._dispatcher = dispatcher

    def dispatch(self, incoming: Any) -> Any:
        try:
            return self._dispatch(incoming)
        finally:
            context.forget_current()

    def _dispatch(self, incoming: Any) -> Any:
        method = incoming.message.get("method")
        try:
            endpoint = next(
                (e for e in self._dispatcher.endpoints if is_exposed(e, method)), None
            )
            if endpoint is None:
                raise failure.method_unknown(method)
            _check_arguments(endpoint, method, incoming.message.get("args"))
            return self._dispatcher.dispatch(incoming)
        except rpc_dispatcher.NoSuchMethod:
            error: Any = failure.method_unknown(method)
        except rpc_dispatcher.UnsupportedVersion as exc:
            error = failure.version_unknown(exc.version, method)
        # SystemExit and its like too: the thread belongs to the pool, the exception to
        # the call, and its caller is waiting.
        except BaseException as exc:  # noqa: BLE001
            error = failure.to_wire(exc)
            _log(exc, method)
        raise _expected(error)


def _check_arguments(endpoint: object, method: str, arguments: Any) -> None:
    """Refuse arguments that the method doesn't take.

    :raises InvalidInput: naming the method and what is wrong
    """
    field = f"arguments of {method}"
    if not isinstance(arguments, dict):
        raise errors.InvalidInput(field=field, reason="are not given by name")
    try:
        _signature(getattr(type(endpoint), method)).bind(endpoint, None, **arguments)
    except TypeError as exc:
        raise errors.InvalidInput(field=field, reason=str(exc)) from None


#: Of the exposed methods, which are few and never change.
_signature = functools.cache(inspect.signature)


class _Answering:
    """An incoming message whose caller gets one answer, even if the answer can't be."""

    def __init__(self, incoming: Any) -> None:
        self._incoming = incoming
        self._unanswered = threading.Lock()  # taken for good by whoever answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._incoming, name)

    def give_up(self, server: str) -> None:
        if not self._unanswered.acquire(blocking=False):
            return
        method = self._incoming.message.get("method")
        LOG.warning("RPC %a is not finished: this process ends", method)
        error = errors.Stopping(server=server, method=method)
        self._incoming.reply(failure=_exc_info(error))

    def reply(self, reply: Any = None, failure: Any = None) -> None:
        if not self._unanswered.acquire(blocking=False):
            return
        try:
            self._incoming.reply(reply=reply, failure=failure)
        except Exception as exc:
            if failure is not None:
                raise
            error = (
                exc
                if isinstance(exc, errors.MusterbookError)
                else _unsendable(exc, self._incoming.message.get("method"))
            )
            self._incoming.reply(failure=_exc_info(error))


def _unsendable(exc: Exception, method: object) -> Exception:
    LOG.error("the result of RPC %a can't be sent\n%s", method, failure.describe(exc))
    return failure.unforeseen(exc)


def _log(exc: BaseException, method: object) -> None:
    if isinstance(exc, errors.MusterbookError):
        LOG.debug("RPC %a: %s", method, type(exc).__name__)
    else:
        LOG.error("RPC %a failed unexpectedly\n%s", method, failure.describe(exc))


def _exc_info(error: Exception) -> tuple[type[Exception], Exception, None]:
    return type(error), error, None


def _expected(error: Exception) -> Exception:
    """Return what makes oslo.messaging send an error and not log it."""
    wrapped: Exception = rpc_dispatcher.ExpectedException()
    wrapped.exc_info = _exc_info(error)  # type: ignore[attr-defined]  # untyped class
    return wrapped
