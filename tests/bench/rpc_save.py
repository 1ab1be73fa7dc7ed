"""ComputeNode.save of five fields by RPC, beside an echo with one raw UPDATE."""

from tests.bench import options
from tests.bench import report
from tests.bench import rpc_pair

#: CPU in ms of a stock echo's server and of a Core UPDATE with commit, each measured
#: by itself on 2 cores of an AMD EPYC: together what the floor should cost there.
_KNOWN_ECHO = 0.61
_KNOWN_UPDATE = 0.14
_KNOWN_FLOOR = _KNOWN_ECHO + _KNOWN_UPDATE
_INFLATED = 1.3
#: Cores that others keep busy before it is said that they disturb.
_DISTURBING = 0.2
_BOUND_CALLERS = 8
_BOUND = 1.3


def run(chosen: options.Options) -> report.Report:
    """Measure, on servers of its own, and end all it has started."""
    outcome = rpc_pair.measure("save", chosen)
    bounds = [rpc_pair.memory_bound(outcome)]
    notes = []
    floor = outcome.medians("floor").get(_BOUND_CALLERS)
    if floor is not None:
        notes += floor_notes(
            floor["server_cpu_ms"], outcome.alone_ms, floor["foreign_cores"]
        )
        ratio = rpc_pair.ratios(outcome)[str(_BOUND_CALLERS)]["server_cpu_ms"]
        assert ratio is not None
        name = f"conductor CPU per save over floor, {_BOUND_CALLERS} callers"
        bounds.insert(0, report.Bound(name, ratio, _BOUND))
    return rpc_pair.make_report("rpc_save", chosen, outcome, bounds, notes)


def floor_notes(cpu_ms: float, alone_ms: float, foreign_cores: float) -> list[str]:
    """Say how the floor of this run compares with the known one, and if so, why.

    :param cpu_ms: of the floor's server for one call
    :param alone_ms: of its UPDATE with commit in one thread, without RPC
    :param foreign_cores: that were busy with what isn't measured
    """
    ratio = cpu_ms / _KNOWN_FLOOR
    said = (
        f"floor's server CPU {cpu_ms:.2f} ms is {ratio:.2f} times the "
        f"{_KNOWN_FLOOR:.2f} ms of its parts measured alone elsewhere"
    )
    if ratio <= _INFLATED:
        return [f"{said}: as expected"]
    return [f"{said}: inflated", _why(ratio, alone_ms, foreign_cores)]


def _why(ratio: float, alone_ms: float, foreign_cores: float) -> str:
    slower = alone_ms / _KNOWN_UPDATE
    found = (
        f"its UPDATE alone, in one thread and without RPC, takes {alone_ms:.2f} ms "
        f"here, {slower:.2f} times the {_KNOWN_UPDATE} ms there: "
    )
    if ratio <= slower * _INFLATED:
        found += "a slower or busier machine explains it"
    else:
        found += f"a slower or busier machine explains {max(1.0, slower):.2f} of it"
    if foreign_cores > _DISTURBING:
        found += (
            f"; {foreign_cores:.1f} cores were busy with what isn't measured, "
            "which makes all CPU figures larger, on both sides"
        )
    elif ratio > slower * _INFLATED:
        found += "; nothing else ran here, so the rest is not explained"
    return found
