"""Asking an agent: what is silence, and what only says that nobody was asked."""

import pytest

from compute_agent import rpcapi
from musterbook import context
from musterbook import errors
from tests import rpc_lab

CTXT = context.service_context()


def test_nobody_there_is_silence() -> None:
    with rpc_lab.lab("inproc:///silence") as lab:
        api = rpcapi.ComputeAPI(lab.transport(), 10)
        with pytest.raises(errors.AgentUnavailable, match="host web1") as caught:
            api.ping(CTXT, "web1")
    assert not isinstance(caught.value, errors.AgentNotAsked)


def test_without_a_broker_nobody_is_asked() -> None:
    with rpc_lab.lab("inproc:///closed") as lab:
        transport = lab.transport()
        api = rpcapi.ComputeAPI(transport, 10)
        transport.cleanup()
        with pytest.raises(errors.AgentNotAsked, match=r"host web1 .* broker"):
            api.ping(CTXT, "web1")
        with pytest.raises(errors.AgentNotAsked, match=r"host web1 .* broker"):
            api.rejoin(CTXT, "web1", 1)
