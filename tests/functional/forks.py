"""A command of ours as a process that need not import it again.

For tables of many short runs: importing takes most of the two seconds in which a
command refuses its configuration. A *template* process imports the command, starts
nothing, and forks a child for each run.
"""

import gc
import importlib
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import threading
import types
from typing import NoReturn

ROOT = pathlib.Path(__file__).parents[2]


class Template:
    """A process that has imported a command; one run at a time.

    :param module: of the command, with its ``main``
    """

    def __init__(self, module: str) -> None:
        code = f"from tests.functional import forks; forks.serve({module!r})"
        self._popen = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
            start_new_session=True,
        )

    def run(self, folder: pathlib.Path, *arguments: str) -> "Run":
        """Begin a run; its output goes to files in the folder."""
        assert self._popen.stdin is not None
        print(json.dumps([str(folder), *arguments]), file=self._popen.stdin, flush=True)
        return Run(self._popen, folder)

    def close(self) -> None:
        """End the template and a run that is left."""
        os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.communicate()


class Run:
    """One run: what tests.functional.lab.Process says of a process that ends."""

    def __init__(self, template: "subprocess.Popen[str]", folder: pathlib.Path) -> None:
        self._template = template
        self._folder = folder

    def wait(self, seconds: float) -> int:
        """Return the exit code."""
        stdout = self._template.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], seconds)[0]:
            raise AssertionError(f"still running after {seconds:g} s")
        return int(stdout.readline())

    def output(self) -> str:
        """Return what was written to stdout."""
        return (self._folder / "out").read_text(encoding="utf-8")

    def errors(self) -> str:
        """Return what was written to stderr."""
        return (self._folder / "err").read_text(encoding="utf-8")


def serve(name: str) -> None:
    """Be the template: run the command once for each line of stdin."""
    module = importlib.import_module(name)
    assert threading.active_count() == 1  # a fork would lose the others
    gc.collect()
    gc.freeze()  # children look through what they have made, not through all modules
    for line in sys.stdin:
        folder, *arguments = json.loads(line)
        child = os.fork()
        if not child:
            _become(module, folder, arguments)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(module: types.ModuleType, folder: str, arguments: list[str]) -> NoReturn:
    """Be the command, with files of its own, to the end of the process."""
    for number, path in enumerate([os.devnull, f"{folder}/out", f"{folder}/err"]):
        mode = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(path, mode, 0o600), number)
    sys.argv = [module.__name__, *arguments]
    sys.exit(module.main())
