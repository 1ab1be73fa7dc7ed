"""What the agent was when it last ran: its host and its nodes, in a small file.

Advice, never authority: nodes are found by host and name, and a lost file loses
nothing. It is there for a host that gets another name, whose nodes nothing else would
tell from new ones. Written only after the book has confirmed what it says.
"""

from collections.abc import Mapping
import contextlib
import dataclasses
import json
import os
import pathlib
import uuid as uuidlib

from oslo_log import log as logging

from musterbook import errors
from musterbook import names

LOG = logging.getLogger(__name__)

FILE = "nodes.json"
#: Bytes; tens of thousands of nodes take less.
_MOST = 16 * 2**20


@dataclasses.dataclass(frozen=True)
class Identity:
    """What the book confirmed.

    :ivar nodes: node name to uuid
    """

    host: str
    nodes: Mapping[str, str]


class IdentityFile:
    """The file in state_path; one thread at a time uses it.

    :param folder: state_path; made when missing
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.path = folder / FILE
        self._stored: Identity | None = None
        self._failing = False

    def read(self) -> Identity | None:
        """Return what was kept; None: nothing, or nothing that can be used."""
        try:
            with self.path.open("rb") as file:
                self._stored = _parse(file.read(_MOST + 1))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, errors.InvalidName) as exc:
            LOG.warning(
                "%s can't be used (%s) and is written anew. Only if this host got "
                "another name: stop this agent, restore the file and start again, or "
                "its nodes stay with the former name",
                self.path,
                _reason(exc),
            )
        return self._stored

    def keep(self, identity: Identity) -> None:
        """Store what the book has confirmed, unless it stands there already.

        What can't be stored is said when it begins and when it ends, and tried again
        the next time.
        """
        if identity == self._stored and not self._failing:
            return
        try:
            self._write(identity)
        except OSError as exc:
            if not self._failing:
                LOG.warning(
                    "%s can't be written (%s). The agent goes on without it; if the "
                    "host gets another name, its nodes stay with the present one",
                    self.path,
                    _reason(exc),
                )
            self._failing = True
            return
        if self._failing:
            LOG.warning("%s is written again", self.path)
        self._failing = False
        self._stored = identity

    def _write(self, identity: Identity) -> None:
        """Replace the file by a complete one, which a crash leaves whole or old."""
        nodes = [{"name": n, "uuid": u} for n, u in sorted(identity.nodes.items())]
        text = json.dumps({"host": identity.host, "nodes": nodes}, indent=1) + "\n"
        folder = self.path.parent
        folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        fresh = folder / f".{FILE}.{os.getpid()}"
        try:
            with contextlib.suppress(FileNotFoundError):
                fresh.unlink()  # of a process that crashed and had our number
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with os.fdopen(os.open(fresh, flags, 0o600), "wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _parse(data: bytes) -> Identity:
    """Return what a file says.

    :raises ValueError, InvalidName: it isn't one of ours
    """
    if len(data) > _MOST:
        raise ValueError(f"it has more than {_MOST} bytes")
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(content, dict) or not isinstance(content.get("nodes"), list):
        raise ValueError("it has no list of nodes")
    nodes = {}
    for node in content["nodes"]:
        if not isinstance(node, dict):
            raise ValueError("it has a node that is not an object")
        name = names.check(node.get("name"), "name")
        nodes[name] = str(uuidlib.UUID(str(node.get("uuid"))))
    return Identity(names.check(content.get("host"), "host"), nodes)


def _reason(exc: Exception) -> str:
    if isinstance(exc, OSError):
        return exc.strerror or type(exc).__name__
    return errors.one_line(str(exc))
