"""The engine's flags: one place for the process that runs guests and the one that compiles them.

`DETERMINISTIC` and the tunables become part of an AOT file's name: wasmtime loads a file compiled without NaN
canonicalization all the same, so the name has to tell.
"""

from __future__ import annotations

import hashlib
import json
import platform
from importlib.metadata import version

import wasmtime

from tartlet_runtime.wasm.boundary import capi

FLAGS: dict[str, bool | int] = {
    "epoch_interruption": True,
    "wasm_component_model": True,
    "cranelift_nan_canonicalization": True,  # NaN bits differ between CPUs otherwise
    "wasm_relaxed_simd": False,  # its results may differ between CPUs
    "wasm_threads": False,
    "memory_may_move": False,  # the base address is read once per wait
    "max_wasm_stack": 1 << 20,
}
ASYNC_STACK_BYTES = 2 << 20  # must exceed max_wasm_stack by what host calls need

_TARGETS = {
    "x86_64": "x86_64-unknown-linux-gnu",
    "AMD64": "x86_64-unknown-linux-gnu",
    "aarch64": "aarch64-unknown-linux-gnu",
    "arm64": "aarch64-unknown-linux-gnu",
}


def base_config() -> wasmtime.Config:
    """Return a `Config` with our flags, native target, no allocator chosen."""
    config = wasmtime.Config()
    for name, value in FLAGS.items():
        setattr(config, name, value)
    capi.async_stack_size_set(capi.address(config.ptr()), ASYNC_STACK_BYTES)
    return config


def compile_config() -> wasmtime.Config:
    """Return the same for compiling ahead of time: naming the target turns off what only this CPU has."""
    config = base_config()
    target = _TARGETS.get(platform.machine())
    if target is not None:
        config.target = target
    return config


def wasmtime_version() -> str:
    """Version of the installed wasmtime."""
    return version("wasmtime")


def flags_digest() -> str:
    """Eight hex digits that change when compiled code would."""
    text = json.dumps([FLAGS, _TARGETS.get(platform.machine(), platform.machine())], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
