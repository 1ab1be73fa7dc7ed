"""The conductor's RPC endpoint: thin methods over the parts that decide.

Every method may run in any thread and may be called twice for one request: what it
does is in the database or is harmless to repeat.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import inspect
from typing import Any

from oslo_log import log as logging
import oslo_messaging
from oslo_utils import versionutils
from oslo_versionedobjects import exception as ovo_exception

from conductor import fleet
from conductor import grants
from conductor import rpcapi
from conductor.db import liveness
from musterbook import errors
from musterbook import names
from musterbook import rpc
from musterbook.context import Grant
from musterbook.context import RequestContext
from objects import base
from objects import service as service_obj

LOG = logging.getLogger(__name__)


class ConductorManager:
    """What a conductor answers.

    :param granter: decides hellos
    :param store: the liveness records
    """

    target = oslo_messaging.Target(version=rpcapi.VERSION)

    def __init__(self, granter: grants.Granter, store: liveness.LivenessStore) -> None:
        self._granter = granter
        self._store = store

    @rpc.exposed
    def ping(self, context: RequestContext) -> None:
        """Answer."""

    @rpc.exposed
    def object_action(
        self,
        context: RequestContext,
        objinst: Any,
        objmethod: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> tuple[dict[str, Any], Any]:
        """Run a remotable method of an object.

        :return: the fields that the method changed as primitives, and its result
        :raises MethodNotRemotable: the method isn't on the list
        """
        if not isinstance(objinst, base.MusterObject):
            raise errors.InvalidInput(field="objinst", reason="is not an object")
        function = base.instance_method(objinst.obj_name(), objmethod)
        _trace(context, f"{objinst.obj_name()}.{objmethod}")
        before = {
            name: getattr(objinst, name)
            for name in objinst.fields
            if objinst.obj_attr_is_set(name)
        }
        objinst._context = context
        result = _run(function, objinst, args=args, kwargs=kwargs)
        updates: dict[str, Any] = {
            name: field.to_primitive(objinst, name, getattr(objinst, name))
            for name, field in objinst.fields.items()
            if objinst.obj_attr_is_set(name)
            and (name not in before or before[name] != getattr(objinst, name))
        }
        updates["obj_what_changed"] = sorted(objinst.obj_what_changed())
        return updates, result

    @rpc.exposed
    def object_class_action_versions(
        self,
        context: RequestContext,
        objname: str,
        objmethod: str,
        object_versions: Mapping[str, str],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Run a remotable class method, answer in the caller's versions.

        :raises MethodNotRemotable: the method isn't on the list
        :raises UnsupportedObject: the object's version can't be served
        """
        function = base.class_method(objname, objmethod)
        _trace(context, f"{objname}.{objmethod}")
        objclass = _object_class(objname, object_versions)
        result = _run(function, objclass, context, args=args, kwargs=kwargs)
        if isinstance(result, base.MusterObject):
            return _in_versions(result, object_versions)
        return result

    @rpc.exposed
    def object_backport_versions(
        self,
        context: RequestContext,
        objinst: Any,
        object_versions: Mapping[str, str],
    ) -> Any:
        """Return the object in the versions that the caller knows."""
        if not isinstance(objinst, base.MusterObject):
            raise errors.InvalidInput(field="objinst", reason="is not an object")
        return _in_versions(objinst, object_versions)

    @rpc.exposed
    def hello(
        self,
        context: RequestContext,
        host: str,
        process_uuid: str,
        boot_id: str | None,
        release: str,
        secret: str,
    ) -> dict[str, Any]:
        """Grant an incarnation to a starting agent, or refuse.

        :raises HostTaken: a living process serves this host
        :raises AgentNotAsked: whether one does can't be told now; try again
        """
        names.check(host, "host")
        _trace(context, f"hello of {host}")
        for field, value in (("process_uuid", process_uuid), ("secret", secret)):
            if not isinstance(value, str) or not 8 <= len(value) <= 255:
                raise errors.InvalidInput(
                    field=field, reason="must be a text of 8 to 255 characters"
                )
        return self._granter.hello(
            context,
            host=host,
            process_uuid=process_uuid,
            boot_id=boot_id,
            release=release,
            secret=secret,
        )

    @rpc.exposed
    def goodbye(self, context: RequestContext) -> None:
        """Note that the granted process stops.

        :raises Superseded: the caller isn't the granted process
        """
        grant = _grant_of(context)
        self._store.goodbye(
            grant.host, service_obj.COMPUTE_BINARY, grant.incarnation, grant.secret
        )

    @rpc.exposed
    def stalled(self, context: RequestContext, reason: str | None) -> None:
        """Note that the caller's working loop makes no progress, or does again.

        :raises Superseded: the caller isn't the granted process
        """
        grant = _grant_of(context)
        self._store.stalled(
            grant.host,
            service_obj.COMPUTE_BINARY,
            grant.incarnation,
            grant.secret,
            reason,
        )

    @rpc.exposed
    def get_fleet(
        self, context: RequestContext, columns: Sequence[str] | None
    ) -> dict[str, Any]:
        """Return all live nodes by column, with state and evidence."""
        # First whether verdicts can be believed, then the verdicts. The other way
        # round, a freeze that ends in between would vouch for rows from before.
        outlook = self._store.outlook(liveness.LEASE)
        return fleet.answer(self._store.fleet(), outlook, columns)


def _trace(context: RequestContext, what: str) -> None:
    """Say at DEBUG who asks what: the trace of an agent's audits and starts."""
    if LOG.isEnabledFor(logging.DEBUG):
        LOG.debug("%s asks: %s", context.grant or "somebody without a grant", what)


def _grant_of(context: RequestContext) -> Grant:
    if context.grant is None:
        raise errors.InvalidInput(field="context", reason="carries no grant")
    return context.grant


def _object_class(objname: str, versions: Mapping[str, str]) -> Any:
    version = versions.get(objname) if isinstance(versions, Mapping) else None
    if not isinstance(version, str):
        raise errors.InvalidInput(
            field="object_versions", reason=f"has no version of {objname}"
        )
    try:
        return base.MusterObject.obj_class_from_name(objname, version)
    except (
        ovo_exception.UnsupportedObjectError,
        ovo_exception.IncompatibleObjectVersion,
    ) as exc:
        raise errors.UnsupportedObject(reason=str(exc)) from None
    except ValueError:
        raise errors.InvalidInput(
            field="object_versions", reason=f"{version!r} is not a version"
        ) from None


def _in_versions(result: base.MusterObject, versions: Mapping[str, str]) -> Any:
    """Return the object's primitive, no newer than the caller knows."""
    wanted = versions.get(result.obj_name(), result.VERSION)
    ours = versionutils.convert_version_to_tuple(result.VERSION)
    if versionutils.convert_version_to_tuple(wanted) > ours:
        wanted = result.VERSION
    return result.obj_to_primitive(
        target_version=wanted, version_manifest=dict(versions)
    )


def _run(
    function: Callable[..., Any],
    *first: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Call the function if the caller's arguments fit it."""
    try:
        bound = inspect.signature(function).bind(*first, *args, **kwargs)
    except TypeError as exc:
        raise errors.InvalidInput(field="args", reason=str(exc)) from None
    return function(*bound.args, **bound.kwargs)
