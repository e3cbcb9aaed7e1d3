"""The wasmtime store of one guest, with the limits that wasmtime enforces for us."""

from __future__ import annotations

import ctypes

from tartlet_runtime.wasm.boundary import capi
from tartlet_runtime.wasm.boundary.state import GuestState

_TABLE_ELEMENTS = 100_000
_INSTANCES, _TABLES, _MEMORIES = 200, 200, 20


def open_store(engine: int, state: GuestState, memory_bytes: int) -> int:
    """Make a store for the guest with this `state`, and write its context's address there.

    Args:
        engine: address of the engine.
        state: the guest's state. The store keeps its address.
        memory_bytes: the most linear memory that the guest may have.

    Returns:
        The store's address.
    """
    store: int = capi.store_new(engine, ctypes.addressof(state), None)
    state.context = capi.store_context(store)
    limit_store(store, state, memory_bytes)
    return store


def limit_store(store: int, state: GuestState, memory_bytes: int) -> None:
    """Set the slice of `state` and the memory that the guest may have, in bytes, on its store."""
    capi.set_epoch_deadline(state.context, state.slice_ticks)
    # The result is no error to take: wasmtime's documentation says to ignore it.
    capi.epoch_yield_and_update(state.context, state.slice_ticks)
    limit_memory(store, memory_bytes)


def limit_memory(store: int, memory_bytes: int) -> None:
    """Set the linear memory that the guest may have, in bytes, on its store."""
    capi.store_limiter(store, memory_bytes, _TABLE_ELEMENTS, _INSTANCES, _TABLES, _MEMORIES)
