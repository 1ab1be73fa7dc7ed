"""ComputeNode.save of five usage fields by RPC, beside an echo with one raw UPDATE."""

from tests.bench import options
from tests.bench import report
from tests.bench import rpc_pair

#: Server CPU in ms of a stock echo (0.61) and a Core UPDATE with commit (0.14), each
#: measured alone on 2 cores of an AMD EPYC: what the floor should cost there.
_KNOWN_FLOOR = 0.75
_INFLATED = 1.3
_BOUND_CALLERS = 8
_BOUND = 1.3


def run(chosen: options.Options) -> report.Report:
    """Measure, on servers of its own, and end all it has started."""
    outcome = rpc_pair.measure("save", chosen)
    bounds = [rpc_pair.memory_bound(outcome)]
    notes = []
    floor = outcome.medians("floor").get(_BOUND_CALLERS)
    if floor is not None:
        notes.append(floor_note(floor["server_cpu_ms"]))
        ratio = rpc_pair.ratios(outcome)[str(_BOUND_CALLERS)]["server_cpu_ms"]
        assert ratio is not None
        name = f"conductor CPU per save over floor, {_BOUND_CALLERS} callers"
        bounds.insert(0, report.Bound(name, ratio, _BOUND))
    return rpc_pair.make_report("rpc_save", chosen, outcome, bounds, notes)


def floor_note(cpu_ms: float) -> str:
    """Say how the floor of this run compares with the known one."""
    ratio = cpu_ms / _KNOWN_FLOOR
    word = "inflated" if ratio > _INFLATED else "as expected"
    return (
        f"floor's server CPU {cpu_ms:.2f} ms is {ratio:.2f} times the {_KNOWN_FLOOR} "
        f"ms of its parts measured alone: {word}"
    )
