"""ComputeNode.get_by_host_and_nodename by RPC, beside an echo with one raw SELECT."""

from tests.bench import options
from tests.bench import report
from tests.bench import rpc_pair


def run(chosen: options.Options) -> report.Report:
    """Measure, on servers of its own, and end all it has started."""
    outcome = rpc_pair.measure("get", chosen)
    bounds = [rpc_pair.memory_bound(outcome)]
    return rpc_pair.make_report("rpc_get", chosen, outcome, bounds, [])
