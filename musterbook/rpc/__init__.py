"""RPC: what all rooms use to talk, over RabbitMQ or within one process.

A room that offers methods marks them ``@exposed`` and runs a Server; a room that
calls them does so through the other's ``rpcapi.py``, which holds a Client. Errors of
ours (musterbook.errors) cross as their own class with their facts; whatever else
happens on either side becomes an error of ours too, without a traceback.
"""

from musterbook.rpc.client import Client
from musterbook.rpc.pin import Pin
from musterbook.rpc.reach import wait_for_broker
from musterbook.rpc.serializer import ContextSerializer
from musterbook.rpc.server import AnyServer
from musterbook.rpc.server import exposed
from musterbook.rpc.server import Server
from musterbook.rpc.shared import SharedServer
from musterbook.rpc.transport import check
from musterbook.rpc.transport import is_inproc
from musterbook.rpc.transport import list_opts
from musterbook.rpc.transport import make_transport
from musterbook.rpc.transport import OPTS
from musterbook.rpc.transport import register_options
from musterbook.rpc.transport import Transport

__all__ = [
    "OPTS",
    "AnyServer",
    "Client",
    "ContextSerializer",
    "Pin",
    "Server",
    "SharedServer",
    "Transport",
    "check",
    "exposed",
    "is_inproc",
    "list_opts",
    "make_transport",
    "register_options",
    "wait_for_broker",
]
