"""Whether the message broker is there, before anything waits for it without end.

oslo.messaging's server connects when it is started, and tries that for as long as it
takes; what refuses this process is found out here before that, and says so in a line.
"""

import os
import threading
from typing import Any

from oslo_config import cfg
import oslo_messaging

from musterbook import backoff
from musterbook import errors
from musterbook.rpc import connection
from musterbook.rpc import rabbit

_SSL_FILES = ("ssl_key_file", "ssl_cert_file", "ssl_ca_file")


def wait_for_broker(conf: cfg.ConfigOpts, stopping: threading.Event) -> bool:
    """Return True once the broker of transport_url lets this process in.

    Any thread may call it; nothing stays connected. Logs when the waiting begins, when
    its reason changes and when it ends, not each attempt. Without a broker (inproc://)
    there is nothing to wait for.

    :param conf: has the options of rpc.register_options
    :param stopping: ends the waiting, after the few seconds of an attempt under way
    :returns: False: told to stop
    :raises ConfigurationError: the broker is there and refuses the user, the password,
        the virtual host or a queue of answers; or an option of
        [oslo_messaging_rabbit] can't be used
    """
    url = oslo_messaging.TransportURL.parse(conf)
    if url.transport != "rabbit":
        return not stopping.is_set()
    _check_ssl_files(conf)
    return backoff.wait_for_server(
        lambda: _attempt(conf, url, stopping),
        stopping,
        "Waiting for the message broker",
        "The message broker answers",
    )


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
        probe.make_queue()
    except connection.FAULTS as exc:
        refused = connection.as_option(exc, probe.address)
        if refused is None:
            return f"{probe.address}: {connection.why(exc)}"
    else:
        return ""
    finally:
        probe.close()
    raise refused


def _check_ssl_files(conf: cfg.ConfigOpts) -> None:
    options = conf.oslo_messaging_rabbit
    for name in _SSL_FILES if options.ssl else ():
        path = options[name]
        if path and not os.access(path, os.R_OK):
            raise errors.ConfigurationError(
                option=f"[oslo_messaging_rabbit]{name}", reason=f"can't read {path}"
            )
