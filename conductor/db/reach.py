"""Whether the database is there, and of today's shape, before anything is served."""

import threading

from oslo_config import cfg
from oslo_db import exception as oslo_exc
import sqlalchemy as sa
from sqlalchemy import exc as sa_exc

from conductor.db import engine as db_engine
from conductor.db import migration
from conductor.db import retry
from musterbook import backoff
from musterbook import errors

#: Limit of a statement here: who is told to stop waits for one at most.
_STATEMENT_SECONDS = 5
#: Seconds after which an odd shape is looked at once more.
_SECOND_LOOK = 0.5


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
        return backoff.wait_for_server(
            lambda: _look(engine, stopping),
            stopping,
            "Waiting for the database",
            "The database can be used",
        )
    finally:
        engine.dispose()


def _look(engine: sa.Engine, stopping: threading.Event) -> str:
    """Look as _attempt does, twice before the shape is called one of no use.

    MySQL shows each step of a sync that is under way.
    """
    try:
        return _attempt(engine)
    except errors.DatabaseShape as exc:
        if stopping.wait(_SECOND_LOOK):
            return exc.message
    try:
        return _attempt(engine)
    except errors.DatabaseShape as exc:
        raise errors.ConfigurationError(
            option=db_engine.OPTION, reason=exc.message
        ) from None


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
