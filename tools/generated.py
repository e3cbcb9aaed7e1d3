"""Writes generated files that are checked in, or with `--check` compares them with fresh ones."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path


def write_or_check(files: Mapping[Path, str], argv: list[str], *, root: Path, command: str) -> int:
    """Write `files` (path below `root` -> text), or with `--check` in `argv` report stale ones on standard error.

    Returns:
        The exit status: 1 if a file is stale (the report names `command`, which writes it), 2 if `argv` has another
        argument.
    """
    if argv not in ([], ["--check"]):
        sys.stderr.write("usage: without an argument the files are written, with --check they are compared\n")
        return 2
    status = 0
    for path, text in files.items():
        target = root / path
        if "--check" not in argv:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        elif not target.exists() or target.read_text(encoding="utf-8") != text:
            sys.stderr.write(f"{path} is stale: run {command}\n")
            status = 1
    return status
