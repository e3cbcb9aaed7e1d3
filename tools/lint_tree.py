"""Checks what no linter knows about this tree: nothing tied to one machine, and no file that has outgrown its job.

An error: a tracked text file that holds an absolute path of somebody's machine or the host of a package index.
A warning: a Python source of more than 400 lines.

Usage: python tools/lint_tree.py
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 400
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


def tracked_files() -> list[Path]:
    """The files that git tracks or would track, that exist, relative to the root."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [Path(name) for name in sorted(set(listing.split("\0"))) if name and (ROOT / name).is_file()]


def forbidden(path: Path, text: str) -> Iterator[str]:
    """One finding for every line of `text` that is tied to a machine or an index."""
    for number, line in enumerate(text.splitlines(), start=1):
        if found := FORBIDDEN.search(line):
            yield f"{path}:{number}: tied to one machine: {found.group()}"


def too_long(path: Path, text: str) -> Iterator[str]:
    """A finding if the Python source `text` has outgrown `MAX_LINES`."""
    lines = text.count("\n")
    if path.suffix == ".py" and "tartlet_protos" not in path.parts and lines > MAX_LINES:
        yield f"{path}: {lines} lines, more than {MAX_LINES}: does it still have one job?"


def main() -> int:
    """Prints the findings; 1 if one of them is an error."""
    errors: list[str] = []
    warnings: list[str] = []
    for path in tracked_files():
        try:
            text = (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:  # binary: weights, images
            continue
        errors += forbidden(path, text)
        warnings += too_long(path, text)
    for warning in warnings:
        print(f"warning: {warning}")
    for error in errors:
        print(f"error: {error}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
