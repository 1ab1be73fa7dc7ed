"""The conductor's RPC endpoint: thin methods over the parts that decide.

Every method may run in any thread and may be called twice for one request: what it
does is in the database or is harmless to repeat.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import inspect
import re
from typing import Any

from oslo_log import log as logging
import oslo_messaging
from oslo_utils import uuidutils
from oslo_utils import versionutils
from oslo_versionedobjects import base as ovo_base

from compute_agent import rpcapi as compute_rpcapi
from conductor import fleet
from conductor import grants
from conductor import rpcapi
from conductor.db import liveness
from musterbook import errors
from musterbook import levels
from musterbook import names
from musterbook import rpc
from musterbook.context import Grant
from musterbook.context import RequestContext
from objects import base
from objects import compute_node
from objects import service as service_obj

LOG = logging.getLogger(__name__)

#: The version of ComputeNode with service_id and without host.
_JUNO = "1.0"
#: What an agent may say it had: leaves room in the column for those that follow.
_MOST_HAD = 2**30
_MOST_LEVELS = 2**20
#: A third number, of changes that concern no peer, is allowed and ignored.
_VERSION = re.compile(r"(?P<major>\d{1,9})\.(?P<minor>\d{1,9})(\.\d{1,9})?", re.ASCII)


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
        before = objinst.obj_values()
        objinst._context = context
        result = _run(function, objinst, args=args, kwargs=kwargs)
        return _updates(objinst, before), result

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
        versions = _served_versions(object_versions, objname)
        objclass = base.newest(objname)
        result = _run(function, objclass, context, args=args, kwargs=kwargs)
        if isinstance(result, base.MusterObject):
            return _in_versions(result, versions)
        return result

    @rpc.exposed
    def object_backport_versions(
        self,
        context: RequestContext,
        objinst: Any,
        object_versions: Mapping[str, str],
    ) -> Any:
        """Return the object in the versions that the caller knows.

        :raises UnsupportedObject: the object's version can't be served
        """
        if not isinstance(objinst, base.MusterObject):
            raise errors.InvalidInput(field="objinst", reason="is not an object")
        versions = _served_versions(object_versions, objinst.obj_name())
        return _in_versions(objinst, versions)

    @rpc.exposed
    def hello(
        self,
        context: RequestContext,
        host: str,
        process_uuid: str,
        boot_id: str | None,
        release: str,
        secret: str,
        had: int | None = None,
        version: int | None = None,
        formerly: str | None = None,
        nodes: Sequence[Sequence[str]] = (),
    ) -> dict[str, Any]:
        """Grant an incarnation to a starting agent, or refuse.

        :param had: the incarnation of an agent that serves already and that the
            database has forgotten
        :param version: the agent's service level; None: it doesn't say
        :param formerly: the host's name when the agent last ran, if it was another
        :param nodes: uuid and name of each node that it had then
        :raises NodeTaken: one of them is a living process's
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
        if had is not None and not (type(had) is int and 0 < had < _MOST_HAD):
            raise errors.InvalidInput(field="had", reason="is not an incarnation")
        if version is not None and not (
            type(version) is int and 0 <= version <= _MOST_LEVELS
        ):
            raise errors.InvalidInput(field="version", reason="is no service level")
        return self._granter.hello(
            context,
            host=host,
            process_uuid=process_uuid,
            boot_id=boot_id,
            release=release,
            secret=secret,
            had=had,
            version=version,
            formerly=_formerly(host, formerly, nodes),
        )

    @rpc.exposed
    def get_versions(self, context: RequestContext) -> dict[str, Any]:
        """Return what this conductor speaks, and how old the oldest agent is."""
        return {
            "level": levels.SERVICE_LEVEL,
            "lowest_level": self._store.lowest_level(service_obj.COMPUTE_BINARY),
            "conductor": rpcapi.VERSION,
            "compute": compute_rpcapi.VERSION,
            "objects": dict(levels.of(levels.SERVICE_LEVEL).objects),
        }

    @rpc.exposed
    def adopt_node(
        self, context: RequestContext, uuid: str, name: str, formerly: str
    ) -> None:
        """Give the caller's host a node that another agent managed till now.

        :param name: what the node is called at the caller's host
        :param formerly: the host that has it, as far as the caller knows
        :raises ComputeNodeMoved: another one has it
        :raises ComputeNodeNotFound: no live node has this uuid
        :raises ComputeNodeExists: the caller's host has another node of this name
        :raises InvalidInput: formerly is the caller's host, which has no such node, and
            which of those from Juno this is can't be told
        :raises Superseded: the caller isn't the granted process
        """
        grant = _grant_of(context)
        names.check(name, "name")
        names.check(formerly, "formerly")
        _trace(context, f"adopt_node {name} of {formerly}")
        self._store.adopt(grant, uuid, name, formerly)
        LOG.info("Host %s: has compute node %s of %s now", grant.host, name, formerly)

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
        if reason is not None and not isinstance(reason, str):
            raise errors.InvalidInput(field="reason", reason="is not a text")
        self._store.stalled(
            grant.host,
            service_obj.COMPUTE_BINARY,
            grant.incarnation,
            grant.secret,
            reason,
        )

    @rpc.exposed
    def verify(self, context: RequestContext) -> None:
        """Return if the caller is the granted process of its host.

        :raises Superseded: it isn't, or not any more
        :raises GrantForgotten: the database was replaced or set back since
        """
        grant = _grant_of(context)
        self._store.verify(
            grant.host, service_obj.COMPUTE_BINARY, grant.incarnation, grant.secret
        )

    @rpc.exposed
    def beat(self, context: RequestContext) -> None:
        """Note that the granted process lives, as the db driver has it.

        :raises Superseded: the caller isn't the granted process
        :raises GrantForgotten: the database was replaced or set back since
        """
        grant = _grant_of(context)
        self._store.beat(
            grant.host, service_obj.COMPUTE_BINARY, grant.incarnation, grant.secret
        )

    @rpc.exposed
    def get_beats(self, context: RequestContext) -> list[list[Any]]:
        """Return host, incarnation, when and age of each last beat of that kind."""
        return [
            [row.host, row.incarnation, row.at.isoformat(), row.age]
            for row in self._store.beats(service_obj.COMPUTE_BINARY)
        ]

    @rpc.exposed
    def reset_flapping(self, context: RequestContext, host: str) -> None:
        """End the hold of a host that came and went; harmless if it isn't held.

        :raises ServiceNotFound: there is no such host
        """
        names.check(host, "host")
        actor = context.user_id or "operator"
        self._store.reset_flapping(host, service_obj.COMPUTE_BINARY, actor)
        LOG.warning("Host %s: its coming and going is forgiven by %s", host, actor)

    @rpc.exposed
    def release_freeze(
        self, context: RequestContext, zone: str | None = None
    ) -> dict[str, list[str]]:
        """End freezes on an operator's word; harmless if there are none.

        :param zone: of this zone only; "": of the whole fleet; None: all
        """
        if zone is not None and not isinstance(zone, str):
            raise errors.InvalidInput(field="zone", reason="is not a text")
        actor = context.user_id or "operator"
        ended, kept = self._store.release_freeze(zone, actor)
        for scope in ended:
            LOG.warning("Freeze of %s: ended by %s", scope or "the fleet", actor)
        return {"ended": ended, "kept": kept}

    @rpc.exposed
    def get_fleet(
        self,
        context: RequestContext,
        columns: Sequence[str] | None,
        max_age: float | None = None,
    ) -> dict[str, Any]:
        """Return all live nodes by column, with state and evidence.

        :param max_age: seconds for which verdicts may not have been looked at
        :raises LivenessUnknown: it is longer
        """
        if columns is not None and not (
            isinstance(columns, list | tuple)
            and all(isinstance(name, str) for name in columns)
        ):
            raise errors.InvalidInput(field="columns", reason="is not a list of names")
        # First whether verdicts can be believed, then the verdicts. The other way
        # round, a freeze that ends in between would vouch for rows from before.
        outlook = self._store.outlook(liveness.LEASE)
        if max_age is not None:
            if type(max_age) not in (int, float) or not max_age >= 0:
                raise errors.InvalidInput(
                    field="max_age", reason="is not a number of seconds"
                )
            fleet.check_age(outlook, self._store.frozen_for(), max_age)
        return fleet.answer(self._store.fleet(), outlook, columns)


def make_server(
    transport: rpc.Transport, host: str, endpoint: ConductorManager, *more: object
) -> rpc.Server:
    """Return a conductor's server, not yet started.

    :param transport: belongs to the caller
    :param host: the name by which this conductor alone can be called
    :param more: further endpoints, each with methods of its own
    """
    serializer = rpc.ContextSerializer(base.ConductorSerializer())
    return rpc.Server(transport, rpcapi.TOPIC, host, [endpoint, *more], serializer)


def _trace(context: RequestContext, what: str) -> None:
    """Say at DEBUG who asks what: the trace of an agent's audits and starts."""
    if LOG.isEnabledFor(logging.DEBUG):
        LOG.debug("%s asks: %s", context.grant or "somebody without a grant", what)


def _formerly(host: str, formerly: object, nodes: object) -> grants.Formerly | None:
    """Return what a hello says of its host's former name, None: it has no other.

    :raises InvalidInput, InvalidName: what can't be
    """
    if formerly is None:
        return None
    former = names.check(formerly, "formerly")
    if names.fold(former) == names.fold(host):
        return None
    reason = f"is not a list of at most {rpcapi.MOST_NODES} uuids with names"
    wrong = errors.InvalidInput(field="nodes", reason=reason)
    if not isinstance(nodes, list | tuple) or len(nodes) > rpcapi.MOST_NODES:
        raise wrong
    pairs = []
    for item in nodes:
        if not isinstance(item, list | tuple) or len(item) != 2:
            raise wrong
        uuid, name = item
        if not uuidutils.is_uuid_like(uuid):
            raise wrong
        pairs.append((str(uuid).lower(), names.check(name, "nodes")))
    return grants.Formerly(former, pairs)


def _grant_of(context: RequestContext) -> Grant:
    if context.grant is None:
        raise errors.InvalidInput(field="context", reason="carries no grant")
    return context.grant


def _served_versions(versions: object, objname: str) -> dict[str, str]:
    """Return in which version each object is answered, none newer than ours.

    :param versions: what the caller knows, as it came over the wire
    :param objname: the object that must be among them
    :raises InvalidInput: something that is no version
    :raises UnsupportedObject: a version that can't be served
    """
    given = versions if isinstance(versions, Mapping) else {}
    known = base.VersionedObjectRegistry.obj_classes().keys()
    served = {name: _served(name, given[name]) for name in known & given.keys()}
    if objname not in served:
        raise errors.InvalidInput(
            field="object_versions", reason=f"has no version of {objname}"
        )
    return served


def _served(objname: str, version: object) -> str:
    match = _VERSION.fullmatch(version) if isinstance(version, str) else None
    if match is None:
        raise errors.InvalidInput(
            field="object_versions",
            reason=f"{ascii(version)[:32]} is not a version of {objname}",
        )
    ours = versionutils.convert_version_to_tuple(base.newest(objname).VERSION)
    wanted = int(match["major"]), int(match["minor"])
    if wanted[0] != ours[0]:
        raise errors.UnsupportedObject(
            reason=f"{objname} {version}; there are 1.0 to "
            f"{base.newest(objname).VERSION}"
        )
    return ".".join(str(part) for part in min(wanted, ours))


_number = versionutils.convert_version_to_tuple
#: What the lists hold.
_OF_LISTS = {
    compute_node.ComputeNodeList.obj_name(): compute_node.ComputeNode.obj_name(),
    service_obj.ServiceList.obj_name(): service_obj.Service.obj_name(),
}


def _in_versions(result: base.MusterObject, versions: dict[str, str]) -> Any:
    """Return the object's primitive in versions of _served_versions."""
    # An object that came in an older version than is asked for stays as it is.
    own = min(versions[result.obj_name()], result.VERSION, key=_number)
    # A list holds objects of its own version if nothing is said of theirs, and who
    # says nothing of services is taken for one of the oldest peers.
    said = versions
    versions = dict(levels.of(0).objects)
    if isinstance(result, ovo_base.ObjectListBase):
        versions[_OF_LISTS[result.obj_name()]] = own
    versions |= said
    if versions[compute_node.ComputeNode.obj_name()] == _JUNO:
        if isinstance(result, compute_node.ComputeNode):
            compute_node.fill_service_ids([result])
        elif isinstance(result, compute_node.ComputeNodeList):
            compute_node.fill_service_ids(result)
    return result.obj_to_primitive(target_version=own, version_manifest=versions)


def _updates(objinst: base.MusterObject, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a method changed, as primitives of the caller's version.

    :param objinst: of the version in which the caller sent it
    :param before: the fields that it had then
    """
    if isinstance(objinst, compute_node.ComputeNode) and objinst.VERSION == _JUNO:
        compute_node.fill_service_ids([objinst])
    updates: dict[str, Any] = {
        name: objinst.fields[name].to_primitive(objinst, name, value)
        for name, value in objinst.obj_values().items()
        if name not in before or before[name] != value
    }
    if objinst.VERSION != type(objinst).VERSION:
        objinst.obj_make_compatible(updates, objinst.VERSION)
    # What still counts as changed was set by the caller, who knows it.
    updates["obj_what_changed"] = sorted(objinst.obj_what_changed())
    return updates


#: Of the remotable methods, which are few and never change.
_signature = functools.cache(inspect.signature)


def _run(
    function: Callable[..., Any],
    *first: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Call the function if the caller's arguments fit it."""
    try:
        bound = _signature(function).bind(*first, *args, **kwargs)
    except TypeError as exc:
        raise errors.InvalidInput(field="args", reason=str(exc)) from None
    return function(*bound.args, **bound.kwargs)
