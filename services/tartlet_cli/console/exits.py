"""How errors reach the terminal, and the exit codes they give."""

from __future__ import annotations

import os
import sys

from tartlet_common.errors.exit_codes import INTERRUPTED, PROGRAM_FAILED, SYSTEM, USAGE, exit_code
from tartlet_common.errors.registry import ProgramFailed, TartletError

__all__ = ["INTERRUPTED", "PROGRAM_FAILED", "SYSTEM", "USAGE", "describe", "drop_output", "exit_code", "fail", "show"]


def describe(error: TartletError) -> str:
    """The lines for standard error: a program's own traceback as it is, anything else with its remedy."""
    if isinstance(error, ProgramFailed) and error.fields.get("traceback"):
        return str(error.fields["traceback"]).rstrip("\n")
    return f"{error.name}: {error.explained}"


def show(error: TartletError) -> None:
    """Print an error to standard error."""
    sys.stderr.write(describe(error) + "\n")
    sys.stderr.flush()


def drop_output() -> None:
    """Write no more to a standard output that can't be written: Python flushes it once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(error: TartletError) -> SystemExit:
    """Print an error; the exit to raise."""
    show(error)
    return SystemExit(exit_code(error))
