"""Whether the group backend is there, and lets this process in, at start."""

from collections.abc import Callable
import threading

from musterbook import backoff
from musterbook import errors
from musterbook.servicegroup import driver as group_driver

OPTION = "servicegroup_tooz_url"


def wait_for_group(
    make_driver: Callable[[], group_driver.GroupDriver], stopping: threading.Event
) -> bool:
    """Return True once the backend lets this process in.

    Any thread may call it; nothing stays connected. Logs when the waiting begins, when
    its reason changes and when it ends, not each attempt.

    :param make_driver: returns an unconnected driver; called for each attempt
    :param stopping: ends the waiting, after the seconds of an attempt under way
    :returns: False: told to stop
    :raises ConfigurationError: the backend is there and refuses the user, the
        password or the member timeout
    """
    return backoff.wait_for_server(
        lambda: attempt(make_driver), stopping, "Waiting", "The group backend answers"
    )


def attempt(make_driver: Callable[[], group_driver.GroupDriver]) -> str:
    """Connect once; return why it can't be done now, '' if it can.

    :raises ConfigurationError: the backend is there and refuses the user, the
        password or the member timeout
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
    """Return what an operator is told whose group the backend refuses."""
    return errors.ConfigurationError(option=OPTION, reason=exc.message)
