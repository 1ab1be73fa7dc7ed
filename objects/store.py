"""The store port: what remotable methods need from whoever keeps the records.

conductor/db implements it; conductor/main.py (and the standalone command) bind it
once per process, before the first call is served. Rows are plain mappings from
column name to Python value: ``deleted`` is a bool, instants are aware UTC, ``stats``,
``custom_resources`` and ``labels`` are dicts or None, ``usage_confirmed`` is a bool,
and columns that an object doesn't know are ignored by it. Rows of Juno's shape come
with ``host`` derived from their service.

A ``grant`` is the caller's, if it is an agent: writing is refused if it isn't the
current one of its host (Superseded), and for nodes of another host than that
(InvalidInput, as the agent may well be the granted one). It is checked in the
transaction that writes.

All methods may be called from any thread. They raise DatabaseUnavailable and
DatabaseBusy (after their own retries) besides the errors named.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Protocol

from musterbook.context import Grant

Row = Mapping[str, Any]


class Store(Protocol):
    """Records of compute nodes and services."""

    def compute_node_get(
        self,
        *,
        id: int | None = None,  # noqa: A002  # the column's name
        uuid: str | None = None,
    ) -> Row:
        """Return the live node with this id or uuid; ComputeNodeNotFound."""

    def compute_node_get_by_host_and_nodename(self, host: str, nodename: str) -> Row:
        """Return the live node of this identity; ComputeNodeNotFound."""

    def compute_node_create(
        self, values: Row, grant: Grant | None = None, *, writes_usage: bool = False
    ) -> Row:
        """Insert a node and return its whole row.

        A soft-deleted node of the same uuid or identity comes back under its id and
        uuid, with its allocations.

        :param writes_usage: the caller, of version 1.0, may set used amounts
        :raises ComputeNodeExists: a live one, be it of Juno's shape, has the identity
        :raises InvalidInput, Superseded:
        """

    def compute_node_update(
        self,
        node_id: int,
        values: Row,
        inventory_generation: int | None,
        grant: Grant | None = None,
        *,
        writes_usage: bool = False,
    ) -> Row:
        """Change a live node and return the columns that the store itself set.

        :param values: column to new value, the uuid not among them; usage follows
            reserved amounts, free amounts follow both
        :param inventory_generation: change only if this is the stored one
        :param writes_usage: the caller, of version 1.0, may set used amounts
        :raises ComputeNodeNotFound, InventoryChanged, ComputeNodeExists:
        :raises ComputeNodeMoved, InvalidInput, Superseded:
        """

    def compute_node_confirm_usage(
        self, node_id: int, used: Mapping[str, int], grant: Grant | None = None
    ) -> Row:
        """Make it the usage that nobody claimed, if that isn't confirmed yet.

        :param used: vcpus, memory_mb and local_gb, all of them
        :return: the columns that the store set
        :raises ComputeNodeNotFound, ComputeNodeMoved, ComputeNodeExists:
        :raises InvalidInput, Superseded:
        """

    def compute_node_destroy(
        self,
        node_id: int,
        host: str | None,
        grant: Grant | None = None,
        *,
        force: bool = False,
    ) -> None:
        """Soft-delete a live node, if host is given only while it's that host's.

        :param force: also one that is in use
        :raises ComputeNodeNotFound, ComputeNodeInUse, ComputeNodeMoved:
        :raises InvalidInput, Superseded:
        """

    def compute_nodes(self, *, with_service: bool = False) -> list[Row]:
        """Return all live nodes by id.

        :param with_service: add ``service``: what read_service makes the row of the
            host's compute service of, or None if it has none
        """

    def read_service(self, service: Any) -> Row:
        """Return the row of the service that a node of compute_nodes came with."""

    def compute_nodes_by_host(self, host: str) -> list[Row]:
        """Return the live nodes of a host by id."""

    def compute_nodes_by_hypervisor(self, pattern: str) -> list[Row]:
        """Return the live nodes whose name contains the pattern literally."""

    def compute_nodes_page(self, limit: int | None, marker: int | None) -> list[Row]:
        """Return up to limit live nodes with an id above the marker's, by id.

        :raises MarkerNotFound: no live node has the id ``marker``
        """

    def compute_nodes_by_uuids(self, uuids: Sequence[str]) -> list[Row]:
        """Return the live nodes among these uuids by id."""

    def service_get(
        self,
        *,
        id: int | None = None,  # noqa: A002  # the column's name
        uuid: str | None = None,
    ) -> Row:
        """Return the live service with this id or uuid; ServiceNotFound."""

    def service_get_by_host_and_binary(self, host: str, binary: str) -> Row:
        """Return the live service of this host and binary; ServiceNotFound."""

    def service_create(self, values: Row) -> Row:
        """Insert a service and return its whole row; ServiceExists."""

    def service_update(self, service_id: int, values: Row) -> Row:
        """Change a live service, return the columns the store itself set.

        :raises ServiceNotFound, ServiceExists:
        :raises InvalidInput: a value doesn't fit, or the uuid is among them
        """

    def service_destroy(self, service_id: int) -> None:
        """Soft-delete a live service; ServiceNotFound."""

    def services(
        self,
        *,
        host: str | None = None,
        topic: str | None = None,
        binary: str | None = None,
        disabled: bool | None = None,
    ) -> list[Row]:
        """Return the live services that match all the given values, by id."""


_bound: list[Store] = []


def bind(store: Store) -> None:
    """Make this the process's store; composition roots only."""
    _bound[:] = [store]


def unbind() -> None:
    """Forget the process's store."""
    _bound.clear()


def bound() -> Store:
    """Return the process's store.

    :raises RuntimeError: nothing is bound: a remotable body ran in a process that
        has no database and no carrier, which is a mistake in its composition root
    """
    if not _bound:
        raise RuntimeError("no store is bound in this process")
    return _bound[0]
