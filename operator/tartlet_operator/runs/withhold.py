"""Takes a program's own texts out of what is written about its run. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, overload

from tartlet_common.errors.registry import TartletError
from tartlet_operator.api.inferlet import InferletSpec
from tartlet_operator.api.inferlet_run import InferletRunSpec
from tartlet_operator.machinery.program_output import Outcome, Output

WITHHELD: Final = "(not kept: spec.output is none)"
_REMEDY: Final = (
    "Its traceback isn't kept, since spec.output is none. `tartlet run` shows the program's traceback to who runs it."
)
_OF_THE_SYSTEM: Final = range(300, 500)
"""Numbers of errors about limits and lost parts of the system, whose fields no program writes."""


def keeps(run: InferletRunSpec, inferlet: InferletSpec | None) -> bool:
    """Return whether a run's texts may be kept in its status: neither the run nor its Inferlet says `none`."""
    return run.output != "none" and (inferlet is None or inferlet.output != "none")


@overload
def without_texts(outcome: Outcome) -> Outcome: ...
@overload
def without_texts(outcome: None) -> None: ...
def without_texts(outcome: Outcome | None) -> Outcome | None:
    """Return an outcome without output, result, standard error and traceback; of the error type and remedy stay.

    Example:
        >>> from tartlet_common.errors.registry import DeadlineExceeded, ProgramKilled
        >>> errors = ProgramKilled(reason="a secret"), DeadlineExceeded(deadline_s=5)
        >>> [str(without_texts(Outcome(success=False, error=error)).error) for error in errors][0]
        'the program was killed: (not kept: spec.output is none)'
    """
    if outcome is None:
        return None
    return replace(outcome, output=Output(), result=None, stderr="", error=_plain(outcome.error))


def _plain(error: TartletError | None) -> TartletError | None:
    """Return the error with its numbers alone, where its texts may be the program's."""
    if error is None or error.number in _OF_THE_SYSTEM:
        return error
    numbers = {name: v if isinstance(v, int | float) else WITHHELD for name, v in error.fields.items()}
    remedy = _REMEDY if "traceback" in error.fields else type(error).remedy
    return type(error)(**{**numbers, "remedy": remedy})
