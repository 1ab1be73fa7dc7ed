"""The benches by name: to add one, write its module and list it here."""

from typing import Protocol

from tests.bench import audit
from tests.bench import by_host
from tests.bench import claims
from tests.bench import join
from tests.bench import liveness
from tests.bench import options
from tests.bench import report
from tests.bench import rpc_get
from tests.bench import rpc_save
from tests.bench import rpc_stop


class Bench(Protocol):
    """What the module of a bench has, besides a docstring that begins with a line."""

    __doc__: str | None

    def run(self, chosen: options.Options) -> report.Report:
        """Measure, on servers of its own, and end all it has started."""


BENCHES: dict[str, Bench] = {
    "audit": audit,
    "by_host": by_host,
    "claims": claims,
    "join": join,
    "liveness": liveness,
    "rpc_get": rpc_get,
    "rpc_save": rpc_save,
    "rpc_stop": rpc_stop,
}
