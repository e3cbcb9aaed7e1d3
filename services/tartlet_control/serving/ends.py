"""Frames that end programs in runtimes: notices of ends, and what is sent in place of a frame that isn't taken."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from tartlet_common.errors.registry import TartletError
from tartlet_common.rpc.error_proto import error_to_proto
from tartlet_control.core.core import Core
from tartlet_control.tables.outbox import Notices, Paused
from tartlet_control.tables.programs import RuntimeSession
from tartlet_protos import control_pb2

BESIDE_BYTES: Final = 256 << 10
"""Limit of ends, and of starts, that share a frame with deliveries, which are cut to leave room for this much."""
_ENDS_BYTES: Final = 1 << 20
_FIELD_BYTES: Final = 8
"""Tag and length of one end in its frame, at most."""


def add_ends(frame: control_pb2.ControlFrame, notices: Notices) -> list[control_pb2.ControlFrame]:
    """Add ends and pauses to `frame`, of 256 KiB at most. Return further frames, of 1 MiB each, for the rest."""
    ends: list[tuple[str, Any]] = [
        ("kills", control_pb2.ProgramKill(handle=h, error=error_to_proto(e))) for h, e in notices.kills
    ]
    ends += [
        (
            "settled",
            control_pb2.ProgramSettled(
                handle=s.handle,
                poisoned=error_to_proto(s.poisoned),
                peak_pages=s.peak_pages,
                sampled_tokens=s.sampled_tokens,
                input_tokens=s.input_tokens,
                commands=s.commands,
            ),
        )
        for s in notices.settled
    ]
    ends += [("pauses", _pause(paused)) for paused in notices.pauses]
    more: list[control_pb2.ControlFrame] = []
    room = BESIDE_BYTES
    for field, end in ends:
        size = end.ByteSize() + _FIELD_BYTES
        if size > room:
            frame, room = control_pb2.ControlFrame(), _ENDS_BYTES
            more.append(frame)
        room -= size
        getattr(frame, field).append(end)
    return more


def _pause(paused: Paused) -> control_pb2.ProgramPause:
    told = control_pb2.ProgramPause(handle=paused.handle, earlier=paused.earlier)
    if paused.over is not None:
        told.over.cause, told.over.seconds = paused.over.cause, paused.over.seconds
    return told


def in_place_of(
    core: Core, session: RuntimeSession, frame: control_pb2.ControlFrame, error: TartletError
) -> control_pb2.ControlFrame:
    """End the programs whose answers a frame carries, and return the frame without these answers.

    Ends and models stay. A program that control doesn't know, because its start was refused, is ended in its runtime.
    """
    frame_handles = np.frombuffer(frame.deliveries.handles, "<u4").tolist()
    instead = control_pb2.ControlFrame(models_changed=frame.models_changed, models=frame.models, settled=frame.settled)
    instead.kills.extend(frame.kills)
    instead.pauses.extend(frame.pauses)
    for handle in _once([started.handle for started in frame.started], frame_handles):
        program = session.programs.get(handle)
        if program is None:
            instead.kills.append(control_pb2.ProgramKill(handle=handle, error=error_to_proto(error)))
        else:
            core.lifecycle.kill(program, error)
    return instead


def _once(*handles: Iterable[int]) -> list[int]:
    return list(dict.fromkeys(handle for some in handles for handle in some))
