"""The resource tracker: what the source says there is, kept true in the book.

A thin shell around compute_agent.core: it reads the source under a time limit,
compares each node with what is stored, and saves what differs.
"""

from collections.abc import Iterable
import dataclasses
import threading

from oslo_log import log as logging

from compute_agent import core
from compute_agent import progress
from compute_agent import tenure
from compute_agent.inventory import bounded
from compute_agent.inventory import source as inventory_source
from musterbook import errors
from objects import compute_node

LOG = logging.getLogger(__name__)

#: Seconds for a conductor to answer one call of an audit, if rpc_response_timeout is
#: not less: an audit comes again, and a stop waits for the one in hand.
CALL_SECONDS = 10.0
#: What the next node would meet as well.
_NOBODY_THERE = (errors.ConductorUnavailable, errors.DatabaseUnavailable)


@dataclasses.dataclass(frozen=True)
class AuditResult:
    """What an audit did, by node name.

    :ivar failed: node name to the reason; such a node is tried again next time
    """

    created: tuple[str, ...] = ()
    saved: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()


class ResourceTracker:
    """Audits the nodes of one agent.

    audit() belongs to one thread at a time, the agent's timer; no lock is held while
    it waits for the source or the conductor. reread() and set_policy() may be called
    from any thread.

    :param host: the agent's host, as granted
    :param reader: the inventory source under its time limit
    :param policy: reserved amounts and ratios
    :param held: the grant
    :param stopping: set, an audit in hand begins with no other node
    :param marks: where it leaves marks of its progress
    """

    def __init__(
        self,
        host: str,
        reader: bounded.BoundedReader,
        policy: core.Policy,
        held: tenure.Tenure,
        stopping: threading.Event | None = None,
        marks: progress.Progress | None = None,
    ) -> None:
        self._host = host
        self._reader = reader
        self._policy = policy
        self._held = held
        self._stopping = stopping or threading.Event()
        self._marks = marks or progress.Progress(0)
        self._nodes: dict[str, compute_node.ComputeNode] = {}
        self._failing: dict[str, str] = {}
        self._untold: set[str] = set()
        self._source_failing = False
        self._reread = threading.Event()
        self._gave_up_at = ""

    def audit(self) -> AuditResult:
        """Compare every node of the source with the book, save what differs.

        A node that can't be saved is reported, doesn't keep the others from being
        saved, and is read anew from the book next time. When nobody is there to save
        it, or the agent stops, the others are not tried and count as failed.

        :raises InventoryUnavailable: the source can't say what there is; nothing
            was changed
        :raises Superseded: another process has the host now
        :raises GrantForgotten: the database was replaced; say hello again first
        """
        inventory = self._read()
        if self._reread.is_set():
            self._reread.clear()
            self._nodes.clear()
        outcome: dict[str, list[str]] = {"created": [], "saved": [], "unchanged": []}
        failed: list[tuple[str, str]] = []
        given_up = ""
        for name in self._in_turn(inventory):
            if self._stopping.is_set():
                given_up = "the agent stops"
            if given_up:
                failed.append((name, given_up))
                continue
            self._marks.saving(name)
            try:
                outcome[self._audit_node(name, inventory[name])].append(name)
                self._note_success(name)
            except (errors.Superseded, errors.GrantForgotten):
                self._nodes.clear()
                raise
            except errors.MusterbookError as exc:
                self._nodes.pop(name, None)
                self._note_failure(name, exc)
                failed.append((name, exc.message))
                if isinstance(exc, _NOBODY_THERE):
                    given_up = f"not tried: {exc.message}"
                    self._gave_up_at = name
            except Exception as exc:
                self._nodes.pop(name, None)
                LOG.exception("Node %s: audit failed unexpectedly", name)
                failed.append((name, f"unexpected {type(exc).__name__}"))
            finally:
                self._marks.saved()
        return AuditResult(
            created=tuple(outcome["created"]),
            saved=tuple(outcome["saved"]),
            unchanged=tuple(outcome["unchanged"]),
            failed=tuple(failed),
        )

    def reread(self) -> None:
        """Let the next audit compare with what is stored, not with what was."""
        self._reread.set()

    def set_policy(self, policy: core.Policy) -> None:
        """Change the policy for every node that is audited from now on."""
        self._policy = policy

    def _read(self) -> dict[str, inventory_source.NodeInventory]:
        self._marks.reading()
        try:
            inventory = dict(self._reader.read())
        except errors.InventoryUnavailable as exc:
            self._marks.unreadable(exc.message)
            if not self._source_failing:
                self._source_failing = True
                LOG.warning("%s; nothing is changed until it answers", exc.message)
            raise
        self._marks.read()
        if self._source_failing:
            self._source_failing = False
            LOG.warning("The inventory source answers again")
        return inventory

    def _in_turn(self, names: Iterable[str]) -> list[str]:
        """Return the names, those first that the last audit that gave up didn't try."""
        turn = list(names)
        if self._gave_up_at in turn:
            following = turn.index(self._gave_up_at) + 1
            turn = turn[following:] + turn[:following]
        return turn

    def _audit_node(self, name: str, reading: inventory_source.NodeInventory) -> str:
        """Bring one node's record up to date; return what was done."""
        node = self._nodes.get(name) or self._find(name)
        if node is None:
            node = self._nodes[name] = self._create(name, reading)
            self._confirm_usage(node, reading)
            return "created"
        self._nodes[name] = node
        stored = _stored(node)
        changes = core.changes(stored, core.capacity(reading, self._policy, stored))
        for column, value in changes.items():
            setattr(node, column, value)
        if changes:
            node.save()
            LOG.info("Node %s: saved %s", name, ", ".join(sorted(changes)))
        confirmed = self._confirm_usage(node, reading)
        return "saved" if changes or confirmed else "unchanged"

    def _confirm_usage(
        self, node: compute_node.ComputeNode, reading: inventory_source.NodeInventory
    ) -> bool:
        """Say what uses a node that was taken over, if that isn't confirmed yet.

        After the node's own save, by which the conductor learns what is reserved. A
        conductor that is older than the question doesn't ask it.

        :return: whether it was said
        """
        name = reading.hypervisor_hostname
        if not node.obj_attr_is_set("usage_confirmed") or node.usage_confirmed:
            self._untold.discard(name)
            return False
        if reading.used is None:
            if name not in self._untold:
                self._untold.add(name)
                LOG.warning(
                    "Node %s: was taken over with %s in use, which stays unconfirmed: "
                    "the inventory source can't tell what runs there",
                    name,
                    _used(node),
                )
            return False
        before = _used(node)
        node.confirm_usage(dataclasses.asdict(reading.used))
        LOG.warning("Node %s: usage confirmed: %s; was %s", name, _used(node), before)
        return True

    def _find(self, name: str) -> compute_node.ComputeNode | None:
        try:
            return compute_node.ComputeNode.get_by_host_and_nodename(
                self._held.context, self._host, name
            )
        except errors.ComputeNodeNotFound:
            return None

    def _create(
        self, name: str, reading: inventory_source.NodeInventory
    ) -> compute_node.ComputeNode:
        """Create the node, or take the one that was created meanwhile.

        The latter is read only: what differs is saved at the next audit, or by
        whoever created it.
        """
        node = compute_node.ComputeNode(
            self._held.context,
            host=self._host,
            **core.capacity(reading, self._policy, None),
        )
        try:
            node.create()
        except errors.ComputeNodeExists:
            found = self._find(name)
            if found is None:
                raise
            return found
        LOG.info("Node %s: created with id %s, uuid %s", name, node.id, node.uuid)
        return node

    def _note_failure(self, name: str, exc: errors.MusterbookError) -> None:
        """Log a failure when it begins; which part of the way is away changes often."""
        kind = errors.kind(exc)
        if self._failing.get(name) != kind:
            LOG.warning("Node %s: not saved, trying again: %s", name, exc.message)
        self._failing[name] = kind

    def _note_success(self, name: str) -> None:
        if self._failing.pop(name, None) is not None:
            LOG.warning("Node %s: saved again", name)


def _used(node: compute_node.ComputeNode) -> str:
    return (
        f"vcpus {node.vcpus_used}, memory_mb {node.memory_mb_used}, "
        f"local_gb {node.local_gb_used}"
    )


def _stored(node: compute_node.ComputeNode) -> dict[str, object]:
    return {
        name: getattr(node, name)
        for name in node.fields
        if name != "service" and node.obj_attr_is_set(name)
    }
