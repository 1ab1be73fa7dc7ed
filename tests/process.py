"""A real server as tests handle it: started, stopped, killed, frozen.

It listens on a free port of 127.0.0.1, lives in a folder of its own, reads no
configuration of the machine, and needs no running service. Start it in a thread
that outlives it: the kernel ends a server when the thread that started it ends
(PR_SET_PDEATHSIG), so that not even a killed test run leaves an orphan.
"""

import abc
import contextlib
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import tempfile
from typing import Any
from typing import ClassVar
from typing import Protocol
from typing import TypeVar

import psutil

from tests import util

# Debian keeps servers where a user's PATH does not look.
SEARCH_PATH = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin"
_START_SECONDS = 90.0
STOP_SECONDS = 30.0
_PORT_TRIES = 3


class ServerMissing(Exception):
    """The machine lacks a program; the message says which."""


class ServerFailed(Exception):
    """A server, or a command of it, failed; the message ends with its last output."""


def find_program(name: str, folders: str = "") -> str:
    """Return the path of a program.

    :param folders: pattern of absolute folders to look in if it isn't on the
        path; the last one in natural order wins ("/usr/lib/postgresql/*/bin")
    :raises ServerMissing: if it is nowhere
    """
    found = shutil.which(name, path=SEARCH_PATH)
    if found:
        return found
    if folders:
        root = pathlib.Path("/")
        hits = root.glob(f"{folders.lstrip('/')}/{name}")
        for hit in sorted(hits, key=lambda path: (len(str(path)), path), reverse=True):
            return str(hit)
    raise ServerMissing(f"{name} is not installed")


def make_folder() -> pathlib.Path:
    """Return a new folder that servers under another user can reach.

    pytest's tmp_path is closed to everybody but the user who runs the tests.
    """
    folder = pathlib.Path(tempfile.mkdtemp(prefix="musterbook-"))
    folder.chmod(0o711)
    return folder


def raise_file_limit() -> None:
    """Let this process and its servers open as many files as may be, to 65536."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(65_536, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _stands(process: psutil.Process) -> bool:
    ended = {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    return process.status() in {psutil.STATUS_STOPPED, *ended}


class Server(abc.ABC):
    """One server process. One thread at a time may call it.

    :param folder: an existing folder that it may fill; see make_folder
    """

    kind: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    orphan_signal: ClassVar[signal.Signals] = signal.SIGKILL
    user: ClassVar[str | None] = None  # whom it runs as when we are root

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder / self.kind
        self.port = util.free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._answered = False

    # -- what each kind says about itself --

    @abc.abstractmethod
    def check_installed(self) -> None:
        """Do nothing if the machine has the programs.

        :raises ServerMissing: naming the program that is missing
        """

    @abc.abstractmethod
    def _create(self) -> None:
        """Fill the empty folder before the first start."""

    @abc.abstractmethod
    def _command(self) -> list[str]:
        """Return the command that runs the server in the foreground."""

    @abc.abstractmethod
    def answers(self) -> bool:
        """Return whether a client is served right now; takes 2 s at most."""

    @abc.abstractmethod
    def lease(self, number: int) -> str:
        """Make the number's own empty place and return its URL."""

    @abc.abstractmethod
    def release(self, number: int) -> None:
        """Drop what lease made, whoever still uses it."""

    # -- what all of them can do --

    def start(self) -> None:
        """Start it and return when it answers.

        :raises ServerMissing: if a program is missing
        :raises ServerFailed: if it ends instead, or doesn't answer in 90 s
        """
        self.check_installed()
        if not self.folder.exists():
            self._fill_folder()
        for tries_left in reversed(range(_PORT_TRIES)):
            try:
                self._start_once()
                return
            except ServerFailed:
                # Somebody may have taken the port; clients know it by now if the
                # server has ever answered on it.
                if self._answered or not tries_left:
                    raise
                self.port = util.free_port()

    @property
    def pid(self) -> int:
        """Of the running server's first process."""
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        """Stop it as an administrator would; it keeps its data."""
        if self._process is None:
            return
        self.thaw()
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(self.stop_signal)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End all its processes at once, as a power cut would."""
        if self._process is None:
            return
        victims = self._tree()
        for victim in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()
        self._process.wait(STOP_SECONDS)
        psutil.wait_procs(victims, timeout=STOP_SECONDS)
        self._process = None

    def freeze(self) -> None:
        """Stop all its processes from running; its connections stay open."""
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
                # The signal is sent by now, which is not to say that it has acted.
                util.wait_until(lambda: _stands(process), what="the freeze")  # noqa: B023

    def thaw(self) -> None:
        """Let it run on after freeze."""
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def restart(self, *, empty: bool = False) -> None:
        """Stop it (if it runs) and start it on the same port.

        :param empty: with nothing in it, as after the loss of its disk
        """
        self.stop()
        if empty:
            shutil.rmtree(self.folder)
        self.start()

    def close(self) -> None:
        """Stop it and remove its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self) -> str:
        """Return what it has printed so far."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    # -- how --

    def _fill_folder(self) -> None:
        self.folder.mkdir()
        try:
            if self._other_user:
                shutil.chown(self.folder, self._other_user, self._other_user)
            self._create()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    @property
    def _other_user(self) -> str | None:
        return self.user if os.geteuid() == 0 else None

    def _start_once(self) -> None:
        self._process = self._launch(self._command())
        try:
            util.wait_until(self._up_or_ended, _START_SECONDS, f"start of {self.kind}")
        except AssertionError as exc:
            self.kill()
            raise ServerFailed(f"{exc}: {self._last_lines()}") from None
        if self._process.poll() is not None:
            self.kill()
            raise ServerFailed(f"{self.kind} ended: {self._last_lines()}")
        self._answered = True

    def _up_or_ended(self) -> bool:
        assert self._process is not None
        return self._process.poll() is not None or self.answers()

    def _last_lines(self) -> str:
        return "\n".join(self.log().splitlines()[-20:])

    def _launch(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a command of the server in the background."""
        with (self.folder / "log").open("ab") as log:
            # A session of its own: Ctrl-C at the terminal is for pytest, which
            # then stops its servers in order.
            return subprocess.Popen(
                self._guarded(command),
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _run(self, command: list[str], seconds: float = 60.0) -> str:
        """Run a command of the server to its end; return what it printed."""
        try:
            done = subprocess.run(
                self._guarded(command),
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ServerFailed(f"{command[0]} took over {seconds:g} s") from None
        output = done.stdout.decode(errors="replace")
        if done.returncode:
            raise ServerFailed(f"{command[0]} failed: {output[-2000:]}")
        return output

    def _guarded(self, command: list[str]) -> list[str]:
        # setpriv (util-linux) sets the signal after the change of user, which
        # would clear it.
        guard = ["setpriv", "--pdeathsig", self.orphan_signal.name.removeprefix("SIG")]
        if self._other_user:
            user = self._other_user
            guard += ["--reuid", user, "--regid", user, "--init-groups"]
        return [*guard, *command]

    def _environment(self) -> dict[str, str]:
        """Return the whole environment: nothing of the machine's own settings."""
        return {
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "PATH": SEARCH_PATH,
            "TMPDIR": str(self.folder),
        }

    def _tree(self) -> list[psutil.Process]:
        if self._process is None:
            return []
        try:
            root = psutil.Process(self._process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


_S = TypeVar("_S", bound=Server)


class Starter(Protocol):
    """The fixture own_server: starts a server that belongs to one test."""

    def __call__(self, kind: type[_S], **options: Any) -> _S:
        """Return the started server.

        :param kind: a class of tests.servers
        :param options: what its constructor takes besides the folder
        """
