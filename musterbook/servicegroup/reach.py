"""Whether the group backend is there, and lets this process in, at start."""

from collections.abc import Callable
import logging
import threading
import time

from musterbook import backoff
from musterbook import errors
from musterbook.servicegroup import driver as group_driver

LOG = logging.getLogger(__name__)

OPTION = "servicegroup_tooz_url"
_FIRST_PAUSE = 0.5
_MOST_PAUSE = 10.0


def wait_for_group(
    make_driver: Callable[[], group_driver.GroupDriver], stopping: threading.Event
) -> bool:
    """Return True once the backend lets this process in.

    Any thread may call it; nothing stays connected. Logs when the waiting begins, when
    its reason changes and when it ends, not each attempt.

    :param make_driver: returns an unconnected driver; called for each attempt
    :param stopping: ends the waiting, after the seconds of an attempt under way
    :returns: False: told to stop
    :raises ConfigurationError: the backend is there and refuses the user or the
        password
    """
    pauses = backoff.Backoff(_FIRST_PAUSE, _MOST_PAUSE)
    began, reason = time.monotonic(), ""
    while not stopping.is_set():
        found = attempt(make_driver)
        if not found:
            if reason:
                seconds = time.monotonic() - began
                LOG.warning("The group backend answers, after %.0f s", seconds)
            return True
        if found != reason and not stopping.is_set():
            LOG.warning("Waiting: %s", found)
        reason = found
        stopping.wait(pauses.pause())
    return False


def attempt(make_driver: Callable[[], group_driver.GroupDriver]) -> str:
    """Connect once; return why it can't be done now, '' if it can.

    :raises ConfigurationError: the backend is there and refuses the user or the
        password
    """
    driver = make_driver()
    try:
        driver.start()
    except errors.GroupRefused as exc:
        raise refused(exc) from None
    except errors.GroupError as exc:
        return exc.message
    finally:
        driver.stop()
    return ""


def refused(exc: errors.GroupRefused) -> errors.ConfigurationError:
    """Return what an operator is told whose password the backend refuses."""
    return errors.ConfigurationError(option=OPTION, reason=exc.message)
