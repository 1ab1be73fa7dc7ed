"""Where the commands begin: signals first, then what takes seconds to import.

Only the standard library is imported here. From guard() until a daemon.Process takes
the signals over, SIGTERM and SIGINT end the process at once and without a word:
nothing is served yet, and whatever is under way (a migration) survives kill -9, too.
"""

import importlib
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

#: Exit code of a command that was told to stop before it was done.
INTERRUPTED = 130
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def guard(code: int = 0, *, reloads: bool = False) -> None:
    """Let SIGTERM and SIGINT end the process with this exit code from now on.

    Belongs to the main thread of a command, before its other imports.

    :param reloads: the command reloads on SIGHUP; one that comes before it can has no
        effect, as the configuration is about to be read anyway
    """

    def end(_number: int, _frame: FrameType | None) -> None:
        # Not SystemExit: raised in the middle of an import it can be swallowed, or
        # shown as a traceback.
        os._exit(code)

    for number in _SIGNALS:
        signal.signal(number, end)
    if reloads:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def leave(code: int) -> NoReturn:
    """End the process with this exit code, which no signal changes any more."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def compute() -> None:
    """Run musterbook-compute."""
    _run("compute_agent.main", reloads=True)


def conductor() -> None:
    """Run musterbook-conductor."""
    _run("conductor.main", reloads=True)


def hollow() -> None:
    """Run musterbook-hollow."""
    _run("compute_agent.hollow.main", reloads=True)


def manage() -> None:
    """Run musterbook-manage; interrupted, it has not done what it was asked."""
    _run("conductor.manage", INTERRUPTED)


def standalone() -> None:
    """Run musterbook-standalone."""
    _run("musterbook.standalone")


def _run(root: str, code: int = 0, *, reloads: bool = False) -> None:
    guard(code, reloads=reloads)
    # By its name: nobody imports a composition root.
    leave(importlib.import_module(root).main())
