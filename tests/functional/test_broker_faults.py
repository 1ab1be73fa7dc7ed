"""RPC against a broker that hangs, is short of memory, refuses, or carries garbage."""

import collections
from collections.abc import Callable
from collections.abc import Iterator
from concurrent import futures
import itertools
import json
import logging
import pathlib
import shutil
import socket
import threading
import time
from typing import Any

from kombu import connection as kombu_connection
import pytest

from musterbook import context
from musterbook import errors
from musterbook import rpc
from tests import conftest
from tests import process
from tests import proxy as proxies
from tests import rpc_lab
from tests import servers
from tests import util
from tests.functional import lab as labs

CTXT = context.service_context()
LOST = "The message broker is lost"
BACK = "The message broker is back"
MIB = 2**20


@pytest.fixture(scope="module")
def broker() -> Iterator[servers.RabbitMQ]:
    """Give a broker of this module's own, whose largest message is 1 MiB."""
    folder = process.make_folder()
    made = servers.RabbitMQ(folder)
    try:
        with conftest.missing_server_skips():
            made.start()
        configure(made)
        yield made
    finally:
        made.close()
        shutil.rmtree(folder, ignore_errors=True)


def configure(broker: servers.RabbitMQ) -> None:
    """Set what a broker that was started anew doesn't remember."""
    for name, value in (("max_message_size", MIB), ("collect_statistics", "fine")):
        broker.control("eval", f"application:set_env(rabbit, {name}, {value}).")


_numbers = itertools.count()


@pytest.fixture
def vhost(broker: servers.RabbitMQ) -> str:
    return broker.lease(next(_numbers)).rpartition("/")[2]


@pytest.fixture
def lab(broker: servers.RabbitMQ, vhost: str) -> Iterator[rpc_lab.Lab]:
    with rpc_lab.lab(f"rabbit://guest:guest@127.0.0.1:{broker.port}/{vhost}") as made:
        yield made


def told(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records)


def seconds_until_refused(send: Any, *args: Any, **kwargs: Any) -> float:
    started = time.monotonic()
    with pytest.raises(errors.ConductorUnavailable):
        send(CTXT, *args, **kwargs)
    return time.monotonic() - started


def wait_answer(client: rpc.Client, seconds: float) -> float:
    """Return after how long a call was answered again."""
    started = time.monotonic()
    util.wait_until(lambda: is_answered(client), seconds, "an answer")
    return time.monotonic() - started


def is_answered(client: rpc.Client) -> bool:
    try:
        return bool(client.call(CTXT, "echo", value=1, timeout=5) == 1)
    except errors.ConductorUnavailable:
        return False


class TestHung:
    """A broker that neither answers nor goes away."""

    def test_calls_and_casts_end_in_time_and_come_back(
        self,
        broker: servers.RabbitMQ,
        lab: rpc_lab.Lab,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        lab.server()
        client = lab.client()
        assert client.call(CTXT, "echo", value=1) == 1
        broker.freeze()
        try:
            # By a connection that is there, by a new one, and for the first time.
            assert seconds_until_refused(client.call, "echo", value=2, timeout=2) < 4
            assert seconds_until_refused(client.call, "echo", value=3, timeout=2) < 4
            assert seconds_until_refused(client.cast, "echo", value=4) < 7
            other = lab.client()
            assert seconds_until_refused(other.call, "echo", value=5, timeout=2) < 4
            assert seconds_until_refused(other.cast, "echo", value=6) < 7
        finally:
            broker.thaw()
        assert wait_answer(client, 60) < 15
        assert wait_answer(other, 60) < 15
        util.wait_until(lambda: told(caplog, BACK) == told(caplog, LOST), 20)
        # One process with two transports: each tells once.
        assert 1 <= told(caplog, LOST) <= 2

    def test_many_callers_wait_no_longer_than_one(
        self, broker: servers.RabbitMQ, lab: rpc_lab.Lab
    ) -> None:
        lab.server()
        client = lab.client()
        assert client.call(CTXT, "echo", value=1) == 1
        took: list[float] = []

        def ask() -> None:
            took.append(seconds_until_refused(client.call, "echo", value=2, timeout=2))

        # More than there may be connections.
        threads = [threading.Thread(target=ask, name=f"ask-{i}") for i in range(40)]
        broker.freeze()
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            broker.thaw()
        assert len(took) == 40
        assert max(took) < 6
        assert wait_answer(client, 60) < 15


def test_a_link_that_was_forgotten(
    broker: servers.RabbitMQ, vhost: str, lab: rpc_lab.Lab
) -> None:
    # Nothing says so on the connection for answers; the next heartbeat that is missed
    # would, after two minutes.
    lab.server()
    link = proxies.Proxy(broker.port)
    try:
        conf = rpc_lab.make_conf(f"rabbit://guest:guest@127.0.0.1:{link.port}/{vhost}")
        conf.set_override("control_exchange", lab.topic)
        transport = rpc.make_transport(conf)
        client = lab.client(transport=transport)
        assert client.call(CTXT, "echo", value=1) == 1
        link.forget()
        started = time.monotonic()
        while not is_answered(client):
            assert time.monotonic() - started < 30
        transport.cleanup()
    finally:
        link.close()


class TestLostAnswer:
    """A call that is being answered when the broker is lost."""

    def hold(self, lab: rpc_lab.Lab) -> tuple[rpc_lab.Served, Any]:
        """Begin a call with the default time limit."""
        served, client = lab.server(), lab.client(timeout=60)
        assert client.call(CTXT, "echo", value=1) == 1
        pool = futures.ThreadPoolExecutor(1)
        calling = pool.submit(client.call, CTXT, "hold")
        pool.shutdown(wait=False)
        assert served.endpoint.entered.wait(rpc_lab.LIMIT)
        return served, calling

    def test_it_fails_soon_after_the_broker_is_back(
        self, broker: servers.RabbitMQ, lab: rpc_lab.Lab
    ) -> None:
        served, calling = self.hold(lab)
        broker.kill()
        broker.start()
        started = time.monotonic()
        with pytest.raises(errors.ConductorUnavailable) as caught:
            calling.result(60)
        # Up to 9 s until its queue is there again, 2 s for an answer on its way.
        assert time.monotonic() - started < 20
        # That nobody answered is not known.
        assert caught.value.kwargs["asked"] is False
        served.endpoint.go_on.set()
        configure(broker)  # for the tests that follow

    def test_its_answer_is_taken_if_it_can_be(
        self, broker: servers.RabbitMQ, lab: rpc_lab.Lab
    ) -> None:
        served, calling = self.hold(lab)
        # The queue lives on and keeps the answer.
        broker.control("close_all_user_connections", "guest", "a test")
        served.endpoint.go_on.set()
        assert calling.result(30) == "held"


class TestMemoryAlarm:
    def test_calls_fail_in_time_and_come_back(
        self,
        broker: servers.RabbitMQ,
        lab: rpc_lab.Lab,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        lab.server()
        client = lab.client()
        assert client.call(CTXT, "echo", value=1) == 1
        broker.control("set_vm_memory_high_watermark", "0.0000001")
        try:
            # The default of rpc_response_timeout: nobody waits that long for an alarm.
            assert seconds_until_refused(client.call, "echo", value=2, timeout=60) < 10
            for send in (client.call, client.cast):
                assert seconds_until_refused(send, "echo", value=3) < 10
            assert told(caplog, "lacks memory or disk") == 1
            assert told(caplog, BACK) == 0
        finally:
            broker.control("set_vm_memory_high_watermark", "0.4")
        assert wait_answer(client, 60) < 15
        assert told(caplog, LOST) == told(caplog, BACK)


class TestRefused:
    """What lets nobody in: it may be over one day, and is no reason to hurry."""

    def check(
        self,
        lab: rpc_lab.Lab,
        caplog: pytest.LogCaptureFixture,
        take_away: Any,
        give_back: Any,
        reason: str,
    ) -> None:
        caplog.set_level(logging.DEBUG)
        lab.server()
        client = lab.client()
        assert client.call(CTXT, "echo", value=1) == 1
        take_away()
        util.wait_until(lambda: told(caplog, LOST) >= 2, 30, "the begin")
        before, started = len(caplog.records), time.monotonic()
        assert seconds_until_refused(client.call, "echo", value=2, timeout=3) < 6
        time.sleep(max(0.0, started + 8 - time.monotonic()))
        # Two connections; each attempt is a handful of lines at DEBUG.
        assert len(caplog.records) - before < 200
        assert told(caplog, LOST) == 2  # of the server's transport and the client's
        give_back()
        assert wait_answer(client, 60) < 15
        util.wait_until(lambda: told(caplog, BACK) == 2, 15, "the end")
        assert told(caplog, LOST) == 2
        assert told(caplog, reason) >= 1 or reason == ""

    def test_virtual_host_deleted(
        self,
        broker: servers.RabbitMQ,
        lab: rpc_lab.Lab,
        vhost: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        def give_back() -> None:
            broker.control("add_vhost", vhost)
            broker.control("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")

        self.check(
            lab, caplog, lambda: broker.control("delete_vhost", vhost), give_back, ""
        )

    def test_password_changed(
        self,
        broker: servers.RabbitMQ,
        vhost: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        broker.control("add_user", "agent", "first")
        broker.control("set_permissions", "-p", vhost, "agent", ".*", ".*", ".*")

        def take_away() -> None:
            broker.control("change_password", "agent", "second")
            broker.control("close_all_user_connections", "agent", "changed")

        with rpc_lab.lab(
            f"rabbit://agent:first@127.0.0.1:{broker.port}/{vhost}"
        ) as lab:
            self.check(
                lab,
                caplog,
                take_away,
                lambda: broker.control("change_password", "agent", "first"),
                "",
            )


class TestRights:
    """A user who may log in, but not make each queue."""

    @pytest.fixture
    def limited(
        self, broker: servers.RabbitMQ, vhost: str
    ) -> Iterator[Callable[[str], str]]:
        """Give a function that lets a user make queues of these names; its URL."""
        broker.control("add_user", "limited", "CANARY")

        def allow(configure: str) -> str:
            rights = (configure, ".*", ".*")
            broker.control("set_permissions", "-p", vhost, "limited", *rights)
            return f"rabbit://limited:CANARY@127.0.0.1:{broker.port}/{vhost}"

        yield allow
        broker.control("delete_user", "limited")

    def test_no_queue_of_answers(self, limited: Callable[[str], str]) -> None:
        conf = rpc_lab.make_conf(limited("^$"))
        with pytest.raises(errors.ConfigurationError) as caught:
            rpc.wait_for_broker(conf, threading.Event())
        assert caught.value.option == "transport_url"
        assert "refuses this user a right on the virtual host" in caught.value.message
        assert "CANARY" not in caught.value.message

    def test_no_queue_of_the_server(self, limited: Callable[[str], str]) -> None:
        conf = rpc_lab.make_conf(limited("^reply_.*"))
        assert rpc.wait_for_broker(conf, threading.Event())
        transport = rpc.make_transport(conf)
        server = rpc.Server(
            transport, "topic", "s1", [rpc_lab.Endpoint()], rpc.ContextSerializer()
        )
        with pytest.raises(errors.ConfigurationError) as caught:
            server.start()
        assert "refuses this user a right on the virtual host" in caught.value.message
        server.stop()
        server.wait()
        transport.cleanup()

    def test_a_conductor_that_may_not_serve_ends(
        self, limited: Callable[[str], str], tmp_path: pathlib.Path
    ) -> None:
        group, database = f"file://{tmp_path}/g", f"sqlite:///{tmp_path}/a.sqlite"
        made = labs.Lab(tmp_path, limited("^reply_.*"), group, database)
        with labs.opened(made):
            made.sync()
            run = made.start_conductor("c1")
            assert run.wait(60) == 2
            last = run.errors().splitlines()[-1]
            assert "transport_url" in last
            assert "refuses this user a right on the virtual host" in last
            assert "Traceback" not in run.errors()
            assert "CANARY" not in run.errors()


def test_a_server_that_waits_for_the_broker_can_be_stopped() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # refuses connections
        port = held.getsockname()[1]
        transport = rpc.make_transport(
            rpc_lab.make_conf(f"rabbit://u:p@127.0.0.1:{port}")
        )
        server = rpc.Server(
            transport, "topic", "s1", [rpc_lab.Endpoint()], rpc.ContextSerializer()
        )
        starter = threading.Thread(target=server.start, name="test-start", daemon=True)
        starter.start()
        starter.join(1)
        assert starter.is_alive()
        stopper = threading.Thread(target=server.stop, name="test-stop", daemon=True)
        stopper.start()
        starter.join(10)
        stopper.join(10)
        assert not starter.is_alive()
        assert not stopper.is_alive()
        server.wait()
        transport.cleanup()


class TestTooLarge:
    def test_our_limit(self, broker: servers.RabbitMQ, vhost: str) -> None:
        url = f"rabbit://guest:guest@127.0.0.1:{broker.port}/{vhost}"
        with rpc_lab.lab(url, rpc_message_limit=MIB // 2) as lab:
            lab.server()
            self.check(lab.client(), MIB // 2)

    def test_the_broker_s_limit(self, lab: rpc_lab.Lab) -> None:
        lab.server()
        self.check(lab.client(), MIB)

    def check(self, client: rpc.Client, limit: int) -> None:
        assert client.call(CTXT, "echo", value=1) == 1
        for method, args in (
            ("echo", {"value": "x" * 2 * MIB}),
            ("give", {"size": 2 * MIB}),
        ):
            started = time.monotonic()
            with pytest.raises(errors.MessageTooLarge, match="size") as caught:
                client.call(CTXT, method, **args)
            assert time.monotonic() - started < 5
            assert caught.value.limit == limit
            assert caught.value.size > 2 * MIB
            started = time.monotonic()
            assert client.call(CTXT, "echo", value=2) == 2
            assert time.monotonic() - started < 1
        with pytest.raises(errors.MessageTooLarge):
            client.cast(CTXT, "echo", value="x" * 2 * MIB)
        assert client.call(CTXT, "echo", value=3) == 3

    def test_nothing_is_delivered_again(
        self,
        broker: servers.RabbitMQ,
        vhost: str,
        lab: rpc_lab.Lab,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        self.watch(broker, vhost, lab, 5)
        assert told(caplog, LOST) == 0

    @pytest.mark.slow
    def test_nothing_is_delivered_again_for_long(
        self, broker: servers.RabbitMQ, vhost: str, lab: rpc_lab.Lab
    ) -> None:
        self.watch(broker, vhost, lab, 60)

    def watch(
        self, broker: servers.RabbitMQ, vhost: str, lab: rpc_lab.Lab, seconds: float
    ) -> None:
        """Look for so long that what was too large doesn't go round and round."""
        served = lab.server()
        client = lab.client()
        self.check(client, MIB)
        util.wait_until(lambda: in_queues(broker, vhost) == {("0", "0")})
        before, end = redelivered(broker, vhost), time.monotonic() + seconds
        while True:
            seen = len(served.endpoint.seen)
            assert client.call(CTXT, "echo", value="small") == "small"
            assert len(served.endpoint.seen) == seen + 1
            assert redelivered(broker, vhost) == before
            util.wait_until(lambda: in_queues(broker, vhost) == {("0", "0")})
            if time.monotonic() > end:
                return


def in_queues(broker: servers.RabbitMQ, vhost: str) -> set[tuple[str, ...]]:
    """Return what messages each queue has: all, and those given out."""
    columns = ("messages", "messages_unacknowledged", "name")
    return {tuple(counts) for *counts, _ in broker.queues(vhost, *columns)}


def redelivered(broker: servers.RabbitMQ, vhost: str) -> int:
    """Return how many messages were given out again, by any open channel."""
    mine = f'element(2, element(2, element(1, R))) =:= <<"{vhost}">>'
    rows = f"R <- ets:tab2list(channel_queue_metrics), {mine}"
    return int(broker.control("eval", f"lists:sum([element(6, R) || {rows}])."))


def test_what_is_delivered_again_is_counted(
    broker: servers.RabbitMQ, vhost: str
) -> None:
    # Else the test above could not fail.
    url = f"amqp://guest:guest@127.0.0.1:{broker.port}/{vhost}"
    with kombu_connection.Connection(url) as connection:  # type: ignore[no-untyped-call]
        channel = connection.channel()

        def reject(message: Any) -> None:
            channel.basic_reject(message.delivery_tag, requeue=message.delivery_tag < 4)

        channel.queue_declare("again", auto_delete=True)
        channel.basic_consume("again", callback=reject)
        channel.basic_publish(channel.prepare_message(b"x"), "", "again")
        for _ in range(4):
            connection.drain_events(timeout=rpc_lab.LIMIT)
        util.wait_until(lambda: redelivered(broker, vhost) == 3)


#: Bodies that can't be taken for a message: each is told, once. No two have one length.
UNREADABLE: list[tuple[bytes, dict[str, Any]]] = [
    (b"\xff\xfe no text", {"content_type": "application/json"}),
    (b"{", {"content_type": "application/json"}),
    (b"hello", {"content_type": "text/plain", "content_encoding": "utf-8"}),
    (
        b"cos\nsystem\n(S'exit 1'\ntR.",
        {"content_type": "application/x-python-serialize"},
    ),
    (b"!!python/object/apply:os.abort []", {"content_type": "application/x-yaml"}),
    (b"\x00" * 1000, {"content_type": "application/nothing"}),
]
#: What can be read and isn't a request that can be served: told once at most.
SENSELESS: list[Any] = [
    None,
    5,
    "text",
    [],
    [1, 2],
    {},
    {"a": 1},
    {"method": 5},
    {"method": ["ping"], "args": {}},
    {"method": "echo"},
    {"method": "echo", "args": 5},
    {"method": "echo", "args": {}, "version": 7},
    {"method": "echo", "args": {"value": 1}, "version": "x.y"},
    {"method": "echo", "args": {"value": 1}, "namespace": {"a": 1}},
    {"method": "echo", "_context_roles": 7, "args": {"value": 1}},
    {"method": "echo", "_msg_id": 5, "_reply_q": 7, "args": {"value": 1}},
    {"method": "echo", "_msg_id": "5", "_reply_q": "q" * 300, "args": {}},
    {"method": "echo", "_msg_id": "5", "_timeout": "x", "_reply_q": "q"},
    {"method": "echo", "_unique_id": {"a": 1}, "args": {"value": 1}},
    {"oslo.version": "2.0", "oslo.message": "{"},
    {"oslo.version": "2.0", "oslo.message": 5},
    {"oslo.version": "99.0", "oslo.message": "{}"},
    {"oslo.version": None, "oslo.message": "{}"},
    {"oslo.version": "2.0", "oslo.message": "[[]]"},
    {"oslo.version": "2.0", "oslo.message": "null"},
]
JSON = {"content_type": "application/json"}
#: Spaces behind JSON mean nothing, and make each body's length its own.
GARBAGE: list[tuple[bytes, dict[str, Any]]] = [
    *UNREADABLE,
    (b"", {}),
    *(
        (json.dumps(body).encode().ljust(2000 + number), JSON)
        for number, body in enumerate(SENSELESS)
    ),
]


class TestGarbage:
    def test_the_server_lives_on(
        self,
        broker: servers.RabbitMQ,
        vhost: str,
        lab: rpc_lab.Lab,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        served = lab.server()
        client = lab.client()
        assert client.call(CTXT, "echo", value=1) == 1
        url = f"amqp://guest:guest@127.0.0.1:{broker.port}/{vhost}"
        with kombu_connection.Connection(url) as connection:  # type: ignore[no-untyped-call]
            channel = connection.channel()
            for body, properties in GARBAGE:
                message = channel.prepare_message(
                    body, **{"content_encoding": "utf-8"} | properties
                )
                channel.basic_publish(message, exchange="", routing_key=lab.topic)
                # It is behind the garbage in the queue.
                assert client.call(CTXT, "echo", value=2) == 2, body
        # A record may come later than the next call's answer, but not later than what
        # it is of is done with.
        util.wait_until(lambda: in_queues(broker, vhost) == {("0", "0")})
        served.stop()
        said = [r for r in caplog.records if r.levelno >= logging.WARNING]
        assert not any(r.exc_info for r in said)
        assert told(caplog, LOST) == 0
        sizes = collections.Counter(
            r.args[0]
            for r in said
            if isinstance(r.args, tuple) and "can't be read" in str(r.msg)
        )
        assert set(sizes) <= {len(body) for body, _ in GARBAGE}
        assert set(sizes.values()) == {1}, sizes
        assert set(sizes) >= {len(body) for body, _ in UNREADABLE}
        assert len(said) <= len(GARBAGE)


def test_a_request_that_comes_twice_is_run_once(
    broker: servers.RabbitMQ,
    vhost: str,
    lab: rpc_lab.Lab,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # As after an outage: the broker never got the word that we had it.
    caplog.set_level(logging.INFO)
    served = lab.server()
    url = f"amqp://guest:guest@127.0.0.1:{broker.port}/{vhost}"
    body = {"method": "echo", "args": {"value": "twice"}, "_unique_id": "1" * 32}
    with kombu_connection.Connection(url) as connection:  # type: ignore[no-untyped-call]
        channel = connection.channel()
        for _ in range(2):
            message = channel.prepare_message(
                json.dumps(body).encode(),
                content_type="application/json",
                content_encoding="utf-8",
            )
            channel.basic_publish(message, exchange="", routing_key=lab.topic)
    client = lab.client()
    assert client.call(CTXT, "echo", value="last") == "last"
    util.wait_until(lambda: sorted(served.endpoint.seen) == ["last", "twice"])
    assert told(caplog, "came twice") == 1
    assert not [r for r in caplog.records if r.exc_info or r.levelno > logging.INFO]


class TestGoneCaller:
    def test_its_answers_hold_up_nobody(
        self,
        broker: servers.RabbitMQ,
        vhost: str,
        lab: rpc_lab.Lab,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        served = lab.server()
        client = lab.client()
        url = f"amqp://guest:guest@127.0.0.1:{broker.port}/{vhost}"
        with kombu_connection.Connection(url) as connection:  # type: ignore[no-untyped-call]
            channel = connection.channel()
            for number in range(70):
                body = {
                    "method": "echo",
                    "args": {"value": f"gone-{number}"},
                    "version": "1.0",
                    "_msg_id": str(number),
                    "_reply_q": "reply_gone",
                    "_context_is_admin": True,
                }
                message = channel.prepare_message(
                    json.dumps(body).encode(),
                    content_type="application/json",
                    content_encoding="utf-8",
                )
                channel.basic_publish(message, exchange="", routing_key=lab.topic)
            started = time.monotonic()
            assert client.call(CTXT, "echo", value=1) == 1
            assert time.monotonic() - started < 5
        util.wait_until(lambda: len(served.endpoint.seen) == 71)
        util.wait_until(lambda: told(caplog, "is gone") == 1)
        for value in range(20):
            assert client.call(CTXT, "echo", value=value) == value
        assert told(caplog, "is gone") == 1

    def test_an_answer_that_comes_back_finds_its_queue_again(
        self, broker: servers.RabbitMQ, vhost: str, lab: rpc_lab.Lab
    ) -> None:
        # The original's cache drops for a minute whatever is for a lost queue.
        served = lab.server()
        client = lab.client(timeout=5)
        assert client.call(CTXT, "echo", value=1) == 1
        [queue] = [
            name for [name] in broker.queues(vhost, "name") if name.startswith("reply_")
        ]
        caller = threading.Thread(
            target=seconds_until_refused, args=(client.call, "hold"), name="caller"
        )
        caller.start()
        assert served.endpoint.entered.wait(rpc_lab.LIMIT)
        broker.control("delete_queue", "-p", vhost, queue)
        served.endpoint.go_on.set()
        assert wait_answer(client, 60) < 15
        caller.join()


def test_a_returned_message_s_confirmation_is_not_the_next_one_s(
    lab: rpc_lab.Lab,
) -> None:
    # The original stops waiting at the return; the confirmation that follows ends the
    # next message's waiting, and that one's return is lost.
    lab.server("one")
    client = lab.client(timeout=10)
    assert client.call(CTXT, "echo", value=1) == 1
    for _ in range(20):
        started = time.monotonic()
        with pytest.raises(errors.ConductorUnavailable) as caught:
            client.call(CTXT, "echo", server="nobody", value=1)
        assert caught.value.kwargs["asked"] is True
        assert time.monotonic() - started < 3
        assert client.call(CTXT, "echo", server="one", value=2) == 2


def test_a_call_that_nobody_waits_for_is_not_run(
    broker: servers.RabbitMQ, vhost: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"rabbit://guest:guest@127.0.0.1:{broker.port}/{vhost}"
    with rpc_lab.lab(url, executor_thread_pool_size=1) as lab:
        served = lab.server()
        client = lab.client(timeout=1)
        caller = threading.Thread(
            target=lambda: client.call(CTXT, "hold", timeout=30), name="caller"
        )
        caller.start()
        assert served.endpoint.entered.wait(rpc_lab.LIMIT)
        for value in range(3):
            assert seconds_until_refused(client.call, "echo", value=value) < 4
        client.cast(CTXT, "echo", value="cast")
        served.endpoint.go_on.set()
        caller.join()
        assert client.call(CTXT, "echo", value="later", timeout=10) == "later"
        assert served.endpoint.seen == ["cast", "later"]
    assert told(caplog, "can't keep up") == 1
    assert told(caplog, "keeps up again; 3 calls") == 1
