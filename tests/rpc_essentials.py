"""What RPC must do over any transport; each transport's test subclasses this."""

from collections.abc import Iterator
import functools
import logging
import threading
import time
from typing import Any

import oslo_messaging
import pytest

from musterbook import context
from musterbook import errors
from tests import rpc_lab
from tests import util

CTXT = context.service_context(context.Grant("node-a", 7, "s3cret"))

FOREIGN = [
    pytest.param(lambda: ValueError("SELECT secret"), "ValueError", id="builtin"),
    pytest.param(rpc_lab.HoldsSocket, "HoldsSocket", id="socket"),
    pytest.param(lambda: SystemExit(3), "SystemExit", id="exit"),
    pytest.param(lambda: KeyboardInterrupt(), "KeyboardInterrupt", id="interrupt"),
    pytest.param(rpc_lab.Unprintable, "Unprintable", id="unprintable"),
    pytest.param(
        lambda: oslo_messaging.MessagingTimeout("nested"),
        "MessagingTimeout",
        id="nested-timeout",
    ),
    pytest.param(lambda: RuntimeError("x" * 2**20), "RuntimeError", id="1MB"),
    pytest.param(rpc_lab.sql_error, "IntegrityError", id="sql"),
]

HOSTILE = [
    "",
    "__init__",
    "__class__",
    "_private",
    "mro",
    "not_exposed",
    "secret",
    "target",
    "name",
    "seen",
    "echo ",
    "e\u0441ho",
    "écho",
    "a" * 10_000,
    "echo.__call__",
    "oslo_rpc_server_ping",
]


class RpcEssentials:
    """Subclasses give the fixture ``url``."""

    # How often a server is stopped under load.
    stops = 10

    @pytest.fixture
    def lab(self, url: str) -> Iterator[rpc_lab.Lab]:
        with rpc_lab.lab(url) as made:
            yield made

    def test_result_and_context_cross(self, lab: rpc_lab.Lab) -> None:
        lab.server()
        client = lab.client()
        value = {"a": [1, 2.5, None, "é"], "b": {"c": True}}
        assert client.call(CTXT, "echo", value=value) == value
        assert client.call(CTXT, "show_context") == CTXT.to_dict()

    def test_our_error_crosses_as_itself(self, lab: rpc_lab.Lab) -> None:
        served = lab.server()
        served.endpoint.raises = errors.HostTaken(host="a", process_uuid="u")
        with pytest.raises(errors.HostTaken) as caught:
            lab.client().call(CTXT, "fail")
        assert type(caught.value) is errors.HostTaken
        assert (caught.value.host, caught.value.process_uuid) == ("a", "u")
        assert caught.value.kwargs == {"host": "a", "process_uuid": "u"}
        assert str(caught.value) == str(served.endpoint.raises)
        assert caught.value.__cause__ is caught.value.__context__ is None

    def test_error_only_the_server_knows_becomes_its_base(
        self, lab: rpc_lab.Lab
    ) -> None:
        served = lab.server()
        served.endpoint.raises = rpc_lab.LocalName(host="a", process_uuid="u")
        with pytest.raises(errors.HostTaken) as caught:
            lab.client().call(CTXT, "fail")
        assert type(caught.value) is errors.HostTaken

    def test_fact_that_is_no_json_is_left_out(self, lab: rpc_lab.Lab) -> None:
        served = lab.server()
        served.endpoint.raises = errors.HostTaken("taken", host="a", extra=object())
        with pytest.raises(errors.HostTaken, match=r"^taken$") as caught:
            lab.client().call(CTXT, "fail")
        assert caught.value.kwargs == {"host": "a"}

    @pytest.mark.parametrize(("make", "name"), FOREIGN)
    def test_any_other_failure_arrives_at_once(
        self,
        lab: rpc_lab.Lab,
        caplog: pytest.LogCaptureFixture,
        make: Any,
        name: str,
    ) -> None:
        served = lab.server()
        client = lab.client()
        served.endpoint.raises = make()
        started = time.monotonic()
        with pytest.raises(errors.RemoteFailure) as caught:
            client.call(CTXT, "fail")
        assert time.monotonic() - started < 5
        assert caught.value.class_name == name
        for leak in ("SELECT", "SQL", "CANARY", "Traceback", "rpc_lab", "xxx"):
            assert leak not in str(caught.value)
        assert client.call(CTXT, "echo", value=1) == 1
        logged = [r for r in caplog.records if r.levelno >= logging.ERROR]
        assert len(logged) == 1
        text = logged[0].getMessage()
        assert "rpc_lab.py" in text
        assert name in text
        assert "[SQL" not in text
        assert "CANARY" not in text
        assert len(text) < 10_000

    def test_expected_error_is_not_logged(
        self, lab: rpc_lab.Lab, caplog: pytest.LogCaptureFixture
    ) -> None:
        served = lab.server()
        served.endpoint.raises = errors.NotFound("nothing")
        with pytest.raises(errors.NotFound):
            lab.client().call(CTXT, "fail")
        assert not [r for r in caplog.records if r.levelno >= logging.WARNING]

    @pytest.mark.parametrize("name", HOSTILE)
    def test_only_exposed_methods_can_be_called(
        self, lab: rpc_lab.Lab, name: str
    ) -> None:
        served = lab.server()
        with pytest.raises(errors.MethodNotRemotable) as caught:
            lab.client().call(CTXT, name)
        assert len(str(caught.value)) < 200
        assert not served.endpoint.touched

    @pytest.mark.parametrize("version", ["1.4", "2.0", "0.9"])
    def test_other_version_is_refused(self, lab: rpc_lab.Lab, version: str) -> None:
        lab.server()
        with pytest.raises(errors.UnsupportedObject, match=version):
            lab.client(version).call(CTXT, "echo", value=1)

    def test_wrong_arguments_are_refused(self, lab: rpc_lab.Lab) -> None:
        lab.server()
        with pytest.raises(errors.InvalidInput, match="arguments of echo"):
            lab.client().call(CTXT, "echo", wrong=1)

    def test_what_is_no_json_cannot_be_sent(self, lab: rpc_lab.Lab) -> None:
        lab.server()
        client = lab.client()
        with pytest.raises(errors.InvalidInput, match="echo"):
            client.call(CTXT, "echo", value=object())
        with pytest.raises(errors.InvalidInput, match="echo"):
            client.cast(CTXT, "echo", value=object())
        started = time.monotonic()
        with pytest.raises(errors.RemoteFailure):
            client.call(CTXT, "give_socket")
        assert time.monotonic() - started < 5

    def test_missing_server_is_told_at_once(self, lab: rpc_lab.Lab) -> None:
        lab.server()
        started = time.monotonic()
        with pytest.raises(errors.ConductorUnavailable) as caught:
            lab.client(timeout=30).call(CTXT, "echo", server="two", value=1)
        assert time.monotonic() - started < 5
        assert caught.value.kwargs["method"] == "echo"
        assert caught.value.kwargs["asked"] is True  # the broker knows of nobody

    def test_slow_method_ends_in_unavailable(self, lab: rpc_lab.Lab) -> None:
        served = lab.server()
        client = lab.client(timeout=30)
        with pytest.raises(errors.ConductorUnavailable) as caught:
            client.call(CTXT, "hold", timeout=0.3)
        facts = {"method": "hold", "seconds": 0.3, "asked": True}
        assert caught.value.kwargs == facts
        served.endpoint.go_on.set()
        assert client.call(CTXT, "echo", value=1) == 1

    def test_cast_to_any_to_one_to_all(self, lab: rpc_lab.Lab) -> None:
        one, two = lab.server("one").endpoint, lab.server("two").endpoint
        client = lab.client()
        client.cast(CTXT, "echo", value="any")
        util.wait_until(lambda: [*one.seen, *two.seen] == ["any"])
        client.cast(CTXT, "echo", server="two", value="two")
        util.wait_until(lambda: "two" in two.seen)
        client.cast(CTXT, "echo", fanout=True, value="all")
        util.wait_until(lambda: "all" in one.seen and "all" in two.seen)
        assert "two" not in one.seen
        client.cast(CTXT, "echo", server="nobody", value="lost")

    def test_call_of_one_server(self, lab: rpc_lab.Lab) -> None:
        lab.server("one")
        lab.server("two")
        client = lab.client()
        assert {client.call(CTXT, "who", server="two") for _ in range(6)} == {"two"}
        assert {client.call(CTXT, "who") for _ in range(20)} == {"one", "two"}

    def test_after_cleanup_a_call_fails_at_once(self, lab: rpc_lab.Lab) -> None:
        lab.server()
        transport = lab.transport()
        client = lab.client(transport=transport, timeout=30)
        assert client.call(CTXT, "echo", value=1) == 1
        transport.cleanup()
        for send in (client.call, client.cast):
            started = time.monotonic()
            with pytest.raises(errors.ConductorUnavailable) as caught:
                send(CTXT, "echo", value=1)
            assert time.monotonic() - started < 5
            assert caught.value.kwargs["asked"] is False

    def test_call_in_hand_is_answered_after_stop(self, lab: rpc_lab.Lab) -> None:
        served = lab.server()
        client = lab.client()
        answers: list[Any] = []
        caller = threading.Thread(
            target=lambda: answers.append(client.call(CTXT, "hold")), name="caller"
        )
        caller.start()
        assert served.endpoint.entered.wait(rpc_lab.LIMIT)
        served.server.stop()
        served.endpoint.go_on.set()
        served.server.wait()
        caller.join()
        assert answers == ["held"]

    def test_calls_in_hand_of_a_stopped_server_hold_up_nobody(
        self, lab: rpc_lab.Lab
    ) -> None:
        one = lab.server("one")
        client = lab.client(timeout=rpc_lab.LIMIT)
        caller = threading.Thread(
            target=client.call, args=(CTXT, "hold"), name="caller"
        )
        caller.start()
        assert one.endpoint.entered.wait(rpc_lab.LIMIT)
        lab.server("two")
        one.server.stop()
        started = time.monotonic()
        assert {client.call(CTXT, "who") for _ in range(20)} == {"two"}
        assert time.monotonic() - started < 5
        one.endpoint.go_on.set()
        caller.join()

    def test_calls_that_a_stopped_server_abandons_get_an_error(
        self, lab: rpc_lab.Lab
    ) -> None:
        served = lab.server("one")
        client = lab.client(timeout=rpc_lab.LIMIT)
        raised: list[errors.ConductorUnavailable] = []

        def call() -> None:
            with pytest.raises(errors.ConductorUnavailable) as caught:
                client.call(CTXT, "hold")
            raised.append(caught.value)

        callers = [threading.Thread(target=call, name=f"caller-{i}") for i in range(3)]
        for caller in callers:
            caller.start()
        util.wait_until(lambda: served.endpoint.holding == 3)
        served.server.stop()
        served.server.abandon()
        for caller in callers:
            caller.join()
        assert {error.message for error in raised} == {
            f"{lab.topic}.one stopped before it had finished hold, ask again"
        }
        assert {error.kwargs["asked"] for error in raised} == {True}
        assert all(float(str(e.kwargs["seconds"])) < rpc_lab.LIMIT / 2 for e in raised)
        served.endpoint.go_on.set()
        served.server.wait()

    def test_stop_under_calls_loses_none(self, lab: rpc_lab.Lab) -> None:
        lab.server("one")
        with rpc_lab.Callers(lab.client(timeout=15), 8) as callers:
            for _ in range(self.stops):
                two = lab.server("two")
                seen = two.endpoint.seen
                util.wait_until(functools.partial(rpc_lab.longer, seen, 20))
                two.stop()
        assert not callers.failures
        assert callers.answers > 20 * self.stops
