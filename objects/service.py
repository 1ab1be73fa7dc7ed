"""Service: a binary on a host, one record.

Agents never read or write it: the conductor creates it at hello and the leader
writes the verdict; operators write status.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Self
import uuid as uuidlib

from oslo_utils import versionutils
from oslo_versionedobjects import base as ovo_base
from oslo_versionedobjects import fields

from musterbook import errors
from musterbook import names
from musterbook.context import RequestContext
from objects import base
from objects import store

#: Binary names are Nova's: the table is taken over, and clients filter on them.
COMPUTE_BINARY = "nova-compute"
CONDUCTOR_BINARY = "nova-conductor"
#: RPC topic and group of the compute agents.
COMPUTE_TOPIC = "compute"

#: Fields of version 1.0, the Juno shape.
_JUNO_FIELDS = frozenset(
    {
        "id", "host", "binary", "topic", "report_count", "disabled",
        "disabled_reason", "created_at", "updated_at", "deleted_at", "deleted",
    }
)  # fmt: skip

#: Written by the store or by the leader alone, whatever a caller sends.
_STORE_COLUMNS = frozenset(
    {
        "created_at", "updated_at", "deleted_at", "deleted", "id", "last_seen_up",
        "incarnation", "process_uuid", "boot_id", "release", "version", "state",
        "state_since", "state_cause", "state_evidence", "state_actor",
    }
)  # fmt: skip
#: Fields that came with a version after 1.1.
_FIELDS_SINCE = {(1, 2): frozenset({"version"})}


@base.VersionedObjectRegistry.register
class Service(base.MusterObject):
    """One service record.

    Version history:
        1.0 - the Juno shape
        1.1 - uuid, last_seen_up, forced_down; the grant (without its secret) and
              the verdict
        1.2 - version, the service level of the granted process
    """

    VERSION = "1.2"

    fields = {
        "created_at": fields.DateTimeField(nullable=True),
        "updated_at": fields.DateTimeField(nullable=True),
        "deleted_at": fields.DateTimeField(nullable=True),
        "deleted": fields.BooleanField(),
        "id": fields.IntegerField(read_only=True),
        "uuid": fields.UUIDField(read_only=True),
        "host": fields.StringField(nullable=True),
        "binary": fields.StringField(nullable=True),
        "topic": fields.StringField(nullable=True),
        "report_count": fields.IntegerField(),
        "disabled": fields.BooleanField(),
        "disabled_reason": fields.StringField(nullable=True),
        "last_seen_up": fields.DateTimeField(nullable=True),
        "forced_down": fields.BooleanField(),
        "incarnation": fields.IntegerField(nullable=True),
        "process_uuid": fields.StringField(nullable=True),
        "boot_id": fields.StringField(nullable=True),
        "release": fields.StringField(nullable=True),
        "version": fields.IntegerField(),
        "state": fields.StringField(nullable=True),
        "state_since": fields.DateTimeField(nullable=True),
        "state_cause": fields.StringField(nullable=True),
        "state_evidence": fields.StringField(nullable=True),
        "state_actor": fields.StringField(nullable=True),
    }

    def obj_make_compatible(
        self, primitive: dict[str, Any], target_version: str
    ) -> None:
        """Turn the primitive into the shape of an older version."""
        super().obj_make_compatible(primitive, target_version)
        target = versionutils.convert_version_to_tuple(target_version)
        for version, names_since in _FIELDS_SINCE.items():
            if target < version:
                for name in primitive.keys() & names_since:
                    del primitive[name]
        if target_version == "1.0":
            for name in primitive.keys() - _JUNO_FIELDS:
                del primitive[name]

    @property
    def compute_node(self) -> Any:
        """The first compute node of the service's host, looked up at each read.

        :raises ComputeNodeNotFound: the host has none, or this isn't its agent
        """
        if self.binary == COMPUTE_BINARY and self.host is not None:
            # By name: compute_node imports this module.
            node_list: Any = base.newest("ComputeNodeList")
            nodes = node_list.get_all_by_host(self._context, self.host)
            if len(nodes):
                return nodes[0]
        raise errors.ComputeNodeNotFound(what=f"host {self.host}")

    @classmethod
    @ovo_base.remotable
    def get_by_id(cls, context: RequestContext, service_id: int) -> Self:
        """Return the live service with this id; ServiceNotFound."""
        return cls().obj_fill(context, store.bound().service_get(id=service_id))

    @classmethod
    @ovo_base.remotable
    def get_by_uuid(cls, context: RequestContext, uuid: str) -> Self:
        """Return the live service with this uuid; ServiceNotFound."""
        return cls().obj_fill(context, store.bound().service_get(uuid=uuid))

    @classmethod
    @ovo_base.remotable
    def get_by_host_and_binary(
        cls, context: RequestContext, host: str, binary: str
    ) -> Self:
        """Return the live service of this host and binary; ServiceNotFound."""
        row = store.bound().service_get_by_host_and_binary(host, binary)
        return cls().obj_fill(context, row)

    @ovo_base.remotable
    def create(self) -> None:
        """Insert the service; its fields then are those of the stored row.

        :raises InvalidInput: the id is already set
        :raises ServiceExists: a live service has this host and binary
        """
        if self.obj_attr_is_set("id"):
            raise errors.InvalidInput(field="id", reason="is already set")
        values = self._changed_columns()
        values.setdefault("uuid", str(uuidlib.uuid4()))
        self.obj_fill(self._context, store.bound().service_create(values))

    @ovo_base.remotable
    def save(self) -> None:
        """Store the changed fields, and only if there are any; ServiceNotFound."""
        values = self._changed_columns()
        if values:
            row = store.bound().service_update(self.obj_id(), values)
            self.obj_reset_changes()
            self.obj_fill(self._context, row)

    @ovo_base.remotable
    def destroy(self) -> None:
        """Soft-delete the service; ServiceNotFound."""
        store.bound().service_destroy(self.obj_id())

    def _changed_columns(self) -> dict[str, Any]:
        changes = self.obj_get_changes()
        if "host" in changes:
            names.check(changes["host"], "host")
        return {n: v for n, v in changes.items() if n not in _STORE_COLUMNS}


@base.VersionedObjectRegistry.register
class ServiceList(ovo_base.ObjectListBase[Service], base.MusterObject):
    """Some services, ordered by id.

    Version history:
        1.0 - first version
        1.1 - Service 1.1
        1.2 - Service 1.2
    """

    VERSION = "1.2"
    OBJ_KEY_FIELDS = ()

    obj_relationships = {"objects": [("1.0", "1.0"), ("1.1", "1.1"), ("1.2", "1.2")]}

    fields = {"objects": fields.ListOfObjectsField("Service")}

    @classmethod
    def _from_rows(
        cls, context: RequestContext, rows: Sequence[Mapping[str, Any]]
    ) -> Self:
        found = cls(context, objects=[Service().obj_fill(context, row) for row in rows])
        found.obj_reset_changes()
        return found

    @classmethod
    @ovo_base.remotable
    def get_all(cls, context: RequestContext, disabled: bool | None = None) -> Self:
        """Return all live services, if given only the disabled or enabled ones."""
        return cls._from_rows(context, store.bound().services(disabled=disabled))

    @classmethod
    @ovo_base.remotable
    def get_by_host(cls, context: RequestContext, host: str) -> Self:
        """Return the live services of a host."""
        return cls._from_rows(context, store.bound().services(host=host))

    @classmethod
    @ovo_base.remotable
    def get_by_topic(cls, context: RequestContext, topic: str) -> Self:
        """Return the live services with this topic that are enabled."""
        rows = store.bound().services(topic=topic, disabled=False)
        return cls._from_rows(context, rows)

    @classmethod
    @ovo_base.remotable
    def get_by_binary(
        cls, context: RequestContext, binary: str, include_disabled: bool = False
    ) -> Self:
        """Return the live services of this binary, as a rule the enabled ones."""
        disabled = None if include_disabled else False
        rows = store.bound().services(binary=binary, disabled=disabled)
        return cls._from_rows(context, rows)
