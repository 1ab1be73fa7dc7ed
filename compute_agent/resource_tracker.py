"""The resource tracker: what the source says there is, kept true in the book.

A thin shell around compute_agent.core: it reads the source under a time limit,
compares each node with what is stored, and saves what differs.

What audits, claims and the configuration's reload share is guarded by one fair lock,
under which things are decided and noted. No lock is held while the source is read or
a conductor is asked (docs/adr/0018-one-fair-lock-in-the-agent.md).
"""

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
import re
import threading

import fasteners
from oslo_log import log as logging

from compute_agent import core
from compute_agent import holdings
from compute_agent import progress
from compute_agent.inventory import bounded
from compute_agent.inventory import source as inventory_source
from musterbook import errors
from objects import compute_node

LOG = logging.getLogger(__name__)
_DIGITS = re.compile(r"\d+")

#: Seconds for a conductor to answer one call of an audit, if rpc_response_timeout is
#: not less: an audit comes again, and a stop waits for the one in hand.
CALL_SECONDS = 10.0
#: What the next node would meet as well.
_NOBODY_THERE = (errors.ConductorUnavailable, errors.DatabaseUnavailable)


@dataclasses.dataclass(frozen=True)
class AuditResult:
    """What an audit did, by node name.

    :ivar elsewhere: nodes that are another host's, and left alone
    :ivar deleted: nodes that the source knows to be gone
    :ivar failed: node name to the reason; such a node is tried again next time
    """

    created: tuple[str, ...] = ()
    saved: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()


class ResourceTracker:
    """Audits the nodes of one agent.

    audit() belongs to one thread at a time, the agent's timer. All else may be called
    from any thread, and waits for no call and no reading.

    :param reader: the inventory source under its time limit
    :param policy: reserved amounts and ratios
    :param held: the records of the agent's nodes
    :param keep: called after each audit with node name to uuid, as the book confirmed
    :param stopping: set, an audit in hand begins with no other node
    :param marks: where it leaves marks of its progress
    """

    def __init__(
        self,
        reader: bounded.BoundedReader,
        policy: core.Policy,
        held: holdings.Holdings,
        keep: Callable[[Mapping[str, str]], None],
        stopping: threading.Event | None = None,
        marks: progress.Progress | None = None,
    ) -> None:
        self._reader = reader
        self._held = held
        self._keep = keep
        self._stopping = stopping or threading.Event()
        self._marks = marks or progress.Progress(0)
        self._failing: dict[str, str] = {}  # node name to the kind of failure
        self._untold: set[str] = set()  # whose unconfirmed usage has been told of
        self._source_failing = ""  # the reason, without digits
        self._gave_up_at = ""
        # Guards what follows. Writers get it in the order in which they asked: an audit
        # takes it for each node, and would else keep others waiting to its end.
        self._lock = fasteners.ReaderWriterLock()
        self._policy = policy
        self._reread = False
        self._latest = inventory_source.Reading()
        self._recorded: dict[str, Mapping[str, object]] = {}  # as the book has it

    def audit(self) -> AuditResult:
        """Compare every node of the source with the book, save what differs.

        A node that can't be saved is reported, doesn't keep the others from being
        saved, and is read anew from the book next time. When nobody is there to save
        it, or the agent stops, the others are not tried and count as failed.

        Nodes that the source leaves out are kept; those that it knows to be gone are
        deleted, while they are this host's and not in use.

        :raises InventoryUnavailable: the source can't say what there is; nothing
            was changed
        :raises Superseded: another process has the host now
        :raises GrantForgotten: the database was replaced; say hello again first
        """
        inventory = self._read()
        with self._lock.write_lock():
            self._latest = inventory
            reread, self._reread = self._reread, False
        outcome = _Outcome()
        try:
            if reread:
                self._held.reread()
            for name in self._in_turn(inventory):
                self._in_hand(name, lambda n: self._audit_node(n, inventory), outcome)
            for name in sorted(inventory.gone):
                self._in_hand(name, self._delete_gone, outcome)
            if not outcome.given_up:
                self._settle_absent(inventory)
        except (errors.Superseded, errors.GrantForgotten):
            self._held.forget_all()
            raise
        finally:
            self._held.drop_list()
        self._keep(self._held.confirmed)
        return outcome.result()

    def reread(self) -> None:
        """Let the next audit compare with what is stored, not with what was."""
        with self._lock.write_lock():
            self._reread = True

    def set_policy(self, policy: core.Policy) -> None:
        """Change the policy for every node that is audited from now on."""
        with self._lock.write_lock():
            self._policy = policy

    def node(self, name: str, claims: Iterable[core.Amounts] = ()) -> core.Node:
        """Return a node as it is here: by the latest reading and the policy in force.

        :param claims: what its live allocations hold, each
        :raises ComputeNodeNotFound: the source doesn't report it, or the book has not
            confirmed it yet
        """
        with self._lock.write_lock():
            if name not in self._latest or name not in self._recorded:
                raise errors.ComputeNodeNotFound(what=f"name {name} at this host")
            recorded = self._recorded[name]
            return core.node(self._latest[name], claims, self._policy, recorded)

    def _in_hand(
        self, name: str, work: Callable[[str], str], outcome: "_Outcome"
    ) -> None:
        """Do one node's part of an audit and note what came of it."""
        if self._stopping.is_set():
            outcome.given_up = "the agent stops"
        if outcome.given_up:
            outcome.failed.append((name, outcome.given_up))
            return
        self._marks.saving(name)
        try:
            outcome.done[work(name)].append(name)
            self._note_success(name)
        except (errors.Superseded, errors.GrantForgotten):
            raise
        except errors.ComputeNodeMoved as exc:
            self._held.lose(name, exc.uuid, exc.host)
            self._note_record(name, None)
            outcome.done["elsewhere"].append(name)
        except errors.MusterbookError as exc:
            self._held.forget(name)
            self._note_failure(name, exc)
            outcome.failed.append((name, exc.message))
            if isinstance(exc, _NOBODY_THERE):
                outcome.given_up = f"not tried: {exc.message}"
                self._gave_up_at = name
        except Exception as exc:
            self._held.forget(name)
            LOG.exception("Node %s: audit failed unexpectedly", name)
            outcome.failed.append((name, f"unexpected {type(exc).__name__}"))
        finally:
            self._marks.saved()

    def _read(self) -> inventory_source.Reading:
        self._marks.reading()
        try:
            inventory = self._reader.read()
        except errors.InventoryUnavailable as exc:
            self._marks.unreadable(exc.message)
            # Seconds and counts in it differ each time.
            reason = _DIGITS.sub("", exc.message)
            if reason != self._source_failing:
                self._source_failing = reason
                LOG.warning("%s; nothing is changed until it answers", exc.message)
            raise
        self._marks.read()
        if self._source_failing:
            self._source_failing = ""
            LOG.warning("The inventory source answers again")
        return inventory

    def _in_turn(self, names: Iterable[str]) -> list[str]:
        """Return the names, those first that the last audit that gave up didn't try."""
        turn = list(names)
        if self._gave_up_at in turn:
            following = turn.index(self._gave_up_at) + 1
            turn = turn[following:] + turn[:following]
        return turn

    def _audit_node(self, name: str, reading: inventory_source.Reading) -> str:
        """Bring one node's record up to date; return what was done."""
        wanted = reading[name]
        node = self._held.find(name, reading)
        self._marks.saving(name)
        if node is not None:
            try:
                return self._save(name, node, wanted)
            except errors.ComputeNodeNotFound:
                self._held.forget(name)  # deleted since it was read
        self._marks.saving(name)
        columns = self._decide(wanted, None)
        created = self._held.create(name, columns, wanted.uuid)
        self._note_record(name, _stored(created))
        self._confirm_usage(created, wanted)
        return "created"

    def _save(
        self,
        name: str,
        node: compute_node.ComputeNode,
        wanted: inventory_source.NodeInventory,
    ) -> str:
        stored = _stored(node)
        changes = self._decide(wanted, stored)
        for column, value in changes.items():
            setattr(node, column, value)
        if changes:
            node.save()
            LOG.info("Node %s: saved %s", name, ", ".join(sorted(changes)))
            if core.booted_anew(stored, wanted):
                LOG.warning(
                    "Node %s: its host was booted: its boot id is %s, was %s",
                    name,
                    wanted.boot_id,
                    stored["boot_id"],
                )
        self._note_record(name, {**stored, **changes})
        if "hypervisor_hostname" in changes:
            self._held.renamed(name, str(stored["hypervisor_hostname"]))
        self._marks.saving(name)
        confirmed = self._confirm_usage(node, wanted)
        self._held.settle_uuid(name, wanted.uuid)
        return "saved" if changes or confirmed else "unchanged"

    def _decide(
        self,
        wanted: inventory_source.NodeInventory,
        stored: Mapping[str, object] | None,
    ) -> dict[str, object]:
        """Return what has to be saved of a node."""
        with self._lock.write_lock():
            made = core.node(wanted, (), self._policy, stored)
            return core.changes(stored, made.columns)

    def _note_record(self, name: str, record: Mapping[str, object] | None) -> None:
        """Note what the book has of a node now; None: it isn't this host's."""
        with self._lock.write_lock():
            if record is None:
                self._recorded.pop(name, None)
            else:
                self._recorded[name] = record

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

    def _delete_gone(self, name: str) -> str:
        deleted = self._held.delete_gone(name)
        self._note_record(name, None)
        return "deleted" if deleted else "absent"

    def _settle_absent(self, inventory: inventory_source.Reading) -> None:
        try:
            self._held.settle_absent(inventory)
        except (errors.Superseded, errors.GrantForgotten):
            raise
        except errors.MusterbookError as exc:
            LOG.debug("Absent nodes are looked for at the next audit: %s", exc.message)
        except Exception:
            LOG.exception("Absent nodes are looked for at the next audit")

    def _note_failure(self, name: str, exc: errors.MusterbookError) -> None:
        """Log a failure when it begins; which part of the way is away changes often."""
        kind = errors.kind(exc)
        if self._failing.get(name) != kind:
            LOG.warning("Node %s: not saved, trying again: %s", name, exc.message)
        self._failing[name] = kind

    def _note_success(self, name: str) -> None:
        if self._failing.pop(name, None) is not None:
            LOG.warning("Node %s: saved again", name)


class _Outcome:
    """What an audit has done so far."""

    def __init__(self) -> None:
        self.done: dict[str, list[str]] = collections.defaultdict(list)
        self.failed: list[tuple[str, str]] = []
        self.given_up = ""  # why the nodes that are left are not tried

    def result(self) -> AuditResult:
        kinds = ("created", "saved", "unchanged", "elsewhere", "deleted")
        return AuditResult(
            **{kind: tuple(self.done[kind]) for kind in kinds},
            failed=tuple(self.failed),
        )


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
