"""Taking up a changed configuration in a process that goes on."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import logging
from typing import Any

from oslo_config import cfg

from musterbook import errors
from musterbook.conf import presets

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Changes:
    """What a configuration that was read anew says differently.

    :ivar applied: options that are taken up, each with its old and new value
    :ivar waiting: options that need a restart; their values may be secret
    """

    applied: tuple[str, ...]
    waiting: tuple[str, ...]


class Reloader:
    """Reads the configuration anew and takes up what may change; one thread.

    The files must be whole while it reads: replace them by renaming, as editors do.

    :param conf: the configuration in use; its mutable options change
    :param load: loads the same one anew, as at the start
    :param checks: what else must hold of a configuration, as at the start; also of
        the one in force afterwards, in which some options still are the old ones
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        load: Callable[[], cfg.ConfigOpts],
        checks: Iterable[Callable[[cfg.ConfigOpts], object]] = (),
    ) -> None:
        self._conf = conf
        self._load = load
        self._checks = tuple(checks)

    def reload(self, *, quiet: bool = False) -> bool:
        """Check the whole new configuration, then take up its mutable options.

        What can't be used changes nothing: one line in the log says why.

        :param quiet: another process says what has changed, or why nothing has
        :returns: False: refused. True also when nothing has changed: whoever asks
            again may have been missed the first time
        """
        try:
            fresh = self._load()
            self._check(fresh)
            # A preset is taken up by a restart only, and so are its values.
            presets.apply(fresh, presets.of(self._conf))
            changes = compare(self._conf, fresh)
            if changes.waiting:
                self._check_mix(fresh, changes.waiting)
            self._mutate()
        except errors.ConfigurationError as exc:
            level = logging.DEBUG if quiet else logging.ERROR
            LOG.log(level, "Reload refused, all stays as it was: %s", exc.message)
            return False
        except Exception:
            LOG.exception("Reload failed unexpectedly, all stays as it was")
            return False
        _say(changes, logging.DEBUG if quiet else None)
        return True

    def _check(self, conf: cfg.ConfigOpts) -> None:
        for check in self._checks:
            check(conf)

    def _check_mix(self, fresh: cfg.ConfigOpts, waiting: tuple[str, ...]) -> None:
        """Check what would be in force: the old options that wait, the new others.

        Turns the new configuration into that one. All processes of a daemon decide
        alike, as they have read the same files at the same signals.
        """
        _set_namespaces(fresh, self._conf._namespace, fresh._namespace)
        try:
            self._check(fresh)
        except errors.ConfigurationError as exc:
            raise errors.ConfigurationError(
                f"{exc.message}, as long as only a restart takes up what has changed "
                f"of {', '.join(waiting)}",
                option=exc.option,
            ) from None

    def _mutate(self) -> None:
        """Take up the files as they are now, or nothing of them.

        oslo.config swaps first; a hook that fails afterwards would leave a half.
        """
        before = self._conf._mutable_ns
        try:
            self._conf.mutate_config_files()
        except BaseException:
            _set_namespaces(self._conf, self._conf._namespace, before)
            raise


def compare(old: cfg.ConfigOpts, new: cfg.ConfigOpts) -> Changes:
    """Return how two configurations differ.

    :param old: in use; has at least the options of the new one, and those that
        libraries register as they go
    """
    applied, waiting = [], []
    for group, opt in options(new):
        before, after = _value(old, group, opt), _value(new, group, opt)
        if before == after:
            continue
        if opt.mutable:
            applied.append(f"{label(group, opt)} from {before} to {after}")
        else:
            waiting.append(label(group, opt))
    return Changes(tuple(sorted(applied)), tuple(sorted(waiting)))


def options(conf: cfg.ConfigOpts) -> Iterator[tuple[str | None, cfg.Opt]]:
    """Return every registered option with its group; None is [DEFAULT]."""
    for name in conf:
        if isinstance(conf[name], Mapping):
            for inner in conf[name]:
                yield name, _option(conf, inner, name)
        else:
            yield None, _option(conf, name, None)


def label(group: str | None, opt: cfg.Opt) -> str:
    """Return the name by which operators know an option."""
    return f"[{group}]{opt.dest}" if group else str(opt.dest)


def _set_namespaces(conf: cfg.ConfigOpts, immutable: Any, mutable: Any) -> None:
    # What was read is kept in two places, and the values in a cache: oslo.config has
    # no public way to put back what it has mutated.
    conf._namespace, conf._mutable_ns = immutable, mutable
    conf._ConfigOpts__cache.clear()


def _option(conf: cfg.ConfigOpts, name: str, group: str | None) -> cfg.Opt:
    # oslo.config has no public way to an option that is registered already.
    found: cfg.Opt = conf._get_opt_info(name, group)["opt"]
    return found


def _value(conf: cfg.ConfigOpts, group: str | None, opt: cfg.Opt) -> object:
    holder = conf[group] if group else conf
    return holder[opt.dest]


def _say(changes: Changes, level: int | None) -> None:
    if changes.waiting:
        LOG.log(
            level or logging.WARNING,
            "Reloaded; changed, but only a restart takes it up: %s",
            ", ".join(changes.waiting),
        )
    if changes.applied:
        LOG.log(
            level or logging.INFO,
            "Reloaded; in force now: %s",
            ", ".join(changes.applied),
        )
    elif not changes.waiting:
        LOG.log(level or logging.INFO, "Reloaded; nothing has changed")
