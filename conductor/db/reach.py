"""Whether the database is there, and of today's shape, before anything is served."""

import logging
import threading
import time

from oslo_config import cfg
from oslo_db import exception as oslo_exc
import sqlalchemy as sa
from sqlalchemy import exc as sa_exc

from conductor.db import engine as db_engine
from conductor.db import migration
from conductor.db import retry
from musterbook import backoff
from musterbook import errors

LOG = logging.getLogger(__name__)

_FIRST_PAUSE = 0.5
_MOST_PAUSE = 10.0
#: Limit of a statement here: who is told to stop waits for one at most.
_STATEMENT_SECONDS = 5


def wait_for_database(conf: cfg.ConfigOpts, stopping: threading.Event) -> bool:
    """Return True once the database lets this process in and needs no db sync.

    Any thread may call it; nothing stays connected. Waits for a server that is away,
    and for a schema that is missing or older than this code: somebody is about to
    make it. Logs when the waiting begins, when its reason changes and when it ends.

    :param conf: has the options of engine.register_options
    :param stopping: ends the waiting, after the few seconds of an attempt under way
    :returns: False: told to stop
    :raises ConfigurationError: the database refuses the user or the password, doesn't
        exist, or has a shape that no db sync of this code can mend
    :raises DatabaseUnavailable: the SQLite file can't be used
    """
    engine = db_engine.from_conf(conf, statement_seconds=_STATEMENT_SECONDS)
    try:
        return _wait(engine, stopping)
    finally:
        engine.dispose()


def _wait(engine: sa.Engine, stopping: threading.Event) -> bool:
    pauses = backoff.Backoff(_FIRST_PAUSE, _MOST_PAUSE)
    began, reason = time.monotonic(), ""
    odd = False
    while not stopping.is_set():
        try:
            found = _attempt(engine)
            odd = False
        except errors.DatabaseShape as exc:
            # Twice: MySQL shows each step of a sync that is under way.
            if odd:
                raise errors.ConfigurationError(
                    option=db_engine.OPTION, reason=exc.message
                ) from None
            odd = True
            stopping.wait(_FIRST_PAUSE)
            continue
        if not found:
            if reason:
                seconds = time.monotonic() - began
                LOG.warning("The database can be used, after %.0f s", seconds)
            return True
        if found != reason and not stopping.is_set():
            LOG.warning("Waiting for the database: %s", found)
        reason = found
        stopping.wait(pauses.pause())
    return False


def _attempt(engine: sa.Engine) -> str:
    """Look once; return what has to be waited for, '' for nothing.

    :raises DatabaseShape: what no sync can mend
    """
    try:
        with engine.connect() as connection:
            migration.check_connected(connection)
    except errors.DatabaseBehind as exc:
        return str(exc.kwargs["reason"])
    except (sa_exc.SQLAlchemyError, oslo_exc.DBError) as exc:
        refused = retry.refusal(exc)
        if refused is not None:
            raise errors.ConfigurationError(
                option=db_engine.OPTION, reason=f"can't be used: {refused}"
            ) from None
        error = retry.named(retry.classify(exc), exc)
        if engine.dialect.name == "sqlite" and not isinstance(
            error, errors.DatabaseBusy
        ):
            raise error from None
        return str(error.kwargs["reason"])
    return ""
