"""Hosts WebAssembly guests: about 1000 fibers on one thread, through the async C API of the wasmtime wheel.

What belongs here is the engine, its boundary with guests, and what guests see of time and chance. Nothing here ever
knows programs, clients or control: `tartlet_runtime.guests` connects them. `WasmHost` is the way in.

Four other ways were tried and rejected: the classes of the wheel (no fibers; 2 to 24 us a host call), one OS thread
for each guest (150 to 310 ms to launch 896, and the GIL), stock WASI (a replay can't repeat its clock and entropy), and
`list<u8>` in components (converted byte by byte).
"""

from __future__ import annotations

from tartlet_runtime.wasm.compiling.aot import AotCache, Compiled, ModuleKind, default_cache_dir
from tartlet_runtime.wasm.determinism import GuestClock, GuestRandom, SystemClock, SystemRandom
from tartlet_runtime.wasm.fibers.fiber import Fiber
from tartlet_runtime.wasm.host import HostConfig, WasmHost
from tartlet_runtime.wasm.linking.linked_module import LinkedModule
from tartlet_runtime.wasm.types import (
    FOREVER_US,
    STDERR,
    STDOUT,
    Delivery,
    FiberOutcome,
    GuestHooks,
    GuestLimits,
    OutcomeKind,
    Phase,
    QuietHooks,
    WaitRequest,
)

__all__ = [
    "FOREVER_US",
    "STDERR",
    "STDOUT",
    "AotCache",
    "Compiled",
    "Delivery",
    "Fiber",
    "FiberOutcome",
    "GuestClock",
    "GuestHooks",
    "GuestLimits",
    "GuestRandom",
    "HostConfig",
    "LinkedModule",
    "ModuleKind",
    "OutcomeKind",
    "Phase",
    "QuietHooks",
    "SystemClock",
    "SystemRandom",
    "WaitRequest",
    "WasmHost",
    "default_cache_dir",
]
