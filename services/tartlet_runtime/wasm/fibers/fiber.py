"""One running program: a store, a fiber, and where it stands.

A guest is driven from one thread: `start`, then `step` while its phase is READY; when it is WAITING `deliver`, when it
is SLEEPING `wake`, and step again. `kill` works at any time. `WasmHost.step_many` steps many at once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from ctypes import c_void_p
from enum import IntEnum
from typing import Any, Protocol

from tartlet_common.errors.registry import (
    InternalError,
    ProgramCpuExceeded,
    ProgramKilled,
    ProgramTrapped,
    TartletError,
)
from tartlet_runtime.budget.growth import Growth
from tartlet_runtime.wasm.boundary import capi
from tartlet_runtime.wasm.boundary.shim import Boundary
from tartlet_runtime.wasm.boundary.state import GuestState, Remains
from tartlet_runtime.wasm.compiling.aot import ModuleKind
from tartlet_runtime.wasm.determinism import Clock, GuestClock, GuestRandom, Random
from tartlet_runtime.wasm.fibers import traps
from tartlet_runtime.wasm.fibers.events import GuestEvents
from tartlet_runtime.wasm.fibers.outcome import blame, read_outcome
from tartlet_runtime.wasm.fibers.store import limit_memory, limit_store, open_store
from tartlet_runtime.wasm.linking.linked_module import LinkedModule
from tartlet_runtime.wasm.linking.timers import Timers
from tartlet_runtime.wasm.types import (
    Delivery,
    FiberOutcome,
    GuestHooks,
    GuestLimits,
    OutcomeKind,
    Phase,
    WaitRequest,
)


class _Stage(IntEnum):
    INSTANTIATE = 0
    PREPARE = 1
    RUN = 2


class FiberHost(Protocol):
    """What a fiber needs of the host that made it."""

    engine_address: int
    boundary: Boundary
    soft_submit_bytes: int
    """Bytes that a guest may have submitted before its slice is cut short."""

    def check_open(self) -> None:
        """Raise if the host is closed."""

    def slice_ticks(self, slice_us: int) -> int:
        """Return a slice's length in ticks of the epoch."""

    def forget(self, fiber: Fiber, remains: Remains | None) -> None:
        """Take an ended fiber out of the host's table, and free what it left."""


class Fiber:
    """One running guest. Made by `WasmHost.create`.

    Attributes:
        phase: where it stands; changes in `step`, `deliver`, `wake` and `kill` only.
        wait_request: what it waits for, while WAITING.
        sleep_us: how long it wants to sleep, while SLEEPING.
        outcome: how it ended, once ENDED.
        clock, random: its time and chance; a journal keeps their seed and start.
        timers: those that a component waits for.
        growth: the memory that it takes as it grows; None: all that its limits name is taken already.
    """

    def __init__(
        self,
        host: FiberHost,
        number: int,
        module: LinkedModule,
        limits: GuestLimits,
        hooks: GuestHooks,
        clock: Clock,
        random: Random,
    ) -> None:
        """Only `WasmHost.create` calls this."""
        self.number = number
        self.module = module
        self.limits = limits
        self.hooks = hooks
        self.clock = clock
        self.random = random
        self.phase = Phase.READY
        self.wait_request: WaitRequest | None = None
        self.sleep_us = 0
        self.outcome: FiberOutcome | None = None
        # Shared with the C side: must stay alive until the future is deleted.
        self.state = GuestState(
            id=number,
            engine=host.engine_address,
            submit_limit=limits.submit_bytes,
            soft_limit=host.soft_submit_bytes,
            slice_ticks=host.slice_ticks(limits.cpu_slice_us),
        )
        self.polled = False  # ahead of its step (`WasmHost.begin_step`)
        self.is_elsewhere = False  # on another thread
        self.trap = c_void_p()
        self.error = c_void_p()
        self.instance: Any = None
        self.results: Any = None
        self.call_buffers: tuple[Any, ...] = ()
        self.arguments: tuple[bytes, ...] = ()
        self._host = host
        self._store: int | None = None
        self._stage = _Stage.INSTANTIATE
        # Until the program runs, time and chance are the same for all: a spare doesn't know its own yet.
        self.active_clock: Clock = GuestClock(0)
        self.active_random: Random = GuestRandom(b"prepare")
        self._events = GuestEvents(host.boundary, self.state)
        self.timers = Timers()
        self.growth: Growth | None = None
        self._ceiling_bytes = limits.memory_bytes
        self._wake_ns: int | None = None
        self._host_error: TartletError | None = None
        self._kill_reason: str | None = None
        self._in_step = False
        self._burst_base_ns = 0
        host.boundary.add(self.state)

    @property
    def context(self) -> int:
        """Address of the store's context."""
        context: int = self.state.context
        return context

    @property
    def cpu_ns(self) -> int:
        """Thread CPU time that the guest has used."""
        used: int = self.state.cpu_ns
        return used

    # ---- driving ----

    def start(self, source: str = "", filename: str = "main.py", args: Sequence[str] = (), code: bytes = b"") -> None:
        """Make the store; the first `step` instantiates and calls.

        Args:
            source: a component's program text.
            filename: its name in tracebacks.
            args: its arguments; a core guest asks for them (ABI GET_ARG).
            code: what a component compiled the text to, as UTF-8; nothing: the guest compiles it.
        """
        assert not self.arguments
        assert self.phase is Phase.READY
        self.arguments = (
            source.encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode(),
            filename.encode("utf-8", "replace"),
            json.dumps(list(args)).encode() if args else b"[]",
            code,
        )
        if self._store is None:
            self.open()

    def open(self) -> None:
        """Make the store and begin to instantiate."""
        assert self._store is None
        self._store = open_store(self._host.engine_address, self.state, self.limits.memory_bytes)
        self.state.future = self.module.begin_instance(self)

    def adopt(self, limits: GuestLimits, hooks: GuestHooks, clock: Clock, random: Random) -> None:
        """Turn a spare, made ahead, into the guest that is wanted."""
        assert self._store is not None
        state, before = self.state, self.limits
        self.limits, self.hooks, self.clock, self.random = limits, hooks, clock, random
        if self._stage is _Stage.RUN:
            self.active_clock, self.active_random = clock, random
        state.submit_limit, state.cpu_ns = limits.submit_bytes, 0
        if (limits.memory_bytes, limits.cpu_slice_us) != (before.memory_bytes, before.cpu_slice_us):
            state.slice_ticks = self._host.slice_ticks(limits.cpu_slice_us)
            limit_store(self._store, state, limits.memory_bytes)
            self._ceiling_bytes = limits.memory_bytes

    def prepare(self, slices: int) -> bool:
        """Make a spare ready to be adopted; False if that fails or takes longer than `slices`."""
        self.open()
        for _ in range(slices):
            self._host.boundary.poll_one(self.state)
            if not self.state.done:
                continue
            if self.trap.value or self.error.value:
                return False
            if self._stage is _Stage.PREPARE or not self.module.has_prepare:
                if not self.module.takes_text:  # it stands before its first instruction
                    self._next_stage()
                return True
            self._next_stage()
        return False

    def step(self) -> Phase:
        """Run until the guest waits, sleeps, ends, or its slice is over (READY); its phase."""
        if self.phase is Phase.READY:
            self._host.check_open()
            if not (self.polled or self.state.done):  # a spare's last stage is over
                self._poll()
            self.polled = False
            self.settle()
        return self.phase

    def _poll(self) -> None:
        self.widen()
        self._host.boundary.poll_one(self.state)
        self.measure()

    def widen(self) -> None:
        """Before a poll: let the memory become as large as the process has room for."""
        if self.growth is not None:
            ceiling = self.growth.open() + self.module.shared_bytes
            if ceiling != self._ceiling_bytes:
                assert self._store is not None
                limit_memory(self._store, ceiling)
                self._ceiling_bytes = ceiling

    def measure(self) -> None:
        """After a poll: give back the room that the memory didn't need."""
        if self.growth is not None:
            memory = self.state.memory
            self.growth.settle(capi.memory_data_size(self.context, memory) if memory else None)

    def deliver(self, delivery: Delivery) -> None:
        """Answer the wait that the guest is suspended in; it is READY then."""
        assert self.phase is Phase.WAITING, self.phase
        self._answer(delivery)
        self.phase = Phase.READY

    def wake(self) -> None:
        """End the sleep that the guest is suspended in; it is READY then."""
        assert self.phase is Phase.SLEEPING, self.phase
        self._end_sleep()
        self.phase = Phase.READY

    def kill(self, reason: str = "killed") -> None:
        """End the guest wherever it is. Nothing happens if it has ended."""
        if self.phase is Phase.ENDED:
            return
        if self._in_step or self.is_elsewhere:  # called by a hook: the step ends with it
            self._kill_reason = reason
            return
        self._end(FiberOutcome(OutcomeKind.KILLED, error=ProgramKilled(reason=reason)))

    # ---- what WasmHost.step_many needs ----

    def settle(self) -> None:
        """Look at what a poll led to, go on while hooks answer at once, and set the phase."""
        if self.phase is Phase.ENDED:  # killed by a neighbour's hook in the same step
            return
        self._in_step = True
        try:
            self._settle()
        except Exception as e:  # noqa: BLE001 - a hook's error is this guest's outcome, not its neighbours'
            error = e if isinstance(e, TartletError) else InternalError(detail=repr(e))
            self._end(FiberOutcome(OutcomeKind.FAULT, error=error, cause=e))
        finally:
            self._in_step = False
        self.kill_if_asked()

    def kill_if_asked(self) -> None:
        """Do what `kill` could not do while the guest computed."""
        if self._kill_reason is not None:
            self.kill(self._kill_reason)

    def _settle(self) -> None:
        until = time.monotonic() + self.limits.cpu_slice_us / 1e6
        while True:
            self._tell_events()
            if self._kill_reason is not None:
                return
            if self.state.done:
                if self._stage is _Stage.RUN or self.trap.value or self.error.value:
                    kind, ceiling, told = self.module.kind, self._ceiling_bytes, self._events.last_words
                    outcome = read_outcome(self, kind, ceiling, self._host_error, told)
                    self._end(blame(outcome, self.growth, self.limits.memory_bytes))
                    return
                self._next_stage()
            elif self._stage is not _Stage.RUN and (self.state.waiting or self._wake_ns is not None):
                detail = "it waits before it runs"
                self._end(FiberOutcome(OutcomeKind.TRAP, error=ProgramTrapped(detail=detail)))
                return
            elif self.state.waiting:
                self._burst_base_ns = self.cpu_ns
                self.wait_request = WaitRequest(self.state.wait_max, self.state.wait_timeout_us)
                delivery = self.hooks.on_wait(self.wait_request)
                if delivery is None:
                    self.phase = Phase.WAITING
                    return
                self._answer(delivery)
            elif self._wake_ns is not None:
                self._burst_base_ns = self.cpu_ns
                self.sleep_us = max(0, self._wake_ns - self.clock.peek_ns() + 999) // 1000
                if not self.hooks.on_sleep(self.sleep_us):
                    self.phase = Phase.SLEEPING
                    return
                self._end_sleep()
            else:  # the slice is over
                self._check_burst()
                return
            if time.monotonic() > until:
                return
            self._poll()

    def _next_stage(self) -> None:
        capi.future_delete(self.state.future)
        self.state.future = None
        self.state.done = 0
        if self._stage is _Stage.INSTANTIATE:
            self._stage = _Stage.PREPARE
            self.state.future = self.module.begin_prepare(self)
            if self.state.future is not None:
                return
        self._stage = _Stage.RUN
        self._events.drop_all()  # nothing that happened before the program runs is the program's
        self.active_clock, self.active_random = self.clock, self.random
        self.state.future = self.module.begin_call(self)

    def _tell_events(self) -> None:
        if self.trap.value and traps.died_of_memory(self._events.last_words):  # the error says it better than a panic
            self._events.drop_errors()
        if self._stage is _Stage.RUN:
            self._events.tell(self.hooks)

    def _check_burst(self) -> None:
        burst_s = (self.cpu_ns - self._burst_base_ns) / 1e9
        if burst_s > self.limits.cpu_burst_s:
            error = ProgramCpuExceeded(cpu_s=round(burst_s, 3), limit_s=self.limits.cpu_burst_s)
            self._end(FiberOutcome(OutcomeKind.TRAP, error=error))

    def _answer(self, delivery: Delivery) -> None:
        self.clock.advance_to(delivery.time_ns)
        self.wait_request = None
        is_core, boundary = self.module.kind is ModuleKind.CORE, self._host.boundary
        (boundary.deliver if is_core else boundary.deliver_string)(self.state, delivery.data)

    def _end_sleep(self) -> None:
        assert self._wake_ns is not None
        self.clock.advance_to(self._wake_ns)
        self._wake_ns = None
        self.state.ready = 1

    # ---- what host functions need (called while the guest is polled) ----

    def take_submission(self, data: bytes) -> None:
        """Keep what a component submitted, in order with its output."""
        self._events.submit(data)

    def emit(self, stream: int, data: bytes) -> None:
        """Keep what a component wrote to stdout or stderr."""
        self._events.emit(stream, data)

    def begin_wait(self, max_records: int, timeout_us: int, result: int) -> None:
        """Suspend a component in `wait`; `result` is where its answer goes."""
        state = self.state
        state.wait_max, state.wait_timeout_us, state.wait_result = max_records, timeout_us, result
        state.waiting, state.ready = 1, 0

    def sleep_until(self, deadline_ns: int) -> None:
        """Suspend a component until its clock shows `deadline_ns`."""
        self._wake_ns = deadline_ns
        self.state.ready = 0

    def host_call_failed(self, error: Exception) -> int:
        """Remember why a host function failed; a wasmtime_error_t that ends the guest."""
        self._host_error = error if isinstance(error, TartletError) else InternalError(detail=repr(error))
        pointer: int = capi.error_new(str(self._host_error).encode("utf-8", "replace"))
        return pointer

    # ---- the end ----

    def _end(self, outcome: FiberOutcome) -> None:
        self.phase = Phase.ENDED
        self.outcome = outcome
        self.wait_request = None
        self._events.drop_kept()
        if self.growth is not None:
            self.growth.close()
        state, boundary = self.state, self._host.boundary
        if self._store is None:
            boundary.release(state)
            self._host.forget(self, None)
            return
        kept = (self.trap, self.error, self.instance, self.results, self.call_buffers, self.module)
        remains = Remains(state.future, self._store, state, kept)
        self._store = None
        self.call_buffers = ()
        self._host.forget(self, remains)
