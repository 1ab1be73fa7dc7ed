"""What is packed, and that every import is declared and needed."""

import ast
from collections.abc import Iterable
from collections.abc import Iterator
import functools
from importlib import metadata
import importlib.util
import itertools
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

from packaging import requirements
from packaging import utils
import pytest

ROOT = pathlib.Path(__file__).parents[2]
PACKAGES = ("compute_agent", "conductor", "musterbook", "objects")

# Distributions that nothing imports by name, and what loads them instead.
LOADED_BY_OTHERS = {
    "libvirt-python": "importlib, for the inventory source libvirt",
    "psycopg2-binary": "SQLAlchemy, for postgresql+psycopg2://",
    "pymysql": "SQLAlchemy, for mysql+pymysql://",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Build wheel and source archive from a copy of the tree, without network."""
    source = tmp_path_factory.mktemp("source")
    for name in ("setup.py", "pyproject.toml", "README.md", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
    # The tests must not be packed along.
    for folder in (*PACKAGES, "etc", "tests"):
        shutil.copytree(ROOT / folder, source / folder)
    out = tmp_path_factory.mktemp("built")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "build", "--wheel", "--sdist", "--no-isolation"),
            *("--outdir", out, source),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def wheel(built: pathlib.Path) -> zipfile.ZipFile:
    (path,) = built.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_source_archive_has_samples_and_units(built: pathlib.Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    in_tree = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "etc").rglob("*")
        if path.is_file()
    }
    assert in_tree
    assert in_tree <= inside


def test_the_wheel_has_exactly_four_top_level_packages(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)


def test_the_wheel_has_every_module_and_type_marker(wheel: zipfile.ZipFile) -> None:
    in_tree = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in {".py", ".mako"} or path.name == "py.typed"
    }
    assert in_tree <= set(wheel.namelist())


# -- what is declared --


def _requirements(lines: Iterable[str]) -> dict[str, requirements.Requirement]:
    found = [requirements.Requirement(line) for line in lines]
    return {str(utils.canonicalize_name(r.name)): r for r in found}


@functools.cache
def _declared() -> dict[str, requirements.Requirement]:
    """Return what setup.py declares, for the packages and for the extras."""
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    lists = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id in {"REQUIRES", "EXTRAS"}
    }
    # Of tooz and tooz[redis] the plain one, declared first, stays.
    extras = _requirements(itertools.chain(*lists["EXTRAS"].values()))
    return extras | _requirements(lists["REQUIRES"])


@functools.cache
def _test_requirements() -> dict[str, requirements.Requirement]:
    lines = (ROOT / "test-requirements.txt").read_text(encoding="utf-8").splitlines()
    return _requirements(line for line in lines if line and line[0] != "#")


# -- what is imported --


def _imports(paths: Iterable[pathlib.Path]) -> Iterator[tuple[str, pathlib.Path]]:
    """Yield every top-level name that is imported, also inside functions."""
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield alias.name.partition(".")[0], path
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0], path


def _third_party(paths: Iterable[pathlib.Path]) -> dict[str, set[str]]:
    """Return who imports each distribution that is neither stdlib nor ours.

    A module that no installed distribution has counts under its own name.
    """
    owners = metadata.packages_distributions()
    found: dict[str, set[str]] = {}
    for name, path in _imports(paths):
        if name in sys.stdlib_module_names or name in {*PACKAGES, "tests"}:
            continue
        for owner in owners.get(name, [name]):
            key = str(utils.canonicalize_name(owner))
            found.setdefault(key, set()).add(path.relative_to(ROOT).as_posix())
    return found


def _ours() -> list[pathlib.Path]:
    return [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]


def test_every_import_of_the_packages_is_declared() -> None:
    declared = _declared()
    missing = {k: v for k, v in _third_party(_ours()).items() if k not in declared}
    assert missing == {}


def test_every_import_of_the_tests_is_declared() -> None:
    declared = {**_declared(), **_test_requirements()}
    imported = _third_party((ROOT / "tests").rglob("*.py"))
    assert {k: v for k, v in imported.items() if k not in declared} == {}


def test_every_dependency_is_needed() -> None:
    imported = set(_third_party(_ours()))
    assert set(_declared()) - imported - set(LOADED_BY_OTHERS) == set()
    assert set(LOADED_BY_OTHERS) <= set(_declared()) - imported


def test_every_dependency_has_a_lower_bound() -> None:
    unbounded = [
        name
        for name, requirement in [*_declared().items(), *_test_requirements().items()]
        if not any(clause.operator == ">=" for clause in requirement.specifier)
    ]
    assert unbounded == []


def test_what_is_installed_satisfies_the_bounds() -> None:
    wanted = {**_declared(), **_test_requirements()}
    if importlib.util.find_spec("libvirt") is None:
        del wanted["libvirt-python"]  # README's command goes without a compiler
    for name, requirement in wanted.items():
        assert requirement.specifier.contains(metadata.version(name)), name


def test_oslo_service_has_its_thread_backend() -> None:
    assert _declared()["oslo-service"].extras == {"threading"}


def test_each_dependency_has_its_reason_on_record() -> None:
    record = (ROOT / "docs/adr/0005-dependencies.md").read_text(encoding="utf-8")
    reasons = re.findall(r"^\| `([^`]+)` \|", record, re.MULTILINE)
    assert {str(utils.canonicalize_name(name)) for name in reasons} == set(_declared())
