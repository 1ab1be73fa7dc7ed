"""RPC within one process, the form of errors on the wire, transport URLs."""

from concurrent import futures
import io
import json
import logging
import threading
import time
import traceback
from typing import Any
from urllib import parse
import warnings

from hypothesis import given
from hypothesis import strategies as st
from oslo_config import cfg
from oslo_context import context as oslo_context
from oslo_log import formatters
import oslo_messaging
from oslo_messaging._drivers import common
from oslo_messaging._drivers import impl_rabbit
import pytest

from musterbook import context
from musterbook import errors
from musterbook import rpc
from musterbook.inproc import driver as inproc_driver
from musterbook.rpc import connection
from musterbook.rpc import failure
from musterbook.rpc import server as rpc_server
from musterbook.rpc import transport
from tests import rpc_essentials
from tests import rpc_lab
from tests import util

CTXT = context.service_context()


class TestInProcess(rpc_essentials.RpcEssentials):
    @pytest.fixture
    def url(self, request: pytest.FixtureRequest) -> str:
        return f"inproc:///{id(request.node)}"


class TestWire:
    @pytest.mark.parametrize(
        "exc",
        [
            errors.HostTaken(host="a", process_uuid="u"),
            rpc_lab.LocalName(host="a"),
            rpc_lab.sql_error(),
            rpc_lab.Unprintable(),
            RuntimeError("y" * 2**20),
            errors.InvalidInput("z" * 2**20),
        ],
    )
    def test_holds_no_traceback_and_little_text(
        self, exc: Exception, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told: list[str] = []
        original = inproc_driver.Call.tell

        def spy(call: Any, kind: str, payload: str = "") -> None:
            told.append(payload)
            original(call, kind, payload)

        monkeypatch.setattr(inproc_driver.Call, "tell", spy)
        with rpc_lab.lab("inproc:///wire") as lab:
            lab.server().endpoint.raises = exc
            with pytest.raises(errors.MusterbookError):
                lab.client().call(CTXT, "fail")
        [payload] = told
        assert len(payload) < 10_000
        for leak in ("File", ".py", "SQL", "INSERT", "CANARY", "Traceback", "during"):
            assert leak not in payload
        assert json.loads(payload)["module"] == "musterbook.errors"

    def test_every_error_of_ours_is_rebuilt(self) -> None:
        found = [
            value
            for value in vars(errors).values()
            if isinstance(value, type) and issubclass(value, errors.MusterbookError)
        ]
        assert len(found) > 20
        for cls in found:
            sent = failure.to_wire(cls(host="h", reason="r", seconds=1.5))
            text = common.serialize_remote_exception((type(sent), sent, None))
            rebuilt = common.deserialize_remote_exception(text, [failure.MODULE])
            got = failure.from_wire(rebuilt)
            assert type(got) is cls
            assert str(got) == str(sent)
            assert got.kwargs == {"host": "h", "reason": "r", "seconds": 1.5}

    @pytest.mark.parametrize(
        ("peer_sent", "expected"),
        [
            (oslo_messaging.RemoteError("Odd", "text"), errors.RemoteFailure),
            (ValueError("text"), errors.RemoteFailure),
            (oslo_messaging.RemoteError("NoSuchMethod"), errors.MethodNotRemotable),
            (
                oslo_messaging.RemoteError("UnsupportedVersion"),
                errors.UnsupportedObject,
            ),
        ],
    )
    def test_answer_of_a_foreign_server(
        self, peer_sent: Exception, expected: type[Exception]
    ) -> None:
        got = failure.from_wire(peer_sent)
        assert type(got) is expected
        assert "text" not in str(got)

    def test_causes_are_described_once_each(self) -> None:
        first = ValueError("first")
        second = KeyError("second")
        first.__context__ = second
        second.__context__ = first
        text = failure.describe(first)
        assert text.count("first") == 1
        assert text.index("second") < text.index("first")


class TestContext:
    def test_grant_arrives_as_a_grant(self) -> None:
        grant = context.Grant("node-a", 3, "s3cret")
        sent = context.RequestContext(grant=grant, user_id="u", roles=["r"])
        serializer = rpc.ContextSerializer()
        wire = json.loads(json.dumps(serializer.serialize_context(sent)))
        got = serializer.deserialize_context(wire)
        assert got.grant == grant
        assert got.to_dict() == sent.to_dict()

    def test_secret_is_never_shown(self) -> None:
        grant = context.Grant("node-a", 3, "s3cret")
        ctxt = context.service_context(grant)
        shown = [ctxt, grant, ctxt.get_logging_values(), ctxt.to_policy_values()]
        assert "s3cret" not in "".join(f"{value}{value!r}" for value in shown)
        assert ctxt.get_logging_values()["request_id"] == ctxt.request_id

    @pytest.mark.parametrize("overwrite", [True, False])
    def test_is_a_threads_only_when_made_so(self, overwrite: bool) -> None:
        context.RequestContext(overwrite=overwrite)
        assert oslo_context.get_current() is None
        ctxt = context.service_context()
        ctxt.make_current()
        try:
            assert oslo_context.get_current() is ctxt
        finally:
            context.forget_current()
        assert oslo_context.get_current() is None
        context.forget_current()

    def test_object_nobody_knows_is_unsupported(self) -> None:
        class Inner(oslo_messaging.NoOpSerializer):  # type: ignore[misc]  # untyped base
            def deserialize_entity(self, ctxt: Any, entity: Any) -> Any:
                raise LookupError("Ship 2.0")

        with pytest.raises(errors.UnsupportedObject, match=r"LookupError: Ship 2\.0"):
            rpc.ContextSerializer(Inner()).deserialize_entity(CTXT, {})


class Talkative(rpc_lab.Endpoint):
    """Logs what it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[str] = set()

    @rpc.exposed
    def say(self, ctxt: context.RequestContext, fail: bool) -> None:
        self.threads.add(threading.current_thread().name)
        # The thread of a stranger's call must not lend its context to this one.
        context.service_context(context.Grant("other", 1, "s3cret"))
        logging.getLogger(__name__).warning("said for %s", ctxt.request_id)
        if fail:
            raise ValueError("seen")


class TestServer:
    def test_each_call_logs_its_own_context_without_the_secret(self) -> None:
        text = io.StringIO()
        handler = logging.StreamHandler(text)
        # What oslo.log's use_json chooses.
        handler.setFormatter(formatters.JSONFormatter())
        logging.getLogger().addHandler(handler)
        asking = [
            context.service_context(context.Grant("node-a", 3, "s3cret"))
            for _ in range(3)
        ]
        try:
            with rpc_lab.lab("inproc:///talk", executor_thread_pool_size=1) as lab:
                served = lab.server(endpoint=Talkative())
                client = lab.client()
                for ctxt in asking[:2]:
                    client.call(ctxt, "say", fail=False)
                with pytest.raises(errors.RemoteFailure):
                    client.call(asking[2], "say", fail=True)
        finally:
            logging.getLogger().removeHandler(handler)
        assert len(served.endpoint.threads) == 1
        lines = [json.loads(line) for line in text.getvalue().splitlines()]
        ids = [ctxt.request_id for ctxt in asking]
        said = [x for x in lines if x["name"] == __name__]
        assert [x["message"] for x in said] == [f"said for {i}" for i in ids]
        assert [x["context"]["request_id"] for x in said] == ids
        [failed] = [x for x in lines if "failed unexpectedly" in x["message"]]
        assert failed["context"]["request_id"] == ids[2]
        assert "s3cret" not in text.getvalue()

    def test_a_thread_forgets_the_context_of_its_call(self) -> None:
        found: list[Any] = []

        class Pool(futures.ThreadPoolExecutor):
            def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
                def run() -> None:
                    fn(*args, **kwargs)
                    found.append(oslo_context.get_current())

                return super().submit(run)

        with rpc_lab.lab("inproc:///forget") as lab:
            served = lab.server(endpoint=Talkative())
            served.server._server._work_executor = Pool(1)
            for method in ("say", "nothing"):
                with pytest.raises(errors.MusterbookError):
                    lab.client().call(CTXT, method, fail=True)
            served.stop()
        assert found == [None, None]

    def test_since_when_no_thread_is_free(self) -> None:
        with rpc_lab.lab("inproc:///full", executor_thread_pool_size=2) as lab:
            served = lab.server()
            client = lab.client()
            assert served.server.full_since() is None
            client.call(CTXT, "who")
            client.cast(CTXT, "hold")
            util.wait_until(lambda: served.endpoint.holding == 1)
            assert served.server.full_since() is None
            client.call(CTXT, "who")  # by the other thread
            before = time.monotonic()
            client.cast(CTXT, "hold")
            util.wait_until(lambda: served.endpoint.holding == 2)
            first = served.server.full_since()
            assert before <= first <= time.monotonic()
            # More that wait for a thread don't make it any younger.
            client.cast(CTXT, "hold")
            client.cast(CTXT, "hold")
            util.wait_until(lambda: len(served.server._server.in_hand()) == 4)
            assert served.server.full_since() == first
            served.endpoint.go_on.set()
            util.wait_until(lambda: served.server.full_since() is None)

    def test_never_started_stops_at_once(self) -> None:
        with rpc_lab.lab("inproc:///never") as lab:
            server = rpc.Server(
                lab.transport(), "t", "s", [rpc_lab.Endpoint()], rpc.ContextSerializer()
            )
            server.stop()
            server.wait()

    def test_override_needs_its_own_mark(self) -> None:
        class Careless(rpc_lab.Endpoint):
            def echo(self, ctxt: context.RequestContext, value: Any) -> Any:
                raise AssertionError("was called")

        with rpc_lab.lab("inproc:///override") as lab:
            lab.server(endpoint=Careless())
            with pytest.raises(errors.MethodNotRemotable):
                lab.client().call(CTXT, "echo", value=1)

    def test_our_use_is_not_deprecated(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with rpc_lab.lab("inproc:///deprecated") as lab:
                lab.server()
                assert lab.client().call(CTXT, "echo", value=1) == 1

    def test_threads_have_names_and_end(self) -> None:
        before = set(threading.enumerate())
        with rpc_lab.lab("inproc:///threads") as lab:
            lab.server()
            lab.client().call(CTXT, "echo", value=1)
            new = {t.name for t in set(threading.enumerate()) - before}
            assert any(name.startswith("rpc-conductor") for name in new)
            assert any(name.startswith("inproc-conductor") for name in new)
            assert len(new) == 2
        assert not set(threading.enumerate()) - before


GOOD = [
    "inproc://",
    "inproc:///",
    "inproc:///name",
    "rabbit://guest:guest@127.0.0.1:5672/",
    "rabbit://guest:guest@127.0.0.1:5672",
    "rabbit://127.0.0.1",
    "rabbit://u:p@[::1]:5672/",
    "rabbit://u:p@[::1]",
    "rabbit://u:p%40ss%2Fw%25rd@broker/",
    "rabbit://u:p@ss@broker/v",
    "rabbit://u:!$&()*+.=_-~@broker_1.example//",
    "rabbit://u:p@one:5672,u:p@two:5673/v%2Fh",
    "rabbit://u:p@one/?rabbit_quorum_queue=true",
    "RABBIT://u:p@one/",
]

BAD = [
    ("", "empty"),
    (None, "no broker host"),  # oslo.messaging's default is rabbit://
    ("rabbit://", "no broker host"),
    ("rabbit:///", "no broker host"),
    ("rabbit://CANARY:CANARY@/", "no broker host"),
    ("rabbit://CANARY:CANARY@:5672/", "no broker host"),
    ("rabit://u:CANARY@h/", "rabit"),
    ("amqp://u:CANARY@h/", "amqp"),
    ("kombu+memory://u:CANARY@h", "not known"),
    ("fake://u:CANARY@h", "not known"),
    ("CANARY", "no scheme"),
    ("127.0.0.1:5672", "no scheme"),
    ("://u:CANARY@h/", "not known"),
    ("rabbit://u:CANARY@h:99999/", "65535"),
    ("rabbit://u:CANARY@h:0/", "65535"),
    ("rabbit://u:CANARY@h:-1/", "port"),
    ("rabbit://u:CANARY@h:port/", "port"),
    ("rabbit://u:CANARY@one:5672,u:CANARY@two:99999/", "65535"),
    ("rabbit://u:CANARY @h/", "space"),
    ("rabbit://u:CANARY@h/ ", "space"),
    ("rabbit://u:CANARY@h\n/", "space"),
    ("rabbit://u:CANARY/x@h/", "percent-encode"),
    ("rabbit://u:12/CANARY@h/", "percent-encode"),
    ("rabbit://u:12?CANARY@h/", "percent-encode"),
    ("rabbit://u:12#CANARY@h/", "percent-encode"),
    ("rabbit://u:CANARY,x@h/", "percent-encode"),
    ("rabbit://u:[CANARY@h/", "percent-encode"),
    ("rabbit://u:p@h%20CANARY/", "host name"),
    ("rabbit://u:CANARY@h/?CANARY=1", "not known"),
    ("rabbit://u:CANARY@h/?rabbit_quorum_queue=CANARY", "senseless"),
    ("inproc://CANARY", "no host"),
    ("inproc:///n?x=CANARY", "no options"),
]


def test_a_server_that_was_stopped_before_it_started_never_does() -> None:
    transport = rpc.make_transport(rpc_lab.make_conf("inproc:///never"))
    server = rpc.Server(
        transport, "topic", "s1", [rpc_lab.Endpoint()], rpc.ContextSerializer()
    )
    server.stop()
    server.start()
    server.wait()
    assert not [t for t in threading.enumerate() if "topic" in t.name]
    transport.cleanup()


class TestUrl:
    @pytest.mark.parametrize("url", GOOD)
    def test_good_one_makes_a_transport(self, url: str) -> None:
        made = rpc.make_transport(rpc_lab.make_conf(url))
        made.cleanup()

    @pytest.mark.parametrize(("url", "said"), BAD)
    def test_bad_one_is_refused_without_showing_it(
        self, url: str | None, said: str
    ) -> None:
        with pytest.raises(errors.ConfigurationError) as caught:
            rpc.make_transport(rpc_lab.make_conf(url))
        shown = "".join(traceback.format_exception(caught.value))
        assert caught.value.option == "transport_url"
        assert said in caught.value.reason
        assert "\n" not in str(caught.value)
        for text in (str(caught.value), repr(caught.value.kwargs), repr(caught.value)):
            assert "CANARY" not in text
        assert "CANARY" not in shown.partition("musterbook.errors.")[2]
        assert caught.value.__context__ is None

    def test_config_file_of_a_private_confopts(self, tmp_path: Any) -> None:
        path = tmp_path / "m.conf"
        path.write_text("[DEFAULT]\ntransport_url = inproc:///from-file\n")
        conf = cfg.ConfigOpts()
        conf([], default_config_files=[str(path)])
        rpc.make_transport(conf).cleanup()
        rpc.make_transport(conf).cleanup()

    # Letters and digits are left out: "rabbit" or "port" in the answer are no leak.
    @given(st.text(alphabet="é%/@:?#[],;!$&'()*+=~^|\\\"<>{} ", min_size=6))
    def test_no_raw_password_is_ever_shown(self, password: str) -> None:
        shown = transport.fault(f"rabbit://user:{password}@h:5672/") or ""
        assert password not in shown

    @given(st.text(min_size=1), st.text(min_size=1))
    def test_any_encoded_password_reaches_the_broker(
        self, user: str, password: str
    ) -> None:
        try:
            quoted = [parse.quote(text, safe="") for text in (user, password)]
        except UnicodeEncodeError:
            return  # lone surrogates are no text
        url = f"rabbit://{quoted[0]}:{quoted[1]}@[::1]:5673/v%2Fh"
        assert transport.fault(url) is None
        parsed = oslo_messaging.TransportURL.parse(rpc_lab.make_conf(None), url)
        unconnected = object.__new__(connection.Connection)
        built = unconnected._transform_transport_url(parsed, parsed.hosts[0])
        got = impl_rabbit.kombu.connection.Connection(built)
        assert (got.userid, got.password) == (user, password)
        assert (got.hostname, got.port) == ("::1", 5673)
        assert got.virtual_host == "v/h"


class Incoming:
    """A message as the driver gives it to the server; keeps the answers."""

    def __init__(self) -> None:
        self.message = {"method": "hold"}
        self.replies: list[Any] = []
        self.failures: list[Any] = []

    def reply(self, reply: Any = None, failure: Any = None) -> None:
        if failure is None:
            self.replies.append(reply)
        else:
            self.failures.append(failure[1])


def test_a_call_that_was_given_up_is_not_answered_again() -> None:
    incoming = Incoming()
    answering = rpc_server._Answering(incoming)
    answering.give_up("conductor.c1")
    answering.reply(reply="late")
    answering.give_up("conductor.c1")
    assert incoming.replies == []
    (error,) = incoming.failures
    assert isinstance(error, errors.Stopping)
    assert error.kwargs == {"server": "conductor.c1", "method": "hold"}


def test_a_call_that_was_answered_is_not_given_up() -> None:
    incoming = Incoming()
    answering = rpc_server._Answering(incoming)
    answering.reply(reply="in time")
    answering.give_up("conductor.c1")
    assert incoming.replies == ["in time"]
    assert incoming.failures == []
