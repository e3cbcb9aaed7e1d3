"""Prints errors to the terminal and chooses exit codes."""

from __future__ import annotations

import os
import sys

from tartlet_common.errors.exit_codes import INTERRUPTED, PROGRAM_FAILED, SYSTEM, USAGE, exit_code
from tartlet_common.errors.registry import ProgramFailed, TartletError

__all__ = ["INTERRUPTED", "PROGRAM_FAILED", "SYSTEM", "USAGE", "describe", "drop_output", "exit_code", "fail", "show"]


def describe(error: TartletError) -> str:
    """Return the lines for standard error: a program's own traceback, or else the error with its remedy."""
    if isinstance(error, ProgramFailed) and error.fields.get("traceback"):
        return str(error.fields["traceback"]).rstrip("\n")
    return f"{error.name}: {error.explained}"


def show(error: TartletError) -> None:
    """Print an error to standard error."""
    sys.stderr.write(describe(error) + "\n")
    sys.stderr.flush()


def drop_output() -> None:
    """Redirect a broken standard output to /dev/null, because Python flushes it once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(error: TartletError) -> SystemExit:
    """Print an error and return the exit to raise."""
    show(error)
    return SystemExit(exit_code(error))
