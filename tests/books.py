"""Has each control that tests start compare its books with the folds of the programs' histories, at random moments.

`tests/conftest.py` takes the hooks of this file. They set control's setting `check_books` in the environment, which all
processes that tests start inherit. Control writes down each book that is wrong, and then the test that runs fails, or
the last one that uses the control.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

SETTING: Final = "TARTLET_CONTROL_CHECK_BOOKS"
MOST_SHOWN: Final = 4000
"""Characters that a failure shows of each end of what control has written: the differences, and the last records."""


class Counts(NamedTuple):
    """What controls have compared: programs that sent anything, comparisons, and wrong books."""

    programs: int = 0
    comparisons: int = 0
    wrong: int = 0


class Books:
    """What the controls of a test run have found, in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._told: set[Path] = set()

    def check(self) -> None:
        """Fails if a book was found to be wrong since the last call.

        Raises:
            AssertionError: a control has written that a book isn't the fold of its program's history.
        """
        wrong = set(self.directory.glob("wrong-*")) - self._told
        self._told |= wrong
        if wrong:
            first = min(wrong).read_text()
            if len(first) > 2 * MOST_SHOWN:
                first = f"{first[:MOST_SHOWN]}\n[...]\n{first[-MOST_SHOWN:]}"
            raise AssertionError(
                f"{len(wrong)} books of control aren't the folds of their programs' histories; the first one:\n{first}"
            )

    def counts(self, pid: int | None = None) -> Counts:
        """Adds up what all controls have compared, or returns what the one with a process id has."""
        found = [path.read_text().split() for path in self.directory.glob(f"counts-{pid or '*'}")]
        return Counts(*(sum(int(row[i]) for row in found) for i in range(3)))


def books() -> Books:
    """Returns the books of this test run."""
    return _BOOKS[-1]


_BOOKS: Final[list[Books]] = []


def pytest_configure() -> None:
    """Lets the processes of all tests compare."""
    _BOOKS.append(Books(Path(tempfile.mkdtemp(prefix="tt-books-"))))
    os.environ[SETTING] = str(books().directory)


def pytest_unconfigure() -> None:
    """Removes what controls have written."""
    os.environ.pop(SETTING, None)
    shutil.rmtree(_BOOKS.pop().directory, ignore_errors=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """Fails a test during which a book was wrong, once the fixtures that the next test doesn't use are gone."""
    result = yield
    books().check()
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how much was compared."""
    programs, comparisons, wrong = books().counts()
    if programs:
        terminalreporter.write_line(f"books: {comparisons} compared with folds, of {programs} programs, {wrong} wrong")
