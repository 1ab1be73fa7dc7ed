"""100,000 rows of Juno's shape: rate, what savers notice, and memory."""

import json
import pathlib
import re
import subprocess
import time

import psutil
import pytest
import sqlalchemy as sa

from conductor.db import online
from tests.functional.db import command
from tests.functional.db import legacy_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
COUNT = 100_000
SAVES = 50
#: What a run on ten times as many rows may need beyond one on a tenth, in MiB.
FLAT_MIB = 24


class Watched:
    """A run of the command, and the most memory it was seen to have."""

    def __init__(self, folder: pathlib.Path, url: str, *arguments: str) -> None:
        out = folder / "watched.out"
        began = time.monotonic()
        with out.open("wb") as written:
            running = subprocess.Popen(
                command.arguments(folder, url, *arguments), stdout=written
            )
        self.peak_mib = 0.0
        while running.poll() is None:
            try:
                resident = psutil.Process(running.pid).memory_info().rss
            except psutil.NoSuchProcess:
                break
            self.peak_mib = max(self.peak_mib, resident / 2**20)
            time.sleep(0.1)  # the pace of looking
        self.code = running.wait(60)
        self.seconds = time.monotonic() - began
        self.output = out.read_text()


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[int(share * (len(ordered) - 1))]


def test_100000_rows(
    engine: sa.Engine, database_url: str, tmp_path: pathlib.Path
) -> None:
    legacy_fleet.fill(engine, COUNT)
    if engine.dialect.name == "postgresql":
        # As autovacuum does within a minute; without statistics it joins row by row.
        with engine.begin() as connection:
            connection.execute(sa.text("ANALYZE"))
    action = ("db", "online_data_migrations")
    checked = Watched(tmp_path, database_url, "db", "check", "--json")
    assert (checked.code, json.loads(checked.output)["counts"]["legacy_nodes"]) == (
        1,
        COUNT,
    )
    with legacy_fleet.saving(database_url, SAVES, 1, COUNT) as alone:
        time.sleep(20)  # how long savers are watched without the migration
    small = Watched(tmp_path, database_url, *action, "--max-count", str(COUNT // 10))
    with legacy_fleet.saving(database_url, SAVES, 1, COUNT) as told:
        whole = Watched(tmp_path, database_url, *action)
    assert (small.code, whole.code) == (1, 0)
    legacy_fleet.check_migrated(engine, COUNT)
    for saved in (alone, told):
        assert saved["failures"] == []
    assert online.count(engine) == {"compute_nodes": 0, "services": 0}
    clean = Watched(tmp_path, database_url, "db", "check", "--json")
    found = sum(int(n) for n in re.findall(r": found (\d+),", whole.output))
    rate = found / whole.seconds
    print(
        f"\n{engine.dialect.name}: {rate:,.0f} rows/s with {SAVES} saves/s;"
        f" saves p99 {percentile(told['latencies'], 0.99):.0f} ms"
        f" (max {max(told['latencies']):.0f}, {len(told['latencies'])} saves),"
        f" alone p99 {percentile(alone['latencies'], 0.99):.0f} ms;"
        f" MiB: {small.peak_mib:.0f} for a tenth, {whole.peak_mib:.0f} whole,"
        f" check {checked.peak_mib:.0f} with {COUNT} findings,"
        f" {clean.peak_mib:.0f} with none; check took {checked.seconds:.0f} s"
    )
    assert whole.peak_mib < small.peak_mib + FLAT_MIB
    assert checked.peak_mib < clean.peak_mib + FLAT_MIB
