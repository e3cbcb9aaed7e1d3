"""What becomes of programs whose link with control is lost, or whose control doesn't come back."""

from __future__ import annotations

from tartlet_common.errors.registry import ControlLost, Superseded, TartletError
from tartlet_runtime.program.program import Program
from tartlet_runtime.program.spec import State


def control_lost(program: Program) -> None:
    """Note that the link with control is lost. A program whose history says enough goes on with the next control."""
    if program.state is State.ENDING:
        if program.departed and not awaits_settlement(program):
            program.finish(program.error)
    elif program.is_recovering:
        program.journal_lost(Superseded(program=program.program_id))  # the next control finds its journal
    elif program.history.lost:
        program.end(ControlLost(why=program.history.lost))


def awaits_settlement(program: Program) -> bool:
    """Return whether control, or the next one, is to tell what came of an ended program's last commands."""
    history = program.history
    return program.state is State.ENDING and program.error is None and bool(history) and not history.lost


def is_announced(program: Program) -> bool:
    """Return whether the next control is told of a program, because it runs or has to do with control otherwise."""
    if program.state is State.ENDING:
        return awaits_settlement(program) or not program.departed
    return program.state is not State.ENDED


def give_up(program: Program, error: TartletError) -> None:
    """End a program that has waited too long."""
    if program.departed:
        program.finish(program.error or error)
    else:
        program.end(error)
