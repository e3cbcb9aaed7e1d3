"""A decode step costs control the same at 128 and at 32,768 tokens of context: calls, memory, and bytes of frames."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tartlet_common.abi import Op
from tartlet_common.engine.step_codec import step_to_proto
from tartlet_worker.fake import FakeOptions
from tests.control.harness import Guest, Host

SIZE = 16
OPTIONS = FakeOptions(page_size=SIZE, num_pages=4096, num_embeds=64, num_slots=64)


@dataclass(frozen=True)
class Cost:
    """What one decode step costs control."""

    taking: int  # calls of Python and C functions
    planning: int
    settling: int
    command_bytes: int
    frame_bytes: int


def peak_bytes(action: Callable[[], object]) -> int:
    """Return how much more memory than before is held at most while an action runs: a copied list shows here."""
    gc.disable()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        action()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
        gc.enable()


def calls(action: Callable[[], object]) -> int:
    """Return how many functions, of Python and of C, an action calls, the garbage collector's callbacks left out."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    gc.disable()
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def with_context(length: int) -> tuple[Host, Guest]:
    """Return a program with a page table for a context of a length."""
    host = Host(OPTIONS)
    guest = host.start()
    guest.alloc(Op.ALLOC_EMB, [0])
    guest.alloc(Op.ALLOC_SLOT, [0])
    guest.table(0, new=length // SIZE + 1)
    guest.embed([0], [65], [0])
    guest.forward([], [0], [], [0])
    guest.sample(0, 0)
    host.run()
    return host, guest


def decode_step(length: int) -> Cost:
    """Measure the step that computes the token at position `length`, after one that made what is made once."""
    host, guest = with_context(length)
    costs = []
    for at in (length, length + 1):
        guest.embed([0], [0], [at], slots=True)
        guest.forward_table(0, at, [0], [0])
        guest.sample(0, 0)
        command_bytes = len(host._payload)
        taking = calls(host.flush)
        planning = calls(host.core.pump)
        [step] = host.engine.outgoing
        host.engine.outgoing.clear()
        result = host.engines[0][1].step(step)
        settling = calls(lambda result=result: host.core.on_result(host.engine, result))  # type: ignore[misc]
        frame = step_to_proto(step)
        frame.number = 0
        costs.append(Cost(taking, planning, settling, command_bytes, frame.ByteSize()))
        host.run()
    return costs[1]


def test_a_decode_step_costs_the_same_at_any_length_of_the_context() -> None:
    short, long = decode_step(128), decode_step(32_768)
    assert short == long
    assert short.frame_bytes < 400


def decode_memory(length: int) -> list[int]:
    """Return the most memory that control takes for a decode step: to take the commands, to plan and to settle."""
    host, guest = with_context(length)
    peaks: list[int] = []
    for at in (length, length + 1):
        guest.embed([0], [0], [at], slots=True)
        guest.forward_table(0, at, [0], [0])
        guest.sample(0, 0)
        peaks = [peak_bytes(host.flush), peak_bytes(host.core.pump)]
        [step] = host.engine.outgoing
        host.engine.outgoing.clear()
        result = host.engines[0][1].step(step)
        peaks.append(peak_bytes(lambda result=result: host.core.on_result(host.engine, result)))  # type: ignore[misc]
        host.run()
    return peaks


def test_a_decode_step_takes_as_much_memory_at_any_length_of_the_context() -> None:
    short, long = decode_memory(128), decode_memory(32_768)
    copy = 8 * 32_768 // SIZE  # bytes of one copy of the list of rows
    assert all(b - a < copy // 4 for a, b in zip(short, long, strict=True)), (short, long)


def test_a_fork_of_a_long_context_takes_few_bytes() -> None:
    host = Host(OPTIONS)
    guest = host.start()
    guest.put(Op.CREATE_QUEUE, queue=1, a=0)
    guest.alloc(Op.ALLOC_EMB, [0])
    guest.table(0, new=2048)
    guest.embed([0], [65], [0])
    host.run()
    host.steps.clear()
    guest.table(1, 0, keep=2048 * SIZE, new=1, queue=1)
    guest.embed([0], [65], [0])
    host.run()
    [step] = host.steps
    assert len(step.tables.rows) == 1
    assert step_to_proto(step).ByteSize() < 300
