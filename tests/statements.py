"""Counting what a database is asked."""

import sqlalchemy as sa

#: The same for all: what a transaction is made of.
_FRAME = ("commit", "rollback", "set ", "begin", "select 1", "start transaction")


class Statements:
    """Every statement that a MariaDB runs, from a moment on."""

    def __init__(self, url: str) -> None:
        self._engine = sa.create_engine(url)

    def begin(self) -> None:
        with self._engine.begin() as connection:
            connection.execute(sa.text("SET GLOBAL log_output = 'TABLE'"))
            connection.execute(sa.text("TRUNCATE mysql.general_log"))
            connection.execute(sa.text("SET GLOBAL general_log = 'ON'"))

    def end(self) -> list[str]:
        """Return them, but for what frames them."""
        with self._engine.begin() as connection:
            connection.execute(sa.text("SET GLOBAL general_log = 'OFF'"))
            found = connection.execute(
                sa.text(
                    "SELECT CONVERT(argument USING utf8mb4) FROM mysql.general_log"
                    " WHERE command_type IN ('Query', 'Execute')"
                )
            ).scalars()
            texts = [" ".join(text.lower().split()) for text in found]
        self._engine.dispose()
        return [t for t in texts if t and not t.startswith((*_FRAME, "truncate"))]
