"""Histories of claims, of the store alone; and one without the row lock is caught."""

from collections.abc import Mapping
from concurrent import futures
import pathlib
import random
from typing import Any

import pytest
import sqlalchemy as sa

from conductor.db import claim_nodes
from conductor.db import engine as db_engine
from conductor.db import migration
from conductor.db import models
from musterbook import errors
from tests.functional.db import claiming
from tests.history import checker
from tests.history import events
from tests.history import reader
from tests.history import scheduler

THREADS = 8
TURNS = 12


class OverStore:
    """Asks the store, as an endpoint would."""

    def __init__(self, fleet: claiming.Fleet) -> None:
        self._fleet = fleet

    def claim(self, request: dict[str, Any]) -> Mapping[str, Any]:
        (answer,) = self._fleet.claim(request)
        uuid, reasons = answer["uuid"], answer.get("reasons")
        if answer["outcome"] == "refused":
            raise errors.ClaimRefused(uuid=uuid, reasons=reasons)
        if answer["outcome"] == "gone":
            raise errors.ClaimGone(uuid=uuid, state="released")
        if answer["outcome"] == "conflict":
            raise errors.ClaimConflict(uuid=uuid, reasons=reasons)
        return answer

    def confirm(self, uuid: str) -> None:
        self._fleet.store.confirm(uuid)

    def release(self, uuid: str) -> None:
        self._fleet.store.release(uuid)


def history(url: str, path: pathlib.Path) -> list[checker.Violation]:
    """Let eight schedulers ask at the same time; return what is wrong with it."""
    engine = db_engine.make_engine(url)
    migration.sync(engine)
    fleet = claiming.Fleet(engine, "h1", "h2")
    nodes = sorted(fleet.uuids.values())
    with path.open("w", encoding="utf-8") as file:
        recorder = events.Recorder(file)

        def work(number: int) -> None:
            one = scheduler.Scheduler(
                OverStore(fleet), recorder, nodes, random.Random(number)
            )
            for _ in range(TURNS):
                one.turn()

        with reader.Reader(url, recorder, 0.02), futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(THREADS)))
        for last in reader.Reader(url, recorder, 1).read():
            recorder.add(last)
    engine.dispose()
    found = list(events.load(path))
    assert sum(isinstance(event, events.Read) for event in found) > 5
    claimed = [e for e in found if isinstance(e, events.Ask) and e.answer == "claimed"]
    assert len(claimed) > THREADS
    return checker.check(found, dict.fromkeys(nodes, 8))


@pytest.fixture(params=["mariadb", "postgresql"])
def server_url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


def test_the_history_is_right(server_url: str, tmp_path: pathlib.Path) -> None:
    assert history(server_url, tmp_path / "history") == []


def test_without_the_row_lock_it_is_not(
    server_url: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the checker is for."""
    unlocked = sa.select(*claim_nodes._COLUMNS).where(
        models.compute_nodes.c.id.in_(sa.bindparam("ids", expanding=True))
    )
    monkeypatch.setattr(claim_nodes, "_LOCKED", unlocked)
    rules = {v.rule for v in history(server_url, tmp_path / "history")}
    assert rules & {"over-limit", "not-the-sum"}
