"""Checks the rules about this tree that no linter knows.

Errors:

- A text file holds an absolute path of one machine, the host of a package index, or the number of a contract (the list
  of contracts is not in this tree).
- A folder holds more than 15 Python modules. Generated modules, `__init__.py` and `__main__.py` don't count; tests do.
- Modules of the product import each other in a circle. Imports under `if TYPE_CHECKING` count.
- The docstring of a product package doesn't say what belongs in the package and what never may, or a package is empty.
- A commit since the rule began has a subject of more than 72 characters.
- A Python source that is not generated has more than 400 lines. Tests count; `STILL_LONG` names the exceptions.

Usage: python -m tools.lint_tree
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tools.tree_shape import (
    PACKAGES,
    ROOT,
    cycles,
    generated,
    modules_by_folder,
    package_docstring_problem,
    product_imports,
)

MAX_LINES = 400
STILL_LONG = frozenset(
    {
        "tests/control/calls/test_tables.py",
        "tests/sdk/host/mini_host.py",
    }
)
"""Files that are longer than `MAX_LINES` until they are split. Add none."""
MAX_MODULES = 15
MAX_SUBJECT = 72
SUBJECTS_SINCE = "2026-11-23T19:15:00Z"
"""Commits before this moment keep their subjects."""
# Assembled from halves, so that this file passes its own check.
FORBIDDEN = re.compile(
    "|".join(
        [
            r"(?<![\w./-])/(?:" + "home|root|Users|work|mnt" + r")/[\w.-]+",
            "pypi" + r"\.org",
            "files" + r"\.pythonhosted",
            r"--(?:extra-)?index" + "-url",
        ]
    )
)
NUMBERED = re.compile(r"\bcontracts? " + r"[0-9]", re.IGNORECASE)


def tracked_files() -> list[Path]:
    """The files that git tracks or would track, that exist, relative to the root."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [Path(name) for name in sorted(set(listing.split("\0"))) if name and (ROOT / name).is_file()]


def forbidden(path: Path, text: str) -> Iterator[str]:
    """One finding for every line of `text` that is tied to a machine or an index, or names a contract by number."""
    for number, line in enumerate(text.splitlines(), start=1):
        if found := FORBIDDEN.search(line):
            yield f"{path}:{number}: tied to one machine: {found.group()}"
        if found := NUMBERED.search(line):
            yield f"{path}:{number}: refers to a list that is not here: {found.group()}"


def too_long(path: Path, text: str) -> Iterator[str]:
    """Yields a finding if the Python source `text` has more than `MAX_LINES` lines and is no exception."""
    lines = text.count("\n")
    if path.suffix == ".py" and not generated(path, text) and lines > MAX_LINES and path.as_posix() not in STILL_LONG:
        yield f"{path}: {lines} lines, more than {MAX_LINES}: split it into files of one job each"


def crowded(sources: Iterable[Path]) -> Iterator[str]:
    """Yields a finding for each folder with more than `MAX_MODULES` of the Python `sources`."""
    for folder, count in sorted(modules_by_folder(sources).items()):
        if count > MAX_MODULES:
            yield f"{folder}: {count} modules, more than {MAX_MODULES}: group them into folders of one purpose each"


def bad_packages(sources: Mapping[Path, str]) -> Iterator[str]:
    """Yields a finding for each product package without modules, or whose docstring doesn't draw its line."""
    for path, text in sources.items():
        if path.name != "__init__.py" or not any(path.is_relative_to(folder) for folder in PACKAGES.values()):
            continue
        if not any(other != path and path.parent in other.parents for other in sources):
            yield f"{path.parent}: an empty package: delete it"
        if problem := package_docstring_problem(text):
            yield f"{path}: {problem}"


def import_circles(imports: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """Yields a finding for each group of modules that import each other in a circle."""
    for circle in cycles(imports):
        yield f"import cycle: {', '.join(circle)}"


def long_subjects(subjects: Iterable[str]) -> Iterator[str]:
    """Yields a finding for each commit subject of more than `MAX_SUBJECT` characters."""
    for subject in subjects:
        if len(subject) > MAX_SUBJECT:
            yield f"commit subject of {len(subject)} characters, more than {MAX_SUBJECT}: {subject}"


def main() -> int:
    """Prints the findings; returns 1 if one of them is an error."""
    errors: list[str] = []
    sources: dict[Path, str] = {}
    for path in tracked_files():
        try:
            text = (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:  # weights, images
            continue
        errors += forbidden(path, text)
        errors += too_long(path, text)
        if path.suffix == ".py":
            sources[path] = text
    by_hand = [path for path, text in sources.items() if not generated(path, text)]
    errors += [*crowded(by_hand), *bad_packages(sources), *import_circles(product_imports())]
    log = ["git", "log", "--no-merges", f"--since={SUBJECTS_SINCE}", "--format=%s"]
    errors += long_subjects(
        subprocess.run(log, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    )
    for error in errors:
        print(f"error: {error}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
