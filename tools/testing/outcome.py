"""Decides what a run of pytest means: which failures count, and what the closing line says."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.testing.exceptions import Exceptions

OK, FAILED, NOTHING_COLLECTED = 0, 1, 5
"""Exit statuses of pytest. Any other status means that pytest didn't get through its tests."""

MAX_RETRIED: Final = 10
"""More failures than this are no flaky tests: they are not run again."""

_CLOSING: Final = re.compile(r"=*\s?(?P<counts>\d+ [a-z]+(?:, \d+ [a-z]+)*) in [\d.:]+s?\b[^=]*=*$")
_BOOKS: Final = re.compile(r"^books: (\d+) compared with folds, of (\d+) programs, (\d+) wrong$", re.MULTILINE)
"""What `tests/books.py` says at the end of a run."""
_WORDS: Final = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "recovered", "warnings", "errors")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is left of the failures of a run.

    Attributes:
        failed: Tests that fail the run.
        forgiven: Tests that failed and that the exceptions name as flaky.
        recovered: Tests that failed at first and passed when they ran again.
    """

    failed: tuple[str, ...]
    forgiven: tuple[str, ...]
    recovered: tuple[str, ...]

    def lines(self) -> Iterable[str]:
        """One line for every test that failed to the end."""
        for word, tests in (("failed", self.failed), ("flaky, forgiven", self.forgiven)):
            yield from (f"== {word}: {test}" for test in tests)


def judge(first: Iterable[str], second: Iterable[str], exceptions: Exceptions) -> Verdict:
    """Judges the tests that failed.

    Args:
        first: Tests that failed in the first run.
        second: Tests among them that failed again or weren't run again.
        exceptions: Tests whose failure is forgiven.
    """
    still = sorted(set(second))
    return Verdict(
        failed=tuple(t for t in still if not exceptions.forgives(t)),
        forgiven=tuple(t for t in still if exceptions.forgives(t)),
        recovered=tuple(sorted(set(first) - set(still))),
    )


def failures(cache: Path) -> set[str]:
    """Node ids of the tests that failed in the last run, from pytest's cache directory."""
    file = cache / "v" / "cache" / "lastfailed"
    return set(json.loads(file.read_text())) if file.exists() else set()


def counts(output: str) -> Counter[str]:
    """The numbers of pytest's closing line; empty if there is none."""
    for line in reversed(output.splitlines()):
        if found := _CLOSING.match(line.strip()):
            pairs = (pair.split() for pair in found["counts"].split(", "))
            return Counter({_plural(word): int(number) for number, word in pairs})
    return Counter()


def books(outputs: Iterable[str]) -> str:
    """Adds up what several runs say about control's books; "" if none says anything.

    Example:
        >>> books(["books: 3 compared with folds, of 2 programs, 0 wrong"] * 2 + ["1 passed in 1.0s"])
        'books: 6 compared with folds, of 4 programs, 0 wrong'
    """
    rows = [found.groups() for output in outputs for found in _BOOKS.finditer(output)]
    if not rows:
        return ""
    comparisons, programs, wrong = (sum(map(int, column)) for column in zip(*rows, strict=True))
    return f"books: {comparisons} compared with folds, of {programs} programs, {wrong} wrong"


def has_wrong_books(line: str) -> bool:
    """Returns whether a line of `books` counts wrong ones."""
    return bool(line) and not line.endswith(", 0 wrong")


def _plural(word: str) -> str:
    return {"warning": "warnings", "error": "errors"}.get(word, word)


def correct(total: Counter[str], verdict: Verdict) -> None:
    """Moves recovered tests to "passed" and forgiven ones to "xfailed" in the numbers of the first run."""
    for word, tests in (("passed", verdict.recovered), ("xfailed", verdict.forgiven)):
        for _ in tests:
            was = "failed" if total["failed"] else "errors"
            if total[was]:
                total[was] -= 1
                total[word] += 1


def noted(notes: Path, recovered: Sequence[str]) -> list[str]:
    """Adds recovered tests to a file, one a line, and returns those of all runs that have used the file."""
    with notes.open("a") as file:
        file.writelines(f"{test}\n" for test in recovered)
    return notes.read_text().splitlines()


def closing_line(total: Counter[str], seconds: float) -> str:
    """A closing line as pytest prints it, for several runs together."""
    said = ", ".join(f"{total[word]} {word}" for word in _WORDS if total[word]) or "no tests ran"
    minutes, rest = divmod(int(seconds), 60)
    return f" {said} in {seconds:.2f}s ({minutes // 60}:{minutes % 60:02}:{rest:02}) ".center(100, "=")
