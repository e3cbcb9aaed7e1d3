"""What a runtime is told of its programs that stand still because an engine is gone.

A program that gave way to others that need its memory doesn't count: it waits as programs do that wait for their turn.
"""

from __future__ import annotations

from tartlet_common.errors.registry import ControlLost
from tartlet_common.pauses import Pause
from tartlet_control.tables.outbox import Paused
from tartlet_control.tables.programs import Place, ProgramState, Recovery


def begin(place: Place, recovery: Recovery) -> None:
    """Tell once that a program stands still until its state is made again."""
    if recovery.told or recovery.gave_way is not None:
        return
    recovery.told = True
    place.program.session.outbox.notices.pauses.append(Paused(place.program.handle))


def end(place: Place, recovery: Recovery, paused_s: float) -> None:
    """Tell that a program goes on, and note for how long the program stood still."""
    if not recovery.told:
        return
    cause = "control" if isinstance(recovery.cause, ControlLost) else "worker"
    pause = Pause(cause, paused_s)
    program = place.program
    program.pauses.add(pause)
    program.session.outbox.notices.pauses.append(Paused(program.handle, pause))


def hand_over(program: ProgramState) -> None:
    """Tell the runtime that has a program now of the pauses before, and of those that go on."""
    notices = program.session.outbox.notices
    notices.pauses += [Paused(program.handle, pause, earlier=True) for pause in program.pauses.last]
    for place in program.places.values():
        if place.recovery is not None and place.recovery.told:
            notices.pauses.append(Paused(program.handle))
