"""musterbook-manage: what an operator does to the database from a shell."""

from musterbook import entry

if __name__ == "__main__":
    entry.guard(entry.INTERRUPTED)  # before the imports that take seconds

from collections.abc import Callable
from collections.abc import Sequence
import logging
import sys
from typing import Any

from oslo_config import cfg

from conductor.db import engine as db_engine
from conductor.db import migration
from musterbook import conf as musterbook_conf
from musterbook import errors

PROG = "musterbook-manage"
EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
_EXIT_CODES = (
    f"Exit codes: {EXIT_OK} done; {EXIT_FAILED} the database can't be reached or "
    f"used; {EXIT_USAGE} the command line or an option can't be used."
)


def db_sync(conf: cfg.ConfigOpts) -> None:
    """Bring the database to this code's revision; harmless when it's there."""
    # Migrations may take as long as the tables are large.
    engine = db_engine.from_conf(conf, statement_seconds=0)
    before = migration.version(engine)
    migration.sync(engine)
    after = migration.version(engine)
    _say(f"database: {after}, was: {before or 'none'}")


def db_version(conf: cfg.ConfigOpts) -> None:
    """Print the database's revision and the one this code needs."""
    found = migration.version(db_engine.from_conf(conf))
    _say(f"database: {found or 'none'}, code: {migration.head()}")


_COMMANDS: dict[str, Callable[[cfg.ConfigOpts], None]] = {
    "sync": db_sync,
    "version": db_version,
}


def _add_commands(subparsers: Any) -> None:
    db = subparsers.add_parser("db", help="the database", epilog=_EXIT_CODES)
    actions = db.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, command in _COMMANDS.items():
        text = str(command.__doc__)
        actions.add_parser(name, help=text, description=text, epilog=_EXIT_CODES)


_CLI = [
    cfg.SubCommandOpt(
        "category", title="commands", description=_EXIT_CODES, handler=_add_commands
    ),
    cfg.BoolOpt(
        "debug",
        default=False,
        help="Show what the libraries log, tracebacks included, on stderr.",
    ),
]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; see --help."""
    try:
        conf = musterbook_conf.load(
            sys.argv[1:] if argv is None else argv,
            PROG,
            prepare=(db_engine.register_options,),
            cli=_CLI,
            about="Makes and looks after the database of the conductors.",
        )
        # Without it Python prints warnings of libraries on stderr by itself.
        level = logging.DEBUG if conf.debug else logging.CRITICAL
        logging.basicConfig(level=level)
        _COMMANDS[conf.category.action](conf)
    except (errors.ConfigurationError, errors.InvalidName) as exc:
        return _fail(exc, EXIT_USAGE)
    except errors.MusterbookError as exc:
        return _fail(
            exc, EXIT_FAILED, hint="" if conf.debug else " (--debug tells more)"
        )
    return EXIT_OK


def _fail(exc: errors.MusterbookError, code: int, hint: str = "") -> int:
    sys.stderr.write(f"{PROG}: {exc.message}{hint}\n")
    return code


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    entry.leave(main())
