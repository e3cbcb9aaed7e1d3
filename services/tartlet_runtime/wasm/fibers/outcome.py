"""How a guest ended, from what wasmtime left: a result, a trap or an error."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from tartlet_common.errors.registry import ProgramFailed, ProgramMemoryExceeded, TartletError
from tartlet_runtime.wasm.boundary import capi, values
from tartlet_runtime.wasm.compiling.aot import ModuleKind
from tartlet_runtime.wasm.fibers import traps
from tartlet_runtime.wasm.types import Outcome, OutcomeKind

if TYPE_CHECKING:
    from tartlet_runtime.wasm.fibers.fiber import Guest

_MEMORY_SLACK_BYTES = 1 << 20


def read_outcome(guest: Guest, host_error: TartletError | None, last_words: bytes) -> Outcome:
    """The outcome of a guest whose call is over; what it left is freed.

    Args:
        guest: it.
        host_error: why a host function failed, if one did.
        last_words: what it wrote to standard error last.
    """
    if host_error is not None:
        _drop_trap(guest)
        return Outcome(OutcomeKind.TRAP, error=host_error)
    if guest.trap.value or guest.error.value:
        return Outcome(OutcomeKind.TRAP, error=_classify(guest, last_words))
    if guest.program.kind is ModuleKind.CORE:
        status = guest.results.i64 & 0xFFFF_FFFF
        if status == 0:
            return Outcome(OutcomeKind.OK)
        text = f"{guest.program.kind} guest ended with status {status}"
        return Outcome(OutcomeKind.ERROR, text, ProgramFailed(traceback=text))
    text = values.read_string(guest.results.b).decode("utf-8", "replace")
    is_ok = guest.results.a & 1
    capi.component_val_delete(ctypes.byref(guest.results))
    if is_ok:
        return Outcome(OutcomeKind.OK, text)
    if traps.ran_out_of_memory(text):
        return Outcome(OutcomeKind.ERROR, text, ProgramMemoryExceeded(limit_bytes=guest.limits.memory_bytes))
    return Outcome(OutcomeKind.ERROR, text, ProgramFailed(traceback=text))


def _classify(guest: Guest, last_words: bytes) -> TartletError:
    full, limit = False, guest.limits.memory_bytes
    if guest.state.memory:
        full = capi.memory_data_size(guest.context, guest.state.memory) + _MEMORY_SLACK_BYTES > limit
    python = guest.program.kind is ModuleKind.COMPONENT
    text = _drop_trap(guest)
    return traps.classify(text, python=python, last_words=last_words, memory_full=full, limit_bytes=limit)


def _drop_trap(guest: Guest) -> str:
    text = ""
    if guest.trap.value:
        _, text = capi.take_trap(guest.trap.value)
        guest.trap.value = None
    if guest.error.value:
        text = capi.take_error(guest.error.value)
        guest.error.value = None
    return text
