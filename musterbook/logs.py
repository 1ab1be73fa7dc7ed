"""Logging, by oslo.log."""

import logging as pylogging

from oslo_config import cfg
from oslo_log import formatters
from oslo_log import log as logging

#: Libraries that say at INFO or WARNING what is no news to an operator of ours:
#: each reconnect attempt (we say when an outage begins and ends), each pool size.
_QUIET = (
    "alembic=WARNING",
    "amqp=WARNING",
    "amqplib=WARNING",
    "futurist=WARNING",
    "kazoo.client=ERROR",
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


def register_options(conf: cfg.ConfigOpts) -> None:
    """Register oslo.log's options; they are on the command line, too."""
    logging.register_options(conf)
    conf.set_default("default_log_levels", list(_QUIET))
    conf.set_default("logging_debug_format_suffix", "")
    # oslo.log's own default logs nowhere as long as nothing is configured.
    conf.set_default("use_stderr", True)
    conf.set_default("logging_context_format_string", _FORMAT)


def setup(conf: cfg.ConfigOpts) -> None:
    """Log as configured, as a rule to stderr."""
    # oslo.log 8.3 appends the text of whatever exception is being handled to each
    # warning: it says twice what our line says, and a library's text may hold what
    # must not be in a log (SQL, a URL). Tracebacks that are asked for still come.
    formatters._get_error_summary = _no_summary
    logging.setup(conf, "musterbook")


def _no_summary(record: pylogging.LogRecord) -> str:
    return ""
