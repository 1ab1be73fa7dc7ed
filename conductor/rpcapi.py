"""The client side of the conductor: how everybody else asks it.

Version history:
    1.0 - object_action, object_class_action_versions, object_backport_versions,
          ping, hello, goodbye, stalled, verify, get_fleet
    1.1 - get_versions, adopt_node, reset_flapping; hello takes version, the caller's
          service level, and formerly and nodes, what the host was
    1.2 - claim, claim_many, confirm_claim, release_claim, list_claims, beat, get_beats,
          release_freeze; get_fleet takes max_age; ComputeNode has custom_resources,
          labels and booted_at
"""

from collections.abc import Mapping
from collections.abc import Sequence
import time
from typing import Any

from oslo_versionedobjects import base as ovo_base

from conductor import claim_calls
from conductor import paging
from musterbook import errors
from musterbook import levels
from musterbook import rpc
from musterbook.context import RequestContext
from musterbook.context import service_context
from objects import base

TOPIC = "conductor"
VERSION = "1.2"
#: What a call needs unless it says otherwise: any conductor answers it.
_FIRST = "1.0"
_LEVELS = "1.1"
_BEATS = "1.2"
_AGES = "1.2"
#: How many nodes a hello may tell of; with more, a host can't be renamed.
MOST_NODES = 5000
#: How often a call is made while the conductors that get it have lost the database:
#: another one may reach it, and a topic's messages go to its servers in turn.
_TURNS = 3
_AUTO = "auto"
#: Seconds the question for versions may take; a call of the asker's waits for it.
_ASKING_SECONDS = 3.0


class ConductorAPI(claim_calls.ClaimCalls, ovo_base.VersionedObjectIndirectionAPI):
    """Calls to any conductor; thread-safe.

    Also the carrier of remotable methods (``MusterObject.indirection_api``). Every
    method may raise ConductorUnavailable within the time-out, besides what is named.

    :param transport: the process's transport
    :param timeout: seconds an answer may take
    :param pinned: newest version of the interface to speak, and with it of objects;
        "auto": what a conductor is found to speak; None: the newest
    """

    def __init__(
        self, transport: rpc.Transport, timeout: float, pinned: str | None = None
    ) -> None:
        self._timeout = timeout
        if pinned == _AUTO:
            self._pin = rpc.Pin(VERSION, ask=self._ask_version)
        else:
            self._pin = rpc.Pin(VERSION, fixed=pinned)
        serializer = base.PinnedSerializer(self._object_versions)
        self._client = rpc.Client(
            transport,
            TOPIC,
            _FIRST,
            rpc.ContextSerializer(serializer),
            unavailable=_unavailable,
            timeout=timeout,
            pin=self._pin,
        )
        # Asks what the pin is to be, and so isn't bound by it.
        self._asker = rpc.Client(
            transport,
            TOPIC,
            _LEVELS,
            rpc.ContextSerializer(),
            unavailable=_unavailable,
            timeout=min(timeout, _ASKING_SECONDS),
        )

    # -- versions ------------------------------------------------------------------

    def get_versions(
        self, context: RequestContext, timeout: float | None = None
    ) -> dict[str, Any]:
        """Return what the conductor that answers speaks, and what agents do.

        :return: ``conductor``, ``compute``: versions of the RPC interfaces;
            ``objects``: by name; ``level``: the conductor's service level;
            ``lowest_level``: that of the oldest agent that runs, None if none does
        :raises VersionPinned: it may not be asked
        :raises UnsupportedObject: the conductor is older than that
        """
        answer: dict[str, Any] = self._call(
            context, "get_versions", timeout=timeout, interface=_LEVELS
        )
        return answer

    def _ask_version(self) -> str | None:
        try:
            answer = self._asker.call(service_context(), "get_versions")
        except errors.UnsupportedObject:
            return _FIRST
        except errors.MusterbookError:
            return None  # what is asked next says what is the matter
        return str(answer["conductor"])

    def _object_versions(self) -> Mapping[str, str]:
        """Return the newest version of each object that may be sent or asked for."""
        return levels.objects_with(self._pin.version())

    def _call(
        self,
        context: RequestContext,
        method: str,
        *,
        timeout: float | None = None,
        interface: str | None = None,
        **args: Any,
    ) -> Any:
        """Call a method of any conductor; with "auto", again if one is too old for it.

        It then refuses the objects, or the versions asked for, before it has done
        anything. What is newer itself can't be said in an older way.
        """
        began = time.monotonic()
        left = seconds = self._timeout if timeout is None else timeout
        while True:
            try:
                return self._take_turns(context, method, left, interface, args)
            except errors.UnsupportedObject:
                # In the first version it isn't for our objects that it refuses.
                lower = _version_before(interface or self._pin.version())
                again = lower is not None and self._pin.refused(lower)
                left = seconds - (time.monotonic() - began)
                if interface is not None or not again or left <= 0:
                    raise

    def _take_turns(
        self,
        context: RequestContext,
        method: str,
        seconds: float,
        interface: str | None,
        args: dict[str, Any],
    ) -> Any:
        """Call a method of any conductor that reaches the database.

        With one agent and two conductors, a find and a save each, the save would come
        to the same one of them again and again.
        """
        began = time.monotonic()
        left = seconds
        unknown: errors.DatabaseUnavailable | None = None
        if "object_versions" in args:
            args = args | {"object_versions": self._pinned(args["object_versions"])}
        for turn in range(1, _TURNS + 1):
            try:
                return self._client.call(
                    context, method, timeout=left, interface=interface, **args
                )
            except errors.DatabaseBusy:
                if unknown is None:
                    raise
                # This conductor didn't make the change; the one before may have.
                raise unknown from None
            except errors.DatabaseUnavailable as exc:
                unknown = exc
                taken = time.monotonic() - began
                left = seconds - taken
                # Not when the next one would have too little time to say the same.
                if turn == _TURNS or left < taken:
                    raise
        raise AssertionError("the last turn returns or raises")

    # -- the carrier of remotable methods, as oslo.versionedobjects calls it -------

    def object_action(
        self,
        context: RequestContext,
        objinst: Any,  # a base.MusterObject; the library's signature is wider
        objmethod: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> tuple[dict[str, Any], Any]:
        """Run a remotable method of an object; return (field updates, result)."""
        updates, result = self._call(
            context,
            "object_action",
            objinst=objinst.obj_for_call(),
            objmethod=objmethod,
            args=list(args),
            kwargs=dict(kwargs),
        )
        return updates, result

    def object_class_action_versions(
        self,
        context: RequestContext,
        objname: str,
        objmethod: str,
        object_versions: Mapping[str, str],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Run a remotable class method; the answer has the versions asked for.

        All nodes come in pages if they don't fit one message.

        :raises MessageTooLarge: the answer is, and can't come in pages
        """

        def call(method: str, *args: Any, **kwargs: Any) -> Any:
            return self._call(
                context,
                "object_class_action_versions",
                objname=objname,
                objmethod=method,
                object_versions=object_versions,
                args=list(args),
                kwargs=kwargs,
            )

        try:
            return call(objmethod, *args, **kwargs)
        except errors.MessageTooLarge:
            asked = (objname, objmethod, any(args), any(kwargs.values()))
            if asked != ("ComputeNodeList", "get_all", False, False):
                raise
        return paging.fetch_all(
            lambda limit, marker: call("get_by_pagination", limit=limit, marker=marker)
        )

    def object_backport_versions(
        self,
        context: RequestContext,
        objinst: Any,
        object_versions: Mapping[str, str],
    ) -> Any:
        """Return the object in the versions asked for."""
        return self._call(
            context,
            "object_backport_versions",
            objinst=objinst,
            object_versions=object_versions,
        )

    def _pinned(self, versions: Mapping[str, str]) -> dict[str, str]:
        """Return the versions, none newer than the pin's."""
        newest = self._object_versions()
        return {name: newest.get(name, version) for name, version in versions.items()}

    # -- liveness ------------------------------------------------------------------

    def ping(self, context: RequestContext, timeout: float | None = None) -> None:
        """Return when a conductor answers."""
        self._call(context, "ping", timeout=timeout)

    def hello(
        self,
        context: RequestContext,
        *,
        host: str,
        process_uuid: str,
        boot_id: str | None,
        release: str,
        secret: str,
        had: int | None = None,
        version: int | None = None,
        formerly: str | None = None,
        nodes: Sequence[tuple[str, str]] = (),
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Ask for a grant; return ``host`` as stored and ``incarnation``.

        Saying it again with the same process_uuid and secret gives the same grant.

        :param had: the incarnation as which the process serves already, if the
            database has forgotten it
        :param version: the caller's service level
        :param formerly: the host's name when this agent last ran, if it was another
        :param nodes: uuid and name of each node that it had then; the answer has, as
            ``nodes``, each uuid with the host whose it is now, or None
        :raises NodeTaken: one of them is a living process's
        :raises HostTaken: a living process serves this host
        :raises AgentNotAsked: whether one does can't be told now; try again
        :raises InvalidInput: more nodes than a hello may tell of
        :raises UnsupportedObject: a conductor is too old to be told of the nodes, which
            it would leave to the former name

        The level, and a former name without nodes, are left out where a conductor is
        too old to be told.
        """
        again: dict[str, Any] = {} if had is None else {"had": had}
        newer: dict[str, Any] = {} if version is None else {"version": version}
        if formerly is not None:
            _check_count(host, formerly, len(nodes))
            told = [list(pair) for pair in nodes]
            newer |= {"formerly": formerly, "nodes": told}
        must_be_told = formerly is not None and bool(nodes)

        def call(**more: Any) -> dict[str, Any]:
            answer: dict[str, Any] = self._call(
                context,
                "hello",
                timeout=timeout,
                host=host,
                process_uuid=process_uuid,
                boot_id=boot_id,
                release=release,
                secret=secret,
                **again,
                **more,
            )
            return answer

        if not newer or not self._pin.allows(_LEVELS):
            if must_be_told:
                raise untold(host, formerly)
            return call()
        try:
            return call(interface=_LEVELS, **newer)
        except errors.UnsupportedObject:
            if must_be_told:
                self._pin.refused(_FIRST)
                raise untold(host, formerly) from None
            if not self._pin.refused(_FIRST):
                raise _too_new("hello") from None
        return call()

    def adopt_node(
        self,
        context: RequestContext,
        uuid: str,
        name: str,
        formerly: str,
        timeout: float | None = None,
    ) -> None:
        """Take over a node that another host's agent managed till now.

        :raises ComputeNodeMoved: it isn't formerly's any more
        :raises ComputeNodeNotFound: no live node has this uuid
        :raises ComputeNodeExists: the host has another node of this name
        :raises InvalidInput: which node from Juno is meant can't be told
        :raises Superseded: another process was granted the host
        :raises VersionPinned: the conductors may be too old to be asked
        """
        self._call(
            context,
            "adopt_node",
            timeout=timeout,
            interface=_LEVELS,
            uuid=uuid,
            name=name,
            formerly=formerly,
        )

    def goodbye(self, context: RequestContext, timeout: float | None = None) -> None:
        """Tell that the granted process stops; Superseded, GrantForgotten."""
        self._call(context, "goodbye", timeout=timeout)

    def stalled(
        self,
        context: RequestContext,
        reason: str | None,
        timeout: float | None = None,
    ) -> None:
        """Tell that the working loop makes no progress, or (None) does again."""
        self._call(context, "stalled", timeout=timeout, reason=reason)

    def verify(self, context: RequestContext, timeout: float | None = None) -> None:
        """Return if the context's grant is its host's current one.

        :raises Superseded: another process was granted the host, or its service was
            deleted
        :raises GrantForgotten: the database was replaced or set back
        """
        self._call(context, "verify", timeout=timeout)

    def beat(self, context: RequestContext, timeout: float | None = None) -> None:
        """Tell that the granted process lives: servicegroup_driver db.

        :raises Superseded, GrantForgotten: as verify
        :raises VersionPinned, UnsupportedObject: the conductors are too old
        """
        self._call(context, "beat", timeout=timeout, interface=_BEATS)

    def get_beats(
        self, context: RequestContext, timeout: float | None = None
    ) -> list[list[Any]]:
        """Return who has beaten so, and when.

        :return: host, incarnation, when as ISO 8601 by the database's clock, and the
            seconds since then
        :raises VersionPinned, UnsupportedObject: the conductors are too old
        """
        answer: list[list[Any]] = self._call(
            context, "get_beats", timeout=timeout, interface=_BEATS
        )
        return answer

    def reset_flapping(
        self, context: RequestContext, host: str, timeout: float | None = None
    ) -> None:
        """End the hold of a host that is suspect because it came and went.

        It is up at the leader's next look, and its returns are counted anew. A host
        that isn't held is left alone.

        :raises ServiceNotFound: there is no such host
        :raises VersionPinned: the conductors may be too old to be asked
        """
        self._call(
            context, "reset_flapping", timeout=timeout, interface=_LEVELS, host=host
        )

    def release_freeze(
        self,
        context: RequestContext,
        zone: str | None = None,
        timeout: float | None = None,
    ) -> dict[str, list[str]]:
        """End freezes of verdicts: what the leader sees is true, an operator says.

        At the leader's next look each host is judged by what is seen of it.

        :param zone: of this zone only; "": of the whole fleet; None: all there are
        :return: ``ended``: the scopes that are to end; ``kept``: those that can't, as
            the leader gets no answer from the group backend
        :raises VersionPinned: the conductors may be too old to be asked
        """
        answer: dict[str, list[str]] = self._call(
            context, "release_freeze", timeout=timeout, interface=_AGES, zone=zone
        )
        return answer

    # -- the fleet -----------------------------------------------------------------

    def get_fleet(
        self,
        context: RequestContext,
        columns: Sequence[str] | None = None,
        timeout: float | None = None,
        max_age: float | None = None,
    ) -> dict[str, Any]:
        """Return all live nodes by column, with state and evidence.

        :param columns: names of the columns wanted, None for all; unknown ones are
            left out of the answer
        :param max_age: seconds for which nobody may have looked, or verdicts may have
            been frozen; None: however old, the answer says so
        :raises LivenessUnknown: it is longer
        :raises VersionPinned: the conductors may be too old to be told an age
        :return: ``columns``: name to list of values, all of one length;
            ``lease_age``: seconds since the leader last looked, None for never
        """
        newer = {} if max_age is None else {"max_age": max_age}
        answer: dict[str, Any] = self._call(
            context,
            "get_fleet",
            timeout=timeout,
            interface=_AGES if newer else None,
            columns=None if columns is None else list(columns),
            **newer,
        )
        return answer


def _version_before(version: str) -> str | None:
    """Return the interface's version before this one; None: it is the first."""
    known = levels.conductor_versions()
    at = known.index(version)
    return known[at - 1] if at else None


def _too_new(method: str) -> errors.UnsupportedObject:
    return errors.UnsupportedObject(
        reason=f"a conductor is too old for {method} as this process says it; upgrade "
        "the conductors, or set [upgrade_levels]conductor here"
    )


def untold(host: str, formerly: str | None) -> errors.UnsupportedObject:
    """Return why a renamed host, which has nodes, can't be granted."""
    return errors.UnsupportedObject(
        reason=f"a conductor is too old, or [upgrade_levels]conductor too low, to be "
        f"told that host {host} was {formerly}, whose nodes would be made anew, empty; "
        f"upgrade the conductors, or call the host {formerly} until then"
    )


def _check_count(host: str, formerly: str, count: int) -> None:
    if count > MOST_NODES:
        raise errors.InvalidInput(
            field="nodes",
            reason=f"host {host} was {formerly} and had {count} nodes, and a hello can "
            f"tell of {MOST_NODES}; let the host be {formerly} again, or remove "
            "nodes.json from state_path if those nodes are not to be taken along",
        )


def _unavailable(method: str, seconds: float, asked: bool) -> errors.MusterbookError:
    return errors.ConductorUnavailable(method=method, seconds=seconds, asked=asked)
