"""What musterbook-manage says and asks, one file a command.

A command has ``add_arguments(parser)`` and ``run(conf, say) -> int``, the exit code;
its arguments are in ``conf.category``. The work itself is conductor.db's.
"""

from collections.abc import Callable

#: Writes one line where people or programs read the outcome.
Say = Callable[[str], None]

DONE = 0
#: There is more to do, or there are findings.
MORE = 1
#: Rows need a decision by hand; also the code of a wrong command line.
STUCK = 2
#: Limit for one of a command's statements; counting large tables takes a while.
STATEMENT_SECONDS = 600
#: The database can't be reached or used.
FAILED = 3
