"""Each contract of .importlinter holds, and breaks when somebody breaks its rule."""

import configparser
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PACKAGES = ("compute_agent", "conductor", "musterbook", "objects")
# The command lint-imports, whatever the PATH is.
_LINT_IMPORTS = "from importlinter import cli; cli.lint_imports_command()"


@dataclasses.dataclass(frozen=True)
class Plant:
    """An import that one contract forbids.

    :ivar contract: the contract's id in .importlinter
    :ivar lines: what is written to the end of which file (made if need be)
    """

    contract: str
    lines: dict[str, str]


PLANTS = [
    Plant("rooms", {"musterbook/servicegroup/planted.py": "import objects"}),
    Plant("objects", {"objects/planted.py": "from musterbook import conf"}),
    Plant(
        "roots",
        {
            "conductor/main.py": "",
            "conductor/planted.py": "from conductor import main",
        },
    ),
    Plant(
        "conductor",
        {
            "conductor/planted.py": "",
            "compute_agent/planted.py": "from conductor import planted",
        },
    ),
    Plant(
        "agent",
        {
            "compute_agent/planted.py": "",
            "conductor/planted.py": "from compute_agent import planted",
        },
    ),
    Plant(
        "store",
        {
            "conductor/db/__init__.py": "",
            "conductor/db/planted.py": "",
            "conductor/planted.py": "from conductor.db import planted",
        },
    ),
    Plant("sql", {"conductor/planted.py": "import sqlalchemy"}),
    Plant("sql", {"compute_agent/planted.py": "from oslo_db import exception"}),
    Plant("group", {"conductor/planted.py": "from tooz import coordination"}),
    Plant("group", {"compute_agent/planted.py": "import redis"}),
    Plant("http", {"compute_agent/planted.py": "import http.client"}),
    Plant("http", {"musterbook/planted.py": "import requests"}),
    Plant(
        "cycles",
        {
            "musterbook/planted_a.py": "from musterbook import planted_b",
            "musterbook/planted_b.py": "from musterbook import planted_a",
        },
    ),
]


def _contracts() -> dict[str, str]:
    """Return the names of all contracts by their ids."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    prefix = "importlinter:contract:"
    return {
        section.removeprefix(prefix): parser[section]["name"]
        for section in parser.sections()
        if section.startswith(prefix)
    }


def _copy(target: pathlib.Path) -> pathlib.Path:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, target / package)
    shutil.copy(ROOT / ".importlinter", target)
    return target


def _lint(tree: pathlib.Path) -> dict[str, bool]:
    """Return for each contract of the tree, by name, whether it was kept."""
    # PYTHONPATH comes before an installed (or editable) Musterbook.
    done = subprocess.run(
        [sys.executable, "-c", _LINT_IMPORTS, "--no-cache"],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.findall(r"^(.+?) (KEPT|BROKEN)\b", done.stdout, re.MULTILINE)
    assert found, done.stdout + done.stderr
    assert done.returncode == int(any(word == "BROKEN" for _, word in found))
    return {name: word == "KEPT" for name, word in found}


def test_the_tree_is_clean(tmp_path: pathlib.Path) -> None:
    assert _lint(_copy(tmp_path)) == dict.fromkeys(_contracts().values(), True)


def test_each_contract_has_a_plant() -> None:
    assert {plant.contract for plant in PLANTS} == set(_contracts())


@pytest.mark.parametrize(
    "plant", PLANTS, ids=lambda plant: f"{plant.contract}-{'+'.join(plant.lines)}"
)
def test_a_planted_import_breaks_its_contract_only(
    plant: Plant, tmp_path: pathlib.Path
) -> None:
    tree = _copy(tmp_path)
    for name, line in plant.lines.items():
        path = tree / name
        path.parent.mkdir(exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")
    broken = [name for name, kept in _lint(tree).items() if not kept]
    assert broken == [_contracts()[plant.contract]]


@pytest.mark.parametrize("service", ["conductor", "compute_agent"])
def test_the_rpcapi_is_open_to_the_other_service(
    service: str, tmp_path: pathlib.Path
) -> None:
    tree = _copy(tmp_path)
    other = ({"conductor", "compute_agent"} - {service}).pop()
    with (tree / service / "rpcapi.py").open("a", encoding="utf-8"):
        pass
    (tree / other / "planted.py").write_text(f"from {service} import rpcapi\n")
    assert all(_lint(tree).values())
