"""The boundary between guests and Python: polling, submissions, deliveries.

`CtypesBoundary` works anywhere; `ShimBoundary` does the same in C (shim.c) and is about thirty times faster for core
guests. Both work on one `GuestState` per guest. Component guests come through Python callbacks in either case; they
share polling and the continuation, which only looks at `GuestState.ready`.

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

import ctypes
import threading
import time
from collections.abc import Sequence
from ctypes import Structure, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from tartlet_runtime.wasm import capi

_SHIM_VERSION = 3
_U32 = 4
_TRIM_BYTES = 1 << 16
_IDLE_TICKS = 64
_MASK32 = 0xFFFF_FFFF
_MASK64 = 0xFFFF_FFFF_FFFF_FFFF


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
        ("reserved", c_uint32),
    )


@dataclass(frozen=True, slots=True)
class Remains:
    """What an ended guest leaves. `kept` holds what its future points to: it must outlive the future."""

    future: int | None
    store: int
    state: GuestState
    kept: tuple[Any, ...]


def trap(message: str) -> int:
    """A new wasm_trap_t for a host call to answer with."""
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


class CtypesBoundary:
    """The boundary in Python."""

    name = "ctypes"

    def __init__(self) -> None:
        """Make the callbacks."""
        self._current = 0
        self._states: dict[int, GuestState] = {}
        self._out: dict[int, list[bytes]] = {}
        self._kept: dict[int, bytes] = {}
        self._submit_callback = capi.SYNC_CALLBACK(self._submit)
        self._wait_callback = capi.ASYNC_CALLBACK(self._wait)
        self._ready_callback = capi.CONTINUATION_CALLBACK(_ready)
        self._at_once_callback = capi.CONTINUATION_CALLBACK(_at_once)
        self._ticker: _PythonTicker | None = None

    # ---- addresses that linkers and continuations need ----

    @property
    def submit_address(self) -> int:
        """Address of the core guest's `submit`."""
        return capi.address(self._submit_callback)

    @property
    def wait_address(self) -> int:
        """Address of the core guest's `wait`."""
        return capi.address(self._wait_callback)

    @property
    def ready_address(self) -> int:
        """Address of a continuation callback that looks at `GuestState.ready`; its env is the state's address."""
        return capi.address(self._ready_callback)

    @property
    def current(self) -> int:
        """Id of the guest that is being polled."""
        return self._current

    # ---- guests ----

    def add(self, state: GuestState) -> None:
        """Get to know a guest."""
        self._states[state.id] = state
        self._out[state.id] = []

    def release(self, state: GuestState) -> None:
        """Forget a guest."""
        self._states.pop(state.id, None)
        self._out.pop(state.id, None)
        self._kept.pop(state.id, None)

    def free(self, remains: Sequence[Remains]) -> None:
        """Free ended guests, on any thread: the future first, then the store."""
        for item in remains:
            if item.future is not None:
                capi.future_delete(item.future)
            capi.store_delete(item.store)
            self.release(item.state)

    def poll(self, states: Sequence[GuestState]) -> None:
        """Run each guest until it waits, ends (`done`) or its slice is over."""
        assert self._ticker is not None
        self._ticker.busy()
        before = time.thread_time_ns()
        for state in states:
            if state.done:  # listed twice: polling an ended future would abort the process
                continue
            self._current = state.id
            capi.set_epoch_deadline(state.context, state.slice_ticks)
            state.done = capi.future_poll(state.future)
            after = time.thread_time_ns()
            state.cpu_ns += after - before
            before = after

    def take_submissions(self, state: GuestState) -> list[bytes]:
        """What a core guest submitted since the last call, in order."""
        taken, self._out[state.id] = self._out[state.id], []
        state.out_bytes = 0
        return taken

    def deliver(self, state: GuestState, data: bytes) -> None:
        """Answer the wait that a core guest is suspended in."""
        answer = self._hand_over(state, data)
        if answer < 0:
            self._kept[state.id] = data
        capi.Val.from_address(state.wait_result).i64 = answer & _MASK32
        state.waiting = 0
        state.ready = 1

    # ---- ticker ----

    def start_ticker(self, engine: int, tick_us: int) -> None:
        """Move the engine's epoch on every `tick_us` while guests run."""
        self._ticker = _PythonTicker(engine, tick_us)

    def stop_ticker(self) -> None:
        """End the ticker."""
        if self._ticker is not None:
            self._ticker.stop()
            self._ticker = None

    # ---- callbacks: whatever goes wrong in them becomes a trap ----

    def _submit(self, env: int, caller: int, args: int, count: int) -> int | None:
        try:
            state = self._states[self._current]
            words = (c_uint32 * 8).from_address(args)
            pointer, length = words[0], words[4]
            if length > state.submit_limit:
                return trap("tartlet: a submission over the limit")
            base = _inside(state, pointer, length)
            if base is None:
                return trap("tartlet: submit() points outside the memory")
            self._out[state.id].append(ctypes.string_at(base + pointer, length))
            state.out_bytes += _U32 + length
            if state.out_bytes > state.soft_limit:
                if state.out_bytes > 4 * state.soft_limit + state.submit_limit:
                    return trap("tartlet: submissions flood the host")
                end_slice(state)
        except Exception as e:  # noqa: BLE001 - must not leave a ctypes callback
            return trap(f"tartlet: {e!r}")
        return None

    def _wait(
        self,
        env: int,
        caller: int,
        args: int,
        count: int,
        results: int,
        nresults: int,
        trap_out: int,
        continuation_out: int,
    ) -> None:
        continuation = capi.Continuation.from_address(continuation_out)
        continuation.callback = capi.address(self._at_once_callback)
        continuation.env = continuation.finalizer = None
        result = capi.Val.from_address(results)
        result.kind, result.i64 = capi.KIND_I32, 0
        try:
            state = self._states[self._current]
            values = (capi.Val * 4).from_address(args)
            pointer, capacity, most = (values[i].i64 & _MASK32 for i in range(3))
            if _inside(state, pointer, capacity) is None:
                c_void_p.from_address(trap_out).value = trap("tartlet: wait() points outside the memory")
                return
            state.wait_pointer, state.wait_capacity = pointer, capacity
            kept = self._kept.get(state.id)
            if kept is not None:
                answer = self._hand_over(state, kept)
                result.i64 = answer & _MASK32
                if answer >= 0:
                    del self._kept[state.id]
                return
            state.wait_max, state.wait_timeout_us = most, values[3].i64 & _MASK64
            state.wait_result = results
            state.waiting, state.ready = 1, 0
            continuation.callback = self.ready_address
            continuation.env = ctypes.addressof(state)
        except Exception as e:  # noqa: BLE001 - must not leave a ctypes callback
            c_void_p.from_address(trap_out).value = trap(f"tartlet: {e!r}")

    @staticmethod
    def _hand_over(state: GuestState, data: bytes) -> int:
        if len(data) > state.wait_capacity:
            return -len(data)
        if data:
            base = capi.memory_data(state.context, state.memory)
            ctypes.memmove(base + state.wait_pointer, data, len(data))
        return len(data)


class ShimBoundary:
    """The boundary in C. The current guest is a global of the library: use it from one thread."""

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
        self._current = c_uint64.in_dll(held, "shim_current")
        self._poll_many = _prototype(free, "shim_poll_many", None, c_void_p, c_void_p, c_size_t)
        self._free_many = _prototype(free, "shim_free_many", None, c_void_p, c_void_p, c_void_p, c_size_t)
        self._deliver = _prototype(held, "shim_deliver", c_int, c_void_p, c_char_p, c_uint64)
        self._release = _prototype(held, "shim_release", None, c_void_p)
        self._trim = _prototype(held, "shim_trim", None, c_void_p)
        self._ticker_start = _prototype(held, "shim_ticker_start", c_void_p, c_void_p, c_uint64)
        self._ticker_stop = _prototype(free, "shim_ticker_stop", None, c_void_p)
        self.submit_address: int = capi.address(held.shim_submit)
        self.wait_address: int = capi.address(held.shim_wait)
        self.ready_address: int = capi.address(held.shim_ready)
        self._ticker: int | None = None

    @property
    def current(self) -> int:
        """Id of the guest that is being polled."""
        return self._current.value

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

    def take_submissions(self, state: GuestState) -> list[bytes]:
        """What a core guest submitted since the last call, in order."""
        size = state.out_bytes
        if not size:
            return []
        data = ctypes.string_at(state.out, size)
        state.out_bytes = 0
        if state.out_capacity > _TRIM_BYTES:
            self._trim(ctypes.addressof(state))
        taken, at = [], 0
        while at < size:
            end = at + _U32 + int.from_bytes(data[at : at + _U32], "little")
            taken.append(data[at + _U32 : end])
            at = end
        return taken

    def deliver(self, state: GuestState, data: bytes) -> None:
        """Answer the wait that a core guest is suspended in."""
        if self._deliver(ctypes.addressof(state), data, len(data)) != 0:
            raise MemoryError

    def start_ticker(self, engine: int, tick_us: int) -> None:
        """Move the engine's epoch on every `tick_us` while guests run."""
        assert self._ticker is None
        self._ticker = self._ticker_start(engine, tick_us)
        if self._ticker is None:
            raise OSError("can't start the ticker's thread")

    def stop_ticker(self) -> None:
        """End the ticker."""
        if self._ticker is not None:
            self._ticker_stop(self._ticker)
            self._ticker = None


Boundary = CtypesBoundary | ShimBoundary


class _PythonTicker:
    """A thread that moves the epoch on while guests run, and sleeps otherwise."""

    def __init__(self, engine: int, tick_us: int) -> None:
        self._engine = engine
        self._tick_s = tick_us / 1e6
        self._wake = threading.Event()
        self._active = True
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="wasm-ticker", daemon=True)
        self._thread.start()

    def busy(self) -> None:
        self._active = True
        if not self._wake.is_set():
            self._wake.set()

    def stop(self) -> None:
        self._stop = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        quiet = 0
        while not self._stop:
            time.sleep(self._tick_s)
            capi.increment_epoch(self._engine)
            if self._active:
                self._active, quiet = False, 0
                continue
            quiet += 1
            if quiet >= _IDLE_TICKS:
                self._wake.clear()
                if not self._active:
                    self._wake.wait()
                quiet = 0


def _inside(state: GuestState, pointer: int, length: int) -> int | None:
    if not state.memory or pointer + length > capi.memory_data_size(state.context, state.memory):
        return None
    base: int = capi.memory_data(state.context, state.memory)
    return base


def _ready(env: int) -> bool:
    flag = c_uint32.from_address(env)
    if not flag.value:
        return False
    flag.value = 0
    return True


def _at_once(env: int) -> bool:
    return True


def _prototype(library: ctypes.CDLL, name: str, result: Any, *args: Any) -> Any:
    function = getattr(library, name)
    function.restype, function.argtypes = result, list(args)
    return function
