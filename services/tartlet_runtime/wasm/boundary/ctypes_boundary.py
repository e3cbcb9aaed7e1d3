"""The boundary in Python, for machines without a compiler; shim.c does the same, and both pass the same tests."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Sequence
from ctypes import c_uint32, c_void_p

from tartlet_runtime.wasm.boundary import capi, values
from tartlet_runtime.wasm.boundary.state import LENGTH_BYTES, GuestState, Remains, end_slice, trap

_IDLE_TICKS = 64
_MASK32 = 0xFFFF_FFFF
_MASK64 = 0xFFFF_FFFF_FFFF_FFFF


class CtypesBoundary:
    """The boundary in Python."""

    name = "ctypes"
    submit_string_address: int | None = None
    wait_string_address: int | None = None

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

    def poll_one(self, state: GuestState) -> None:
        """`poll` of one."""
        self.poll((state,))

    def begin_poll(self, state: GuestState) -> None:
        """`poll_one`: callbacks in Python leave other threads nothing to gain."""
        self.poll_one(state)

    def end_poll(self, state: GuestState) -> None:
        """No-op: nothing was begun."""

    def take_submissions(self, state: GuestState) -> list[bytes]:
        """Return what a core guest submitted since the last call, in order."""
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

    def deliver_string(self, state: GuestState, data: bytes) -> None:
        """Answer the wait that a component is suspended in."""
        values.write_string(state.wait_result, data.decode("latin-1").encode())
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
            state.out_bytes += LENGTH_BYTES + length
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
