"""The store port, implemented: what conductor/main.py binds."""

import sqlalchemy as sa

from conductor.db import node_writer
from conductor.db import nodes
from conductor.db import services
from objects import store


class DatabaseStore(
    nodes.NodeReader, node_writer.NodeWriter, services.ServiceStore, store.Store
):
    """Records of compute nodes and services in a database.

    Any thread may call any method; each call is one transaction of its own.
    """

    def __init__(self, engine: sa.Engine) -> None:
        super().__init__(engine)
