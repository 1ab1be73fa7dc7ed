"""ComputeNode: the record of a node's capacity and use.

(host, hypervisor_hostname) identifies it; it has no relationship to a service.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Self
import uuid as uuidlib

from oslo_versionedobjects import base as ovo_base
from oslo_versionedobjects import fields

from musterbook import errors
from musterbook import names
from musterbook.context import RequestContext
from objects import base
from objects import service as service_obj
from objects import store

_JUNO = "1.0"
#: Fields that versions up to these don't have.
_NEWER = (
    ((_JUNO, "1.1"), ("usage_confirmed",)),
    ((_JUNO, "1.1", "1.2"), ("booted_at", "custom_resources", "labels")),
)
#: Fields of version 1.0, the Juno shape, besides the timestamps.
_JUNO_FIELDS = frozenset(
    {
        "id", "service_id", "vcpus", "memory_mb", "local_gb", "vcpus_used",
        "memory_mb_used", "local_gb_used", "hypervisor_type", "hypervisor_version",
        "hypervisor_hostname", "free_ram_mb", "free_disk_gb", "current_workload",
        "running_vms", "cpu_info", "disk_available_least", "host_ip",
        "supported_instances", "metrics", "pci_stats", "extra_resources", "stats",
        "numa_topology", "created_at", "updated_at", "deleted_at", "deleted",
    }
)  # fmt: skip


@base.VersionedObjectRegistry.register
class ComputeNode(base.MusterObject):
    """One node that a host's agent manages.

    Version history:
        1.0 - the Juno shape: service_id, no host; get_by_service_id
        1.1 - host and uuid identify; service_id nullable and deprecated; ratios,
              reserved amounts, generations, boot_id, service
        1.2 - usage is the conductor's to write; usage_confirmed, confirm_usage
        1.3 - custom_resources, labels, booted_at
    """

    VERSION = "1.3"
    OBJ_KEY_FIELDS = ("id", "host", "inventory_generation")

    # Of a peer that doesn't say which versions of Service it knows.
    obj_relationships = {"service": [("1.1", "1.1"), ("1.2", "1.2"), ("1.3", "1.2")]}

    fields = {
        "created_at": fields.DateTimeField(nullable=True),
        "updated_at": fields.DateTimeField(nullable=True),
        "deleted_at": fields.DateTimeField(nullable=True),
        "deleted": fields.BooleanField(),
        "id": fields.IntegerField(read_only=True),
        "uuid": fields.UUIDField(read_only=True),
        "host": fields.StringField(nullable=True),
        "service_id": fields.IntegerField(nullable=True),
        "hypervisor_hostname": fields.StringField(nullable=True),
        "hypervisor_type": fields.StringField(),
        "hypervisor_version": fields.IntegerField(),
        "vcpus": fields.IntegerField(),
        "memory_mb": fields.IntegerField(),
        "local_gb": fields.IntegerField(),
        "vcpus_used": fields.IntegerField(),
        "memory_mb_used": fields.IntegerField(),
        "local_gb_used": fields.IntegerField(),
        "reserved_vcpus": fields.IntegerField(),
        "reserved_memory_mb": fields.IntegerField(),
        "reserved_local_gb": fields.IntegerField(),
        "cpu_allocation_ratio": fields.FloatField(nullable=True),
        "ram_allocation_ratio": fields.FloatField(nullable=True),
        "disk_allocation_ratio": fields.FloatField(nullable=True),
        "free_ram_mb": fields.IntegerField(nullable=True),
        "free_disk_gb": fields.IntegerField(nullable=True),
        "current_workload": fields.IntegerField(nullable=True),
        "running_vms": fields.IntegerField(nullable=True),
        "disk_available_least": fields.IntegerField(nullable=True),
        "cpu_info": fields.StringField(nullable=True),
        "host_ip": fields.StringField(nullable=True),
        "supported_instances": fields.StringField(nullable=True),
        "metrics": fields.StringField(nullable=True),
        "pci_stats": fields.StringField(nullable=True),
        "extra_resources": fields.StringField(nullable=True),
        "stats": fields.DictOfNullableStringsField(nullable=True),
        "numa_topology": fields.StringField(nullable=True),
        "boot_id": fields.StringField(nullable=True),
        "booted_at": fields.DateTimeField(nullable=True),
        "custom_resources": fields.DictOfIntegersField(nullable=True),
        "labels": fields.DictOfStringsField(nullable=True),
        "generation": fields.IntegerField(),
        "inventory_generation": fields.IntegerField(),
        # False: part of usage is what an agent has still to confirm.
        "usage_confirmed": fields.BooleanField(),
        # Set where a list was asked with_service, else looked up when first read.
        "service": fields.ObjectField("Service", nullable=True),
    }

    #: Of the service that came with a list and wasn't read yet.
    _unread_service: Any = None

    def obj_make_compatible(
        self, primitive: dict[str, Any], target_version: str
    ) -> None:
        """Turn the primitive into the shape of an older version."""
        super().obj_make_compatible(primitive, target_version)
        for versions, names_since in _NEWER:
            if target_version in versions:
                for name in names_since:
                    primitive.pop(name, None)
        if target_version != _JUNO:
            return
        for name in primitive.keys() - _JUNO_FIELDS:
            del primitive[name]
        # It can't hold NULL there; see fill_service_ids.
        if "service_id" in primitive and primitive["service_id"] is None:
            primitive["service_id"] = -1

    def obj_load_attr(self, attrname: str) -> None:
        """Make the service of what came with a list, or look it up by host.

        Other fields aren't fetched behind one's back.

        :raises ServiceNotFound: the host has no compute service
        """
        if attrname != "service":
            super().obj_load_attr(attrname)
            return
        unread, found = self._unread_service, None
        if unread is not None:
            given = isinstance(unread, Mapping)
            row = unread if given else store.bound().read_service(unread)
            found = service_obj.Service().obj_fill(self._context, row)
        elif self.host is not None:
            found = service_obj.Service.get_by_host_and_binary(
                self._context, self.host, service_obj.COMPUTE_BINARY
            )
        self.service = found
        self.obj_reset_changes(["service"])
        self._unread_service = None

    def obj_attr_is_set(self, attrname: str) -> bool:
        """Return whether the field has a value, or had one that wasn't read yet."""
        return (
            attrname == "service" and self._unread_service is not None
        ) or super().obj_attr_is_set(attrname)

    def _obj_take(self, name: str, value: Any) -> None:
        if name == "service" and value is not None:
            self._unread_service = value
        else:
            super()._obj_take(name, value)

    def _obj_held(self) -> dict[str, Any]:
        held = super()._obj_held()
        if self._unread_service is not None and "_obj_service" not in held:
            self.obj_load_attr("service")
        return held

    @classmethod
    def _from_row(cls, context: RequestContext, row: Mapping[str, Any]) -> Self:
        return cls().obj_fill(context, row)

    @classmethod
    @ovo_base.remotable
    def get_by_id(cls, context: RequestContext, node_id: int) -> Self:
        """Return the live node with this id; ComputeNodeNotFound."""
        return cls._from_row(context, store.bound().compute_node_get(id=node_id))

    @classmethod
    @ovo_base.remotable
    def get_by_uuid(cls, context: RequestContext, uuid: str) -> Self:
        """Return the live node with this uuid; ComputeNodeNotFound."""
        return cls._from_row(context, store.bound().compute_node_get(uuid=uuid))

    @classmethod
    @ovo_base.remotable
    def get_by_host_and_nodename(
        cls, context: RequestContext, host: str, nodename: str
    ) -> Self:
        """Return the live node of this identity; ComputeNodeNotFound."""
        row = store.bound().compute_node_get_by_host_and_nodename(host, nodename)
        return cls._from_row(context, row)

    @classmethod
    @ovo_base.remotable
    def get_by_service_id(cls, context: RequestContext, service_id: int) -> Self:
        """Return the first live node of a service's host, for peers of version 1.0.

        Deprecated, and not called by our own code. The service is looked up by its
        id and the nodes by its host: a node has no service_id any more.

        :raises ServiceNotFound: there is no live service with this id
        :raises ComputeNodeNotFound: its host is unknown or has no node
        """
        host = store.bound().service_get(id=service_id)["host"]
        rows = [] if host is None else store.bound().compute_nodes_by_host(host)
        if not rows:
            raise errors.ComputeNodeNotFound(what=f"service id {service_id}")
        return cls._from_row(context, rows[0])

    @ovo_base.remotable
    def create(self) -> None:
        """Insert the node; its fields then are those of the stored row.

        :raises InvalidInput: the id is already set, a value doesn't fit or is the
            conductor's to write, or an agent names another host than its own
        :raises ComputeNodeExists: a live node has this identity
        :raises Superseded: the agent that asks isn't the granted one
        """
        if self.obj_attr_is_set("id"):
            raise errors.InvalidInput(field="id", reason="is already set")
        values = self._changed_columns()
        values.setdefault("uuid", str(uuidlib.uuid4()))
        row = store.bound().compute_node_create(
            values, self.obj_grant(), writes_usage=self.VERSION == _JUNO
        )
        self.obj_fill(self._context, row)

    @ovo_base.remotable
    def save(self) -> None:
        """Store the changed fields, and only if there are any.

        :raises InvalidInput: there is no id, a value doesn't fit or is the conductor's
            to write, or the uuid is among the changes
        :raises Superseded: the agent that asks isn't the granted one
        :raises ComputeNodeMoved: an agent asks for another host's node
        :raises ComputeNodeNotFound: there is no live row any more
        :raises InventoryChanged: the row has another inventory generation than this
            object was read with
        """
        values = self._changed_columns()
        if not values:
            return
        generation = (
            self.inventory_generation
            if self.obj_attr_is_set("inventory_generation")
            else None
        )
        row = store.bound().compute_node_update(
            self.obj_id(),
            values,
            generation,
            self.obj_grant(),
            writes_usage=self.VERSION == _JUNO,
        )
        self.obj_reset_changes()
        self.obj_fill(self._context, row)

    @ovo_base.remotable
    def confirm_usage(self, used: Mapping[str, int]) -> None:
        """Say what really uses the node that nobody claimed; usage becomes that.

        Once that is confirmed, saying it again changes nothing.

        :param used: vcpus, memory_mb and local_gb, all of them
        :raises InvalidInput: there is no id, or ``used`` isn't that
        :raises ComputeNodeMoved: an agent asks for another host's node
        :raises ComputeNodeExists: it is of Juno's shape, and another live node has its
            host and name
        :raises Superseded: the agent that asks isn't the granted one
        :raises ComputeNodeNotFound: there is no live row any more
        """
        row = store.bound().compute_node_confirm_usage(
            self.obj_id(), used, self.obj_grant()
        )
        self.obj_fill(self._context, row)

    @ovo_base.remotable
    def destroy(self) -> None:
        """Soft-delete the node, while it is still its host's.

        :raises InvalidInput: there is no id
        :raises Superseded: the agent that asks isn't the granted one
        :raises ComputeNodeMoved: an agent asks for another host's node
        :raises ComputeNodeNotFound: it is gone, or another host has it now
        :raises ComputeNodeInUse: more of it is used than what is reserved; of version
            1.0, whose usage includes what is reserved, it is deleted nevertheless
        """
        host = self.host if self.obj_attr_is_set("host") else None
        store.bound().compute_node_destroy(
            self.obj_id(), host, self.obj_grant(), force=self.VERSION == _JUNO
        )

    def _changed_columns(self) -> dict[str, Any]:
        """Return the changed fields that are columns a caller may set.

        :raises InvalidName: a name breaks the rule; what is stored isn't checked
            again when it is read, rows of Juno's time may hold anything
        """
        changes = self.obj_get_changes()
        for name in ("host", "hypervisor_hostname"):
            if name in changes:
                names.check(changes[name], name)
        return {n: v for n, v in changes.items() if n not in _STORE_COLUMNS}


def fill_service_ids(nodes: Iterable[ComputeNode]) -> None:
    """Give nodes the ids of their hosts' services, for a peer of version 1.0.

    Uses the store, once for all nodes: only where the store is. What is filled in
    doesn't count as changed.
    """
    bare = [
        (node, names.fold(node.host))
        for node in nodes
        if node.obj_attr_is_set("service_id")
        and node.service_id is None
        and node.obj_attr_is_set("host")
        and node.host is not None
    ]
    hosts = {host for _, host in bare}
    if not hosts:
        return
    found = store.bound().services(
        host=next(iter(hosts)) if len(hosts) == 1 else None,
        binary=service_obj.COMPUTE_BINARY,
    )
    ids: dict[str, int | None] = {}
    for row in found:
        host = names.fold(row["host"]) if row["host"] else None
        if host not in hosts:
            continue
        # A second one can only be a very old row; the store knows which one counts.
        ids[host] = _service_id_of(host) if host in ids else row["id"]
    for node, host in bare:
        node.service_id = ids.get(host)
        node.obj_reset_changes(["service_id"])


def _service_id_of(host: str) -> int | None:
    try:
        found = store.bound().service_get_by_host_and_binary(
            host, service_obj.COMPUTE_BINARY
        )
    except errors.ServiceNotFound:  # deleted in between
        return None
    return int(found["id"])


#: Set by the store alone, whatever a caller sends.
_STORE_COLUMNS = frozenset(
    {
        "created_at", "updated_at", "deleted_at", "deleted", "id", "generation",
        "inventory_generation", "service", "usage_confirmed",
    }
)  # fmt: skip


@base.VersionedObjectRegistry.register
class ComputeNodeList(ovo_base.ObjectListBase[ComputeNode], base.MusterObject):
    """Some compute nodes, ordered by id.

    Version history:
        1.0 - first version
        1.1 - ComputeNode 1.1
        1.2 - ComputeNode 1.2
        1.3 - ComputeNode 1.3
    """

    VERSION = "1.3"
    OBJ_KEY_FIELDS = ()

    obj_relationships = {
        "objects": [("1.0", "1.0"), ("1.1", "1.1"), ("1.2", "1.2"), ("1.3", "1.3")]
    }

    fields = {"objects": fields.ListOfObjectsField("ComputeNode")}

    @classmethod
    def _from_rows(
        cls, context: RequestContext, rows: Sequence[Mapping[str, Any]]
    ) -> Self:
        nodes = [ComputeNode._from_row(context, row) for row in rows]
        found = cls(context, objects=nodes)
        found.obj_reset_changes()
        return found

    @classmethod
    @ovo_base.remotable
    def get_all(cls, context: RequestContext, with_service: bool = False) -> Self:
        """Return all live nodes, with their hosts' services only if asked."""
        rows = store.bound().compute_nodes(with_service=bool(with_service))
        return cls._from_rows(context, rows)

    @classmethod
    @ovo_base.remotable
    def get_all_by_host(cls, context: RequestContext, host: str) -> Self:
        """Return the live nodes of a host; none is an empty list."""
        return cls._from_rows(context, store.bound().compute_nodes_by_host(host))

    @classmethod
    @ovo_base.remotable
    def get_by_hypervisor(cls, context: RequestContext, pattern: str) -> Self:
        """Return the live nodes whose name contains the pattern literally."""
        rows = store.bound().compute_nodes_by_hypervisor(pattern)
        return cls._from_rows(context, rows)

    @classmethod
    @ovo_base.remotable
    def get_by_pagination(
        cls,
        context: RequestContext,
        limit: int | None = None,
        marker: int | None = None,
    ) -> Self:
        """Return up to limit live nodes after the one with id marker.

        :raises MarkerNotFound: no live node has that id
        """
        return cls._from_rows(context, store.bound().compute_nodes_page(limit, marker))

    @classmethod
    @ovo_base.remotable
    def get_all_by_uuids(cls, context: RequestContext, uuids: Sequence[str]) -> Self:
        """Return the live nodes among these uuids."""
        return cls._from_rows(context, store.bound().compute_nodes_by_uuids(uuids))
