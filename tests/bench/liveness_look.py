"""A leader's look at a fleet in which nothing, or little, changes."""

from collections.abc import Iterator
import contextlib
import dataclasses
import time
from typing import Any
import uuid as uuidlib

import sqlalchemy as sa

from conductor import grounds
from conductor import strangers
from conductor.db import engine as db_engine
from conductor.db import liveness
from conductor.db import migration
from conductor.db import models
from musterbook.servicegroup import ping
from musterbook.servicegroup import roster
from musterbook.servicegroup import steady
from musterbook.servicegroup import verdict
from objects import service as service_obj
from tests import servers
from tests.bench import options

_S = models.services
_CHUNK = 500
_STEPS = 20
POLICY = verdict.Policy(
    member_timeout=10.0,
    service_down_time=40.0,
    mass_loss_minimum=5,
    mass_loss_threshold=0.2,
    mass_loss_hold=300.0,
)
_NO_REPLIES = ping.Replies({}, {}, {})


def verdicts(size: int, windows: int) -> dict[str, list[float]]:
    """Return the milliseconds of CPU of a step, by how much of the fleet changed."""
    fleet = {f"host-{n}": _granted(f"host-{n}") for n in range(size)}
    members = [g.member for g in fleet.values()]
    taken: dict[str, list[float]] = {"anew_ms": [], "one_ms": [], "steady_ms": []}
    for _ in range(windows):
        now = 1000.0
        watch = steady.Steady(POLICY)
        began = time.thread_time()
        first = watch.step(frozenset(members), fleet, _NO_REPLIES, now)
        taken["anew_ms"].append((time.thread_time() - began) * 1000)
        if len(first.verdicts) != size:
            raise options.BenchFailed(f"{len(first.verdicts)} of {size} were judged")
        taken["steady_ms"].append(_steady(watch, members, fleet, now))
        changed = fleet | {"host-0": dataclasses.replace(fleet["host-0"], stalled="x")}
        began = time.thread_time()
        second = watch.step(frozenset(members), changed, _NO_REPLIES, now + _STEPS + 1)
        taken["one_ms"].append((time.thread_time() - began) * 1000)
        if second.verdicts["host-0"].state is not verdict.State.SUSPECT:
            raise options.BenchFailed("a change was not judged")
    return taken


def _steady(
    watch: steady.Steady,
    members: list[str],
    fleet: dict[str, verdict.Granted],
    now: float,
) -> float:
    """Return the milliseconds of a step; what was read is another object each time."""
    polls = [frozenset(str(m.encode(), "utf-8") for m in members) for _ in range(3)]
    for poll in polls:
        for member in poll:
            hash(member)  # as a set that was just read has them
    began = time.thread_time()
    for n in range(_STEPS):
        decision = watch.step(polls[n % 3], fleet, _NO_REPLIES, now + n + 1)
    took = (time.thread_time() - began) * 1000 / _STEPS
    if decision != roster.Decision({}, {}, ()):
        raise options.BenchFailed("there was something to decide")
    return took


def _granted(host: str) -> verdict.Granted:
    up = verdict.Verdict(verdict.State.UP, verdict.Cause.IN_GROUP, 1, "")
    return verdict.Granted(host, 1, False, None, False, up)


# -- with a database ---------------------------------------------------------------


def look(server: servers.MariaDB, size: int, windows: int) -> dict[str, Any]:
    """Return what a look costs a leader and its database, which runs already."""
    with _database(server, size) as engine:
        return _look(engine, size, windows)


def _look(engine: sa.Engine, size: int, windows: int) -> dict[str, Any]:
    asked: list[str] = []
    rows = [0]

    def note(_c: Any, cursor: Any, statement: str, *_: Any) -> None:
        asked.append(statement)
        rows[0] += max(cursor.rowcount, 0)

    sa.event.listen(engine, "after_cursor_execute", note)
    reader = grounds.Reader(liveness.LivenessStore(engine))
    watch, others = steady.Steady(POLICY), strangers.Strangers()
    members = [f"host-{n}#1" for n in range(1, size + 1)]
    taken: dict[str, list[float]] = {"ms": [], "full_ms": []}
    statements = read = 0
    for _ in range(windows):
        for kind, doubt in (("full_ms", True), ("", False), ("ms", False)):
            if doubt:
                reader.doubt()
            asked.clear()
            rows[0] = 0
            poll = frozenset(str(m.encode(), "utf-8") for m in members)
            began = time.perf_counter()
            found = reader.read(40.0)
            decision = watch.step(poll, found.judged, _NO_REPLIES, time.monotonic())
            due = others.due(poll, found.incarnations, time.monotonic())
            if kind:
                taken[kind].append((time.perf_counter() - began) * 1000)
            if due or any(
                not new.same_as(found.judged[host].previous)
                for host, new in decision.verdicts.items()
            ):
                raise options.BenchFailed("there was something to decide")
        statements, read = len(asked), rows[0]
    return {**taken, "statements": statements, "rows": read}


@contextlib.contextmanager
def _database(server: servers.MariaDB, size: int) -> Iterator[sa.Engine]:
    engine = db_engine.make_engine(server.lease(0))
    migration.sync(engine)
    for start in range(1, size + 1, _CHUNK):
        numbers = range(start, min(start + _CHUNK, size + 1))
        with engine.begin() as connection:
            connection.execute(_S.insert(), [_row(n) for n in numbers])
    yield engine
    engine.dispose()


def _row(number: int) -> dict[str, Any]:
    return {
        "id": number, "host": f"host-{number}", "uuid": str(uuidlib.uuid4()),
        "binary": service_obj.COMPUTE_BINARY, "topic": "compute", "report_count": 0,
        "disabled": False, "forced_down": False, "deleted": 0, "incarnation": 1,
        "state": "up", "state_cause": "in-group", "state_incarnation": 1,
        "state_evidence": f"host-{number}#1 is in the group",
    }  # fmt: skip
