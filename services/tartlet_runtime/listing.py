"""A program as `List` tells of it."""

from __future__ import annotations

from tartlet_common.wire import error_to_proto
from tartlet_protos import programs_pb2
from tartlet_runtime.program import Program
from tartlet_runtime.program_spec import State


def info_of(program: Program, now_s: float, unix_s: float, runtime: str) -> programs_pb2.ProgramInfo:
    """All but the pages, which control knows.

    Args:
        program: the program.
        now_s: the clock's time.
        unix_s: the same moment, seconds since the epoch.
        runtime: this runtime's address.
    """
    age_s = now_s - program.usage.launched_s
    return programs_pb2.ProgramInfo(
        program_id=program.program_id,
        name=program.spec.name,
        state=state_name(program),
        tenant=program.spec.tenant,
        started_unix_s=unix_s - age_s,
        age_s=age_s,
        usage=program.usage.to_proto(now_s),
        error=error_to_proto(program.error),
        model=program.model,
        runtime=runtime,
    )


def state_name(program: Program) -> str:
    """As `ProgramInfo.state` has it."""
    if program.state is State.ENDED:
        return "failed" if program.error else "succeeded"
    return "starting" if program.state is State.STARTING else "running"
