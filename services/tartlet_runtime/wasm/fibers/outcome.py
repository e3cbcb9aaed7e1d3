"""How a guest ended, from what wasmtime left: a result, a trap or an error."""

from __future__ import annotations

import ctypes
from dataclasses import replace

from tartlet_common.errors.registry import ProgramFailed, ProgramMemoryExceeded, TartletError
from tartlet_runtime.budget.growth import Growth
from tartlet_runtime.wasm.boundary import capi, values
from tartlet_runtime.wasm.compiling.aot import ModuleKind
from tartlet_runtime.wasm.fibers import traps
from tartlet_runtime.wasm.linking.linked_module import Instance
from tartlet_runtime.wasm.types import FiberOutcome, OutcomeKind

_MEMORY_SLACK_BYTES = 1 << 20


def read_outcome(
    guest: Instance, kind: ModuleKind, memory_limit_bytes: int, host_error: TartletError | None, last_words: bytes
) -> FiberOutcome:
    """Return the outcome of a guest whose call is over, and free what the call left.

    Args:
        guest: the guest.
        kind: which interface its module speaks.
        memory_limit_bytes: the most memory that it may have.
        host_error: why a host function failed, if one did.
        last_words: what it wrote to standard error last.
    """
    if host_error is not None:
        _drop_trap(guest)
        return FiberOutcome(OutcomeKind.TRAP, error=host_error)
    if guest.trap.value or guest.error.value:
        return FiberOutcome(OutcomeKind.TRAP, error=_classify(guest, kind, memory_limit_bytes, last_words))
    if kind is ModuleKind.CORE:
        status = guest.results.i64 & 0xFFFF_FFFF
        if status == 0:
            return FiberOutcome(OutcomeKind.OK)
        text = f"{kind} guest ended with status {status}"
        return FiberOutcome(OutcomeKind.ERROR, text, ProgramFailed(traceback=text))
    text = values.read_string(guest.results.b).decode("utf-8", "replace")
    is_ok = guest.results.a & 1
    capi.component_val_delete(ctypes.byref(guest.results))
    if is_ok:
        return FiberOutcome(OutcomeKind.OK, text)
    if traps.ran_out_of_memory(text):
        return FiberOutcome(OutcomeKind.ERROR, text, ProgramMemoryExceeded(limit_bytes=memory_limit_bytes))
    return FiberOutcome(OutcomeKind.ERROR, text, ProgramFailed(traceback=text))


def blame(outcome: FiberOutcome, growth: Growth | None, limit_bytes: int) -> FiberOutcome:
    """Name the bound that a guest without memory met: the process's if `growth` was refused, else its own limit."""
    if not isinstance(outcome.error, ProgramMemoryExceeded):
        return outcome
    if growth is not None and growth.refused:
        return replace(outcome, error=growth.refusal())
    return replace(outcome, error=ProgramMemoryExceeded(limit_bytes=limit_bytes))


def _classify(guest: Instance, kind: ModuleKind, limit: int, last_words: bytes) -> TartletError:
    full = False
    if guest.state.memory:
        full = capi.memory_data_size(guest.context, guest.state.memory) + _MEMORY_SLACK_BYTES > limit
    python = kind is ModuleKind.COMPONENT
    text = _drop_trap(guest)
    return traps.classify(text, python=python, last_words=last_words, memory_full=full, limit_bytes=limit)


def _drop_trap(guest: Instance) -> str:
    text = ""
    if guest.trap.value:
        _, text = capi.take_trap(guest.trap.value)
        guest.trap.value = None
    if guest.error.value:
        text = capi.take_error(guest.error.value)
        guest.error.value = None
    return text
