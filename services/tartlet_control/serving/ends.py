"""Frames that tell runtimes which programs have ended and settled. Pure."""

from __future__ import annotations

from typing import Final

from tartlet_common.rpc.error_proto import error_to_proto
from tartlet_control.tables.outbox import Notices
from tartlet_protos import control_pb2

_ENDS_A_FRAME: Final = 128


def add_ends(frame: control_pb2.ControlFrame, notices: Notices) -> list[control_pb2.ControlFrame]:
    """Add kills and settlements to `frame`. Return further frames for those that don't fit its message."""
    kills = [control_pb2.ProgramKill(handle=h, error=error_to_proto(e)) for h, e in notices.kills]
    settled = [
        control_pb2.ProgramSettled(
            handle=s.handle,
            poisoned=error_to_proto(s.poisoned),
            peak_pages=s.peak_pages,
            sampled_tokens=s.sampled_tokens,
            input_tokens=s.input_tokens,
            commands=s.commands,
        )
        for s in notices.settled
    ]
    if len(kills) + len(settled) <= _ENDS_A_FRAME:
        frame.kills.extend(kills)
        frame.settled.extend(settled)
        return []
    starts = range(0, max(len(kills), len(settled)), _ENDS_A_FRAME)
    return [
        *(control_pb2.ControlFrame(kills=kills[i : i + _ENDS_A_FRAME]) for i in starts if i < len(kills)),
        *(control_pb2.ControlFrame(settled=settled[i : i + _ENDS_A_FRAME]) for i in starts if i < len(settled)),
    ]
