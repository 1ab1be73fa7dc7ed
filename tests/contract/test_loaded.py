"""What a process really loads, besides what the import contracts say."""

import subprocess
import sys

import pytest

SQL = ("sqlalchemy", "alembic", "oslo_db")


def loaded(module: str) -> set[str]:
    """Return the top-level modules that importing one loads, in a new process."""
    script = f"import sys, {module}; print(*{{n.split('.')[0] for n in sys.modules}})"
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert run.stderr == ""
    return set(run.stdout.split())


@pytest.mark.parametrize(
    "module", ["compute_agent.main", "conductor.rpcapi", "compute_agent.rpcapi"]
)
def test_only_a_conductor_loads_sql(module: str) -> None:
    assert not loaded(module) & set(SQL)


def test_a_conductor_does_but_not_what_only_db_sync_needs() -> None:
    assert set(SQL) & loaded("conductor.main") == set(SQL) - {"alembic"}


@pytest.mark.parametrize(
    "module",
    [
        "conductor.main",
        "conductor.manage",
        "compute_agent.main",
        "musterbook.standalone",
        "objects",
        "musterbook.rpc",
    ],
)
def test_every_entry_chooses_native_threads(module: str) -> None:
    script = (
        f"import {module}\n"
        "from oslo_service import backend\n"
        "from oslo_service import service\n"
        "print(backend.get_backend_type())"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "BackendType.THREADING"


def test_a_command_sets_its_signals_before_it_loads_what_takes_long() -> None:
    heavy = {"oslo_config", "oslo_log", "oslo_messaging", "rich", "stevedore", *SQL}
    assert not loaded("musterbook.entry") & heavy
