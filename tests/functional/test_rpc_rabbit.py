"""RPC over a real RabbitMQ, and what happens without one."""

import socket
import time
from typing import Any

import oslo_messaging
import pytest

from musterbook import context
from musterbook import errors
from musterbook import rpc
from musterbook.rpc import readahead
from tests import rpc_essentials
from tests import rpc_lab

CTXT = context.service_context()


class TestRabbit(rpc_essentials.RpcEssentials):
    stops = 5

    @pytest.fixture
    def url(self, rabbit_url: str) -> str:
        return rabbit_url

    def test_idle_servers_stop_soon(self, lab: rpc_lab.Lab) -> None:
        servers = [lab.server(f"s{number}") for number in range(4)]
        time.sleep(6)  # idle for long enough that the original's poll backs off
        started = time.monotonic()
        for served in servers:
            served.stop()
        # At most 0.5 s each; the original took up to 5 s each.
        assert time.monotonic() - started < 5

    def test_connections_read_ahead(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        transports = []
        enable = readahead.enable

        def note(connection: Any) -> None:
            enable(connection)
            transports.append(connection.transport)

        monkeypatch.setattr(readahead, "enable", note)
        with rpc_lab.lab(url) as lab:
            lab.server("s")
            assert lab.client().call(CTXT, "echo", value=1) == 1
            # The server's, its answers', the caller's, and the one for its answers.
            assert len({id(made) for made in transports}) >= 3
            assert all(made._quick_recv.reads_ahead for made in transports)

    def test_wrong_password_is_told_and_not_shown(
        self, url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("DEBUG")
        parsed = oslo_messaging.TransportURL.parse(rpc_lab.make_conf(None), url)
        for host in parsed.hosts:
            host.password = "CANARY/@%"
        with rpc_lab.lab(str(parsed)) as lab:
            started = time.monotonic()
            with pytest.raises(errors.ConductorUnavailable) as caught:
                lab.client().call(CTXT, "echo", value=1)
            assert time.monotonic() - started < 10
        assert "CANARY" not in str(caught.value)
        assert "CANARY" not in caplog.text


class TestNoBroker:
    @pytest.mark.parametrize("kind", ["call", "cast"])
    def test_is_told_soon(self, kind: str) -> None:
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))  # bound, not listening: refused
            port = held.getsockname()[1]
            with rpc_lab.lab(f"rabbit://u:CANARY@127.0.0.1:{port}/") as lab:
                client: rpc.Client = lab.client(timeout=30)
                started = time.monotonic()
                with pytest.raises(errors.ConductorUnavailable) as caught:
                    getattr(client, kind)(CTXT, "echo", value=1)
                assert time.monotonic() - started < 10
        assert caught.value.kwargs["asked"] is False
        assert "CANARY" not in str(caught.value)
