"""A full fleet of Juno's is taken over, and never looks empty on the way."""

from collections.abc import Iterator
import pathlib
import threading
from typing import Any

import pytest
import sqlalchemy as sa

from tests import util
from tests.functional import lab as labs
from tests.functional.db import juno
from tests.functional.db import sums

#: What the test's Juno hosts have in use, with 512 MiB of the host's own.
USED = {"vcpus_used": 2, "memory_mb_used": 4608, "local_gb_used": 40}
NODE = {"vcpus": 8, "memory_mb": 16000, "local_gb": 500}
HOSTS = ("web1", "web2")
QUERY = sa.text(
    "SELECT hypervisor_hostname AS name, vcpus_used, memory_mb_used, local_gb_used,"
    " free_ram_mb, free_disk_gb FROM compute_nodes"
)


class Watcher:
    """Samples the rows until it is stopped, and keeps every answer that differs."""

    def __init__(self, engine: sa.Engine) -> None:
        self.seen: dict[tuple[Any, ...], None] = {}
        self.samples = 0
        self._engine = engine
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher")
        self._thread.start()

    def stop(self) -> list[Any]:
        self._stopped.set()
        self._thread.join()
        return list(self.seen)

    def _run(self) -> None:
        while not self._stopped.wait(0.005):
            with self._engine.connect() as connection:
                rows = connection.execute(QUERY).all()
            self.samples += 1
            self.seen |= dict.fromkeys(tuple(row) for row in rows)


@pytest.fixture
def lab(
    tmp_path: pathlib.Path, rabbit_url: str, redis_url: str, mariadb_url: str
) -> Iterator[labs.Lab]:
    made = labs.Lab(tmp_path, rabbit_url, redis_url, mariadb_url)
    with labs.opened(made):
        yield made


@pytest.fixture
def engine(mariadb_url: str) -> Iterator[sa.Engine]:
    made = sa.create_engine(mariadb_url)
    yield made
    made.dispose()


def test_a_full_fleet_never_looks_empty(lab: labs.Lab, engine: sa.Engine) -> None:
    juno.make(engine)
    with engine.begin() as connection:
        for number, host in enumerate(HOSTS, 1):
            juno.service(connection, number, host)
            juno.node(connection, number, number, host, **USED)
    watcher = Watcher(engine)
    try:
        lab.sync()
        lab.start_conductor()
        # One can't tell what runs there, one tells exactly what Juno said.
        known = {"vcpus": 2, "memory_mb": 4096, "local_gb": 40}
        silent = lab.start_agent("web1", {"web1": NODE})
        telling = lab.start_agent("web2", {"web2": {**NODE, "used": known}})
        for host in HOSTS:
            lab.wait_state(host, "up", timeout=60)
        util.wait_until(lambda: "usage confirmed" in telling.errors())
        # Its second audit, and those after it, ask nothing.
        util.wait_until(lambda: "stays unconfirmed" in silent.errors())
        assert sums.allocations(engine, 1) == [("legacy", "held", 2, 4096, 40)]
        assert sums.allocations(engine, 2) == [("legacy", "confirmed", 2, 4096, 40)]
        check_what_is_told_later(lab, telling, silent)
    finally:
        seen = watcher.stop()
    assert watcher.samples > 100
    sums.check(engine)
    for name, vcpus, memory, disk, free_ram, free_disk in seen:
        assert (vcpus, memory, disk) >= (2, 4608, 40), name
        assert min(vcpus - 2, memory - 4608, disk - 40) >= 0, name
        assert (free_ram, free_disk) == (16000 - memory, 500 - disk), name


def check_what_is_told_later(
    lab: labs.Lab, telling: labs.Process, silent: labs.Process
) -> None:
    """Nothing, where it is confirmed; else it's taken when the source can tell."""
    less = {"vcpus": 1, "memory_mb": 1, "local_gb": 1}
    more = {"vcpus": 3, "memory_mb": 5000, "local_gb": 50}
    lab.write_nodes("web2", {"web2": {**NODE, "used": less}})
    lab.write_nodes("web1", {"web1": {**NODE, "used": more}})
    util.wait_until(lambda: lab.fleet()["web1"]["memory_mb_used"] == 5512)
    said = "usage confirmed: vcpus 3, memory_mb 5512, local_gb 50; was vcpus 2"
    util.wait_until(lambda: said in silent.errors())
    assert silent.errors().count("stays unconfirmed") == 1
    assert telling.errors().count("usage confirmed") == 1
    assert lab.fleet()["web2"]["memory_mb_used"] == 4608
