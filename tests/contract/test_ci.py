"""README, .ci/run and tox.ini say the same."""

import configparser
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]

pytestmark = pytest.mark.docs


def _readme_command(name: str) -> str:
    """Return the command below README's marker, found without .ci's own tool."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    marked = f"<!-- command: {name} -->\n```bash\n(.*?)```\n"
    (command,) = re.findall(marked, readme, re.DOTALL)
    return str(command).strip()


@pytest.mark.parametrize("name", ["run", "test"])
def test_a_command_of_the_readme_is_one_line(name: str) -> None:
    assert "\n" not in _readme_command(name)


@pytest.mark.parametrize("name", ["run", "test"])
def test_ci_reads_the_command_from_the_readme(name: str) -> None:
    done = subprocess.run(
        [".ci/readme-command", name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == _readme_command(name)


def test_ci_fails_without_the_command() -> None:
    done = subprocess.run(
        [".ci/readme-command", "nonsense"], cwd=ROOT, capture_output=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout == b""


def test_ci_ends_with_the_readmes_test_command_and_nothing_else_runs_tests() -> None:
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert "test_command=$(.ci/readme-command test)\n" in script
    main = re.search(r"^main\(\) \{\n(.*?)^\}", script, re.DOTALL | re.MULTILINE)
    assert main is not None
    last = main[1].splitlines()[-1].strip()
    assert last == 'exec bash -euo pipefail -c "$test_command"'
    code = re.sub(r"(?m)#.*$", "", script)
    assert "pytest" not in code


def test_tox_installs_what_the_readmes_test_command_installs() -> None:
    tox = configparser.ConfigParser()
    tox.read(ROOT / "tox.ini")
    env = tox["testenv"]
    extras = ",".join(env["extras"].replace(" ", "").split(","))
    assert env["package"] == "editable"
    assert f"-e '.[{extras}]' {env['deps']} &&" in _readme_command("test")
    assert _readme_command("test").endswith(
        env["commands"].replace(
            "{posargs:-n 2 --dist worksteal}", "-n 2 --dist worksteal"
        )
    )


def test_tox_has_the_environments_that_contributing_names() -> None:
    tox = configparser.ConfigParser()
    tox.read(ROOT / "tox.ini")
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `tox -e (\w+)` \|", guide, re.MULTILINE))
    sections = {
        s.removeprefix("testenv:") for s in tox.sections() if s.startswith("testenv:")
    }
    assert named == sections | {"py311"}


def test_no_half_of_a_merge_is_left() -> None:
    marks = ["-e", "^<<<<<<< ", "-e", "^>>>>>>> "]
    found = subprocess.run(
        ["git", "grep", "-nI", *marks],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stdout) == (1, ""), found.stdout + found.stderr
