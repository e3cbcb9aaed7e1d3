"""The parts in which `make test` runs the tests."""

from __future__ import annotations

from pathlib import Path

from tools.testing import parts
from tools.testing.parts import LONGEST_FIRST, names_tests


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
