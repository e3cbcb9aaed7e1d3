"""The boundary in C: calls into the compiled shim.c."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from ctypes import c_char_p, c_int, c_size_t, c_uint8, c_uint64, c_void_p
from typing import Any

from tartlet_runtime.wasm.boundary import capi, values
from tartlet_runtime.wasm.boundary.state import LENGTH_BYTES, GuestState, Remains

_SHIM_VERSION = 7
_TRIM_BYTES = 1 << 16
_MAX_HELPERS = 3
"""Threads beside the loop's: from there on it is the loop's own share of a step that takes the time."""


class ShimBoundary:
    """The boundary in C."""

    name = "shim"

    def __init__(self, library_path: str) -> None:
        """Load the compiled shim.

        Raises:
            OSError: it can't be loaded, or is not of this version.
        """
        free, held = ctypes.CDLL(library_path), ctypes.PyDLL(library_path)
        if held.shim_version() != _SHIM_VERSION:
            raise OSError(f"{library_path} has another version")
        held.shim_guest_bytes.restype = c_size_t
        if held.shim_guest_bytes() != ctypes.sizeof(GuestState):
            raise OSError(f"{library_path} has another layout")
        if held.shim_init(capi.LIBRARY_PATH.encode()) != 0:
            raise OSError(f"{library_path} does not find wasmtime's functions")
        self._poll_one = _prototype(free, "shim_poll_one", None, c_void_p, c_void_p)
        self._poll_many = _prototype(free, "shim_poll_many", None, c_void_p, c_void_p, c_size_t)
        self._poll_begin = _prototype(held, "shim_poll_begin", None, c_void_p, c_void_p, c_void_p)
        self._poll_end = _prototype(free, "shim_poll_end", None, c_void_p, c_void_p)
        self._helpers_start = _prototype(held, "shim_helpers_start", c_void_p, c_size_t)
        self._helpers_stop = _prototype(free, "shim_helpers_stop", None, c_void_p)
        self._free_many = _prototype(free, "shim_free_many", None, c_void_p, c_void_p, c_void_p, c_size_t)
        self._deliver = _prototype(held, "shim_deliver", c_int, c_void_p, c_char_p, c_uint64)
        self._deliver_string = _prototype(held, "shim_deliver_string", None, c_void_p, c_char_p, c_uint64, c_uint8)
        self._release = _prototype(held, "shim_release", None, c_void_p)
        self._trim = _prototype(held, "shim_trim", None, c_void_p)
        self._ticker_start = _prototype(held, "shim_ticker_start", c_void_p, c_void_p, c_uint64)
        self._ticker_stop = _prototype(free, "shim_ticker_stop", None, c_void_p)
        self.submit_address: int = capi.address(held.shim_submit)
        self.wait_address: int = capi.address(held.shim_wait)
        self.ready_address: int = capi.address(held.shim_ready)
        self.submit_string_address: int | None = capi.address(held.shim_submit_string)
        self.wait_string_address: int | None = capi.address(held.shim_wait_string)
        self._ticker: int | None = None
        self._helpers: int | None = None

    def add(self, state: GuestState) -> None:
        """Get to know a guest (nothing to do)."""

    def release(self, state: GuestState) -> None:
        """Free a guest's buffers."""
        self._release(ctypes.addressof(state))

    def free(self, remains: Sequence[Remains]) -> None:
        """Free ended guests, on any thread: one C call for all of them, without the interpreter's lock."""
        pointers = c_void_p * len(remains)
        futures = pointers(*(item.future for item in remains))
        stores = pointers(*(item.store for item in remains))
        states = pointers(*(ctypes.addressof(item.state) for item in remains))
        self._free_many(futures, stores, states, len(remains))

    def poll(self, states: Sequence[GuestState]) -> None:
        """Run each guest until it waits, ends (`done`) or its slice is over: one C call for all of them."""
        count = len(states)
        self._poll_many(self._ticker, (c_void_p * count)(*map(ctypes.addressof, states)), count)

    def poll_one(self, state: GuestState) -> None:
        """`poll` of one."""
        self._poll_one(self._ticker, ctypes.addressof(state))

    def begin_poll(self, state: GuestState) -> None:
        """Do what `poll_one` does on another thread; the state is not to be touched until `end_poll`."""
        if self._helpers is None and _cores() > 1:
            self._helpers = self._helpers_start(min(_MAX_HELPERS, _cores() - 1))
        if self._helpers is None:
            self.poll_one(state)
            return
        self._poll_begin(self._ticker, self._helpers, ctypes.addressof(state))

    def end_poll(self, state: GuestState) -> None:
        """Wait until it is done, and do meanwhile what others were to do."""
        if self._helpers is not None:
            self._poll_end(self._helpers, ctypes.addressof(state))

    def take_submissions(self, state: GuestState) -> list[bytes]:
        """Return what a guest submitted since the last call, in order."""
        size = state.out_bytes
        if not size:
            return []
        data = ctypes.string_at(state.out, size)
        state.out_bytes = 0
        if state.out_capacity > _TRIM_BYTES:
            self._trim(ctypes.addressof(state))
        taken, at = [], 0
        while at < size:
            end = at + LENGTH_BYTES + int.from_bytes(data[at : at + LENGTH_BYTES], "little")
            taken.append(data[at + LENGTH_BYTES : end])
            at = end
        return taken

    def deliver(self, state: GuestState, data: bytes) -> None:
        """Answer the wait that a core guest is suspended in."""
        if self._deliver(ctypes.addressof(state), data, len(data)) != 0:
            raise MemoryError

    def deliver_string(self, state: GuestState, data: bytes) -> None:
        """Answer the wait that a component is suspended in."""
        self._deliver_string(ctypes.addressof(state), data, len(data), values.STRING)

    def start_ticker(self, engine: int, tick_us: int) -> None:
        """Move the engine's epoch on every `tick_us` while guests run."""
        assert self._ticker is None
        self._ticker = self._ticker_start(engine, tick_us)
        if self._ticker is None:
            raise OSError("can't start the ticker's thread")

    def stop_ticker(self) -> None:
        """End the ticker, and the helpers."""
        if self._helpers is not None:
            self._helpers_stop(self._helpers)
            self._helpers = None
        if self._ticker is not None:
            self._ticker_stop(self._ticker)
            self._ticker = None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _prototype(library: ctypes.CDLL, name: str, result: Any, *args: Any) -> Any:
    function = getattr(library, name)
    function.restype, function.argtypes = result, list(args)
    return function
