"""psycopg2's ways with PostgreSQL: waiting that is bounded, and no BEGIN."""

import select
import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event


def bound_waiting(engine: sa.Engine, seconds: int) -> None:
    """End the waiting for a PostgreSQL server that is frozen or gone without a word.

    libpq waits for an answer without limit: statement_timeout is the server's, and the
    kernel of a frozen one goes on answering keepalives. psycopg2 leaves the waiting to
    a function if it is given one: one for the process, so that it serves connections
    of others, too. With it, connect_timeout is its to heed.

    :param seconds: for a statement; 0: no limit
    """
    driver: Any = engine.dialect.loaded_dbapi
    original: Any = driver.extensions.connection

    class Connection(original):  # type: ignore[misc]  # untyped base
        musterbook_limit = seconds

    def wait(connection: Any) -> None:
        if connection.status == driver.extensions.STATUS_SETUP:
            limit = _connect_timeout(driver, connection)
        else:
            limit = getattr(connection, "musterbook_limit", 0)
        _wait_for_answer(driver, connection, limit)

    driver.extensions.set_wait_callback(wait)

    @event.listens_for(engine, "do_connect")
    def _connect(dialect: Any, record: Any, args: Any, parameters: Any) -> Any:
        try:
            return driver.connect(*args, connection_factory=Connection, **parameters)
        except driver.OperationalError as exc:
            # Waiting ourselves, we are told the end of libpq's sentence only; what it
            # begins with is how retry.classify knows that nobody was connected.
            said = str(exc).strip()
            if said.startswith("connection to server"):
                raise
            raise driver.OperationalError(
                f"connection to server failed: {said}"
            ) from None


def begin_nothing(connection: sa.Connection) -> None:
    """Let each statement be a transaction of its own, until begin_again's reset.

    Not by SQLAlchemy's isolation_level (2.1): that is taken back after the errors of a
    connection's return to the pool were caught, by a call of psycopg2 that sends a SET.
    A server that went in between made an error of the driver out of work that was done,
    and the pool lost the place.
    """
    driver: Any = connection.connection.dbapi_connection
    if not driver.closed:  # else the first statement says so, in SQLAlchemy's words
        driver.autocommit = True


def begin_again(engine: sa.Engine) -> None:
    """Let connections that return to the pool begin transactions; asks no server."""

    @event.listens_for(engine, "reset")
    def _reset(connection: Any, record: Any, state: Any) -> None:
        if connection.autocommit:
            connection.autocommit = False


def _connect_timeout(driver: Any, connection: Any) -> float:
    """Return the seconds for connecting; 0: no limit."""
    said = driver.extensions.parse_dsn(connection.dsn).get("connect_timeout")
    return max(float(said or 0), 0.0)


def _wait_for_answer(driver: Any, connection: Any, limit: float) -> None:
    """Do what psycopg2 would do while it waits, for limit seconds at most.

    The connection is closed by psycopg2 when this raises.
    """
    states = driver.extensions
    deadline = time.monotonic() + limit if limit else None
    while (state := connection.poll()) != states.POLL_OK:
        # Not select(): it can't take file descriptors beyond 1023.
        poller = select.poll()
        wanted = select.POLLIN if state == states.POLL_READ else select.POLLOUT
        poller.register(connection.fileno(), wanted)
        left = None if deadline is None else max(deadline - time.monotonic(), 0)
        if not poller.poll(None if left is None else left * 1000) and left == 0:
            raise driver.OperationalError(
                f"connection to server gave no answer within {limit:g} s"
            )
