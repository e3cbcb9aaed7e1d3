"""What every linked module offers, and what it needs of the host and of the guest that it is instantiated for."""

from __future__ import annotations

from ctypes import c_void_p
from typing import Any, Protocol

import wasmtime

from tartlet_common.errors.registry import CorruptModule
from tartlet_runtime.wasm.boundary import capi
from tartlet_runtime.wasm.boundary.shim import Boundary
from tartlet_runtime.wasm.boundary.state import GuestState
from tartlet_runtime.wasm.compiling.aot import ModuleKind
from tartlet_runtime.wasm.linking import wasi


class Instance(wasi.WasiGuest, Protocol):
    """One guest, as its module and the host functions see it.

    Attributes:
        state: what the guest shares with the boundary.
        trap, error: where wasmtime puts the reason why a call failed.
        instance: wasmtime's handle of the instance.
        results: where wasmtime puts what a call returns.
        call_buffers: what a running call points to; kept until its future is deleted.
        arguments: source, filename, arguments and code of a component's program, as UTF-8.
    """

    state: GuestState
    trap: c_void_p
    error: c_void_p
    instance: Any
    results: Any
    call_buffers: tuple[Any, ...]
    arguments: tuple[bytes, ...]

    def take_submission(self, data: bytes) -> None:
        """Keep what a component submitted, in order with its output."""

    def begin_wait(self, max_records: int, timeout_us: int, result: int) -> None:
        """Suspend a component in `wait`; `result` is the address of its answer."""

    def host_call_failed(self, error: Exception) -> int:
        """Remember why a host function failed; a wasmtime_error_t that ends the guest."""


class ModuleHost(Protocol):
    """What linked modules need of the host."""

    engine: wasmtime.Engine
    boundary: Boundary

    def guest_of(self, context: int) -> Instance:
        """Return the guest whose store has this context."""


class LinkedModule:
    """A linked module. Made by `WasmHost.load`; keep it as long as guests of it live (they hold it too)."""

    kind: ModuleKind
    digest: str
    has_prepare = False
    takes_text = True
    """Its call is given what the launch brought; else the call can be made ahead too."""
    can_be_spare = True
    """Instances can be made ahead of a launch: that runs no code which a program's own limits should hold."""
    shared_bytes = 0
    """Of an instance's memory at its start, what is mapped from a file and shared until it is written."""
    initial_memory_bytes = 0
    """What an instance has from its start, where that is declared."""

    def begin_instance(self, guest: Instance) -> int:
        """Return a future that instantiates the module in the instance's store."""
        raise NotImplementedError

    def begin_prepare(self, guest: Instance) -> int | None:
        """Return a future that does what does not depend on the program; None if there is nothing to do."""
        return None

    def begin_call(self, guest: Instance) -> int:
        """Return a future that runs the program."""
        raise NotImplementedError


def check(error: int | None) -> None:
    """Raise what wasmtime answered.

    Raises:
        CorruptModule: `error` is a wasmtime_error_t, which is freed.
    """
    if error:
        raise CorruptModule(detail=capi.take_error(error))
