"""PyMySQL's connection to MySQL and MariaDB, at less cost.

Sessions commit each statement by themselves: what is one statement needs nothing
else, and for all other work a BEGIN is sent. With PyMySQL's own default a COMMIT or
ROLLBACK is needed even by a single SELECT, and SQLAlchemy sends a ROLLBACK whenever a
connection goes back to the pool.
"""

import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event


def connect_by_ours(engine: sa.Engine) -> None:
    """Let this engine connect by a class of ours, in sessions as said above.

    Its caller sends the BEGIN of each transaction.
    """
    made = _connection_class(engine.dialect.loaded_dbapi)

    driver: Any = engine.dialect.loaded_dbapi
    kinds = driver.constants.FIELD_TYPE
    conversions = {**driver.converters.conversions}
    conversions[kinds.DATETIME] = conversions[kinds.TIMESTAMP] = _instant

    @event.listens_for(engine, "do_connect")
    def _connect(dialect: Any, record: Any, args: Any, parameters: Any) -> Any:
        ours = {"autocommit": True, "conv": conversions}
        return made(*args, **{**parameters, **ours})


def _instant(text: str) -> datetime.datetime | str:
    """Return a stored instant; as text if there is no such date ('0000-00-00').

    As PyMySQL's own function, which takes apart each with a regular expression: ten
    times as long, a tenth of the time that a long list takes.
    """
    try:
        return datetime.datetime.fromisoformat(text)
    except ValueError:
        return text


def _connection_class(driver: Any) -> Any:
    original: Any = driver.connections.Connection
    status = driver.constants.SERVER_STATUS
    in_transaction = status.SERVER_STATUS_IN_TRANS
    automatic = status.SERVER_STATUS_AUTOCOMMIT

    class Connection(original):  # type: ignore[misc]  # untyped base
        _shared: Any = None

        def _create_ssl_ctx(self, sslp: Any) -> Any:
            # PyMySQL 1.2 makes one for each, in case that the server offers TLS, and
            # reads the system's certificates into it (which it then doesn't check):
            # 1 MiB and 15 ms of CPU for each connection.
            if sslp:
                return super()._create_ssl_ctx(sslp)
            if Connection._shared is None:  # two threads may make two; one stays
                Connection._shared = super()._create_ssl_ctx(sslp)
            return Connection._shared

        def connect(self, sock: Any = None) -> None:
            # PyMySQL 1.2 bounds what the server says first by the limit of a
            # statement: a frozen one would keep each new connection that long.
            usual: Any = self._read_timeout
            self._read_timeout: Any = self.connect_timeout
            try:
                super().connect(sock)
            finally:
                self._read_timeout = usual

        def commit(self) -> None:
            if self._may_be_in_transaction():
                super().commit()

        def rollback(self) -> None:
            if self._may_be_in_transaction():
                super().rollback()

        def _may_be_in_transaction(self) -> bool:
            # PyMySQL 1.2 takes the status from the answer to BEGIN, but not from that
            # to a SELECT: while nothing is committed by itself it isn't to be trusted.
            flags = self.server_status & (in_transaction | automatic)
            return bool(flags != automatic)

    return Connection
