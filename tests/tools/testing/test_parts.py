"""The parts in which `make test` runs the tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.testing import parts
from tools.testing.parts import LONGEST_FIRST, names_tests, usual


def test_every_test_module_is_in_exactly_one_part(repo: Path) -> None:
    found = parts.parts()
    assert len({p.name for p in found}) == len(found)
    for module in (repo / "tests").rglob("test_*.py"):
        path = str(module.relative_to(repo))
        holding = [
            p.name
            for p in found
            if path.startswith(f"{p.arguments[0]}/")
            and not any(path.startswith(f"{a.removeprefix('--ignore=')}/") for a in p.arguments if "--ignore" in a)
        ]
        assert len(holding) == 1, path


def test_the_longest_folders_exist_and_begin_first(repo: Path) -> None:
    assert [p.arguments[0] for p in parts.parts()[: len(LONGEST_FIRST)]] == list(LONGEST_FIRST)
    assert all((repo / folder).is_dir() for folder in LONGEST_FIRST)


def test_more_arguments_go_to_every_part() -> None:
    assert all(p.arguments[-2:] == ("-k", "order") for p in parts.parts(["-k", "order"]))


def test_an_argument_that_is_a_file_names_tests(repo: Path) -> None:
    assert names_tests(["-x", "tests/control"], repo)
    assert names_tests(["tests/conftest.py::test_x"], repo)
    assert not names_tests(["-k", "order", "--durations=5"], repo)


@pytest.mark.parametrize(
    ("given", "used"),
    [
        (["tests/control"], ["-m", "not soak and not beyond_gate", "tests/control"]),
        (
            ["-x", "-m", "slow or soak", "-k", "not a", "tests"],
            ["-m", "(slow or soak) and not soak and not beyond_gate", "-x", "-k", "not a", "tests"],
        ),
        (["-mslow", "--maxfail=2"], ["-m", "(slow) and not soak and not beyond_gate", "--maxfail=2"]),
    ],
)
def test_soaks_are_left_out_whatever_is_asked_for(given: list[str], used: list[str]) -> None:
    assert usual(given) == used


def test_soaks_stay_out_of_a_run_of_named_tests(tmp_path: Path, repo: Path) -> None:
    module = tmp_path / "test_marks.py"
    module.write_text("import pytest\n@pytest.mark.soak\ndef test_a(): assert False\ndef test_b(): pass\n")
    command = [
        sys.executable,
        "-m",
        "tools.testing",
        str(module),
        f"--rootdir={repo}",
        "-c",
        str(repo / "pyproject.toml"),
    ]
    done = subprocess.run(command, cwd=repo, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "1 passed, 1 deselected" in done.stdout
