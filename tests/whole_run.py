"""What must be true of a run of all tests in CI, beyond that none failed.

A suite whose groups were all of files would pass and prove little: what daemons do
depends on a server that other processes use as well. So a whole run in CI must have
had members of a group, by tooz, on a real Redis.
"""

import os
from typing import Any

import pytest

from tests import keeper

#: What tooz sends when a member joins, and when it beats.
_JOINS, _BEATS = "hset", ("setex", "psetex")
NO_GROUP = (
    "CI=true, and no test had members of a group on a real Redis: "
    "the functional tests didn't run as in production"
)


def is_whole(config: pytest.Config) -> bool:
    """Tell whether a run is of all tests that the gate has, not of some of them."""
    option = config.option
    chosen = option.keyword or option.collectonly or option.deselect
    chosen = chosen or getattr(option, "lf", False)
    from_ini = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return from_ini and not chosen and option.markexpr == "not slow"


def complaint(config: pytest.Config, kept: keeper.Keeper) -> str | None:
    """Return what is wrong with a run whose tests have ended; None: nothing."""
    if os.environ.get("CI") != "true" or not is_whole(config):
        return None
    calls = command_calls(kept.info("redis"))
    beats = any(calls.get(name) for name in _BEATS)
    return None if calls.get(_JOINS) and beats else NO_GROUP


def command_calls(info: str | None) -> dict[str, int]:
    """Return how often each command came, from Redis' INFO commandstats."""
    found: dict[str, int] = {}
    for line in (info or "").splitlines():
        name, _, rest = line.partition(":calls=")
        if rest:
            found[name.removeprefix("cmdstat_")] = int(rest.partition(",")[0])
    return found


def fail(session: pytest.Session) -> None:
    """Make a run that is otherwise a success a failure."""
    if session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def tell(reporter: Any, said: str) -> None:
    """Print it where nobody overlooks it."""
    reporter.write_line(f"FAILED {said}", red=True, bold=True)
