"""The calls of the gRPC service Control that tell a caller what happens, as it happens."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, Final, TypeAlias

import grpc.aio

from tartlet_common.errors.registry import UnknownProgram
from tartlet_common.rpc.error_proto import error_to_proto
from tartlet_common.rpc.tenancy import scope_of
from tartlet_control.serving.core_loop import CoreLoop
from tartlet_control.serving.state import engines_of
from tartlet_control.serving.watching.changes import Changes
from tartlet_control.serving.watching.steps import StepsSeen
from tartlet_protos import control_pb2, control_pb2_grpc

_WATCH_S: Final = (0.1, 600.0)
"""Bounds of how often a watcher of engines is told that nothing has changed."""
_PROGRAMS_S: Final = 10.0
"""Delay after which a watcher is told of other numbers of programs."""
_SHOW_S: Final = 60.0
"""Seconds between the changes that a watcher of the state is told, at most."""
_WORK_S: Final = 1.0
"""Delay after which a watcher is told how much work waits."""

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class WatchService(control_pb2_grpc.ControlServicer):
    """Tells callers of engines, of programs and of one program's calls."""

    def __init__(self, loop: CoreLoop) -> None:
        self._loop = loop
        self._core = loop.core
        self._steps = StepsSeen(loop.core.settler)

    async def WatchEngines(  # noqa: N802
        self, request: control_pb2.WatchEnginesRequest, context: Context
    ) -> AsyncIterator[control_pb2.EnginesReply]:
        """Yield the engines now, after each change, and at intervals in any case, until the caller goes."""
        every_s = max(_WATCH_S[0], min(_WATCH_S[1], request.every_s))
        told, told_s = None, 0.0
        programs, counted_s = dict[str, int](), 0.0
        with self._loop.watching_engines() as changed:
            while True:
                now = self._core.clock.now()
                if changed.is_set() or told is None or now - counted_s >= _PROGRAMS_S:
                    programs, counted_s = {e.id: len(e.program_ids) for e in self._core.engines.values()}, now
                changed.clear()
                reply = engines_of(self._core, programs)
                if reply != told or now - told_s >= every_s:
                    told, told_s = reply, now
                    yield reply
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(_WORK_S, _PROGRAMS_S, told_s + every_s - now)):
                        await changed.wait()

    async def WatchState(  # noqa: N802
        self, request: control_pb2.WatchStateRequest, context: Context
    ) -> AsyncIterator[control_pb2.StateChange]:
        """Yield the state that the caller may see, then its changes, until the caller goes."""
        every_s = max(_WATCH_S[0], min(_SHOW_S, request.every_s))
        with self._steps.engines() as steps:
            changes = Changes(self._core, scope_of(context), steps)
            while True:
                change = await changes.next()
                if change is not None:
                    yield change
                await asyncio.sleep(every_s)

    async def WatchProgram(  # noqa: N802
        self, request: control_pb2.WatchProgramRequest, context: Context
    ) -> AsyncIterator[control_pb2.ProgramTrace]:
        """Yield the calls of a program as engines answer them, until the program ends or the caller goes."""
        every_s = max(_WATCH_S[0], min(_SHOW_S, request.every_s))
        program = self._core.lifecycle.programs.get(request.program_id)
        if program is None or not scope_of(context).allows(program.tenant):
            error = error_to_proto(UnknownProgram(program=request.program_id))
            yield control_pb2.ProgramTrace(error=error)
            return
        trace = "" if program.span is None else f"{program.span.context.trace_id:032x}"
        yield control_pb2.ProgramTrace(json=json.dumps({"trace_id": trace}))
        with self._steps.program(program) as calls:
            while program.live or calls:
                if calls:
                    yield control_pb2.ProgramTrace(json=json.dumps(calls.take()))
                await asyncio.sleep(every_s)
