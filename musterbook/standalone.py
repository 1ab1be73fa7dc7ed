"""musterbook-standalone: the whole book of this one machine, in one process.

Conductor and agent with embedded defaults: an SQLite file, in-process RPC and a file
group below one directory. The agent's calls go over RPC like any agent's.
"""

from musterbook import entry

if __name__ == "__main__":
    entry.guard()  # before the imports that take seconds

from collections.abc import Iterator
import contextlib
import itertools
import pathlib
import shutil
import signal
import sys
import threading
import uuid as uuidlib

import fasteners
from oslo_config import cfg
from oslo_log import log as logging
import platformdirs
from rich import console as rich_console
from rich import live as rich_live

from compute_agent import agent
from compute_agent import main as agent_main
from conductor import main as conductor_main
from conductor import rpcapi as conductor_rpcapi
from conductor.db import engine as db_engine
from conductor.db import liveness
from conductor.db import migration
from musterbook import conf as conf_module
from musterbook import context
from musterbook import daemon
from musterbook import errors
from musterbook import fleetview
from musterbook import logs
from musterbook import rpc
from musterbook.conf import base as conf_base
from musterbook.conf import presets
from musterbook.servicegroup import factory
from musterbook.servicegroup import url as group_url
from objects import base

LOG = logging.getLogger(__name__)
PROG = "musterbook-standalone"
STOP_TIMEOUT = 2.5
_REFRESH = 0.5
_NEXT = (
    "Next: docs/operators.md runs the parts as daemons, for many machines; "
    "Ctrl-C stops, and a new start finds the same node."
)

CLI_OPTS = [
    cfg.StrOpt(
        "state-dir",
        default=platformdirs.user_state_dir("musterbook").replace("$", "$$"),
        sample_default="~/.local/state/musterbook",
        help="Directory for the database, the group and the log; made when missing. "
        "One process at a time uses it.",
    ),
    # Names this machine in the book, also with a name that isn't its own.
    next(opt for opt in conf_base.OPTS if opt.name == "host"),
]


class View(daemon.Part):
    """Shows the fleet as the conductor answers it over RPC.

    :param conductor: asked every half second
    :param console: where to; a live table on a terminal, else a plain line for each
        node when it appears and when what is said of it changes
    """

    name = "view"

    def __init__(
        self, conductor: conductor_rpcapi.ConductorAPI, console: rich_console.Console
    ) -> None:
        self._conductor = conductor
        self._console = console
        self._answered = True
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="view")

    def start(self) -> None:
        """Begin to show."""
        self._thread.start()

    def stop(self) -> None:
        """End; the last picture stays on the screen."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            if self._console.is_terminal and not self._console.is_dumb_terminal:
                self._show_table()
            else:
                self._show_lines()
        except OSError as exc:
            # Whoever read us is gone, or the file is full; the book goes on.
            LOG.warning("Nobody reads the view any more: %s", exc.strerror)

    def _show_table(self) -> None:
        with rich_live.Live(console=self._console, auto_refresh=False) as live:
            while not self._stopping.is_set():
                lines = self._ask()
                if lines is not None:
                    table = fleetview.table(lines, self._console.width)
                    shown = rich_console.Group(table, _NEXT)
                    live.update(shown, refresh=True)
                self._stopping.wait(_REFRESH)

    def _show_lines(self) -> None:
        shown: dict[tuple[str, str], str] = {}
        pointed = False
        while not self._stopping.is_set():
            for line in self._ask() or ():
                text = fleetview.plain(line)
                if shown.get((line.host, line.node)) != text:
                    shown[line.host, line.node] = text
                    print(text, flush=True)  # noqa: T201  # the command's output
                if line.state == "up" and not pointed:
                    pointed = True
                    print(_NEXT, flush=True)  # noqa: T201  # the command's output
            self._stopping.wait(_REFRESH)

    def _ask(self) -> list[fleetview.NodeLine] | None:
        try:
            answer = self._conductor.get_fleet(
                context.service_context(), fleetview.COLUMNS, timeout=2.0
            )
        except errors.MusterbookError as exc:
            if self._answered and not self._stopping.is_set():
                LOG.warning("The view has no answer: %s; trying again", exc.message)
                self._answered = False
            return None
        if not self._answered:
            LOG.warning("The view has answers again")
            self._answered = True
        return fleetview.nodes(answer)


def _state_dir(conf: cfg.ConfigOpts) -> pathlib.Path:
    return pathlib.Path(conf.state_dir).expanduser().absolute()


def _escaped(value: str) -> str:
    """Return a value so that oslo.config takes no $ in it for an option's name."""
    return value.replace("$", "$$")


def _literal(argv: list[str]) -> list[str]:
    """Return the command line with the name of the state directory escaped.

    What a shell left of a $ in it is part of the name.
    """
    flag = "--state-dir"
    return [
        _escaped(word) if word.startswith(f"{flag}=") or before == flag else word
        for before, word in itertools.pairwise(["", *argv])
    ]


def _embed(conf: cfg.ConfigOpts) -> None:
    """Set the defaults that make one process of it; a configuration file wins.

    :raises ConfigurationError: no directory is named
    """
    if not conf.state_dir:  # it would be the one that we happen to be in
        raise errors.ConfigurationError(option="state-dir", reason="is empty")
    state = _state_dir(conf)
    conf.set_default("state_path", _escaped(str(state)))
    conf.set_default("transport_url", "inproc://")
    database = db_engine.sqlite_url(state / "musterbook.sqlite")
    conf.set_default("connection", _escaped(database), "database")
    timeout = presets.member_timeout(conf)
    groups = group_url.file_url(str(state / "groups"), timeout)
    conf.set_default("servicegroup_tooz_url", _escaped(groups))
    conf.set_default("ping_timeout", 0.5, "conductor")
    conf.set_default("poll_interval", 0.25, "conductor")
    conf.set_default("log_file", _escaped(str(state / "musterbook.log")))
    conf.set_default("use_stderr", False)


@contextlib.contextmanager
def _owned(state: pathlib.Path) -> Iterator[None]:
    """Make the directory and hold it for this process alone.

    :raises ConfigurationError: it can't be made, written, or is another's
    """
    try:
        state.mkdir(mode=0o750, parents=True, exist_ok=True)
        lock = fasteners.InterProcessLock(str(state / "lock"))
        held = lock.acquire(blocking=False)
    except OSError as exc:
        raise errors.ConfigurationError(
            option="state-dir", reason=f"can't use {state}: {exc.strerror}"
        ) from None
    if not held:
        raise errors.ConfigurationError(
            option="state-dir", reason=f"{state} is in use by another {PROG}"
        )
    try:
        yield
    finally:
        lock.release()


def _take_over(conf: cfg.ConfigOpts, records: liveness.LivenessStore) -> str:
    """Return a new name to hold the leader's lease under, unlike any other process's.

    The directory is ours alone, so that whoever used it before is dead: a lease that it
    left behind is given up, instead of waited for.

    :raises ConfigurationError: the directory can't be written
    """
    note = _state_dir(conf) / "lease-owner"
    owner = f"{conf.host}/{uuidlib.uuid4()}"
    try:
        if note.exists():
            records.release(liveness.LEASE, note.read_text(encoding="utf-8"))
        fresh = note.with_suffix(".new")
        fresh.write_text(owner, encoding="utf-8")
        fresh.replace(note)
    except (OSError, UnicodeDecodeError) as exc:
        raise errors.ConfigurationError(
            option="state-dir", reason=f"can't use {note} ({type(exc).__name__})"
        ) from None
    return owner


def _closed_with_terminal() -> bool:
    """Return whether SIGHUP means that the terminal we show the fleet on was closed.

    Not so for one who asked, as nohup does, to be left alone.
    """
    return sys.stdout.isatty() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN


def _parts(
    conf: cfg.ConfigOpts, transport: rpc.Transport, owner: str
) -> list[list[daemon.Part]]:
    # The directory is ours alone: what an earlier process left in the group is stale.
    shutil.rmtree(_state_dir(conf) / "groups", ignore_errors=True)
    factory.prepare(conf)
    conductor = conductor_main.build(conf, transport, owner)
    conductor_api = conductor_rpcapi.ConductorAPI(transport, conf.rpc_response_timeout)
    base.MusterObject.indirection_api = agent_main.carrier(conf, transport)
    one_agent = agent.Agent(
        conf,
        transport,
        lambda member, ways: factory.make_driver(conf, member, ways),
        lambda: factory.interval(conf),
    )
    return [conductor, [one_agent], [View(conductor_api, rich_console.Console())]]


def run(argv: list[str]) -> int:
    """Load the configuration, build the parts, run them; return the exit code."""
    conf = conf_module.load(
        _literal(argv),
        PROG,
        prepare=conductor_main.PREPARE,
        cli=CLI_OPTS,
        defaults=_embed,
        config_files=[],
        about="Keeps the book of this machine, in one process with embedded defaults.",
    )
    with _owned(_state_dir(conf)):
        logs.setup(conf)
        engine = db_engine.from_conf(conf)
        migration.sync(engine)
        owner = _take_over(conf, liveness.LivenessStore(engine))
        engine.dispose()
        transport = rpc.make_transport(conf)
        try:
            process = daemon.Process(
                _parts(conf, transport, owner),
                STOP_TIMEOUT,
                hangup_stops=_closed_with_terminal(),
            )
            return process.run()
        finally:
            transport.cleanup()


def main() -> int:
    """Run the command and return its exit code."""
    return daemon.command(run)


if __name__ == "__main__":
    entry.leave(main())
