"""What lies between an agent and the book: answers get lost, messages come twice."""

from collections.abc import Callable
import contextlib
from typing import Any

from conductor.db import store as db_store
from musterbook import errors

#: What may happen to one call. "crash" is a bug of ours, "busy" an answer of the book.
FAULTS = ("busy", "lost-before", "lost-after", "late", "twice", "crash")
#: Those after which nobody seems to be there.
SILENT = ("lost-before", "lost-after", "late")
READS = ("compute_node_get", "compute_node_get_by_host_and_nodename")
WRITES = ("compute_node_create", "compute_node_update", "compute_node_destroy")


class Deliveries:
    """A store whose calls about one node can be made to fail, once.

    :param book: the real one
    :ivar due: node name and kind of call ("read", "write") to the fault of the next
    :ivar fired: names of nodes whose call failed
    :ivar writes: name of the node of each write that was sent
    :ivar read: names of nodes that were read
    """

    def __init__(self, book: db_store.DatabaseStore) -> None:
        self._book = book
        self.due: dict[tuple[str, str], str] = {}
        self.late: list[tuple[str, int | None, Callable[[], Any]]] = []
        self.names: dict[Any, str] = {}  # of id and of uuid
        self.forget()

    def forget(self) -> None:
        """Count anew."""
        self.calls: list[str] = []
        self.writes: list[str] = []
        self.read: set[str] = set()
        self.fired: dict[str, str] = {}

    def __getattr__(self, method: str) -> Any:
        if method not in READS + WRITES + ("compute_nodes_by_host",):
            raise AttributeError(method)
        return lambda *args, **more: self._deliver(method, args, more)

    def arrive(self) -> list[tuple[str, int | None]]:
        """Let what is late arrive now.

        :return: for each call the node's name, and the generation that it was for
        """
        late, self.late = self.late, []
        for _, _, call in late:
            with contextlib.suppress(errors.MusterbookError):
                call()
        return [(name, generation) for name, generation, _ in late]

    def _deliver(self, method: str, args: Any, more: Any) -> Any:
        self.calls.append(method)
        kind = "write" if method in WRITES else "read"
        name = self._whose(args, more)
        if kind == "write":
            self.writes.append(name)
        fault = self.due.pop((name, kind), None)

        def call() -> Any:
            return getattr(self._book, method)(*args, **more)

        if fault is not None:
            self.fired[name] = fault
        if fault == "busy":
            raise errors.DatabaseBusy(reason="as the test asks")
        if fault == "crash":
            raise ZeroDivisionError
        if fault == "lost-before":
            raise _silence()
        if fault == "late":
            expected = args[2] if method == "compute_node_update" else None
            self.late.append((name, expected, call))
            raise _silence()
        answer = call()
        self._note(kind, answer)
        if fault == "lost-after":
            raise _silence()
        if fault == "twice":
            with contextlib.suppress(errors.MusterbookError):
                call()
        return answer

    def _whose(self, args: Any, more: Any) -> str:
        if "uuid" in more:
            return self.names.get(more["uuid"], "")
        if isinstance(args[0], int):
            return self.names[args[0]]
        if isinstance(args[0], dict):
            return str(args[0]["hypervisor_hostname"])
        return str(args[-1])

    def _note(self, kind: str, answer: Any) -> None:
        found = answer if isinstance(answer, list) else [answer]
        for row in found:
            if row and "hypervisor_hostname" in row:
                name = row["hypervisor_hostname"]
                self.names[row["id"]] = self.names[row["uuid"]] = name
                if kind == "read":
                    self.read.add(name)


def _silence() -> errors.ConductorUnavailable:
    return errors.ConductorUnavailable(method="object_action", seconds=10)
