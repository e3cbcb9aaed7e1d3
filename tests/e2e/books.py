"""Lets a control compare the books of its programs with the folds of their histories, and fails if they differ."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def checked_books(directory: Path) -> Iterator[dict[str, str]]:
    """Yields what a control's environment needs. At the end, books were compared, and none was wrong.

    Raises:
        AssertionError: a book isn't the fold of its program's history, or none was compared.
    """
    directory.mkdir()
    yield {"TARTLET_CONTROL_CHECK_BOOKS": str(directory)}
    wrong = [path.read_text() for path in directory.glob("wrong-*")]
    assert not wrong, f"{len(wrong)} books aren't the folds of their histories; the first one:\n{wrong[0]}"
    counts = [path.read_text().split() for path in directory.glob("counts-*")]
    assert any(int(checked) for _, checked, _ in filter(None, counts)), "no book was compared"
