"""The memory of the runtime as one process: a launch that the memory can't hold is refused, and nothing that runs ends.

Each test bounds the runtime twice: by its setting, and by a real control group of a process of its own, whose kernel
would end the process when memory ran out.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tartlet_common.errors.registry import (
    CompilerMemoryExceeded,
    JournalFull,
    MemoryBudgetExceeded,
    ProgramKilled,
    TartletError,
)
from tartlet_common.rpc import blob_transfer
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_protos import common_pb2, programs_pb2
from tests.runtime.budget.memory_group import memory_group, running_in
from tests.runtime.budget.modules import hard_to_compile, module, numbered
from tests.runtime.harness import PYTHON, WASM, Rig, Stream, launch_spec, running

_Event = programs_pb2.ProgramEvent
pytestmark = pytest.mark.usefixtures("python_component")
GIB = 1 << 30
MIB = 1 << 20
GROW = """
import sys
from inferlet import receive
async def main():
    held = bytearray(int(sys.argv[1]) << 20)
    print("holds")
    await receive()
    return len(held) >> 20
"""

BOUNDS = pytest.mark.parametrize("bound", ["setting", "group"])


@contextlib.asynccontextmanager
async def bounded(bound: str, run_dir: Path, **changes: Any) -> AsyncIterator[Rig]:
    """A runtime of 1 GiB in this process, or in a control group of its own in which the kernel ends no process."""
    if bound == "setting":
        async with running(run_dir, process_memory_bytes=GIB, **changes) as rig:
            yield rig
        return
    with memory_group(GIB) as group:
        async with running_in(group, run_dir, **changes) as rig:
            yield rig
        assert group.kills == 0


async def answers(
    rig: Rig, specs: list[programs_pb2.LaunchSpec], patience_s: float = 60.0
) -> tuple[Stream, list[programs_pb2.ProgramEvent]]:
    """Launch programs in one call; return the call's stream and what each launch was answered with."""
    stream = Stream(rig.stub.Launch(programs_pb2.LaunchRequest(specs=specs)))
    found: dict[int, programs_pb2.ProgramEvent] = {}
    while len(found) < len(specs):
        event = await stream.next(patience_s)
        if event.kind in (_Event.ACCEPTED, _Event.REJECTED):
            found[event.index] = event
    return stream, [found[i] for i in range(len(specs))]


def error_of(event: programs_pb2.ProgramEvent) -> TartletError | None:
    return error_from_proto(event.error)


async def end(rig: Rig, accepted: list[programs_pb2.ProgramEvent]) -> None:
    """Send each program the message that it waits for."""
    items = [programs_pb2.SendItem(program_id=event.program_id, message=b"end") for event in accepted]
    await rig.stub.Send(programs_pb2.SendRequest(items=items))


async def uploaded(rig: Rig, source: bytes) -> str:
    """Send a source that is larger than one message; return its digest."""
    reply = await rig.stub.Upload(blob_transfer.chunks(source))
    assert error_from_proto(reply.error) is None
    return str(reply.digest)


async def taken(rig: Rig) -> dict[str, int]:
    state = await rig.stub.RuntimeState(programs_pb2.RuntimeStateRequest())
    return dict(state.memory_taken_bytes)


@BOUNDS
async def test_seventeen_programs_of_250_mib_in_1_gib(run_dir: Path, bound: str) -> None:
    """Launches that name a limit hold the limit: the first ones use all of it, the others are refused at once."""
    limits = common_pb2.Limits(memory_bytes=250 * MIB)
    specs = [launch_spec(PYTHON, GROW.encode(), args=["200"], limits=limits) for _ in range(17)]
    async with bounded(bound, run_dir) as rig:
        stream, first = await answers(rig, specs)
        accepted = [event for event in first if event.kind == _Event.ACCEPTED]
        errors = [error_of(event) for event in first if event.kind == _Event.REJECTED]
        assert len(accepted) == 3
        assert all(isinstance(error, MemoryBudgetExceeded) and error.retryable for error in errors)
        small, answer = await answers(rig, [launch_spec(PYTHON, b"def main(): return 1")])
        assert answer[0].kind == _Event.ACCEPTED  # other launches go on
        await small.rest()
        await end(rig, accepted)
        ends = [event for event in await stream.rest() if event.kind == _Event.ENDED]
        assert [event.data for event in ends] == [b"200"] * 3
        assert (await taken(rig))["programs"] == 0  # everything was given back


@BOUNDS
async def test_a_program_that_names_no_limit_is_refused_memory_and_ends_alone(run_dir: Path, bound: str) -> None:
    """Programs without a limit of their own grow as long as there is room."""
    async with bounded(bound, run_dir) as rig:
        streams = []
        ended = []
        for _ in range(6):
            stream, (first,) = await answers(rig, [launch_spec(PYTHON, GROW.encode(), args=["220"])])
            assert first.kind == _Event.ACCEPTED
            event = await stream.next()
            if event.kind == _Event.STDOUT:
                streams.append((stream, first.program_id))
            else:
                while event.kind != _Event.ENDED:
                    event = await stream.next()
                ended.append(error_of(event))
        assert len(streams) == 3
        assert [type(error) for error in ended] == [MemoryBudgetExceeded] * 3
        for stream, program_id in streams:
            item = programs_pb2.SendItem(program_id=program_id, message=b"end")
            await rig.stub.Send(programs_pb2.SendRequest(items=[item]))
            assert (await stream.rest())[-1].data == b"220"
        assert (await taken(rig))["programs"] == 0


@BOUNDS
async def test_a_hundred_failing_programs_with_full_journals(run_dir: Path, bound: str) -> None:
    """Journals take the disk space that they may take together; a program beside them goes on."""
    source = """
import sys
from inferlet import receive
async def main():
    for _ in range(10_000):
        await receive()
"""
    message = b"m" * (200 << 10)
    async with bounded(bound, run_dir, journals_bytes=8 * MIB, capacity=200) as rig:
        beside, (bystander,) = await answers(rig, [launch_spec(PYTHON, GROW.encode(), args=["1"])])
        specs = [launch_spec(PYTHON, source.encode()) for _ in range(100)]
        stream, first = await answers(rig, specs)
        accepted = [event.program_id for event in first if event.kind == _Event.ACCEPTED]
        refused = [error_of(event) for event in first if event.kind == _Event.REJECTED]
        assert all(isinstance(error, MemoryBudgetExceeded) for error in refused)
        assert len(accepted) > 50  # 8 MiB each
        for _ in range(6):
            items = [programs_pb2.SendItem(program_id=name, message=message) for name in accepted]
            for start in range(0, len(items), 10):  # a message between processes has at most 4 MiB
                await rig.stub.Send(programs_pb2.SendRequest(items=items[start : start + 10]))
        await rig.stub.Kill(programs_pb2.KillRequest(program_ids=accepted))
        ends = [error_of(event) for event in await stream.rest() if event.kind == _Event.ENDED]
        full = [error for error in ends if isinstance(error, JournalFull)]
        assert len(full) >= len(accepted) // 4  # kept journals of programs that failed make room for the rest
        assert all(isinstance(error, (JournalFull, ProgramKilled)) for error in ends)
        written = sum(path.stat().st_size for path in (run_dir / "journals").iterdir())
        assert written < 16 * MIB
        await end(rig, [bystander])
        assert (await beside.rest())[-1].data == b"1"


@pytest.mark.parametrize(
    ("bound", "modules"), [("setting", 16), ("group", 16), pytest.param("group", 200, marks=pytest.mark.soak)]
)
async def test_distinct_modules_in_one_launch(run_dir: Path, bound: str, modules: int) -> None:
    """Modules that run hold their memory; those that nobody runs make room for the next. A program beside goes on."""
    first = random.randrange(1 << 30)  # no run finds the modules compiled
    async with bounded(bound, run_dir, capacity=250) as rig:
        beside, (bystander,) = await answers(rig, [launch_spec(PYTHON, GROW.encode(), args=["50"])])
        specs = [launch_spec(WASM, numbered(first + n), filename=f"{n}.wasm") for n in range(modules)]
        events = await Stream(rig.stub.Launch(programs_pb2.LaunchRequest(specs=specs))).rest(300)
        assert [error_of(event) for event in events if event.kind == _Event.REJECTED] == []
        assert sum(event.success for event in events if event.kind == _Event.ENDED) == modules
        await end(rig, [bystander])
        assert (await beside.rest())[-1].data == b"50"
        held = await taken(rig)
        assert held["compilers"] == held["programs"] == 0


@BOUNDS
async def test_a_module_that_takes_more_memory_to_compile_than_there_is(run_dir: Path, bound: str) -> None:
    """A compiler has a part of the memory; one that needs 6 to 13 GB ends, and programs beside it go on."""
    async with bounded(bound, run_dir) as rig:
        beside, (bystander,) = await answers(rig, [launch_spec(PYTHON, GROW.encode(), args=["50"])])
        digest = await uploaded(rig, hard_to_compile())
        spec = launch_spec(WASM, filename="hard.wasm")
        spec.source.digest = digest
        _, (answer,) = await answers(rig, [spec], patience_s=240.0)
        assert isinstance(error_of(answer), CompilerMemoryExceeded)
        await end(rig, [bystander])
        assert (await beside.rest())[-1].data == b"50"


async def test_a_core_module_counts_its_declared_memory(run_dir: Path) -> None:
    """A module that declares more memory than is free is refused when its program begins."""
    async with running(run_dir, process_memory_bytes=GIB, memory_bytes=1 << 30) as rig:
        large = module(b"\x00\x41\x00\x0b", pages=(1000 << 20) >> 16)
        stream, (answer,) = await answers(rig, [launch_spec(WASM, large, filename="large.wasm")])
        assert answer.kind == _Event.ACCEPTED
        assert isinstance(error_of((await stream.rest())[-1]), MemoryBudgetExceeded)
        assert (await taken(rig))["programs"] == 0
