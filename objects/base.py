"""The base of our versioned objects and the list of what may be called over RPC.

Remotable bodies use the store only (objects.store); they run where the store is
bound. Elsewhere ``indirection_api`` carries the call to a conductor. The conductor
looks methods up in the list here and runs their *original* function: the carrier is
a class attribute, and in a process that is both conductor and agent the wrapped
method would send the call to itself.
"""

from collections.abc import Callable
from collections.abc import Mapping
import datetime
import functools
from typing import Any
from typing import NoReturn
from typing import Self
from typing import TypeVar

from oslo_utils import versionutils
from oslo_versionedobjects import base as ovo_base
from oslo_versionedobjects import exception as ovo_exception
from oslo_versionedobjects import fields as ovo_fields

from musterbook import errors
from musterbook.context import Grant
from musterbook.context import RequestContext

_Object = TypeVar("_Object", bound=type["MusterObject"])
_INSTANCE_METHODS: dict[tuple[str, str], Callable[..., Any]] = {}
_CLASS_METHODS: dict[tuple[str, str], Callable[..., Any]] = {}
#: The values that a field takes, and puts into a primitive, as they are.
_PLAIN_TYPES: dict[type, type] = {
    ovo_fields.BooleanField: bool,
    ovo_fields.DateTimeField: datetime.datetime,
    ovo_fields.FloatField: float,
    ovo_fields.IntegerField: int,
    ovo_fields.StringField: str,
    ovo_fields.UUIDField: str,
}
#: Of values that are their own primitives, whatever their field.
_JSON_TYPES = frozenset({bool, float, int, str, type(None)})


class VersionedObjectRegistry(ovo_base.VersionedObjectRegistry):
    """The registry of our objects; registering also lists the remotable methods."""

    @classmethod
    def register(cls, obj_cls: Any) -> Any:
        """Register a class under its name and version."""
        for name, method in vars(obj_cls).items():
            function = getattr(method, "__func__", method)
            if getattr(function, "remotable", False):
                listed = (
                    _CLASS_METHODS
                    if isinstance(method, classmethod)
                    else _INSTANCE_METHODS
                )
                listed[obj_cls.obj_name(), name] = function.original_fn
        return super().register(obj_cls)


class MusterObject(ovo_base.VersionedObject):
    """A flat versioned object: its fields hold values, not trees of objects."""

    OBJ_PROJECT_NAMESPACE = "musterbook"

    #: Fields that identify the record; a call carries these and what changed.
    OBJ_KEY_FIELDS: tuple[str, ...] = ("id",)

    def obj_what_changed(self) -> set[str]:
        """Return the names of the changed fields.

        The library's version also probes every field for a changed sub-object; it
        is called four times per serialisation and made up 73 % of its cost.
        """
        return self._changed_fields & self.fields.keys()

    def obj_attr_is_set(self, attrname: str) -> bool:
        """Return whether the field has a value.

        The library's version builds a list of all fields first, and it is asked for
        each of them, several times a call.
        """
        if attrname in self.fields:
            return hasattr(self, f"_obj_{attrname}")
        return bool(super().obj_attr_is_set(attrname))

    def obj_set_fields(self) -> list[str]:
        """Return the names of the fields that have a value, in their order."""
        held = self._obj_held()
        return [name for name in self.fields if f"_obj_{name}" in held]

    def obj_values(self) -> dict[str, Any]:
        """Return the values of the fields that have one, by name."""
        held = self._obj_held()
        return {n: held[f"_obj_{n}"] for n in self.fields if f"_obj_{n}" in held}

    def obj_for_call(self) -> Self:
        """Return a copy with the key fields and the changed ones only.

        That is all a remotable method needs: the rest is in the store.
        """
        slim = type(self)()
        slim.VERSION = self.VERSION
        slim._context = self._context
        for name, value in self.obj_values().items():
            if name in self.OBJ_KEY_FIELDS or name in self._changed_fields:
                setattr(slim, f"_obj_{name}", value)
        slim._changed_fields = set(self._changed_fields)
        return slim

    def obj_fill(self, context: Any, row: Mapping[str, Any]) -> Self:
        """Set the fields that the row holds, as unchanged; return self.

        What a field takes as it is is put where the field is kept: a setter takes
        ten times as long, and lists are long. All else goes through the setters.

        :param row: as the store port describes it: its instants are aware
        :raises ValueError: a value is none that its field may have
        """
        held = vars(self)
        own: Any = type(self)  # mypy 2.4 takes type[Self] for not hashable
        plain = _plain_fields(own)
        for name, value in row.items():
            place, kinds = plain.get(name, _NOT_PLAIN)
            if type(value) in kinds and place not in held:
                held[place] = value
            elif name in self.fields:
                self._obj_take(name, value)
        self._context = context
        self._changed_fields.difference_update(row)
        return self

    def _obj_take(self, name: str, value: Any) -> None:
        """Set a field to what a row holds for it."""
        setattr(self, name, value)

    def _obj_held(self) -> dict[str, Any]:
        """Return what is kept, a field's value under _obj_ and its name."""
        return vars(self)

    def obj_to_primitive(
        self,
        target_version: str | None = None,
        version_manifest: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return the object as JSON values, in an older version if asked.

        Does what the library's version does, in a third of its time: numbers and texts
        are primitives already, and most fields hold one.

        :raises InvalidTargetVersion: the version is newer than the object
        """
        target = target_version or self.VERSION
        if target != self.VERSION:
            wanted, own = map(
                versionutils.convert_version_to_tuple, (target, self.VERSION)
            )
            if wanted > own:
                raise ovo_exception.InvalidTargetVersion(version=target)
        data = {
            name: value
            if type(value) in _JSON_TYPES
            else self.fields[name].to_primitive(self, name, value)
            for name, value in self.obj_values().items()
        }
        if target != self.VERSION or version_manifest:
            self.obj_make_compatible_from_manifest(data, target, version_manifest)
        primitive: dict[str, Any] = {
            self._obj_primitive_key("name"): self.obj_name(),
            self._obj_primitive_key("namespace"): self.OBJ_PROJECT_NAMESPACE,
            self._obj_primitive_key("version"): target,
            self._obj_primitive_key("data"): data,
        }
        changes = [name for name in self.obj_what_changed() if name in data]
        if changes:
            primitive[self._obj_primitive_key("changes")] = changes
        return primitive

    def obj_grant(self) -> Grant | None:
        """Return the grant of the agent that asks; None if it is none that does."""
        context: RequestContext | None = self._context
        return None if context is None else context.grant

    def obj_id(self) -> int:
        """Return the id of the stored record that this object is about.

        :raises InvalidInput: it has none
        """
        if not self.obj_attr_is_set("id"):
            raise errors.InvalidInput(field="id", reason="is not set")
        return int(self._obj_id)  # type: ignore[attr-defined]  # where a field is kept

    def obj_load_attr(self, attrname: str) -> None:
        """Refuse: a field that wasn't sent isn't fetched behind one's back."""
        raise ovo_exception.ObjectActionError(
            action="obj_load_attr", reason=f"{self.obj_name()}.{attrname} is not set"
        )


#: Of a field that is always set by its setter.
_NOT_PLAIN: tuple[str, frozenset[type]] = ("", frozenset())


@functools.cache
def _plain_fields(
    objclass: type[ovo_base.VersionedObject],
) -> dict[str, tuple[str, frozenset[type]]]:
    """Return where fields are kept, and the types of which they take any value."""
    found = {}
    for name, field in objclass.fields.items():
        kind = _PLAIN_TYPES.get(type(field))
        if kind is not None:
            kinds = {kind, type(None)} if field.nullable else {kind}
            found[name] = f"_obj_{name}", frozenset(kinds)
        elif field.nullable:
            found[name] = f"_obj_{name}", frozenset({type(None)})
    return found


class ObjectSerializer(ovo_base.VersionedObjectSerializer):
    """Carries our objects over oslo.messaging.

    An object that is newer than this process knows is sent to a conductor, which
    answers in a version known here.
    """

    OBJ_BASE_CLASS = MusterObject


class PinnedSerializer(ObjectSerializer):
    """That of a process which speaks to others that may be older.

    :param versions: returns the newest version of each object to send, by name
    """

    def __init__(self, versions: Callable[[], Mapping[str, str]]) -> None:
        super().__init__()
        self._versions = versions

    def serialize_entity(self, context: Any, entity: Any) -> Any:
        """Return the entity as JSON values, in an older version if need be."""
        if isinstance(entity, MusterObject):
            versions = self._versions()
            wanted = versions.get(entity.obj_name(), entity.VERSION)
            if _number(wanted) < _number(entity.VERSION):
                return entity.obj_to_primitive(
                    target_version=wanted, version_manifest=dict(versions)
                )
        return super().serialize_entity(context, entity)


class ConductorSerializer(ObjectSerializer):
    """The conductor's own, which has nobody to ask what a newer object means.

    Where a process is conductor and agent, the carrier is set, and asking it would
    be asking itself, without end.
    """

    def _process_object(self, context: Any, objprim: dict[str, Any]) -> Any:
        try:
            return super()._process_object(context, objprim)
        except ovo_exception.IncompatibleObjectVersion as exc:
            facts = {
                name: errors.one_line(str(v))[:64] for name, v in exc.kwargs.items()
            }
            raise errors.UnsupportedObject(
                reason=f"{facts['objname']} is known up to version "
                f"{facts['supported']}, not in {facts['objver']}"
            ) from None

    def _do_backport(
        self, context: Any, objprim: dict[str, Any], objclass: Any
    ) -> NoReturn:
        version = objprim[f"{self.OBJ_BASE_CLASS.OBJ_SERIAL_NAMESPACE}.version"]
        raise errors.UnsupportedObject(
            reason=f"{objclass.obj_name()} is known up to version {objclass.VERSION}, "
            f"not in {errors.one_line(str(version))[:32]}"
        )


def instance_method(objname: object, method: object) -> Callable[..., Any]:
    """Return the original function of a remotable instance method.

    :param objname: the object's name as it came over the wire
    :param method: the method's name as it came over the wire
    :raises MethodNotRemotable: for everything that isn't on the list
    """
    return _listed(_INSTANCE_METHODS, objname, method)


def class_method(objname: object, method: object) -> Callable[..., Any]:
    """Return the original function of a remotable class method.

    Parameters and error as for instance_method.
    """
    return _listed(_CLASS_METHODS, objname, method)


def _listed(
    methods: Mapping[tuple[str, str], Callable[..., Any]],
    objname: object,
    method: object,
) -> Callable[..., Any]:
    if isinstance(objname, str) and isinstance(method, str):
        function = methods.get((objname, method))
        if function is not None:
            return function
    raise errors.MethodNotRemotable(objname=str(objname)[:64], method=str(method)[:64])


def _number(version: str) -> tuple[int, ...]:
    return versionutils.convert_version_to_tuple(version)


def newest(objname: str) -> type[ovo_base.VersionedObject]:
    """Return the newest class registered under a name."""
    return VersionedObjectRegistry.obj_classes()[objname][0]


def remotable_methods() -> frozenset[tuple[str, str]]:
    """Return every (object name, method name) that may be called over RPC."""
    return frozenset(_INSTANCE_METHODS) | frozenset(_CLASS_METHODS)
