"""How errors reach the terminal, and the exit codes they give."""

from __future__ import annotations

import sys

from tartlet_common.errors import ProgramFailed, TartletError
from tartlet_common.exits import INTERRUPTED, PROGRAM_FAILED, SYSTEM, USAGE, exit_code

__all__ = ["INTERRUPTED", "PROGRAM_FAILED", "SYSTEM", "USAGE", "describe", "exit_code", "fail", "show"]


def describe(error: TartletError) -> str:
    """The lines for standard error: a program's own traceback as it is, anything else with its remedy."""
    if isinstance(error, ProgramFailed) and error.fields.get("traceback"):
        return str(error.fields["traceback"]).rstrip("\n")
    return f"{error.name}: {error.told}"


def show(error: TartletError) -> None:
    """Print an error to standard error."""
    sys.stderr.write(describe(error) + "\n")
    sys.stderr.flush()


def fail(error: TartletError) -> SystemExit:
    """Print an error; the exit to raise."""
    show(error)
    return SystemExit(exit_code(error))
