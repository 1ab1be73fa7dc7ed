"""From the configuration to a group driver, and what makes no sense together."""

from collections.abc import Callable
from collections.abc import Mapping
import os

from oslo_config import cfg

from musterbook import errors
from musterbook.conf import presets
from musterbook.servicegroup import db_driver
from musterbook.servicegroup import driver
from musterbook.servicegroup import tooz_driver
from musterbook.servicegroup import url as group_url

#: Beats of the db driver that may be missed before a member beats anew.
_MISSED = 3
#: service_down_time holds at least so many report_intervals; Nova corrects to as many.
_LEAST_BEATS = 2.5
#: Most seconds a beat of the db driver may take, and the share of report_interval.
_MOST_SECONDS = 10.0
_SHARE = 0.75


def check(conf: cfg.ConfigOpts) -> group_url.GroupURL | None:
    """Refuse a liveness configuration that can't work; connects to nothing.

    :returns: the group URL, read; None: there is no group
    :raises ConfigurationError: naming the options that don't go together
    """
    if conf.servicegroup_driver == "db":
        _check_beats(conf)
        return None
    return _check_group(conf)


def _check_group(conf: cfg.ConfigOpts) -> group_url.GroupURL:
    preset = presets.of(conf)
    url = group_url.parse(
        conf.servicegroup_tooz_url, member_timeout=preset.member_timeout
    )
    timeout = url.member_timeout
    limit = f"the member timeout ('timeout' in servicegroup_tooz_url), {timeout:g} s"
    if conf.report_interval >= timeout:
        raise _refused(
            conf,
            "report_interval",
            f"must be shorter than {limit}: a member would expire between two beats",
        )
    if conf.service_down_time <= timeout:
        raise _refused(
            conf,
            "service_down_time",
            f"must be longer than {limit}: a host would be down before it could be "
            "missed",
        )
    return url


def _check_beats(conf: cfg.ConfigOpts) -> None:
    least = _LEAST_BEATS * conf.report_interval
    if conf.service_down_time < least:
        raise _refused(
            conf,
            "service_down_time",
            f"must be at least {least:g} s, {_LEAST_BEATS:g} times report_interval, "
            "with servicegroup_driver db: a host would be down before its next beat",
        )


def _refused(conf: cfg.ConfigOpts, name: str, reason: str) -> errors.ConfigurationError:
    origin = presets.origin(conf, name)
    return errors.ConfigurationError(
        option=name, reason=f"{conf[name]:g} s{origin} {reason}"
    )


def member_timeout(conf: cfg.ConfigOpts) -> float:
    """Return the seconds of silence that count as a break: the group's, if any.

    :param conf: one that check() has passed
    """
    url = check(conf)
    if url is not None:
        return url.member_timeout
    return float(min(_MISSED * conf.report_interval, conf.service_down_time / 2))


def interval(conf: cfg.ConfigOpts) -> float:
    """Return the seconds between two beats.

    :param conf: one that check() has passed
    """
    url = check(conf)
    if url is None:
        return float(conf.report_interval)
    return beat_interval(conf.report_interval, url.member_timeout)


def prepare(conf: cfg.ConfigOpts) -> group_url.GroupURL | None:
    """Check as check() does, and what only a process that will use the group can.

    A group in files has its directory afterwards; nothing is connected.

    :returns: the group URL, read; None: there is no group
    :raises ConfigurationError: as check(), a client isn't installed, a file that the
        URL names can't be read, or the directory can't be made or written
    """
    url = check(conf)
    if url is None:
        return None
    tooz_driver.ToozDriver(url, "nobody")
    _check_files(url)
    if url.scheme == "file":
        _make_directory(url.target.path)
    return url


def _check_files(url: group_url.GroupURL) -> None:
    """Refuse certificates that can't be read, which would be waited for without end."""
    for name in sorted(group_url.FILES & url.options.keys()):
        for path in url.options[name]:
            if not os.access(path, os.R_OK):
                raise errors.ConfigurationError(
                    option="servicegroup_tooz_url", reason=f"{name}: can't read {path}"
                )


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


def make_driver(
    conf: cfg.ConfigOpts, member: str, ways: db_driver.Ways | None = None
) -> driver.GroupDriver:
    """Return an unconnected driver for one member or reader.

    :param member: ``host#incarnation`` of an agent; of a reader any name that no
        other process uses
    :param ways: what the db driver beats and reads by
    :raises ConfigurationError: as check(), or a client isn't installed
    """
    return DRIVERS[conf.servicegroup_driver](conf, member, ways)


def _tooz(
    conf: cfg.ConfigOpts, member: str, ways: db_driver.Ways | None
) -> driver.GroupDriver:
    return tooz_driver.ToozDriver(_check_group(conf), member)


def _db(
    conf: cfg.ConfigOpts, member: str, ways: db_driver.Ways | None
) -> driver.GroupDriver:
    if ways is None:
        raise ValueError("the db driver needs ways to a conductor")
    return db_driver.DbDriver(ways, member, lambda: _times(conf))


def _times(conf: cfg.ConfigOpts) -> db_driver.Times:
    return db_driver.Times(
        member_timeout(conf),
        conf.service_down_time,
        min(_SHARE * conf.report_interval, _MOST_SECONDS),
    )


#: By the value of servicegroup_driver (whose choices are in conf/servicegroup.py):
#: what makes the driver of a configuration for a member's name.
DRIVERS: Mapping[
    str,
    Callable[[cfg.ConfigOpts, str, db_driver.Ways | None], driver.GroupDriver],
] = {"tooz": _tooz, "db": _db}


def beat_interval(report_interval: float, member_timeout: float) -> float:
    """Return the seconds between two beats: two may fail before a member expires."""
    return min(report_interval, member_timeout / 3)
