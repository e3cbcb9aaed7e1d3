"""What a runtime sends in place of a frame that control doesn't take: only the frame's own programs end."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tartlet_common.errors.registry import TartletError
from tartlet_protos import control_pb2
from tartlet_runtime.link.orphans import control_lost
from tartlet_runtime.program.program import Program


def in_place_of(
    get: Callable[[int], Program | None], frame: control_pb2.RuntimeFrame, error: TartletError
) -> control_pb2.RuntimeFrame:
    """End the programs whose start or commands a frame carries, and return the frame without these.

    Ends and kept programs stay. Control never hears of a program whose start was in the frame, so the program doesn't
    wait for control to free anything. `get` returns the live program of a handle.
    """
    starts = [start.handle for start in frame.starts]
    commands = np.unique(np.frombuffer(frame.commands.handles, "<u4")).tolist()
    for handle in dict.fromkeys([*starts, *commands]):
        program = get(handle)
        if program is not None:
            program.end(error)
    for handle in starts:
        program = get(handle)
        if program is not None:  # it waits for its settlement
            control_lost(program)
    return control_pb2.RuntimeFrame(ends=frame.ends, kept=frame.kept, more=frame.more)
