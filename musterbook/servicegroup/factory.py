"""From the configuration to a group driver, and what makes no sense together."""

from collections.abc import Callable
from collections.abc import Mapping
import os

from oslo_config import cfg

from musterbook import errors
from musterbook.servicegroup import driver
from musterbook.servicegroup import tooz_driver
from musterbook.servicegroup import url as group_url

_TIMEOUT = "the member timeout ('timeout' in servicegroup_tooz_url)"


def check(conf: cfg.ConfigOpts) -> group_url.GroupURL:
    """Refuse a liveness configuration that can't work; connects to nothing.

    :returns: the group URL, read
    :raises ConfigurationError: naming the options that don't go together
    """
    url = group_url.parse(conf.servicegroup_tooz_url)
    timeout = url.member_timeout
    if conf.report_interval >= timeout:
        raise errors.ConfigurationError(
            option="report_interval",
            reason=f"{conf.report_interval:g} s must be shorter than {_TIMEOUT}, "
            f"{timeout:g} s: a member would expire between two beats",
        )
    if conf.service_down_time <= timeout:
        raise errors.ConfigurationError(
            option="service_down_time",
            reason=f"{conf.service_down_time:g} s must be longer than {_TIMEOUT}, "
            f"{timeout:g} s: a host would be down before it could be missed",
        )
    return url


def prepare(conf: cfg.ConfigOpts) -> group_url.GroupURL:
    """Check as check() does, and what only a process that will use the group can.

    A group in files has its directory afterwards; nothing is connected.

    :returns: the group URL, read
    :raises ConfigurationError: as check(), a client isn't installed, or the directory
        can't be made or written
    """
    url = check(conf)
    tooz_driver.ToozDriver(url, "nobody")
    if url.scheme == "file":
        _make_directory(url.target.path)
    return url


def _make_directory(path: str) -> None:
    reason = None
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as exc:
        reason = f"{path} can't be made: {exc.strerror}"
    else:
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            reason = f"{path} can't be written"
    if reason is not None:
        raise errors.ConfigurationError(option="servicegroup_tooz_url", reason=reason)


def make_driver(conf: cfg.ConfigOpts, member: str) -> driver.GroupDriver:
    """Return an unconnected driver for one member or reader.

    :param member: ``host#incarnation`` of an agent; of a reader any name that no
        other process uses
    :raises ConfigurationError: as check(), or a client isn't installed
    """
    return DRIVERS[conf.servicegroup_driver](conf, member)


def _tooz(conf: cfg.ConfigOpts, member: str) -> driver.GroupDriver:
    return tooz_driver.ToozDriver(check(conf), member)


#: By the value of servicegroup_driver (whose choices are in conf/servicegroup.py):
#: what makes the driver of a configuration for a member's name.
DRIVERS: Mapping[str, Callable[[cfg.ConfigOpts, str], driver.GroupDriver]] = {
    "tooz": _tooz
}


def beat_interval(report_interval: float, member_timeout: float) -> float:
    """Return the seconds between two beats: two may fail before a member expires."""
    return min(report_interval, member_timeout / 3)
