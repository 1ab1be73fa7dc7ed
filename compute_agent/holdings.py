"""The records of this agent's nodes: found, taken over, renamed, given up, deleted.

What decides is the book: a node is its host's and has its name there. The uuids that
are known from before, from the source or from the book, only tell where to look when
there is no such record.
"""

from collections.abc import Callable
from collections.abc import Mapping

from oslo_log import log as logging

from compute_agent import contest
from compute_agent import tenure
from compute_agent.inventory import source as inventory_source
from musterbook import errors
from musterbook import names
from objects import compute_node

LOG = logging.getLogger(__name__)

#: What keeps the book from taking a source's uuid: what it has already, or a conductor
#: that is too old.
_NO_UUID_FROM_HERE = (
    errors.ComputeNodeExists,
    errors.ComputeNodeMoved,
    errors.ComputeNodeNotFound,
    errors.UnsupportedObject,
    errors.VersionPinned,
)
#: Nodes from which on one list costs less than a question for each.
_WORTH_A_LIST = 2


class Holdings:
    """The nodes of one agent; the audits' thread uses it.

    :param held: the grant
    :param adopt: asks the conductor for the node of another agent, by uuid, the name
        that it gets here, and the host that has it
    :param known: node name to uuid, as the book confirmed them before
    :param contested: remembers which nodes others have taken
    """

    def __init__(
        self,
        held: tenure.Tenure,
        adopt: Callable[[str, str, str], None],
        known: Mapping[str, str],
        contested: contest.Contest | None = None,
    ) -> None:
        self._held = held
        self._adopt = adopt
        self._known = dict(known)
        self._contest = contested or contest.Contest()
        self._nodes: dict[str, compute_node.ComputeNode] = {}
        # As a list brought them, by folded name, each until it is looked for.
        self._listed: dict[str, compute_node.ComputeNode] = {}
        self._absent: set[str] = set()  # of which it was said that they are kept
        self._gone: set[str] = set()  # that have no record any more
        self._in_use: set[str] = set()  # of which it was said that they can't go
        # By name, the source's uuid of nodes that the book has under another one.
        self._differing: dict[str, str] = {}
        self._asked: set[str] = set()  # those of which the conductor was told

    @property
    def confirmed(self) -> Mapping[str, str]:
        """Node name to uuid, as the book confirmed them last."""
        return self._known

    def forget(self, name: str) -> None:
        """Read a node from the book when it is needed next."""
        self._nodes.pop(name, None)

    def forget_all(self) -> None:
        """Read every node from the book when it is needed next."""
        self._nodes.clear()
        self._listed.clear()
        self._gone.clear()
        self._asked.clear()

    def reread(self) -> None:
        """Forget all nodes, and read those of a host with several by one call.

        What it doesn't bring is read one by one, as it is needed.
        """
        self.forget_all()
        if len(self._known) < _WORTH_A_LIST:
            return
        try:
            found = compute_node.ComputeNodeList.get_all_by_host(
                self._held.context, self._held.grant.host
            )
        except (errors.Superseded, errors.GrantForgotten):
            raise
        except errors.MusterbookError as exc:
            LOG.debug("The nodes are read one by one: %s", exc.message)
            return
        except Exception:
            LOG.exception("The nodes are read one by one")
            return
        self._listed = {names.fold(str(n.hypervisor_hostname)): n for n in found}

    def drop_list(self) -> None:
        """Forget what was listed and not looked for: it grows old."""
        self._listed.clear()

    def find(
        self, name: str, reading: inventory_source.Reading
    ) -> compute_node.ComputeNode | None:
        """Return the node's record; None: there is none, not even elsewhere.

        :raises ComputeNodeMoved: another host has it
        :raises InvalidInput: it can't be told whether another record is meant
        """
        node = (
            self._nodes.get(name)
            or self._listed.pop(names.fold(name), None)
            or self._by_name(name)
        )
        if node is None:
            node = self._by_what_is_known(name, reading)
            if node is not None and not self._is_ours(node):
                node = self._take(name, reading[name], node, str(node.host))
            elif node is not None:
                self._check_rename(name, reading, node)
            else:
                node = self._fetch(name, reading[name])
        if node is not None:
            self._hold(name, node)
        return node

    def create(
        self, name: str, columns: Mapping[str, object], uuid: str | None
    ) -> compute_node.ComputeNode:
        """Create the node, or take the one that was created meanwhile; return it.

        The latter is read only: what differs is saved at the next audit, or by
        whoever created it.

        :param uuid: of the source; None: it has none
        """
        before = self._known.get(name)
        own = {"uuid": uuid or before} if uuid or before else {}
        node = compute_node.ComputeNode(
            self._held.context, host=self._held.grant.host, **own, **columns
        )
        try:
            node.create()
        except errors.ComputeNodeExists:
            found = self._by_name(name)
            if found is None:
                raise
            self._hold(name, found)
            return found
        self._hold(name, node)
        if before is None:
            LOG.info("Node %s: created with id %s, uuid %s", name, node.id, node.uuid)
        else:
            LOG.warning(
                "Node %s: its record was deleted behind this agent's back; it is back "
                "with id %s, uuid %s",
                name,
                node.id,
                node.uuid,
            )
        return node

    def renamed(self, name: str, former: str) -> None:
        """Note that a record was saved under a node's new name."""
        node = self._nodes[name]
        # Under its former name it would be found for another node that gets that name,
        # or be deleted for one that is gone.
        self._nodes = {
            other: held
            for other, held in self._nodes.items()
            if other == name or held.uuid != node.uuid
        }
        self._confirm(name, node.uuid)
        LOG.warning(
            "Node %s was %s: its record (uuid %s) has the new name, and keeps what is "
            "used of it",
            name,
            former,
            node.uuid,
        )

    def settle_uuid(self, name: str, uuid: str | None) -> None:
        """Let the book have a held node under the uuid that its source gives it.

        The book decides. One that came from Juno takes it; else both uuids are said
        once, and the node is not found by its source's at another host.

        :param uuid: the source's; None: it has none
        """
        node = self._nodes[name]
        if uuid is None or node.uuid == uuid.lower():
            self._differing.pop(name, None)
            return
        if self._differing.get(name) == uuid and name in self._asked:
            return
        try:
            self._adopt(uuid, name, self._held.grant.host)
        except _NO_UUID_FROM_HERE as exc:
            self._asked.add(name)
            if self._differing.get(name) != uuid:
                LOG.warning(
                    "Node %s: its source says that its uuid is %s, its record (id %s) "
                    "has %s, which stays (%s). Should another host report it by the "
                    "former, it would be taken for another node",
                    name,
                    uuid,
                    node.id,
                    node.uuid,
                    exc.message,
                )
            self._differing[name] = uuid
            return
        LOG.warning(
            "Node %s: its record (id %s) has the uuid of its source, %s, in place of "
            "%s, which it had been given",
            name,
            node.id,
            uuid,
            node.uuid,
        )
        self._differing.pop(name, None)
        self.forget(name)  # which was changed
        self._confirm(name, uuid.lower())

    def lose(self, name: str, uuid: str, host: str) -> None:
        """Note, and say once, that a node is another host's."""
        self.forget(name)
        pause = self._contest.lose(uuid)
        if pause is not None:
            LOG.warning(
                "Node %s (uuid %s) is host %s's now: nothing of it is deleted, saved "
                "or created here. If its source goes on to report it as one that "
                "roams, it is asked for again after %.0f s",
                name,
                uuid,
                host,
                pause,
            )

    def settle_absent(self, reading: inventory_source.Reading) -> None:
        """See what becomes of nodes that the source leaves out and isn't sure of.

        Their records stay, which is said once.
        """
        here = {names.fold(name) for name in reading}
        gone = {names.fold(name) for name in reading.gone}
        absent = {n for n in self._known if names.fold(n) not in here | gone}
        self._absent &= absent
        for name in sorted(absent - self._absent):
            uuid = self._known[name]
            node = self._by_uuid(uuid)
            self.forget(name)
            if node is None:
                del self._known[name]
            elif not self._is_ours(node):
                self.lose(name, uuid, str(node.host))
                del self._known[name]
            else:
                self._absent.add(name)
                LOG.warning(
                    "Node %s: the inventory source leaves it out and doesn't say that "
                    "it is gone: its record (id %s, uuid %s) stays",
                    name,
                    node.id,
                    uuid,
                )

    def delete_gone(self, name: str) -> bool:
        """Delete the record of a node that is gone; return whether there was one.

        Only while it is this host's and nothing is used of it.
        """
        if name in self._gone:
            return False
        deleted = False
        # Never by what was read before: the record may have another name by now.
        node = self._by_name(name)
        if node is not None:
            try:
                node.destroy()
                deleted = True
            except errors.ComputeNodeInUse as exc:
                if name not in self._in_use:
                    LOG.warning("Node %s: gone, but %s", name, exc.message)
                self._in_use.add(name)
                return False
            except (errors.ComputeNodeMoved, errors.ComputeNodeNotFound):
                LOG.info("Node %s: gone, and its record isn't this host's", name)
        self.forget(name)
        self._known.pop(name, None)
        self._gone.add(name)
        self._in_use.discard(name)
        if deleted and node is not None:
            LOG.warning(
                "Node %s: its source says that it is gone; its record (id %s, uuid "
                "%s) is deleted",
                name,
                node.id,
                node.uuid,
            )
        return deleted

    def _is_ours(self, node: compute_node.ComputeNode) -> bool:
        ours = names.fold(self._held.grant.host)
        return node.host is not None and names.fold(node.host) == ours

    def _hold(self, name: str, node: compute_node.ComputeNode) -> None:
        self._nodes[name] = node
        self._gone.discard(name)
        if names.fold(str(node.hypervisor_hostname)) == names.fold(name):
            self._confirm(name, node.uuid)
        self._contest.take(node.uuid)

    def _confirm(self, name: str, uuid: str) -> None:
        """Note that the book has the uuid under this name, hence under no other."""
        for old in [n for n, known in self._known.items() if known == uuid]:
            del self._known[old]
        self._known[name] = uuid

    def _by_what_is_known(
        self, name: str, reading: inventory_source.Reading
    ) -> compute_node.ComputeNode | None:
        """Return the record of a node that has none under its name here.

        By the source's uuid, else by what the book confirmed: a node that was taken
        over may have another uuid there. Unless that record is another host's: who
        had a node of this name may have a new one.
        """
        uuid = reading[name].uuid
        node = None if uuid is None else self._by_uuid(uuid)
        if node is not None:
            return node
        known = self._known.get(name)
        if known is not None:
            node = self._by_uuid(known)
            sure = uuid is None or self._differing.get(name) == uuid
            return node if node is None or sure or self._is_ours(node) else None
        if reading.one_machine and len(self._known) == 1:
            (known,) = self._known.values()
            return self._by_uuid(known)
        return None

    def _by_name(self, name: str) -> compute_node.ComputeNode | None:
        try:
            return compute_node.ComputeNode.get_by_host_and_nodename(
                self._held.context, self._held.grant.host, name
            )
        except errors.ComputeNodeNotFound:
            return None

    def _by_uuid(self, uuid: str) -> compute_node.ComputeNode | None:
        """Return the record of a uuid; None: there is none that belongs to a host."""
        try:
            found = compute_node.ComputeNode.get_by_uuid(self._held.context, uuid)
        except errors.ComputeNodeNotFound:
            return None
        return None if found.host is None else found

    def _take(
        self,
        name: str,
        wanted: inventory_source.NodeInventory,
        node: compute_node.ComputeNode,
        host: str,
    ) -> compute_node.ComputeNode | None:
        """Take a node over that another host has, if it may be.

        :raises ComputeNodeMoved: it may not, or not yet
        """
        moved = errors.ComputeNodeMoved(uuid=node.uuid, host=host)
        if self._known.get(name) == node.uuid:
            self.lose(name, node.uuid, host)
        if not wanted.roams or not self._contest.may_take(node.uuid):
            raise moved
        try:
            self._adopt(node.uuid, name, host)
        except errors.ComputeNodeNotFound:
            return None  # deleted just now
        LOG.warning(
            "Node %s (uuid %s): taken over from host %s, with what is used of it",
            name,
            node.uuid,
            host,
        )
        return self._by_name(name)

    def _fetch(
        self, name: str, wanted: inventory_source.NodeInventory
    ) -> compute_node.ComputeNode | None:
        """Return the record of a node that roamed here from where nobody reported it.

        It came from Juno, and nothing but its name tells: the conductor decides.

        :raises InvalidInput: it can't be told which record is meant
        """
        if not wanted.roams or wanted.uuid is None or name in self._known:
            return None
        try:
            self._adopt(wanted.uuid, name, self._held.grant.host)
        except _NO_UUID_FROM_HERE:
            return None
        node = self._by_name(name)
        if node is not None:
            LOG.warning(
                "Node %s: another host left its record from Juno (id %s); it is taken "
                "over, with what is used of it",
                name,
                node.id,
            )
        return node

    def _check_rename(
        self,
        name: str,
        reading: inventory_source.Reading,
        node: compute_node.ComputeNode,
    ) -> None:
        """Return if a record of this host may get another name.

        :raises InvalidInput: its node is still there
        """
        former = names.fold(node.hypervisor_hostname or "")
        if former in {names.fold(other) for other in reading}:
            raise errors.InvalidInput(
                field=f"node {name}",
                reason=f"has the uuid of node {node.hypervisor_hostname}, which is "
                "there as well",
            )
