"""Which boot of the machine this is, and when it was."""

import datetime
import pathlib

from compute_agent.inventory import kernel


def identity(root: pathlib.Path) -> str | None:
    """Return what differs from boot to boot, None if the kernel doesn't say."""
    return kernel.text(root / "proc/sys/kernel/random/boot_id")


def instant(root: pathlib.Path) -> datetime.datetime | None:
    """Return when the machine was booted, by its clock as it is set now.

    In whole seconds. Setting the clock moves it, by a second or by years. None if the
    boot can't be told from another, or a clock that was never set makes nonsense of it.
    """
    if identity(root) is None:
        return None
    for line in (kernel.text(root / "proc/stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name == "btime" and value.isdecimal() and 0 < int(value) < 2**32:
            return datetime.datetime.fromtimestamp(int(value), datetime.UTC)
    return None
