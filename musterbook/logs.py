"""Logging, by oslo.log."""

import logging as pylogging
from typing import Any

from oslo_config import cfg
from oslo_log import _options
from oslo_log import formatters
from oslo_log import log as logging

from musterbook import errors

#: Libraries that say at INFO or WARNING what is no news to an operator of ours:
#: each reconnect attempt (we say when an outage begins and ends), each pool size.
_QUIET = (
    "alembic=WARNING",
    "amqp=ERROR",
    "amqplib=WARNING",
    "cotyledon=WARNING",
    "futurist=WARNING",
    "kazoo.client=ERROR",
    # At each reload, an option a line; conf.reload says it in one.
    "oslo_config=ERROR",
    "oslo.messaging=ERROR",
    "oslo_messaging=ERROR",
    "oslo_db=ERROR",
    "oslo_service=WARNING",
    "sqlalchemy=WARNING",
    "stevedore=WARNING",
    "tooz=ERROR",
    "urllib3=WARNING",
)
# oslo.log's own also has the user's and the project's identity, which the calls
# between services don't have.
_FORMAT = (
    "%(asctime)s.%(msecs)03d %(process)d %(levelname)s %(name)s "
    "[%(request_id)s] %(instance)s%(message)s"
)


_DEFAULTS: dict[str, Any] = {
    "default_log_levels": list(_QUIET),
    "logging_context_format_string": _FORMAT,
    "logging_debug_format_suffix": "",
    # oslo.log's own default logs nowhere as long as nothing is configured.
    "use_stderr": True,
}


def register_options(conf: cfg.ConfigOpts) -> None:
    """Register oslo.log's options; they are on the command line, too."""
    logging.register_options(conf)
    for name, value in _DEFAULTS.items():
        conf.set_default(name, value)


def list_opts() -> list[tuple[str | None, list[cfg.Opt]]]:
    """Return oslo.log's options with our defaults, for the samples."""
    listed = []
    for group, opts in _options.list_opts():  # copies
        cfg.set_defaults(opts, **_DEFAULTS)
        # Belongs to oslo.log's marks of deprecation; we use none of them.
        unused = {"fatal_deprecations"}
        listed.append((group, [opt for opt in opts if opt.dest not in unused]))
    return listed


def setup(conf: cfg.ConfigOpts) -> None:
    """Log as configured, as a rule to stderr.

    :raises ConfigurationError: a log file can't be written, or an option is senseless
    """
    # oslo.log 8.3 appends the text of whatever exception is being handled to each
    # warning: it says twice what our line says, and a library's text may hold what
    # must not be in a log (SQL, a URL). Tracebacks that are asked for still come.
    formatters._get_error_summary = _no_summary
    # A full disk must not turn each line into a traceback on stderr.
    pylogging.raiseExceptions = False
    try:
        logging.setup(conf, "musterbook")
    except (OSError, ValueError, TypeError, logging.LogConfigError) as exc:
        raise errors.ConfigurationError(
            option="of logging (log_file, log_dir, log_config_append, "
            "default_log_levels, syslog_log_facility)",
            reason=errors.one_line(str(exc)) or type(exc).__name__,
        ) from None


def _no_summary(record: pylogging.LogRecord) -> str:
    return ""
