"""musterbook-manage db check: every oddity by name, and nothing written."""

import json
import pathlib
import subprocess
from typing import Any

import sqlalchemy as sa

from conductor.db import audit
from conductor.db import engine as db_engine
from conductor.db import migration
from conductor.db import store as db_store
from tests.functional.db import command
from tests.functional.db import juno
from tests.functional.db import oddities


def ids(found: dict[str, list[dict[str, Any]]]) -> dict[str, list[int]]:
    return {kind: [row["id"] for row in rows] for kind, rows in found.items()}


def test_every_oddity_as_json(
    empty: sa.Engine, database_url: str, tmp_path: pathlib.Path
) -> None:
    oddities.make(empty)
    before = command.content(empty)
    done = command.manage(tmp_path, database_url, "db", "check", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    told = json.loads(done.stdout)
    found = told["findings"]
    assert ids(found) == oddities.FOUND
    counts = {kind: len(rows) for kind, rows in oddities.FOUND.items()}
    assert told["counts"] == counts | {"unconfirmed_usage": 0}
    assert told["information"] == {"unconfirmed_usage": []}
    assert told["clean"] is False
    orphans = {row["id"]: row for row in found["orphans"]}
    assert orphans[5] == {
        "id": 5,
        "host": "short",
        "hypervisor_hostname": "SHORT",
        "service_id": 4,
        "service": "deleted",
    }
    assert (orphans[7]["service"], orphans[7]["host"]) == ("gone", None)
    assert [row["oldest"] for row in found["duplicates"]] == [12, 12]
    assert found["services_without_nodes"] == [
        {"id": 10, "host": "Rebuilt", "binary": "nova-compute"},
        {"id": 11, "host": "bare", "binary": "nova-compute"},
    ]
    assert command.content(empty) == before


def test_every_oddity_as_tables(
    empty: sa.Engine, database_url: str, tmp_path: pathlib.Path
) -> None:
    oddities.make(empty)
    done = command.manage(tmp_path, database_url, "db", "check")
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    for kind, found in oddities.FOUND.items():
        headings = [line for line in lines if line.startswith(f"{kind}: ")]
        assert len(headings) == bool(found)
        assert all(line.startswith(f"{kind}: {len(found)} (") for line in headings)
    words = [line.split() for line in lines]
    assert ["7", "-", "lost", "99", "gone"] in words
    assert ["13", "twins", "TWIN", "12", "12"] in words
    assert lines[-1] == f"{sum(map(len, oddities.FOUND.values()))} findings"


def test_a_clean_database(
    store: db_store.DatabaseStore, database_url: str, tmp_path: pathlib.Path
) -> None:
    names = {"host": "h1", "binary": "nova-compute", "topic": "compute"}
    store.service_create(names)
    node = store.compute_node_create({"host": "H1", "hypervisor_hostname": "n"})
    done = command.manage(tmp_path, database_url, "db", "check")
    assert (done.returncode, done.stdout, done.stderr) == (0, "nothing found\n", "")
    done = command.manage(tmp_path, database_url, "db", "check", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["clean"]) == (0, True)
    assert set(told["findings"]) == set(oddities.FOUND)
    assert not any(told["findings"].values())
    store.compute_node_destroy(node["id"], None)
    assert command.manage(tmp_path, database_url, "db", "check").returncode == 1


def test_what_detached_rows_lack(
    store: db_store.DatabaseStore, engine: sa.Engine
) -> None:
    """Beside rows that have all, one of each kind."""
    for host in ("a", "b"):
        store.service_create({"host": host, "binary": "nova-compute"})
    store.service_create({"host": "c", "binary": "nova-conductor"})
    for host in ("a", "c", "d"):
        store.compute_node_create({"host": host, "hypervisor_hostname": host})
    found = {kind.name: list(rows) for kind, rows in audit.findings(engine)}
    lacking = {kind: rows for kind, rows in found.items() if rows}
    assert {kind: [row["host"] for row in rows] for kind, rows in lacking.items()} == {
        "nodes_without_service": ["c", "d"],
        "services_without_nodes": ["b"],
    }


def test_all_pages_are_turned(engine: sa.Engine) -> None:
    """More rows than a page, in pairs that a page's end separates."""
    with engine.begin() as c:
        juno.service(c, 1, "big")
        for number in range(1, 1202):
            juno.node(c, number, 1, f"n{number}")
            juno.node(c, number + 2000, 1, f"N{number}")
    found = {kind.name: list(rows) for kind, rows in audit.findings(engine)}
    assert len(found["legacy_nodes"]) == 2402
    expected = [id for n in range(1, 1202) for id in (n, n + 2000)]  # noqa: A001
    assert [row["id"] for row in found["duplicates"]] == expected


def test_names_that_would_upset_a_terminal(
    engine: sa.Engine, database_url: str, tmp_path: pathlib.Path
) -> None:
    with engine.begin() as c:
        juno.service(c, 1, "h")
        juno.node(c, 1, 1, "bell\a\x1b[31möl")
    done = command.manage(tmp_path, database_url, "db", "check")
    assert "bell??[31möl" in done.stdout
    done = command.manage(tmp_path, database_url, "db", "check", "--json")
    row = json.loads(done.stdout)["findings"]["legacy_nodes"][0]
    assert row["hypervisor_hostname"] == "bell\a\x1b[31möl"


def test_a_reader_that_leaves(sqlite_url: str, tmp_path: pathlib.Path) -> None:
    engine = db_engine.make_engine(sqlite_url)
    migration.sync(engine)
    with engine.begin() as c:
        juno.service(c, 1, "h")
        for number in range(1, 3000):
            juno.node(c, number, 1, f"n{number}" * 20)
    running = subprocess.Popen(
        command.arguments(tmp_path, sqlite_url, "db", "check", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert running.stdout is not None
    running.stdout.readline()
    running.stdout.close()
    assert running.stderr is not None
    assert running.stderr.read() == b""
    assert running.wait(60) == 141
    engine.dispose()


def test_an_empty_host_is_none(
    engine: sa.Engine, database_url: str, tmp_path: pathlib.Path
) -> None:
    with engine.begin() as c:
        juno.service(c, 3, "")
        juno.service(c, 4, "web1")
    found = command.found_ids(
        command.inside(tmp_path, database_url, "db", "check", "--json")
    )
    assert found["services_without_host"] == [3]
    assert found["services_without_nodes"] == [4]


def test_bytes_that_are_no_text_stop_nothing(
    sqlite_url: str, tmp_path: pathlib.Path
) -> None:
    """SQLite keeps any: the row is named, and the others are migrated."""
    engine = db_engine.make_engine(sqlite_url)
    migration.sync(engine)
    with engine.begin() as c:
        for number, host in enumerate(("web1", "web2", "web3", "web4"), 1):
            juno.service(c, number, host)
            juno.node(c, number, number, f"n{number}")
        for table, column, number in (
            ("services", "host", 2),
            ("compute_nodes", "hypervisor_hostname", 3),
            ("compute_nodes", "cpu_info", 4),
        ):
            rows = sa.table(table, sa.column("id"), sa.column(column))
            odd = sa.text("CAST(x'77e9' AS TEXT)")
            c.execute(rows.update().where(rows.c.id == number).values({column: odd}))
    before = command.inside(tmp_path, sqlite_url, "db", "check", "--json")
    assert command.found_ids(before)["legacy_nodes"] == [1, 2, 3, 4]
    done = command.inside(tmp_path, sqlite_url, "db", "online_data_migrations")
    assert (done.returncode, done.stderr) == (2, "")
    for number in (2, 3):
        assert f"stuck: compute node {number} (" in done.stdout
    assert done.stdout.count("holds bytes that are no text") == 2
    assert "compute_nodes: found 4, migrated 2, resolved 0, stuck 2" in done.stdout
    after = command.inside(tmp_path, sqlite_url, "db", "check", "--json")
    assert command.found_ids(after)["legacy_nodes"] == [2, 3]
    with engine.connect() as c:
        kept = c.execute(sa.text("SELECT hex(host) FROM services WHERE id = 2"))
        assert kept.scalar() == "77E9"
    engine.dispose()
