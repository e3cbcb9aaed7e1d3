"""The exit codes of Tartlet's processes: commands and roles alike."""

from __future__ import annotations

from tartlet_common.errors.registry import (
    InvalidArgument,
    InvalidConfig,
    PermissionDenied,
    TartletError,
    UnknownInferlet,
    UnknownModel,
    UnknownPool,
    UnknownProgram,
)

PROGRAM_FAILED, USAGE, SYSTEM, INTERRUPTED = 1, 2, 3, 130

_USAGE = (InvalidArgument, InvalidConfig, PermissionDenied, UnknownInferlet, UnknownModel, UnknownPool, UnknownProgram)
_FIRST_SYSTEM_NUMBER = 400


def exit_code(error: TartletError, *, ended: bool = False) -> int:
    """The exit code of an error; `ended`: a program ran and ended with this error."""
    if error.number >= _FIRST_SYSTEM_NUMBER:
        return SYSTEM
    return USAGE if isinstance(error, _USAGE) and not ended else PROGRAM_FAILED
