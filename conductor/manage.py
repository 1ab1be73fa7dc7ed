"""musterbook-manage: what an operator does to the database from a shell."""

from musterbook import entry

if __name__ == "__main__":
    entry.guard(entry.INTERRUPTED)  # before the imports that take seconds

from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import errno
import io
import logging
import os
import sys
from types import ModuleType
from typing import Any

from oslo_config import cfg

from conductor import commands
from conductor.commands import check
from conductor.commands import delete_node
from conductor.commands import online_data_migrations
from conductor.commands import purge
from conductor.db import engine as db_engine
from conductor.db import migration
from musterbook import conf as musterbook_conf
from musterbook import errors

LOG = logging.getLogger(__name__)

PROG = "musterbook-manage"
EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
#: What a shell reports of a program that writes to a pipe that nobody reads.
_EXIT_PIPE = 141
#: Errors of an output that nothing more fits in, or that was closed.
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF}
_EXIT_CODES = (
    f"Exit codes: {EXIT_OK} done; {EXIT_FAILED} the database can't be reached or "
    f"used; {EXIT_USAGE} the command line or an option can't be used. Commands with "
    "other codes say so in their help."
)


def db_sync(conf: cfg.ConfigOpts) -> int:
    """Bring the database to this code's revision; harmless when it's there."""
    # Migrations may take as long as the tables are large.
    engine = db_engine.from_conf(conf, statement_seconds=0)
    before = migration.version(engine)
    migration.sync(engine)
    after = migration.version(engine)
    _say(f"database: {after}, was: {before or 'none'}")
    return EXIT_OK


def db_version(conf: cfg.ConfigOpts) -> int:
    """Print the database's revision and the one this code needs."""
    found = migration.version(db_engine.from_conf(conf, by_hand=True))
    _say(f"database: {found or 'none'}, code: {migration.head()}")
    return EXIT_OK


#: Without arguments of their own.
_PLAIN: dict[str, Callable[[cfg.ConfigOpts], int]] = {
    "sync": db_sync,
    "version": db_version,
}
#: For a database of today's shape.
_COMMANDS: dict[str, ModuleType] = {
    "check": check,
    "online_data_migrations": online_data_migrations,
    "purge": purge,
}
#: Of single nodes, likewise; no name is among those above.
_NODE_COMMANDS: dict[str, ModuleType] = {"delete": delete_node}
_ALL_COMMANDS = _COMMANDS | _NODE_COMMANDS


def _add_commands(subparsers: Any) -> None:
    db = subparsers.add_parser("db", help="the database", epilog=_EXIT_CODES)
    actions = db.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, command in _PLAIN.items():
        text = str(command.__doc__)
        actions.add_parser(name, help=text, description=text, epilog=_EXIT_CODES)
    _add_modules(actions, _COMMANDS)
    node = subparsers.add_parser("node", help="a compute node", epilog=_EXIT_CODES)
    actions = node.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_modules(actions, _NODE_COMMANDS)


def _add_modules(actions: Any, modules: dict[str, ModuleType]) -> None:
    for name, module in modules.items():
        text = str(module.__doc__)
        parser = actions.add_parser(
            name, help=text.splitlines()[0], description=text, epilog=module.EPILOG
        )
        module.add_arguments(parser)


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
    conf: cfg.ConfigOpts | None = None
    try:
        conf = _load(sys.argv[1:] if argv is None else argv)
        # Without it Python prints warnings of libraries on stderr by itself.
        level = logging.DEBUG if conf.debug else logging.CRITICAL
        logging.basicConfig(level=level)
        return _run(conf)
    except (errors.ConfigurationError, errors.InvalidName) as exc:
        return _fail(exc, EXIT_USAGE)
    except errors.MusterbookError as exc:
        known = conf is not None and conf.category.action in _ALL_COMMANDS
        code = commands.FAILED if known else EXIT_FAILED
        told = conf is not None and conf.debug
        return _fail(exc, code, hint="" if told else " (--debug tells more)")
    except BrokenPipeError:
        _discard_output()
        return _EXIT_PIPE
    except Exception as exc:
        # No code of a finding, or of more to do: a script would go on with it.
        LOG.debug("unexpected", exc_info=True)
        return _fail_unexpectedly(conf, exc)


def _load(argv: Sequence[str]) -> cfg.ConfigOpts:
    """Return the configuration; what argparse says against it is one line."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return musterbook_conf.load(
                argv,
                PROG,
                prepare=(db_engine.register_options,),
                cli=_CLI,
                about="Makes and looks after the database of the conductors.",
            )
    except SystemExit as exc:
        if exc.code == EXIT_USAGE:
            last = (said.getvalue().strip() or PROG).splitlines()[-1]
            said = io.StringIO(f"{last} (--help tells more)\n")
        raise
    finally:
        sys.stderr.write(said.getvalue())


def _run(conf: cfg.ConfigOpts) -> int:
    action = conf.category.action
    if action in _PLAIN:
        return _PLAIN[action](conf)
    code: int = _ALL_COMMANDS[action].run(conf, _say)
    return code


def _fail(exc: errors.MusterbookError, code: int, hint: str = "") -> int:
    sys.stderr.write(f"{PROG}: {exc.message}{hint}\n")
    return code


def _fail_unexpectedly(conf: cfg.ConfigOpts | None, exc: Exception) -> int:
    what = f"unexpected {type(exc).__name__}: {errors.one_line(str(exc))[:200]}"
    if isinstance(exc, OSError) and exc.errno in _UNWRITABLE:
        _discard_output()
        what = f"the output can't be written: {exc.strerror}"
    known = conf is not None and conf.category.action in _ALL_COMMANDS
    sys.stderr.write(f"{PROG}: {what} (--debug tells more)\n")
    return commands.FAILED if known else EXIT_FAILED


def _discard_output() -> None:
    """Let what is still buffered not be written at the end, and fail again."""
    if sys.stdout is None:
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(line: str) -> None:
    if sys.stdout is None:  # closed by whoever started us
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    sys.stdout.write(f"{line}\n")
    # An interrupted command ends without a chance to do so; see entry.guard.
    sys.stdout.flush()


if __name__ == "__main__":
    entry.leave(main())
