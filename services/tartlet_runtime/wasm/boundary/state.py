"""The boundary between guests and Python: polling, submissions, deliveries.

`CtypesBoundary` works anywhere; `ShimBoundary` does the same in C (shim.c) and is about thirty times faster. Here is
what they share: one `GuestState` per guest. What a component calls is in Python (program.py), but for `submit` and
`wait` where the boundary has addresses for them.

The core-Wasm interface (import module `tartlet`):

    submit(ptr: i32, len: i32)
        Hands over a batch of commands. Traps if it points outside the memory or passes the limit.
    wait(ptr: i32, capacity: i32, max: i32, timeout_us: i64) -> i32
        Suspends until a delivery of at most `max` records is there or `timeout_us` has passed (-1: no limit), and
        writes it to `ptr`. Answers its length; or minus its length if `capacity` is too small: then nothing is
        written, and the next wait answers with the same delivery at once.
    clock_ns() -> i64
    random(ptr: i32, len: i32)
        At most 1 MiB at once.
"""

from __future__ import annotations

from ctypes import Structure, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from tartlet_runtime.wasm.boundary import capi

LENGTH_BYTES = 4
"""Of the u32 before each of a core guest's submissions."""


class GuestState(Structure):
    """What one guest shares with the boundary; mirrors guest_t in shim.c."""

    _fields_ = (
        ("ready", c_uint32),
        ("waiting", c_uint32),
        ("id", c_uint64),
        ("future", c_void_p),
        ("context", c_void_p),
        ("engine", c_void_p),
        ("memory", c_void_p),
        ("out", c_void_p),
        ("out_bytes", c_uint64),
        ("out_capacity", c_uint64),
        ("submit_limit", c_uint64),
        ("soft_limit", c_uint64),
        ("wait_pointer", c_uint64),
        ("wait_capacity", c_uint64),
        ("wait_max", c_uint64),
        ("wait_timeout_us", c_uint64),
        ("wait_result", c_void_p),
        ("kept", c_void_p),
        ("kept_bytes", c_uint64),
        ("slice_ticks", c_uint64),
        ("cpu_ns", c_uint64),
        ("done", c_uint32),
        ("polled", c_uint32),
    )


@dataclass(frozen=True, slots=True)
class Remains:
    """What an ended guest leaves. `buffers` holds what its future points to: they must outlive the future."""

    future: int | None
    store: int
    state: GuestState
    buffers: tuple[Any, ...]


def trap(message: str) -> int:
    """Return a new wasm_trap_t for a host call to answer with."""
    text = message.encode("utf-8", "replace")
    pointer: int = capi.trap_new(text, len(text))
    return pointer


def end_slice(state: GuestState) -> None:
    """Make the guest that is being polled yield at its next loop or call.

    Compiled loops keep the old deadline in a register until the epoch passes it, so the epoch has to move too.
    """
    capi.set_epoch_deadline(state.context, 0)
    for _ in range(state.slice_ticks):
        capi.increment_epoch(state.engine)
