"""The runtime role as a process that kills itself: TARTLET_DIES=POINT:WHEN:COUNT names the moment.

WHEN is "before" or "after", and COUNT says how often the point was passed. Nothing is flushed and nobody is told, as
with SIGKILL from outside.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Final

from tartlet_common.config.settings import RuntimeSettings
from tartlet_common.process.role import run_role
from tartlet_runtime.app import main
from tartlet_runtime.journal.file_store import FileStore
from tartlet_runtime.journal.redis_store import RedisStore
from tartlet_runtime.link import control_link
from tartlet_runtime.link.control_link import ControlLink
from tartlet_runtime.program.output import Output
from tartlet_runtime.program.program import Program
from tartlet_runtime.program.recorder import Recorder
from tartlet_runtime.program.recovered import RecoveredProgram
from tartlet_runtime.serving.server import ProgramsService

POINTS: Final = {
    "delivery": (Recorder, "record"),  # a guest is told something, or a client's message is taken
    "store": (RedisStore, "_send"),  # a turn is stored in Redis
    "write": (FileStore, "append"),  # a turn is stored in files
    "commands": (ControlLink, "_make_frames"),  # commands leave for control
    "answers": (control_link, "take"),  # a frame of control is taken in
    "output": (Output, "_show"),  # clients may see what the program has said
    "message": (Program, "hear"),  # a client's message is taken
    "reply": (ProgramsService, "Send"),  # the client is told that its message was taken
    "rerun": (RecoveredProgram, "_remembered"),  # the guest of a program that was taken over is told of its past
    "end": (Program, "_depart"),  # control is told of the program's end
    "ended": (Program, "finish"),  # clients are told of the program's end
}


assert all(hasattr(owner, name) for owner, name in POINTS.values()), "a point has another name by now"


def _dies_at(when: str, count: int) -> Callable[[str], None]:
    passed = 0

    def pass_by(side: str) -> None:
        nonlocal passed
        passed += side == when
        if side == when and passed == count:
            os.kill(os.getpid(), signal.SIGKILL)

    return pass_by


def arm(point: str, when: str, count: int) -> None:
    """Makes this process kill itself at a point."""
    owner, name = POINTS[point]
    inner = getattr(owner, name)
    pass_by = _dies_at(when, count)

    @wraps(inner)
    def sync(*args: Any, **kwargs: Any) -> Any:
        pass_by("before")
        answer = inner(*args, **kwargs)
        pass_by("after")
        return answer

    @wraps(inner)
    async def later(*args: Any, **kwargs: Any) -> Any:
        pass_by("before")
        answer = await _awaited(inner(*args, **kwargs))
        pass_by("after")
        return answer

    setattr(owner, name, later if point in {"store", "reply"} else sync)


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


if __name__ == "__main__":
    if asked := os.environ.get("TARTLET_DIES"):
        where, side, number = asked.split(":")
        arm(where, side, int(number))
    sys.exit(run_role("runtime", RuntimeSettings, main))
