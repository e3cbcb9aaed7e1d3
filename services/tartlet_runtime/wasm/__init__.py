"""Hosting WebAssembly guests: ~1000 fibers on one thread, through the async C API of the wasmtime wheel.

What was tried and rejected: the friendly `wasmtime` classes (no fibers; 2 to 24 us a host call), one OS thread a guest
(150-310 ms to launch 896, the GIL), stock WASI (its clock and entropy can't be replayed), `list<u8>` in components
(converted byte by byte). See docs/adr and `WasmHost` for the way in.
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
