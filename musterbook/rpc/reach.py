"""Whether the message broker is there, before anything waits for it without end.

oslo.messaging's server connects when it is started, tries that for ever, and can't be
told to stop meanwhile; a refused login ends it with a traceback.
"""

import logging
import os
import threading
import time
from typing import Any

from oslo_config import cfg
import oslo_messaging

from musterbook import backoff
from musterbook import errors
from musterbook.rpc import connection
from musterbook.rpc import rabbit

LOG = logging.getLogger(__name__)

_FIRST_PAUSE = 0.5
_MOST_PAUSE = 10.0
_SSL_FILES = ("ssl_key_file", "ssl_cert_file", "ssl_ca_file")


def wait_for_broker(conf: cfg.ConfigOpts, stopping: threading.Event) -> bool:
    """Return True once the broker of transport_url lets this process in.

    Any thread may call it; nothing stays connected. Logs when the waiting begins, when
    its reason changes and when it ends, not each attempt. Without a broker (inproc://)
    there is nothing to wait for.

    :param conf: has the options of rpc.register_options
    :param stopping: ends the waiting, after the few seconds of an attempt under way
    :returns: False: told to stop
    :raises ConfigurationError: the broker is there and refuses the user, the password
        or the virtual host; or an option of [oslo_messaging_rabbit] can't be used
    """
    url = oslo_messaging.TransportURL.parse(conf)
    if url.transport != "rabbit":
        return not stopping.is_set()
    _check_ssl_files(conf)
    pauses = backoff.Backoff(_FIRST_PAUSE, _MOST_PAUSE)
    began, reason = time.monotonic(), ""
    while not stopping.is_set():
        found = _attempt(conf, url, stopping)
        if not found:
            if reason:
                seconds = time.monotonic() - began
                LOG.warning("The message broker answers, after %.0f s", seconds)
            return True
        if found != reason and not stopping.is_set():
            LOG.warning("Waiting for the message broker: %s", found)
        reason = found
        stopping.wait(pauses.pause())
    return False


def _attempt(conf: cfg.ConfigOpts, url: Any, stopping: threading.Event) -> str:
    """Try each host once; return why none lets us in, '' if one does."""
    try:
        probe = rabbit.Probe(conf, url)
    except RuntimeError as exc:  # such as an unknown ssl_version
        raise errors.ConfigurationError(
            option="[oslo_messaging_rabbit]", reason=errors.one_line(str(exc))
        ) from None
    try:
        probe.connect(connection.HOST_SECONDS, lambda: not stopping.is_set())
    except connection.FAULTS as exc:
        reason = connection.refusal(exc)
        if not reason:
            return f"{probe.address}: {connection.why(exc)}"
    else:
        return ""
    finally:
        probe.close()
    raise errors.ConfigurationError(
        option="transport_url", reason=f"the broker at {probe.address} {reason}"
    )


def _check_ssl_files(conf: cfg.ConfigOpts) -> None:
    options = conf.oslo_messaging_rabbit
    for name in _SSL_FILES if options.ssl else ():
        path = options[name]
        if path and not os.access(path, os.R_OK):
            raise errors.ConfigurationError(
                option=f"[oslo_messaging_rabbit]{name}", reason=f"can't read {path}"
            )
