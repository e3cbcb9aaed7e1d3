"""How errors reach the terminal, and the exit codes they give."""

from __future__ import annotations

import sys

from tartlet_common.errors import (
    InvalidArgument,
    InvalidConfig,
    PermissionDenied,
    ProgramFailed,
    TartletError,
    UnknownInferlet,
    UnknownModel,
    UnknownProgram,
)

PROGRAM_FAILED, USAGE, SYSTEM, INTERRUPTED = 1, 2, 3, 130

_USAGE = (InvalidArgument, InvalidConfig, PermissionDenied, UnknownInferlet, UnknownModel, UnknownProgram)
_FIRST_SYSTEM_NUMBER = 400


def exit_code(error: TartletError, *, ended: bool = False) -> int:
    """The exit code of an error; `ended`: a program that ran ended in it."""
    if error.number >= _FIRST_SYSTEM_NUMBER:
        return SYSTEM
    return USAGE if isinstance(error, _USAGE) and not ended else PROGRAM_FAILED


def describe(error: TartletError) -> str:
    """The lines for standard error: a program's own traceback as it is, anything else with its remedy."""
    if isinstance(error, ProgramFailed) and error.fields.get("traceback"):
        return str(error.fields["traceback"]).rstrip("\n")
    return f"{error.name}: {error}\n{error.remedy}"


def show(error: TartletError) -> None:
    """Print an error to standard error."""
    sys.stderr.write(describe(error) + "\n")
    sys.stderr.flush()


def fail(error: TartletError) -> SystemExit:
    """Print an error; the exit to raise."""
    show(error)
    return SystemExit(exit_code(error))
