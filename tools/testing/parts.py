"""Splits the tests into parts, each for one pytest process, such that a part's memory is freed when the part ends."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tools.testing.runs import ROOT, Part

TESTS: Final = "tests"
USUAL: Final = "not soak and not beyond_gate"
"""The marks of the tests that `make test` runs. `make soak` and `make e2e-all` run the others."""
LONGEST_FIRST: Final = (
    "tests/operator/live",
    "tests/e2e/failures",
    "tests/cli",
    "tests/runtime",
    "tests/e2e",
    "tests/control",
    "tests/worker",
)
"""Folders of `tests`, in the order in which they begin. All other folders follow by name."""


def parts(arguments: Sequence[str] = (), root: Path = ROOT) -> list[Part]:
    """Returns one part for every folder of `LONGEST_FIRST` and for every other folder of `tests`.

    Args:
        arguments: Further arguments of every pytest.
        root: The repository.
    """
    folders = list(_folders(root))
    return [
        Part(
            folder.removeprefix(f"{TESTS}/").replace("/", "-"),
            (
                folder,
                *(f"--ignore={other}" for other in folders if other.startswith(f"{folder}/")),
                *usual(arguments),
            ),
        )
        for folder in folders
    ]


def _folders(root: Path) -> Iterator[str]:
    first = [folder for folder in LONGEST_FIRST if (root / folder).is_dir()]
    yield from first
    there = sorted(f"{TESTS}/{f.name}" for f in (root / TESTS).iterdir() if any(f.rglob("test_*.py")))
    yield from (folder for folder in there if folder not in first)


def usual(arguments: Sequence[str]) -> list[str]:
    """Returns pytest's arguments with an expression of marks that leaves out soaks and what is beyond the gate.

    Example:
        >>> usual(["tests/control", "-m", "slow or gpu"])
        ['-m', '(slow or gpu) and not soak and not beyond_gate', 'tests/control']
        >>> usual(["-k", "order"])
        ['-m', 'not soak and not beyond_gate', '-k', 'order']
    """
    marks = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    marks.add_argument("-m")
    given, rest = marks.parse_known_args(arguments)
    return ["-m", f"({given.m}) and {USUAL}" if given.m else USUAL, *rest]


def names_tests(arguments: Sequence[str], root: Path = ROOT) -> bool:
    """Whether one of pytest's arguments is a file or a folder."""
    return any(not a.startswith("-") and (root / a.partition("::")[0]).exists() for a in arguments)
