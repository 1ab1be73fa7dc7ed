"""Groups of 100, 1,000 and 10,000 members: join, beat, look, read, detect, judge.

Ours beside tooz's bare call on the same backend, in turn: the driver with its lane and
its limits, the pulse of an agent, the roster of a leader. Then a leader's whole look at
the largest fleet, with its database.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
import functools
import gc
import random
import shutil
import statistics
import threading
import time
from typing import Any

import psutil
from tooz import coordination

from conductor import grounds
from musterbook.servicegroup import pulse
from musterbook.servicegroup import shared
from musterbook.servicegroup import tooz_driver
from musterbook.servicegroup import url as group_url
from tests import process
from tests import servers
from tests.bench import liveness_beats
from tests.bench import liveness_look
from tests.bench import machine
from tests.bench import options
from tests.bench import report

SIZES = (100, 1_000, 10_000)
#: Milliseconds in which the verdicts of the largest fleet come from the roster.
VERDICTS_MS = 1.0
#: Nova's, measured elsewhere on a machine as this one.
NOVA_MS = 510.0
#: Milliseconds of tooz's calls on Redis where they were measured alone (2 cores of an
#: AMD EPYC, nothing else running), by members.
ALONE_MS = {
    100: {"beat": 0.05, "visible": 0.30, "read": 0.8},
    1_000: {"beat": 0.04, "visible": 0.15, "read": 3.0},
    10_000: {"beat": 0.08, "visible": 0.28, "read": 31.0},
}
#: A floor that many times as high is explained.
INFLATED = 1.3
_GROUP = "compute"
_STORED_TIMEOUT = 3600
_STORM = 50
_VICTIMS = 20
_CALLS = 200
_POLL = 1.0


def run(chosen: options.Options) -> report.Report:
    """Measure, on servers of its own unless told otherwise."""
    with contextlib.ExitStack() as cleanup:
        folder = process.make_folder()
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        backend = chosen.backend or _own_redis(folder, cleanup)
        sizes = sorted({n for n in SIZES if n < chosen.hosts} | {chosen.hosts})
        cells = {}
        for size in sizes:
            with _stored(backend, size) as place:
                cells[size] = _measure(place, size, chosen.windows)
        verdicts = {
            size: liveness_look.verdicts(size, chosen.windows) for size in sizes
        }
        database = servers.MariaDB(folder)
        cleanup.callback(database.close)
        database.start()
        look = liveness_look.look(database, sizes[-1], chosen.windows)
        beats = liveness_beats.statements_per_beat(database, backend)
        database.close()
        busy: list[float] = psutil.cpu_percent(1.0, percpu=True)
        look["foreign_cores"] = sum(busy) / 100
    return _report(chosen, backend, cells, verdicts, look, beats)


def _own_redis(folder: Any, cleanup: contextlib.ExitStack) -> str:
    server = servers.Redis(folder)
    cleanup.callback(server.close)
    server.start()
    return server.lease(0)


@dataclasses.dataclass(frozen=True)
class _Place:
    """A group with stored members.

    :ivar url: where new ones join
    :ivar lasting: where those join that need not beat
    """

    url: group_url.GroupURL
    lasting: group_url.GroupURL


@contextlib.contextmanager
def _stored(backend: str, size: int) -> Iterator[_Place]:
    """Fill a group with members that need not beat; empty it afterwards."""
    url = group_url.parse(backend)
    if url.target.scheme == "zookeeper" and size > SIZES[1]:
        raise options.BenchFailed(
            f"zookeeper: a stored member is a client of its own, at most {SIZES[1]}"
        )
    joiner = "&" if "?" in backend else "?"
    lasting = group_url.parse(f"{backend}{joiner}membership_timeout={_STORED_TIMEOUT}")
    road = shared.Road(lasting)
    members = [road.driver(f"stored-{n}#1") for n in range(size)]
    try:
        for member in members:
            member.join(_GROUP)
        yield _Place(url, lasting)
    finally:
        for member in members:
            member.leave(_GROUP)
            member.stop()


def _measure(place: _Place, size: int, windows: int) -> dict[str, Any]:
    found = {
        "join_storm_s": _storms(place, windows),
        "calls_ms": _calls(place, size, windows),
    }
    gc.collect()
    return {**found, "detection_s": _detection(place)}


# -- the join storm ----------------------------------------------------------------


def _storms(place: _Place, windows: int) -> dict[str, list[float]]:
    """Return the seconds in which so many members join at once, by side."""
    taken: dict[str, list[float]] = {"floor": [], "ours": []}
    for _ in range(windows):
        bare = [_bare(place.url, f"storm-{n}#1") for n in range(_STORM)]
        taken["floor"].append(
            _at_once([functools.partial(_join_bare, c) for c in bare])
        )
        # They leave; the library's executor takes up to a second to end.
        _at_once([coordinator.stop for coordinator in bare])
        pulses = [_pulse(place.url, f"storm-{n}#1") for n in range(_STORM)]
        taken["ours"].append(_at_once([one.turn for one in pulses]))
        if not all(one.status().joined for one in pulses):
            raise options.BenchFailed("a member of the storm didn't join")
        for one in pulses:
            one.leave()
    return taken


def _bare(url: group_url.GroupURL, member: str) -> Any:
    """Return tooz's own way to a group, as its documentation has it."""
    return coordination.get_coordinator(url.url, member.encode())


def _join_bare(coordinator: Any) -> None:
    coordinator.start(start_heart=False)
    coordinator.join_group(_GROUP.encode()).get(timeout=30)


def _at_once(jobs: list[Callable[[], Any]]) -> float:
    """Run all in threads of their own; return the seconds until the last is done."""
    gate = threading.Barrier(len(jobs) + 1)

    def work(job: Callable[[], Any]) -> None:
        gate.wait()
        job()

    threads = [threading.Thread(target=work, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    gate.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def _pulse(url: group_url.GroupURL, member: str) -> pulse.Pulse:
    return pulse.Pulse(
        lambda: tooz_driver.ToozDriver(url, member, call_timeout=30.0),
        _GROUP,
        3.0,
        rng=random.Random(1),  # jitter
        clock=time.monotonic,
        wait=lambda seconds: False,
    )


# -- single calls ------------------------------------------------------------------


def _calls(place: _Place, size: int, windows: int) -> dict[str, dict[str, list[float]]]:
    """Return the milliseconds of single calls, by what and side; in turn."""
    name, group = "caller#1", _GROUP.encode()
    bare = _bare(place.lasting, "bare#1")
    _join_bare(bare)
    ours = tooz_driver.ToozDriver(place.lasting, name, call_timeout=30.0)
    ours.join(_GROUP)
    agent = _pulse(place.lasting, "pulse#1")
    agent.turn()
    done: dict[str, tuple[Callable[[], Any], Callable[[], Any], int]] = {
        "beat": (bare.heartbeat, ours.beat, _CALLS),
        "visible": (
            lambda: bare.get_member_capabilities(group, b"bare#1").get(timeout=30),
            lambda: ours.is_visible(_GROUP),
            _CALLS,
        ),
        "turn": (
            lambda: (
                bare.heartbeat(),
                bare.get_member_capabilities(group, b"bare#1").get(timeout=30),
            ),
            agent.turn,
            _CALLS,
        ),
        "read": (
            lambda: bare.get_members(group).get(timeout=30),
            lambda: ours.get_all(_GROUP),
            max(3, min(_CALLS, 20_000 // size)),
        ),
    }
    taken: dict[str, dict[str, list[float]]] = {
        what: {"floor": [], "ours": []} for what in done
    }
    for window in range(windows + 1):
        for what, (floor, mine, times) in done.items():
            for side, call in (("floor", floor), ("ours", mine)):
                began = time.perf_counter()
                for _ in range(times):
                    call()
                took = (time.perf_counter() - began) * 1000 / times
                if window:  # the first one warms up
                    taken[what][side].append(took)
    agent.leave()
    ours.leave(_GROUP)
    ours.stop()
    bare.stop()
    return taken


# -- detection ---------------------------------------------------------------------


def _detection(place: _Place) -> dict[str, list[float]]:
    """Return the seconds from a member's last instant until it is missed, by side.

    Members stop at any instant between two beats. Ours is the leader's way, a read
    each second; the floor reads ten times as often by tooz alone.
    """
    interval = place.url.member_timeout / 3
    road = shared.Road(place.url)
    victims = [f"victim-{n}#1" for n in range(_VICTIMS)]
    drivers = [road.driver(name) for name in victims]
    for driver in drivers:
        driver.join(_GROUP)
    began = time.monotonic()
    # The last beat came up to one interval before the end: it is the end that moves.
    died = {name: began + interval * n / _VICTIMS for n, name in enumerate(victims)}
    sides = {
        "floor": _watch_floor(place.url, died),
        "ours": _watch_ours(place.url, died),
    }
    threads = [threading.Thread(target=watch) for watch, _ in sides.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for driver in drivers:
        with contextlib.suppress(Exception):
            driver.leave(_GROUP)
            driver.stop()
    for side, (_, seen) in sides.items():
        if len(seen) < _VICTIMS:
            raise options.BenchFailed(f"{side}: {len(seen)} of {_VICTIMS} were missed")
    return {
        side: sorted(seen[name] - died[name] for name in victims)
        for side, (_, seen) in sides.items()
    }


def _watch_floor(
    url: group_url.GroupURL, died: dict[str, float]
) -> tuple[Callable[[], None], dict[str, float]]:
    seen: dict[str, float] = {}

    def watch() -> None:
        reader = _bare(url, "floor-reader")
        reader.start(start_heart=False)
        _poll(
            lambda: {
                m.decode()
                for m in reader.get_members(_GROUP.encode()).get(timeout=30)
            },
            died, seen, url, _POLL / 10,
        )  # fmt: skip
        reader.stop()

    return watch, seen


def _watch_ours(
    url: group_url.GroupURL, died: dict[str, float]
) -> tuple[Callable[[], None], dict[str, float]]:
    seen: dict[str, float] = {}

    def watch() -> None:
        reader = tooz_driver.ToozDriver(url, "our-reader", call_timeout=30.0)
        _poll(lambda: reader.get_all(_GROUP), died, seen, url, _POLL)
        reader.stop()

    return watch, seen


def _poll(
    read: Callable[[], Any],
    died: dict[str, float],
    seen: dict[str, float],
    url: group_url.GroupURL,
    every: float,
) -> None:
    end = time.monotonic() + 3 * url.member_timeout + 5
    while len(seen) < len(died) and time.monotonic() < end:
        began = time.monotonic()
        members = read()
        now = time.monotonic()
        for name in died.keys() - seen.keys() - members:
            seen[name] = now
        time.sleep(max(0.0, every - (time.monotonic() - began)))


# -- the report --------------------------------------------------------------------


def _report(
    chosen: options.Options,
    backend: str,
    cells: dict[int, dict[str, Any]],
    verdicts: dict[int, dict[str, list[float]]],
    look: dict[str, Any],
    beats: dict[str, float],
) -> report.Report:
    label = group_url.parse(backend).label
    largest = max(cells)
    rows: list[list[str | float]] = []
    ratios: dict[str, dict[str, float]] = {}
    for size, cell in cells.items():
        sides = {**cell["calls_ms"], "50 joins at once": _in_ms(cell["join_storm_s"])}
        for what, side in sides.items():
            floor = statistics.median(side["floor"])
            ours = statistics.median(side["ours"])
            ratio = ours / floor
            ratios.setdefault(str(size), {})[what] = ratio
            rows.append([f"{size:,}", what, floor, ours, ratio])
    steady = statistics.median(verdicts[largest]["steady_ms"])
    bounds = [
        report.Bound(
            f"ms of CPU for the verdicts of {largest:,} hosts in which nothing changed "
            f"(Nova: {NOVA_MS:g} for 10,000)",
            steady,
            VERDICTS_MS,
        ),
        report.Bound(
            "statements of the database for a beat by tooz (Nova: 2)",
            beats["tooz"],
            0.0,
        ),
    ]
    return report.Report(
        bench="liveness",
        options=dataclasses.asdict(chosen) | {"backend": label},
        figures={"groups": cells, "verdicts": verdicts, "look": look}
        | {"statements_per_beat": beats},
        ratios=ratios,
        machine=machine.describe({"backend": label}),
        bounds=bounds,
        tables=[
            report.Table(
                f"{label}; medians of {chosen.windows} windows, in ms",
                ["members", "what", "floor", "ours", "ratio"],
                rows,
            ),
            _detection_table(cells),
            _verdict_table(verdicts),
        ],
        notes=[
            *_inflation(cells, look["foreign_cores"]),
            f"statements of the database for a beat: {beats['tooz']:g} with the tooz "
            f"driver, {beats['db']:g} with the db driver",
            "floor is tooz's call alone in the same process; ours has a limit in time, "
            "a thread for it, and our errors",
            f"a leader's whole look at {largest:,} hosts in which nothing changed, but "
            f"for reading the group: {statistics.median(look['ms']):.1f} ms, "
            f"{look['statements']:g} statements, {look['rows']:g} rows of the "
            f"database; one each second. Reading all rows, as every "
            f"{grounds.FULL_EVERY:g} s: {statistics.median(look['full_ms']):.1f} ms",
        ],
    )


def _inflation(cells: dict[int, dict[str, Any]], foreign: float) -> list[str]:
    """Return what is known of a floor that is dearer than its calls were alone."""
    dearer = [
        f"{what} of {size:,} {statistics.median(floor) / alone:.1f} times"
        for size, known in ALONE_MS.items()
        for what, alone in known.items()
        if size in cells
        and statistics.median(floor := cells[size]["calls_ms"][what]["floor"])
        > INFLATED * alone
    ]
    if not dearer:
        return []
    return [
        f"the floor is dearer than where it was measured alone: {', '.join(dearer)}; "
        f"after the run, with nothing of it left, {foreign:.1f} cores were busy "
        "elsewhere"
    ]


def _in_ms(sides: dict[str, list[float]]) -> dict[str, list[float]]:
    return {side: [s * 1000 for s in taken] for side, taken in sides.items()}


def _detection_table(cells: dict[int, dict[str, Any]]) -> report.Table:
    rows: list[list[str | float]] = []
    for size, cell in cells.items():
        for side, seconds in cell["detection_s"].items():
            at = statistics.quantiles(seconds, n=100, method="inclusive")
            rows.append([f"{size:,}", side, at[49], at[98], seconds[-1]])
    return report.Table(
        f"seconds until {_VICTIMS} dead members were missed",
        ["members", "side", "p50", "p99", "max"],
        rows,
    )


def _verdict_table(verdicts: dict[int, dict[str, list[float]]]) -> report.Table:
    return report.Table(
        "ms of CPU of the roster for the verdicts of all",
        ["hosts", "all anew", "one changed", "nothing changed"],
        [
            [
                f"{size:,}",
                *(statistics.median(taken) for taken in measured.values()),
            ]
            for size, measured in verdicts.items()
        ],
    )
