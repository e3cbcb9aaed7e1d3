"""Splits the tests into parts, each for one pytest process, such that a part's memory is freed when the part ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tools.testing.runs import ROOT, Part

TESTS: Final = "tests"
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
                *("-m", "not soak", *arguments),
            ),
        )
        for folder in folders
    ]


def _folders(root: Path) -> Iterator[str]:
    first = [folder for folder in LONGEST_FIRST if (root / folder).is_dir()]
    yield from first
    there = sorted(f"{TESTS}/{f.name}" for f in (root / TESTS).iterdir() if any(f.rglob("test_*.py")))
    yield from (folder for folder in there if folder not in first)


def names_tests(arguments: Sequence[str], root: Path = ROOT) -> bool:
    """Whether one of pytest's arguments is a file or a folder."""
    return any(not a.startswith("-") and (root / a.partition("::")[0]).exists() for a in arguments)
