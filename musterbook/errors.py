"""Errors: noun phrases under one base, with facts, a stable code and a status.

An error crosses RPC as its own class (see musterbook.rpc). What it carries are
its *facts*: JSON values that are also attributes. The message is for the person
who must act; it never holds a secret, SQL or a traceback.
"""

from typing import ClassVar


class MusterbookError(Exception):
    """Base of every error of ours.

    :param message: one line for the person who must act; without it the class's
        ``template`` is filled in from the facts
    :param facts: JSON values that describe this case; also set as attributes
    """

    code: ClassVar[str] = "internal-error"
    http_status: ClassVar[int] = 500
    template: ClassVar[str] = "an unexpected error"

    def __init__(self, message: str | None = None, **facts: object) -> None:
        """Fill the template; unknown facts are kept, missing ones shown as '?'."""
        if message is None:
            message = self.template.format_map(_Facts(facts))
        super().__init__(message)
        self.message = message
        # oslo.messaging sends ``kwargs`` with the error and rebuilds from it.
        self.kwargs = facts
        for name, value in facts.items():
            if name not in {"args", "kwargs", "message"}:
                setattr(self, name, value)


def kind(exc: Exception) -> str:
    """Return what an error is for a log that tells a condition's begin and end.

    One for all that is away, whichever part of the way to the answer it is.
    """
    away = isinstance(exc, MusterbookError) and exc.http_status == 503
    return "unavailable" if away else type(exc).__name__


def one_line(text: str) -> str:
    """Return the text with every run of white space as one blank."""
    return " ".join(text.split())


class _Facts(dict[str, object]):
    def __missing__(self, key: str) -> str:
        return "?"


# -- what the operator configured ------------------------------------------------


class ConfigurationError(MusterbookError):
    """An option has a value that can't be used. Facts: option, reason."""

    code = "configuration-error"
    template = "option {option}: {reason}"
    option: str
    reason: str


class InvalidName(MusterbookError):
    """A host or node name breaks the naming rule. Facts: field, reason."""

    code = "invalid-name"
    http_status = 400
    template = (
        "{field}: {reason}; allowed are 1 to 255 of the ASCII characters "
        "A-Z a-z 0-9 . _ -"
    )
    field: str
    reason: str


class InvalidInput(MusterbookError):
    """A value given by a caller can't be used. Facts: field, reason."""

    code = "invalid-input"
    http_status = 400
    template = "{field}: {reason}"
    field: str
    reason: str


# -- objects and the database ----------------------------------------------------


class NotFound(MusterbookError):
    """Base of everything that was asked for and isn't there."""

    code = "not-found"
    http_status = 404


class ComputeNodeNotFound(NotFound):
    """No live compute node. Facts: what (how it was asked for)."""

    code = "compute-node-not-found"
    template = "no compute node with {what}"
    what: str


class ServiceNotFound(NotFound):
    """No live service record. Facts: what (how it was asked for)."""

    code = "service-not-found"
    template = "no service with {what}"
    what: str


class MarkerNotFound(NotFound):
    """The record that a page should start after doesn't exist. Facts: marker."""

    code = "marker-not-found"
    http_status = 400
    template = "no record with the marker {marker}"


class ComputeNodeExists(MusterbookError):
    """A live compute node has this identity. Facts: host, hypervisor_hostname."""

    code = "compute-node-exists"
    http_status = 409
    template = "compute node {hypervisor_hostname} of host {host} already exists"
    host: str
    hypervisor_hostname: str


class ComputeNodeMoved(MusterbookError):
    """A compute node belongs to another host than the caller's. Facts: uuid, host.

    host is whose it is now. Forget it; never delete it.
    """

    code = "compute-node-moved"
    http_status = 409
    template = "compute node with uuid {uuid} is host {host}'s now"
    uuid: str
    host: str


class ComputeNodeInUse(MusterbookError):
    """A compute node has usage beyond what is reserved. Facts: what, used.

    used names the resources. It can be deleted by force only.
    """

    code = "compute-node-in-use"
    http_status = 409
    template = (
        "compute node with {what} is in use ({used}) and is not deleted; free it "
        "first, or use musterbook-manage node delete --force"
    )
    used: str


class ServiceExists(MusterbookError):
    """A live service has this host and binary. Facts: host, binary."""

    code = "service-exists"
    http_status = 409
    template = "service {binary} of host {host} already exists"
    host: str
    binary: str


class InventoryChanged(MusterbookError):
    """A save was based on an older inventory generation.

    Facts: what, expected, found. Read the record again and decide anew.
    """

    code = "inventory-changed"
    http_status = 409
    template = "{what}: saved on inventory generation {expected}, stored is {found}"
    expected: int
    found: int


class DatabaseUnavailable(MusterbookError):
    """The database can't be reached or didn't answer. Facts: reason.

    Whether a change that was asked for was made is unknown.
    """

    code = "database-unavailable"
    http_status = 503
    template = "the database is not available: {reason}"


class DatabaseBusy(MusterbookError):
    """Deadlocks or locks outlasted every retry; try again. Facts: reason.

    Never raised when an attempt may have been committed: DatabaseUnavailable is.
    """

    code = "database-busy"
    http_status = 503
    template = "the database was busy and the change was not made, try again: {reason}"


class DatabaseShape(MusterbookError):
    """The database isn't one this code can work with. Facts: reason."""

    code = "database-shape"
    template = "the database can't be used: {reason}"
    reason: str


class DatabaseBehind(DatabaseShape):
    """The database is empty or older than this code. Facts: reason."""

    code = "database-behind"


# -- RPC -------------------------------------------------------------------------


class MethodNotRemotable(MusterbookError):
    """A peer asked for something that isn't on the list. Facts: objname, method."""

    code = "method-not-remotable"
    http_status = 400
    template = "{objname}.{method} can't be called over RPC"


class UnsupportedObject(MusterbookError):
    """An object name or version that this process can't serve. Facts: reason."""

    code = "unsupported-object"
    http_status = 400
    template = "object not supported: {reason}"


class VersionPinned(MusterbookError):
    """A call needs a newer version than may be spoken. Facts: what, needs, speaks."""

    code = "version-pinned"
    http_status = 501
    template = (
        "{what} needs version {needs} of the RPC interface, and no newer one than "
        "{speaks} may be spoken ([upgrade_levels])"
    )
    needs: str
    speaks: str


class ConductorUnavailable(MusterbookError):
    """No conductor answered in time. Facts: method, seconds, asked.

    asked is False when nobody's silence made it fail, but a lost broker: the message
    didn't leave, or its answer may have been lost on the way.
    """

    code = "conductor-unavailable"
    http_status = 503
    template = "no conductor answered {method} within {seconds} s"


class AgentUnavailable(MusterbookError):
    """The agent of a host didn't answer in time. Facts: host, method, seconds."""

    code = "agent-unavailable"
    http_status = 503
    template = "the agent of host {host} did not answer {method} within {seconds} s"


class AgentNotThere(AgentUnavailable):
    """The broker has no queue of the host's agent. Facts: host, method, seconds.

    Nobody serves the host, or somebody is about to: just granted, or finding its way
    back to a broker that was restarted.
    """

    code = "agent-not-there"
    template = "the broker has no queue of the agent of host {host} for {method}"


class AgentNotAsked(AgentUnavailable):
    """The agent of a host couldn't be asked. Facts: host, method, reason.

    Says nothing about the agent: never count it as silence. Try again later.
    """

    code = "agent-not-asked"
    template = "the agent of host {host} could not be asked {method}: {reason}"
    reason: str


class MessageTooLarge(MusterbookError):
    """A message has more bytes than may be sent. Facts: what, size, limit.

    size and limit are bytes; the limit is rpc_message_limit or the broker's own.
    """

    code = "message-too-large"
    http_status = 413
    template = (
        "{what} is too large to be sent: its size is {size} bytes, the limit {limit}"
    )
    size: int
    limit: int


class Stopping(MusterbookError):
    """The process that was asked stops and can't finish. Facts: server, method.

    Whether the call was done is unknown. It crosses the wire; callers get what their
    client makes of nobody answering, with this message.
    """

    code = "stopping"
    http_status = 503
    template = "{server} stopped before it had finished {method}, ask again"
    server: str
    method: str


class RemoteFailure(MusterbookError):
    """The other side failed in a way it has no name for. Facts: class_name."""

    code = "remote-failure"
    template = "the other side failed unexpectedly ({class_name}); its log says more"
    class_name: str


# -- liveness --------------------------------------------------------------------


class HostTaken(MusterbookError):
    """A living process already serves this host. Facts: host, process_uuid."""

    code = "host-taken"
    http_status = 409
    template = (
        "host {host} is served by another living process (uuid {process_uuid}); "
        "give this one a host of its own or stop the other"
    )
    host: str
    process_uuid: str


class NodeTaken(MusterbookError):
    """A node that a starting agent claims is a living process's.

    Facts: host, uuid, hypervisor_hostname, process_uuid (of that process).
    """

    code = "node-taken"
    http_status = 409
    template = (
        "compute node {hypervisor_hostname} with uuid {uuid} is host {host}'s, which "
        "another living process (uuid {process_uuid}) serves: this agent's state_path "
        "is a copy of that one's, or both use it. Give it one of its own; if the host "
        "was renamed, stop the other process first"
    )
    host: str
    uuid: str
    hypervisor_hostname: str


class Superseded(MusterbookError):
    """The caller's incarnation isn't the granted one. Facts: host, incarnation."""

    code = "superseded"
    http_status = 409
    template = (
        "incarnation {incarnation} of host {host} is no longer the granted one: "
        "another process took over, or the service was deleted"
    )
    host: str
    incarnation: int


class GrantForgotten(MusterbookError):
    """The database knows nothing of the caller's grant. Facts: host, incarnation.

    It was replaced, emptied, or set back to an earlier state: nobody was granted the
    host instead and nobody deleted its service. Say hello again.
    """

    code = "grant-forgotten"
    http_status = 409
    template = (
        "incarnation {incarnation} of host {host} is not known to the database, which "
        "was replaced or set back"
    )
    host: str
    incarnation: int


class GroupError(MusterbookError):
    """Base of what goes wrong with the group backend."""

    code = "group-error"
    http_status = 503


class GroupUnavailable(GroupError):
    """The backend didn't answer or refused. Facts: backend, reason."""

    code = "group-unavailable"
    template = "the group backend {backend} is not available: {reason}"
    reason: str


class GroupRefused(GroupUnavailable):
    """The backend refuses the user, the password or the member timeout.

    Facts: backend, reason.
    """

    code = "group-refused"


class GroupVanished(GroupError):
    """The backend answers but doesn't know the group. Facts: backend, group."""

    code = "group-vanished"
    template = "the group backend {backend} has lost the group {group}"


class LivenessUnknown(MusterbookError):
    """Nobody has looked recently enough to say who lives. Facts: reason.

    For callers that say which age they allow (``max_age`` of get_fleet). All others
    are answered `unknown` with its cause.
    """

    code = "liveness-unknown"
    http_status = 503
    template = "liveness is unknown: {reason}"


# -- inventory -------------------------------------------------------------------


class InventoryUnavailable(MusterbookError):
    """The source can't say what there is right now. Facts: source, reason."""

    code = "inventory-unavailable"
    http_status = 503
    template = "inventory source {source}: {reason}"
    source: str
    reason: str


# -- claims ----------------------------------------------------------------------


class ClaimRefused(MusterbookError):
    """No candidate has room for a claim, or may be claimed. Facts: uuid, reasons.

    reasons are all of them, each with node, reason, message and, where there isn't
    enough of something, resource, requested, free and capacity. If they are too many
    for an answer there is a fact more, reasons_left_out, their number.
    """

    code = "claim-refused"
    http_status = 409
    uuid: str
    reasons: list[dict[str, object]]

    def __init__(self, message: str | None = None, **facts: object) -> None:
        """Say reasons in one line, all unless they are many."""
        super().__init__(message or _claim_message(facts, "is refused"), **facts)


class ClaimConflict(MusterbookError):
    """A claim's uuid is known with other content. Facts: uuid, reasons."""

    code = "claim-conflict"
    http_status = 409
    uuid: str
    reasons: list[dict[str, object]]

    def __init__(self, message: str | None = None, **facts: object) -> None:
        """Say what differs."""
        super().__init__(message or _claim_message(facts, "is another one"), **facts)


class ClaimGone(MusterbookError):
    """A claim was released, or expired. Facts: uuid, state.

    Nothing can be done with its uuid any more.
    """

    code = "claim-gone"
    http_status = 410
    template = "claim {uuid} is {state}; ask under a new uuid"
    uuid: str
    state: str


class ClaimNotFound(NotFound):
    """No claim has this uuid. Facts: uuid."""

    code = "claim-not-found"
    template = "no claim with uuid {uuid}"
    uuid: str


#: Reasons that a message says; the others are among the facts.
_MOST_SAID = 50


def _claim_message(facts: dict[str, object], what: str) -> str:
    found = facts.get("reasons")
    reasons = found if isinstance(found, list) else []
    told = []
    for reason in reasons[:_MOST_SAID]:
        node = f"node {reason['node']}: " if reason.get("node") else ""
        told.append(f"{node}{reason.get('message', '?')}")
    left_out = facts.get("reasons_left_out")
    more = len(reasons[_MOST_SAID:]) + (left_out if isinstance(left_out, int) else 0)
    if more:
        told.append(f"and {more} more reasons")
    return f"claim {facts.get('uuid', '?')} {what}: {'; '.join(told) or '?'}"
