"""Frames of control on their way to the programs of this runtime."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from tartlet_common.errors.registry import InternalError
from tartlet_common.pauses import Pause
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_protos import control_pb2
from tartlet_runtime.link.frames import split_deliveries
from tartlet_runtime.program.driver import Driver
from tartlet_runtime.program.program import Program

log = logging.getLogger(__name__)


class Programs(Protocol):
    """The table of programs, as the link sees it."""

    def get(self, handle: int) -> Program | None:
        """Return the live program of a handle."""

    def live(self) -> Iterable[Program]:
        """Return all programs that have not ended."""

    def control_back(self) -> list[control_pb2.ProgramStart]:
        """Return announcements of running programs, and queue waiting starts again."""

    def kept(self) -> list[control_pb2.KeptProgram]:
        """Return the ended programs whose output is kept."""

    def models_changed(self, models: Iterable[control_pb2.ModelInfo]) -> None:
        """Take over control's list of models."""

    def models(self) -> list[control_pb2.ModelInfo]:
        """Return control's last list of models."""

    def take_over(self, program_id: str, epoch: int, *, whole: bool) -> None:
        """Become the owner of a program of another runtime, and begin it again.

        With `whole`, control knows the program from its journal alone, and gets its history when its past is over.
        """

    def find_journals(self) -> None:
        """Tell control which programs of the store of journals have not ended."""

    @property
    def journals(self) -> str:
        """The name of the store of journals; "" while it isn't known."""


def take(programs: Programs, driver: Driver, frame: control_pb2.ControlFrame) -> None:
    """Give each program its part of a frame, in field order but for takeovers.

    Raises:
        MalformedSubmission: the frame's columns don't fit together.
    """
    get = programs.get
    if frame.models_changed:
        programs.models_changed(frame.models)
    for started in frame.started:
        program = get(started.handle)
        if program is not None:
            if started.commands or started.paused_s:
                _tell(program, program.adopted, started.commands, started.paused_s)
            _tell(program, program.started, error_from_proto(started.error), started.existing_program_id)
    if frame.HasField("deliveries"):
        for handle, count, records, payload in split_deliveries(frame.deliveries):
            program = get(handle)
            if program is not None:  # else it has ended meanwhile, and nobody is left to be told
                _tell(program, program.intake, count, records, payload)
            if frame.idle:
                driver.hurry()
    for takeover in frame.takeovers:
        programs.take_over(takeover.program_id, takeover.epoch, whole=takeover.whole)
    if frame.find_journals:
        programs.find_journals()
    _take_ends(programs, frame)


def _take_ends(programs: Programs, frame: control_pb2.ControlFrame) -> None:
    for kill in frame.kills:
        program = programs.get(kill.handle)
        if program is not None:
            _tell(program, program.end, error_from_proto(kill.error))
    for told in frame.pauses:
        program = programs.get(told.handle)
        if program is not None:
            over = Pause(told.over.cause, told.over.seconds) if told.HasField("over") else None
            program.paused(over, earlier=told.earlier)
    for settled in frame.settled:
        program = programs.get(settled.handle)
        if program is not None:
            _tell(program, program.settled, settled)


def _tell(program: Program, method: Callable[..., None], *args: object) -> None:
    """Call a program's method; a bug that shows there is the end of that program, not of the stream and so of all."""
    try:
        method(*args)
    except Exception as e:
        log.exception("program %s", program.program_id)
        program.end(InternalError(detail=repr(e)))
