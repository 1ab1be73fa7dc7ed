"""Running a transaction: what goes wrong by chance is run again, then named.

Deadlocks, lock timeouts, serialization failures and lost connections are tried
again a few times with random pauses. A commit whose answer was lost is run again
as well, so work must be safe to repeat. What a repetition comes to, here:

* grants, goodbyes, leases, verdicts and freezes notice that they are done already,
  from what is stored, and give the same answer
* so does a creation, by the uuid it was given; of a node without one, or one that
  revived a row under that row's uuid, it ends in ComputeNodeExists
* an update on an inventory generation finds the generation that it made itself and
  ends in InventoryChanged: the caller reads again and sees its own values
* an update without one sets the same values again. Generations rise twice, and what
  somebody else wrote to the same columns in between is overwritten: the last writer
  wins, as without a repetition
* a confirmation of usage finds it confirmed and changes nothing
* a destruction finds nothing left and ends in ComputeNodeNotFound or
  ServiceNotFound, although it was this caller that destroyed
"""

from collections.abc import Callable
import contextlib
import enum
import logging
import random
import re
import time
from typing import TypeVar

from oslo_db import exception as oslo_exc
import sqlalchemy as sa
from sqlalchemy import exc as sa_exc

from conductor.db import engine as db_engine
from conductor.db import outage
from musterbook import errors

LOG = logging.getLogger(__name__)
T = TypeVar("T")

_ATTEMPTS = 8
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5
#: No new attempt is begun later than this many seconds after the first.
_BUDGET = 15.0


class Trouble(enum.Enum):
    """What an error of the database means for the transaction."""

    BUSY = "busy"
    LOST = "lost"
    DUPLICATE = "duplicate"
    NO_CONNECTION = "no free connection"
    REFUSED = "refused"
    DENIED = "a right is missing"
    TOO_LONG = "took too long"
    SHAPE = "shape"
    OTHER = "other"


#: SQLSTATEs of PostgreSQL: serialization failure, deadlock, lock timeout.
_PG_BUSY = {"40001", "40P01", "55P03"}
#: Shutdown, crash, starting up, too many connections, a transaction that stood still.
_PG_LOST = {"57P01", "57P02", "57P03", "53300", "25P03"}
#: Undefined table and column.
_PG_SHAPE = {"42P01", "42703"}
#: MySQL: lock wait, deadlock, record changed.
_MYSQL_BUSY = {1205, 1213, 1020}
#: The server ended a statement that took longer than the session allows: PostgreSQL,
#: MariaDB, MySQL.
_TOO_LONG: set[str | int] = {"57014", 1969, 3024}
#: Too many connections, shutdown, can't connect, gone away, lost, killed.
_MYSQL_LOST = {1040, 1053, 1927, 2002, 2003, 2006, 2013}
_MYSQL_SHAPE = {1054, 1146}
#: SQLITE_BUSY and SQLITE_LOCKED (the low byte of the code).
_SQLITE_BUSY = {5, 6}
_SQLITE_NOTADB = 26
_MYSQL_NO_DB = 1049
#: The user, the password, the host, the plugin.
_MYSQL_REFUSED = {1044, 1045, 1130, 1251, 1698, 2059, 4151}
_PG_REFUSED = {"28000", "28P01"}
#: What this user may do with a table, a column or a schema.
_DENIED: set[str | int] = {1142, 1143, 1227, "42501"}
_BY_CODE: tuple[tuple[frozenset[str | int], Trouble], ...] = (
    (frozenset([*_PG_BUSY, *_MYSQL_BUSY]), Trouble.BUSY),
    (frozenset(_TOO_LONG), Trouble.TOO_LONG),
    (frozenset([*_PG_SHAPE, *_MYSQL_SHAPE]), Trouble.SHAPE),
    (frozenset(_DENIED), Trouble.DENIED),
)
#: What PostgreSQL says to whom it lets in never; psycopg2 gives no SQLSTATE then.
_PG_REFUSALS = (
    "authentication failed", "does not exist", "no pg_hba.conf entry",
    "no password supplied", "not permitted to log in",
    "permission denied for database",
)  # fmt: skip


def run(
    engine: sa.Engine,
    work: Callable[[sa.Connection], T],
    *,
    again_on_duplicate: bool = False,
) -> T:
    """Run work in a transaction of its own and return its result. Any thread.

    :param work: gets the connection; may run several times
    :param again_on_duplicate: a duplicate key means that somebody was faster, and
        running again lets work see it; else the DBDuplicateEntry is the caller's
    :raises DatabaseBusy: conflicts outlasted the attempts; nothing was changed
    :raises DatabaseUnavailable: no connection, or an error of no known kind, or one
        of the attempts was lost: it is unknown whether anything was changed
    :raises DatabaseShape: a table or column is missing
    """
    return _guarded(engine, lambda: engine.begin(), work, again_on_duplicate)


def single(engine: sa.Engine, work: Callable[[sa.Connection], T]) -> T:
    """Run work that is one statement, as run does; its end is its commit."""
    return _guarded(
        engine, lambda: db_engine.single(engine), work, again_on_duplicate=False
    )


def read(engine: sa.Engine, work: Callable[[sa.Connection], T]) -> T:
    """Run work that only reads, as run does; takes no lock on SQLite.

    Each statement sees what is committed when it begins.
    """
    return _guarded(
        engine, lambda: db_engine.reader(engine), work, again_on_duplicate=False
    )


def _guarded(
    engine: sa.Engine,
    begin: Callable[[], contextlib.AbstractContextManager[sa.Connection]],
    work: Callable[[sa.Connection], T],
    again_on_duplicate: bool,
) -> T:
    seen = outage.of(engine)
    with seen.call(urgent=db_engine.is_urgent(engine)):
        return _attempt(begin, work, again_on_duplicate, seen)


def _attempt(
    begin: Callable[[], contextlib.AbstractContextManager[sa.Connection]],
    work: Callable[[sa.Connection], T],
    again_on_duplicate: bool,
    seen: outage.Outage,
) -> T:
    started = time.monotonic()
    lost = False  # an attempt's answer was, so it may have been committed
    for attempt in range(1, _ATTEMPTS + 1):
        asked = seen.now()
        try:
            with begin() as connection:
                result = work(connection)
        except (sa_exc.SQLAlchemyError, oslo_exc.DBError) as exc:
            trouble = classify(exc)
            last = attempt == _ATTEMPTS or time.monotonic() - started > _BUDGET
            # One connection may be lost for many reasons; the next one tells.
            _tell(seen, trouble, exc, asked, surely=attempt > 1 or last)
            if trouble is Trouble.DUPLICATE and not again_on_duplicate:
                raise
            if last or trouble not in _WORTH_A_RETRY:
                raise _final(trouble, exc, lost) from exc
            lost = lost or trouble is Trouble.LOST
            LOG.debug("Running a transaction again (%s)", trouble.value)
        except errors.MusterbookError:
            seen.answered(asked)  # what was found decided it
            raise
        else:
            seen.answered(asked)
            return result
        pause = min(_FIRST_PAUSE * 2 ** (attempt - 1), _LONGEST_PAUSE)
        time.sleep(random.uniform(0.1, 1.0) * pause)  # noqa: S311  # no secret
    raise AssertionError("the last attempt returns or raises")


def _final(trouble: Trouble, exc: Exception, lost: bool) -> errors.MusterbookError:
    """Return what the call ends in, which is never that a lost change wasn't made."""
    error = named(trouble, exc)
    if not lost or isinstance(error, errors.DatabaseUnavailable):
        return error
    reason = error.kwargs["reason"]
    return errors.DatabaseUnavailable(reason=f"its answer was lost, then {reason}")


def _tell(
    seen: outage.Outage, trouble: Trouble, exc: Exception, asked: float, *, surely: bool
) -> None:
    """Let the other calls know what an error means for them."""
    if trouble is Trouble.SHAPE:
        seen.misses_tables(_NO_TABLE)
    elif trouble is Trouble.REFUSED:
        seen.failed(_reason(exc), asked)
    elif trouble is Trouble.LOST:
        if surely:
            seen.failed(_NO_CONNECTION, asked)
    elif trouble is not Trouble.NO_CONNECTION:
        seen.answered(asked)
    if trouble is Trouble.DENIED:
        seen.denied(_lacking(exc))


_VERB = re.compile(r"\s*(\w+)")
#: ... for table `db`.`nodes`, ... for column 'x' in table 'nodes', and PostgreSQL's
#: permission denied for table nodes.
_DENIED_ON = re.compile(r"\bfor ((?:table|column|schema|sequence) [^\n]+)")
_NO_TABLE = "a table or column is missing; run musterbook-manage db sync"
_NO_CONNECTION = "there is no connection to it"
_WORTH_A_RETRY = {Trouble.BUSY, Trouble.TOO_LONG, Trouble.LOST, Trouble.DUPLICATE}


def classify(exc: Exception) -> Trouble:
    """Return what an error of SQLAlchemy or oslo.db means."""
    if isinstance(exc, oslo_exc.DBDuplicateEntry):
        return Trouble.DUPLICATE
    if isinstance(exc, oslo_exc.DBDeadlock):
        return Trouble.BUSY
    if isinstance(exc, sa_exc.TimeoutError):
        return Trouble.NO_CONNECTION
    code = _code(exc)
    if isinstance(exc, oslo_exc.DBNonExistentDatabase) or code == _MYSQL_NO_DB:
        return Trouble.REFUSED
    if _is_refusal(exc):
        return Trouble.REFUSED
    for codes, trouble in _BY_CODE:
        if code in codes:
            return trouble
    if isinstance(exc, oslo_exc.DBConnectionError) or code in _PG_LOST | _MYSQL_LOST:
        return Trouble.LOST
    return _classify_the_rest(exc)


def _classify_the_rest(exc: Exception) -> Trouble:
    if isinstance(exc, oslo_exc.DBNonExistentTable):
        return Trouble.SHAPE
    code = getattr(_driver_error(exc), "sqlite_errorcode", None)
    if code is not None:
        return Trouble.BUSY if code & 0xFF in _SQLITE_BUSY else Trouble.OTHER
    # psycopg2 gives no SQLSTATE when it can't connect.
    unconnected = "connection to server" in str(_driver_error(exc))
    return Trouble.LOST if unconnected else Trouble.OTHER


def _is_refusal(exc: Exception) -> bool:
    """Tell whether the server refused who we are, which won't change by itself."""
    if _code(exc) in _MYSQL_REFUSED | _PG_REFUSED:
        return True
    said = str(_driver_error(exc))
    return "connection to server" in said and any(part in said for part in _PG_REFUSALS)


def _statement_error(exc: Exception) -> BaseException:
    """Return SQLAlchemy's error, which oslo.db may have wrapped."""
    inner: BaseException | None = getattr(exc, "inner_exception", None)
    return inner or exc


def _driver_error(exc: Exception) -> BaseException | None:
    inner = _statement_error(exc)
    found: BaseException | None = getattr(inner, "orig", inner)
    return found


def _code(exc: Exception) -> str | int | None:
    """Return PostgreSQL's SQLSTATE or MySQL's number of a driver's error."""
    driver_error = _driver_error(exc)
    state: str | None = getattr(driver_error, "pgcode", None)
    if state is not None:
        return state
    args = getattr(driver_error, "args", ())
    return args[0] if args and isinstance(args[0], int) else None


def named(trouble: Trouble, exc: Exception) -> errors.MusterbookError:
    """Return the error of ours for what the database said last; logs the odd."""
    if trouble is Trouble.BUSY or trouble is Trouble.DUPLICATE:
        return errors.DatabaseBusy(reason="other transactions were always faster")
    if trouble is Trouble.NO_CONNECTION:
        return errors.DatabaseBusy(reason="no connection of the pool became free")
    if trouble is Trouble.TOO_LONG:
        return errors.DatabaseBusy(reason="a statement took too long and was ended")
    if trouble is Trouble.DENIED:
        return errors.DatabaseUnavailable(reason=_lacking(exc))
    if trouble is Trouble.LOST:
        return errors.DatabaseUnavailable(reason=_NO_CONNECTION)
    if trouble is Trouble.SHAPE:
        return errors.DatabaseShape(reason=_NO_TABLE)
    return errors.DatabaseUnavailable(reason=_reason(exc))


def refusal(exc: Exception) -> str | None:
    """Return what a server refused that won't pass by itself; None: nothing."""
    trouble = classify(exc)
    if trouble is Trouble.DENIED:
        return _lacking(exc)
    return _reason(exc) if trouble is Trouble.REFUSED else None


def _lacking(exc: Exception) -> str:
    """Return which right of ours is missing, as far as the server says it."""
    said = " ".join(str(part) for part in getattr(_driver_error(exc), "args", ()))
    verb = _VERB.match(str(getattr(_statement_error(exc), "statement", None) or ""))
    what = _DENIED_ON.search(said)
    right = verb[1].upper() if verb else "do what was asked for"
    return f"its user may not {right}" + (f" {what[1]}" if what else "")


def _reason(exc: Exception) -> str:
    """Return what an operator should know of an error that isn't tried again."""
    if isinstance(exc, oslo_exc.DBNonExistentDatabase) or _code(exc) == _MYSQL_NO_DB:
        return "it does not exist or can't be opened"
    if _is_refusal(exc):
        return "it refused the user or the password"
    code = getattr(_driver_error(exc), "sqlite_errorcode", None) or _code(exc)
    if code == _SQLITE_NOTADB:
        return "the file is not an SQLite database"
    LOG.error("The database answered with an unexpected error", exc_info=exc)
    return f"it answered with an unexpected error (code {code}); the log says more"
