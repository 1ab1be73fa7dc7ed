"""Cases A-INV-2, A-INV-3, A-INV-4 and A-CFG-2: what a host has, and what is on offer.

Real processes, RabbitMQ, Redis, MariaDB. Audits and beats come more often than in the
lab of the cases, so that periods are short; everything else is as there.
"""

from collections.abc import Iterator
import contextlib
import pathlib
import time
from typing import Any
import uuid as uuidlib

import pytest
import sqlalchemy as sa

from compute_agent import rpcapi as compute_rpcapi
from conductor.db import engine as db_engine
from conductor.db import store as db_store
from musterbook import context
from musterbook import errors
from objects import base
from objects import compute_node
from tests import conftest
from tests import util
from tests.functional import forks
from tests.functional import lab as labs

ROOT = pathlib.Path(__file__).parents[2]
CTXT = context.service_context()
#: A busy machine's; the cases' own limits are 5 s and one period.
LIMIT = 90.0


class Lab(labs.Lab):
    """A lab whose agents are started with options."""

    def start_with(self, host: str, **options: Any) -> labs.Process:
        """Start the agent of a host, with the fake driver's one node."""
        self.write_nodes(host, {host: options.pop("node", labs.NODE)})
        ratios = {f"{kind}_allocation_ratio": 1.0 for kind in ("cpu", "ram", "disk")}
        often = {"update_resources_interval": _PERIOD}
        plain = {"reserved_host_memory_mb": 0, **ratios, **often}
        config = self.config(host, {"host": host, **plain, **options})
        return self.run("compute_agent.main", "--config-file", config, name=host)

    def row(self, node: str) -> dict[str, Any]:
        """Return a node's row, as the fleet question tells it, once it is there."""
        util.wait_until(lambda: node in self.fleet(), LIMIT, node)
        return self.fleet()[node]

    def claim(self, host: str, **resources: int) -> dict[str, Any]:
        """Claim resources of a host's node; ClaimRefused."""
        return self.conductor.claim(
            CTXT,
            {
                "uuid": str(uuidlib.uuid4()),
                "resources": resources,
                "candidates": [self.row(host)["uuid"]],
            },
        )

    def audit(self, host: str) -> dict[str, Any]:
        """Have a host audited; return what that did."""
        agents = compute_rpcapi.ComputeAPI(self.transport, 30.0)
        answer = agents.audit(CTXT, host, wait=60.0)
        assert answer["ended"]
        return answer


@pytest.fixture(scope="module")
def lab(
    tmp_path_factory: pytest.TempPathFactory, keeper_address: pathlib.Path
) -> Iterator[Lab]:
    with contextlib.ExitStack() as stack:
        rabbit, redis, mariadb = (
            stack.enter_context(conftest.leased(keeper_address, kind))
            for kind in ("rabbitmq", "redis", "mariadb")
        )
        folder = tmp_path_factory.mktemp("cases")
        made = stack.enter_context(labs.opened(Lab(folder, rabbit, redis, mariadb)))
        made.sync()
        made.start_conductor()
        assert isinstance(made, Lab)
        yield made


@pytest.fixture
def book(lab: Lab) -> Iterator[db_store.DatabaseStore]:
    engine = db_engine.make_engine(lab.database)
    yield db_store.DatabaseStore(engine)
    engine.dispose()


# -- A-INV-2 -----------------------------------------------------------------------


def test_a_inv_2_free_memory_below_zero_is_told_as_it_is(
    lab: Lab, book: db_store.DatabaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16384 MiB, ratio 1.5, 512 reserved, five times 4096 claimed: -4608 are free."""
    host = "inv2"
    lab.start_with(host, ram_allocation_ratio=1.5, reserved_host_memory_mb=512)
    lab.wait_state(host, "up", timeout=LIMIT)
    found = lab.row(host)
    for _ in range(5):
        lab.claim(host, memory_mb=4096)
    monkeypatch.setattr(base.MusterObject, "indirection_api", lab.conductor)

    def told() -> set[int | None]:
        get = compute_node.ComputeNode.get_by_host_and_nodename
        stored = book.compute_node_get(id=found["id"])["free_ram_mb"]
        over_rpc = get(CTXT, host, host).free_ram_mb
        return {stored, over_rpc, lab.row(host)["free_ram_mb"]}

    assert told() == {-4608}
    # The agent doesn't mend what isn't broken, and what it changes keeps the sum.
    assert lab.audit(host)["counts"]["unchanged"] == 1
    assert told() == {-4608}
    lab.write_nodes(host, {host: {**labs.NODE, "memory_mb": 12288}})
    assert lab.audit(host)["counts"]["failed"] == 0
    assert told() == {12288 - 512 - 5 * 4096}
    row = lab.row(host)
    assert (row["memory_mb_used"], row["reserved_memory_mb"]) == (20992, 512)
    assert row["ram_allocation_ratio"] == 1.5
    lab.write_nodes(host, {host: labs.NODE})
    assert lab.audit(host)["counts"]["failed"] == 0
    with pytest.raises(errors.ClaimRefused):
        lab.claim(host, memory_mb=4096)
    lab.claim(host, memory_mb=3072)
    assert told() == {-4608 - 3072}


def test_a_inv_2_one_claim_larger_than_the_host_is_refused(lab: Lab) -> None:
    """As docs/claims.md says; 20000 MiB of 16384, of which 23808 may be given out."""
    lab.start_with("inv2b", ram_allocation_ratio=1.5, reserved_host_memory_mb=512)
    lab.wait_state("inv2b", "up", timeout=LIMIT)
    with pytest.raises(errors.ClaimRefused, match="16384"):
        lab.claim("inv2b", memory_mb=20000)
    lab.claim("inv2b", memory_mb=15000)


# -- A-INV-3 -----------------------------------------------------------------------


def test_a_inv_3_the_documentation_says_that_sharing_is_not_supported() -> None:
    text = (ROOT / "docs/inventory.md").read_text(encoding="utf-8")
    assert "Sharing is not supported" in text


@pytest.mark.slow  # three agents more; what a source is told is in test_fake.py
def test_a_inv_3_each_host_has_the_disk_that_it_reports(lab: Lab) -> None:
    """A source that is told of a shared one refuses it by name."""
    hosts = ("inv3a", "inv3b", "inv3c")
    node = {**labs.NODE, "local_gb": 1000}
    for host in hosts:
        lab.start_with(host, node=node)
    rows = [lab.row(host) for host in hosts]
    assert [row["local_gb"] for row in rows] == [1000] * 3  # each has its own
    assert [row["free_disk_gb"] for row in rows] == [1000] * 3
    # A disk that is marked as shared is refused by name, not counted three times.
    lab.write_nodes("inv3a", {"inv3a": {**node, "local_gb": 9, "local_gb_shared": 1}})
    answer = lab.audit("inv3a")
    assert "local_gb_shared" in answer["error"]["message"]
    assert lab.row("inv3a")["local_gb"] == 1000


# -- A-INV-4 -----------------------------------------------------------------------

_PERIOD = 0.3
_TRIGGER = (
    "CREATE TABLE counted (node_id INTEGER)",
    "CREATE TRIGGER counting AFTER UPDATE ON compute_nodes FOR EACH ROW"
    " INSERT INTO counted (node_id) VALUES (NEW.id)",
)


def test_a_inv_4_the_ratio_in_force_is_stored_and_nothing_is_written_again(
    lab: Lab,
) -> None:
    unset = dict.fromkeys(
        ("cpu_allocation_ratio", "ram_allocation_ratio", "disk_allocation_ratio")
    )
    zero = dict.fromkeys(unset, 0.0)
    lab.start_with("inv4a", **unset)
    lab.start_with("inv4b", **zero)
    process = lab.start_with("inv4c", **(unset | {"cpu_allocation_ratio": 16.0}))

    def ratios(host: str) -> list[float]:
        row = lab.row(host)
        return [row[name] for name in unset]

    # The defaults that docs/inventory.md and the options' help tell.
    assert ratios("inv4a") == ratios("inv4b") == [4.0, 1.0, 1.0]
    assert ratios("inv4c") == [16.0, 1.0, 1.0]
    for host in ("inv4a", "inv4b", "inv4c"):
        lab.wait_state(host, "up", timeout=LIMIT)
        lab.audit(host)
    ids = {lab.row(host)["id"] for host in ("inv4a", "inv4b", "inv4c")}
    engine = sa.create_engine(lab.database)
    with engine.begin() as connection:
        for statement in _TRIGGER:
            connection.execute(sa.text(statement))
    count = sa.text("SELECT node_id FROM counted")
    time.sleep(5 * _PERIOD)  # five quiet ones
    with engine.connect() as connection:
        quiet = set(connection.execute(count).scalars())
    assert not ids & quiet
    assert process.stop() == 0
    lab.start_with("inv4c", **(unset | {"cpu_allocation_ratio": 4.0}))
    util.wait_until(lambda: ratios("inv4c") == [4.0, 1.0, 1.0], LIMIT)
    with engine.begin() as connection:
        written = list(connection.execute(count).scalars())
        connection.execute(sa.text("DROP TRIGGER counting"))
        connection.execute(sa.text("DROP TABLE counted"))
    engine.dispose()
    assert written.count(lab.row("inv4c")["id"]) == 1  # which also shows that it counts
    # Who books goes by it as well: four times 8 CPUs, and not one more.
    lab.wait_state("inv4c", "up", timeout=LIMIT)
    for _ in range(4):
        lab.claim("inv4c", vcpus=8)
    with pytest.raises(errors.ClaimRefused):
        lab.claim("inv4c", vcpus=1)


@pytest.fixture(scope="module")
def agents() -> Iterator[forks.Template]:
    made = forks.Template("compute_agent.main")
    yield made
    made.close()


def refused(folder: pathlib.Path, agents: forks.Template, **options: Any) -> str:
    """Return the one line by which an agent refuses an option."""
    path = folder / "bad.conf"
    good = {
        "host": "cfg2",
        "transport_url": "rabbit://127.0.0.1:1",
        "servicegroup_tooz_url": f"file://{folder}/groups",
        "state_path": folder,
    }
    lines = [f"{name} = {value}" for name, value in {**good, **options}.items()]
    path.write_text("\n".join(["[DEFAULT]", *lines]) + "\n", encoding="utf-8")
    run = agents.run(folder, "--config-file", str(path))
    assert run.wait(LIMIT) == 2
    (line,) = run.errors().splitlines()
    return line


@pytest.mark.parametrize("kind", ["cpu", "ram", "disk"])
@pytest.mark.parametrize("value", ["-1", "abc"])
def test_a_inv_4_a_senseless_ratio_ends_the_agent(
    tmp_path: pathlib.Path, agents: forks.Template, kind: str, value: str
) -> None:
    option = f"{kind}_allocation_ratio"
    assert option in refused(tmp_path, agents, **{option: value})


# -- A-CFG-2 -----------------------------------------------------------------------


def test_a_cfg_2_reserved_disk_is_counted_in_its_own_unit(lab: Lab) -> None:
    """Of 200 GB, 10240 MB held back leave 190 on offer, and 500 MB leave 199."""
    for host, reserved, offered in (("cfg2a", 10240, 190), ("cfg2b", 500, 199)):
        lab.start_with(host, reserved_host_disk_mb=reserved)
        row = lab.row(host)
        assert (row["local_gb"], row["free_disk_gb"]) == (200, offered)
        assert row["reserved_local_gb"] == 200 - offered
        assert row["disk_allocation_ratio"] == 1.0


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("update_resources_interval", "0"),
        ("update_resources_interval", "-1"),
        ("update_resources_interval", "10m"),
        ("executor_thread_pool_size", "0"),
        ("reserved_host_disk_mb", "-1"),
    ],
)
def test_a_cfg_2_what_makes_no_sense_ends_the_agent(
    tmp_path: pathlib.Path, agents: forks.Template, option: str, value: str
) -> None:
    assert option in refused(tmp_path, agents, **{option: value})


def test_a_cfg_2_a_beat_slower_than_the_timeout_names_both(
    tmp_path: pathlib.Path, agents: forks.Template
) -> None:
    line = refused(
        tmp_path,
        agents,
        servicegroup_tooz_url=f"file://{tmp_path}/groups?timeout=3",
        report_interval=5,
    )
    assert "report_interval" in line
    assert "servicegroup_tooz_url" in line


def test_a_cfg_2_workers_below_zero_end_the_conductor(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "c.conf"
    path.write_text("[conductor]\nworkers = -1\n", encoding="utf-8")
    process = labs.Process(tmp_path, "c", "conductor.main", "--config-file", str(path))
    assert process.wait(LIMIT) == 2
    (line,) = process.errors().splitlines()
    assert "workers" in line
