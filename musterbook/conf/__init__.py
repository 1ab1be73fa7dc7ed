"""Loading, checking and listing the configuration.

Configuration is passed in: load() returns a ConfigOpts of our own, and nothing
of ours reads the global one.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import importlib.metadata
import io
import re
import sys
import types
from typing import Any

from oslo_config import cfg
from oslo_config import iniparser

from musterbook import errors
from musterbook import names
from musterbook.conf import base
from musterbook.conf import bounds
from musterbook.conf import compute
from musterbook.conf import conductor
from musterbook.conf import presets
from musterbook.conf import rpc
from musterbook.conf import servicegroup
from musterbook.conf import upgrade_levels

Groups = list[tuple[str | None, list[cfg.Opt]]]
PROJECT = "musterbook"
_CLI_VALUE = re.compile(r"argument --([\w-]+): (.+)\n", re.DOTALL)
_HIDDEN = "has a value that can't be used (not shown, as it may be secret)"
#: What reading an option that exists raises for a $name in its value that doesn't,
#: that is a group, or that leads back to itself.
_NOT_SUBSTITUTED = (cfg.TemplateSubstitutionError, cfg.NoSuchOptError, RecursionError)
SECTIONS: tuple[types.ModuleType, ...] = (
    base,
    rpc,
    servicegroup,
    compute,
    conductor,
    upgrade_levels,
)


def list_opts() -> Groups:
    """Return every option of ours by group, for oslo.config's generator."""
    return _merged(group for section in SECTIONS for group in section.GROUPS)


def list_conductor_opts() -> Groups:
    """Return what of ours a conductor reads, for its sample."""
    return _merged(
        [
            *base.GROUPS,
            *rpc.GROUPS,
            *servicegroup.GROUPS,
            *conductor.GROUPS,
            *upgrade_levels.CONDUCTOR_GROUPS,
        ]
    )


def list_compute_opts() -> Groups:
    """Return what of ours a compute agent reads, for its sample."""
    return _merged(
        [
            *base.GROUPS,
            *rpc.GROUPS,
            (None, servicegroup.OPTS),
            *compute.GROUPS,
            *upgrade_levels.CLIENT_GROUPS,
        ]
    )


def _merged(groups: Iterable[tuple[str | None, Sequence[cfg.Opt]]]) -> Groups:
    merged: dict[str | None, list[cfg.Opt]] = {}
    for group, opts in groups:
        merged.setdefault(group, []).extend(opts)
    return list(merged.items())


def register(conf: cfg.ConfigOpts) -> None:
    """Register every option of ours; registering twice is harmless."""
    for group, opts in list_opts():
        conf.register_opts(opts, group=group)


def load(
    argv: Sequence[str],
    prog: str,
    *,
    prepare: Iterable[Callable[[cfg.ConfigOpts], None]] = (),
    cli: Sequence[cfg.Opt] = (),
    defaults: Callable[[cfg.ConfigOpts], None] | None = None,
    config_files: Sequence[str] | None = None,
    about: str | None = None,
) -> cfg.ConfigOpts:
    """Return the checked configuration of a command.

    :param argv: the command line without the program's name
    :param prog: the command's name; /etc/musterbook/<prog>.conf is read as well
    :param prepare: functions that register the options of libraries
    :param cli: options that the command line also takes
    :param defaults: sets defaults of this command, once the command line is known
    :param config_files: read instead of the default ones
    :param about: what the command does, for --help
    :raises ConfigurationError: naming the option that can't be used
    :raises SystemExit: for --help, --version and command line mistakes
    """
    conf = cfg.ConfigOpts()
    # First: an option that is registered already would not become one of the
    # command line's.
    conf.register_cli_opts(cli)
    register(conf)
    for function in prepare:
        function(conf)
    try:
        _parse(
            conf,
            list(argv),
            project=PROJECT,
            prog=prog,
            version=importlib.metadata.version(PROJECT),
            description=about,
            default_config_files=list(config_files)
            if config_files is not None
            else None,
        )
    except cfg.ConfigFilesNotFoundError as exc:
        raise errors.ConfigurationError(
            option="config-file", reason=f"can't read {', '.join(exc.config_files)}"
        ) from None
    except cfg.ConfigFileParseError as exc:
        raise errors.ConfigurationError(
            option="config-file", reason=f"{exc.config_file}{_where(exc)}"
        ) from None
    except (OSError, UnicodeDecodeError) as exc:
        raise errors.ConfigurationError(
            option="config-file", reason=f"a file can't be read ({_why(exc)})"
        ) from None
    except cfg.Error as exc:
        raise errors.ConfigurationError(
            option="config-file", reason=errors.one_line(str(exc))
        ) from None
    presets.apply(conf)
    if defaults is not None:
        defaults(conf)
    check(conf)
    return conf


def _parse(conf: cfg.ConfigOpts, argv: list[str], **settings: Any) -> None:
    """Parse command line and files.

    oslo.config 10 tells a value that an option of the command line can't have, also one
    out of a file, on stderr, and ends with code 1.

    :raises ConfigurationError: for such a value
    """
    said = io.StringIO()
    refused = None
    try:
        with contextlib.redirect_stderr(said):
            conf(argv, **settings)
    except SystemExit as exc:
        refused = _CLI_VALUE.fullmatch(said.getvalue()) if exc.code == 1 else None
        if refused is None:
            raise
        said = io.StringIO()
    finally:
        sys.stderr.write(said.getvalue())
    if refused is not None:
        name, reason = refused.groups()
        raise errors.ConfigurationError(
            option=name.replace("-", "_"), reason=errors.one_line(reason)
        )


def check(conf: cfg.ConfigOpts) -> None:
    """Read every registered option once, then check those that depend on others.

    :raises ConfigurationError: for the first value that can't be used
    """
    _read_all(conf, conf, "")
    reason = None
    try:
        names.check(conf.host, "option host")
        if len(conf.host) > names.MAX_HOST_LENGTH:
            reason = f"has {len(conf.host)} characters"
    except errors.InvalidName as exc:
        reason = exc.reason
    if reason is not None:
        raise errors.ConfigurationError(
            option="host",
            reason=f"{reason}; allowed are 1 to {names.MAX_HOST_LENGTH} of the ASCII "
            "characters A-Z a-z 0-9 . _ - (it is part of a queue's name)",
        )


def _read_all(conf: cfg.ConfigOpts, holder: Mapping[str, Any], group: str) -> None:
    for name in holder:
        value = None
        try:
            value = holder[name]
            reason = bounds.fault(group, name, value)
            if value is None and _has_default(conf, group, name):
                reason = "is empty"
        except _NOT_SUBSTITUTED:
            # What oslo.config says shows what follows the $.
            reason = "has a $ in it, write $$ for one"
        except (cfg.Error, ValueError) as exc:
            reason = _HIDDEN if _is_secret(conf, group, name) else _reason(exc)
        if reason is not None:
            label = f"[{group}]{name}" if group else name
            raise errors.ConfigurationError(option=label, reason=reason)
        if isinstance(value, Mapping):
            _read_all(conf, value, name)


def _has_default(conf: cfg.ConfigOpts, group: str, name: str) -> bool:
    """Return whether an option would have a value if it was left out."""
    return conf._get_opt_info(name, group or None)["opt"].default is not None


def _is_secret(conf: cfg.ConfigOpts, group: str, name: str) -> bool:
    """Return whether an option, also of a library, says that its value is secret."""
    # oslo.config has no public way to an option that is registered already.
    found = conf._get_opt_info(name, group or None)
    return bool(found["opt"].secret)


def _reason(exc: Exception) -> str:
    """Return why oslo.config refused a value, without where it found it."""
    return errors.one_line(str(exc).rpartition("is not valid: ")[2] or str(exc))


def _where(exc: cfg.ConfigFileParseError) -> str:
    """Return the place of a mistake in a file, and not its line: it may be secret."""
    found = exc.__context__
    if isinstance(found, iniparser.ParseError):
        return f", line {found.lineno}: {errors.one_line(found.msg)}"
    return " is not a configuration file"


def _why(exc: OSError | UnicodeDecodeError) -> str:
    if isinstance(exc, OSError):
        return f"{exc.filename}: {exc.strerror}"
    return f"it is not {exc.encoding}"
