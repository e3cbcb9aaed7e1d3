"""The host: one engine, its pool, the guests in it.

Everything here belongs to one thread (the asyncio runtime's), but for the ticker and the reaper, which are threads of
their own. Size it once at start: the pool never grows.
"""

from __future__ import annotations

import itertools
import os
import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import wasmtime

from tartlet_common.errors.registry import InvalidConfig, Overloaded
from tartlet_common.process.role import address_space
from tartlet_runtime.budget.growth import START_BYTES, Growth, KernelMeter
from tartlet_runtime.budget.ledger import Ledger, Use
from tartlet_runtime.wasm.boundary import capi
from tartlet_runtime.wasm.boundary.shim import open_boundary
from tartlet_runtime.wasm.boundary.state import GuestState, Remains
from tartlet_runtime.wasm.compiling.aot import AotCache, Compiled, ModuleKind, default_cache_dir
from tartlet_runtime.wasm.compiling.engine_flags import base_config
from tartlet_runtime.wasm.determinism import SEED_BYTES, Clock, GuestClock, GuestRandom, Random
from tartlet_runtime.wasm.fibers.fiber import Fiber
from tartlet_runtime.wasm.linking.component import ComponentModule
from tartlet_runtime.wasm.linking.core_module import CoreModule
from tartlet_runtime.wasm.linking.linked_module import LinkedModule
from tartlet_runtime.wasm.reaper import Reaper
from tartlet_runtime.wasm.spares import Demand, target
from tartlet_runtime.wasm.types import GuestHooks, GuestLimits, Phase, QuietHooks

_CORE_INSTANCES_PER_COMPONENT = 40
_MEMORIES_PER_COMPONENT = 2
_TABLES_PER_COMPONENT = 4
_TABLE_ELEMENTS = 30_000
_SLOTS_BEING_REAPED = 64
_SPARE_SLICES = 100
_SPARES_IN_ALL = 2
_FREE_OF_SPARES = 2  # spares leave this part of the memory's bound to launches
_ADDRESSES_PER_MEMORY = 4 << 30  # reserved, not used: what a guest's 32 bits can name


@dataclass(frozen=True, slots=True)
class HostConfig:
    """Sizes of a host, fixed at its start."""

    max_guests: int = 1024
    max_memory_bytes: int = 256 << 20  # of one guest; its limits may say less
    min_spares: int = 16  # Python guests kept instantiated ahead when nothing is launched (2 MB each)
    max_spares: int = 1024  # of one module at the most, after a burst (`WasmHost.tend`), and twice that in all
    tick_us: int = 1_000  # unit of CPU slices
    warm_memory_bytes: int = 1 << 20  # of a freed guest's memory that stays mapped, to save page faults
    soft_submit_bytes: int = 256 << 10  # queued by one guest before its slice is cut short
    boundary: str = "auto"  # "shim", "ctypes"; auto: the shim if `python -m tartlet_runtime.guests.build` has built it
    cache_dir: Path = field(default_factory=default_cache_dir)


def _check_addresses(slots: int) -> None:
    """Refuse a pool larger than the process may reserve, because the engine would abort the process."""
    needed, limit = slots * _MEMORIES_PER_COMPONENT * _ADDRESSES_PER_MEMORY, address_space()
    if limit is not None and limit < needed:
        told = f"it reserves {needed >> 30} GiB of addresses for its sandbox, and may have {limit / 2**30:.1f}"
        remedy = "Lift the limit (`ulimit -v unlimited`): what is reserved is hardly used."
        raise InvalidConfig(role="runtime", detail=told, remedy=remedy)


class WasmHost:
    """Runs guests. Use it as a context manager, or `close` it.

    Example:
        with WasmHost(HostConfig()) as host:
            module = host.load(host.aot.compile(wasm))
            guest = host.create(module, hooks=hooks)
            guest.start()
            while guest.step() is Phase.READY:
                pass
    """

    def __init__(
        self, config: HostConfig | None = None, *, aot: AotCache | None = None, ledger: Ledger | None = None
    ) -> None:
        """Make the engine and its pool, start ticker and reaper. `ledger` None: the process's memory is not bounded.

        Raises:
            InvalidConfig: the process may not reserve as many addresses as the pool takes.
        """
        self.config = config or HostConfig()
        self.aot = aot or AotCache(self.config.cache_dir)
        self._ledger = ledger
        self._meter = KernelMeter()
        weakref.finalize(self, self._meter.close)
        self.soft_submit_bytes = self.config.soft_submit_bytes
        self.boundary = open_boundary(self.config.boundary, self.config.cache_dir)
        wasm_config = base_config()
        self._slots = self.config.max_guests + _SPARES_IN_ALL * self.config.max_spares + _SLOTS_BEING_REAPED
        _check_addresses(self._slots)
        self._add_pool(wasm_config)
        self.engine = wasmtime.Engine(wasm_config)
        self.engine_address = capi.address(self.engine.ptr())
        self._numbers = itertools.count(1)
        self._guests: dict[int, Fiber] = {}
        self._spares: dict[LinkedModule, list[Fiber]] = {}
        self._unsparable: set[LinkedModule] = set()
        self._demand: dict[LinkedModule, Demand] = {}
        self._reaper = Reaper(self.boundary.free)
        self.boundary.start_ticker(self.engine_address, self.config.tick_us)
        self._elsewhere: set[Fiber] = set()  # begun and not ended
        self._closed = False
        # A ticker that outlived its engine would crash the process at exit.
        weakref.finalize(self, self.boundary.stop_ticker)

    # ---- programs and guests ----

    def load(self, compiled: Compiled) -> LinkedModule:
        """Load and link a compiled module: milliseconds, it is mapped.

        Raises:
            CorruptModule: it is valid Wasm, but no guest of ours.
        """
        kind = CoreModule if compiled.kind is ModuleKind.CORE else ComponentModule
        return kind(self, compiled)

    def create(
        self,
        module: LinkedModule,
        *,
        hooks: GuestHooks | None = None,
        limits: GuestLimits | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> Fiber:
        """Make a guest; `start` it next.

        Args:
            module: the module that it runs.
            hooks: who hears what it does (default: `QuietHooks`, which collect).
            limits: what it may use (default: `GuestLimits()`).
            clock: its time: a `GuestClock` (default: started now; journal its `start_ns`), or `SystemClock` for
                `durable=False`.
            random: its chance: a `GuestRandom` (default: of a fresh seed; journal its `seed`), or `SystemRandom`.

        Raises:
            Overloaded: `max_guests` are alive.
        """
        self.check_open()
        if self.num_guests >= self.config.max_guests:
            raise Overloaded(what="this runtime's pool of programs", limit=self.config.max_guests)
        limits = limits or GuestLimits()
        hooks = hooks or QuietHooks()
        clock = clock or GuestClock(time.time_ns())
        random = random or GuestRandom(os.urandom(SEED_BYTES))
        spares, is_mapped = self._spares.get(module), False
        if spares and limits.memory_bytes >= module.initial_memory_bytes:
            guest = spares.pop()
            self._count_spare(-1)
            guest.adopt(limits, hooks, clock, random)
            is_mapped = True
        else:
            guest = self._new_guest(module, limits, hooks, clock, random)
        if self._ledger is not None and limits.reserved_bytes < limits.memory_bytes:
            start = START_BYTES if module.shared_bytes else module.initial_memory_bytes
            most = limits.memory_bytes - module.shared_bytes
            reserved, mapped = limits.reserved_bytes, 0 if is_mapped else module.shared_bytes + start
            guest.growth = Growth(self._ledger, self._meter, reserved, most, start, mapped_bytes=mapped)
        return guest

    def _count_spare(self, by: int) -> None:
        if self._ledger is not None:
            self._ledger.add(Use.SPARES, by * START_BYTES)

    def _may_spare(self) -> bool:
        ledger = self._ledger
        return ledger is None or ledger.free_bytes - START_BYTES > ledger.bound_bytes // _FREE_OF_SPARES

    def drop_spares(self) -> None:
        """Give up all spares and free what ended guests left, because a launch needs the memory."""
        for module, spares in self._spares.items():
            self._demand.pop(module, None)
            while spares:
                self._drop_spare(spares.pop())
        self.drain()

    def _drop_spare(self, guest: Fiber) -> None:
        self._count_spare(-1)
        guest.kill("not needed")

    def expect(self, module: LinkedModule, asked_s: float) -> None:
        """Count a guest of `module` that a client asked for, so that `tend` keeps enough spares for the next burst.

        Args:
            module: the module that the guest runs.
            asked_s: monotonic seconds at which the client's request came. The call itself and `create` may come much
                later when many guests are asked for at once; how fast a burst is served must not decide how large it
                looks.
        """
        self._demand.setdefault(module, Demand()).note(asked_s)

    def tend(self, always: LinkedModule | None = None) -> bool:
        """Do one unit of upkeep, at most a few milliseconds. Call it while idle, until it returns False.

        Keeps as many spares of each module as clients asked for in the busiest two seconds of the last minute, and of
        `always` at least `min_spares`.
        """
        if always is not None:
            self._demand.setdefault(always, Demand())
        now = time.monotonic()
        return any(self._tend(p, now, self.config.min_spares if p is always else 0) for p in list(self._demand))

    def _tend(self, module: LinkedModule, now: float, least: int) -> bool:
        peak = self._demand[module].peak(now)
        wanted = target(peak, least=least, most=self.config.max_spares)
        kept = self._spares.get(module, [])
        if len(kept) > wanted:
            self._drop_spare(kept.pop())
            return True
        if not wanted:
            self.unload(module)
            return False
        return self.top_up(module, wanted)

    def top_up(self, module: LinkedModule, spares: int) -> bool:
        """Instantiate one guest ahead unless there are `spares` of them; whether it did.

        A launch that finds a spare is faster by the instantiation and what the guest prepares. Every guest is
        prepared with the same clock and randomness, not yet its own, so a program can't tell a spare from a new one.
        """
        kept = self._spares.setdefault(module, [])
        is_full = self.num_spares >= _SPARES_IN_ALL * self.config.max_spares
        if len(kept) >= spares or is_full or not module.can_be_spare or module in self._unsparable:
            return False
        if not self._may_spare():
            return False
        guest = self._new_guest(module, GuestLimits(), QuietHooks(), GuestClock(0), GuestRandom(b"spare"))
        if guest.prepare(_SPARE_SLICES):
            kept.append(guest)
            self._count_spare(1)
            return True
        self._unsparable.add(module)
        guest.kill("it can't be instantiated ahead")
        return False

    @property
    def num_spares(self) -> int:
        """Guests instantiated ahead."""
        return sum(map(len, self._spares.values()))

    def unload(self, module: LinkedModule) -> None:
        """Give up the spares of a program that is not needed any more."""
        for guest in self._spares.pop(module, []):
            self._drop_spare(guest)
        self._unsparable.discard(module)
        self._demand.pop(module, None)

    def _new_guest(
        self, module: LinkedModule, limits: GuestLimits, hooks: GuestHooks, clock: Clock, random: Random
    ) -> Fiber:
        if len(self._guests) + self._reaper.pending >= self._slots - 1:
            self.drain()
        number = next(self._numbers)
        guest = Fiber(self, number, module, limits, hooks, clock, random)
        self._guests[number] = guest
        return guest

    def check_open(self) -> None:
        """Check before a poll that the host is open: its ticker is gone later, and C would follow a null pointer.

        Raises:
            RuntimeError: it is closed.
        """
        if self._closed:
            raise RuntimeError("the host is closed")

    def step_many(self, guests: Iterable[Fiber]) -> None:
        """Step those of `guests` that are READY, one slice each; look at their `phase` afterwards.

        With the C shim this is one call for all of them; callers bound its length by how many they pass.
        """
        self.check_open()
        ready = [guest for guest in dict.fromkeys(guests) if guest.phase is Phase.READY]
        if not ready:
            return
        for guest in ready:
            if not guest.polled:
                guest.widen()
        self.boundary.poll([guest.state for guest in ready if not guest.polled])
        for guest in ready:
            guest.measure()
            guest.polled = False
            guest.settle()

    def begin_step(self, guest: Fiber) -> None:
        """Begin to step a guest on another thread, if it is READY, until `end_step`; then `step` it to its end.

        Meanwhile it may be killed, which takes effect at the end, and nothing else.
        """
        if self._closed or guest.polled or guest.phase is not Phase.READY:
            return
        guest.polled = guest.is_elsewhere = True
        self._elsewhere.add(guest)
        guest.widen()
        self.boundary.begin_poll(guest.state)

    def end_step(self, guest: Fiber) -> None:
        """Wait for it, if it is under way, and help."""
        if not guest.is_elsewhere:
            return
        self.boundary.end_poll(guest.state)
        self._elsewhere.discard(guest)
        guest.is_elsewhere = False
        guest.measure()
        guest.kill_if_asked()

    def end_steps(self) -> None:
        """Wait for all guests that are under way: each holds as much memory as it may grow by, until its end."""
        for guest in list(self._elsewhere):
            self.end_step(guest)

    def reap(self) -> None:
        """Begin to free what ended guests left, beside what runs: call it while idle, and now and then."""
        self._reaper.go()

    def drain(self) -> None:
        """Block until all ended guests are freed."""
        self._reaper.drain()

    @property
    def num_guests(self) -> int:
        """Guests alive, without spares."""
        return len(self._guests) - self.num_spares

    def close(self) -> None:
        """Kill all guests, free everything, end the threads."""
        if self._closed:
            return
        self._closed = True
        self.end_steps()
        self._spares.clear()
        for guest in list(self._guests.values()):
            guest.kill("the runtime shuts down")
        self._reaper.close()
        self.boundary.stop_ticker()

    def __enter__(self) -> Self:
        """Return the host itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    # ---- for guests and programs ----

    def guest_of(self, context: int) -> Fiber:
        """Return the guest whose store has this context."""
        return self._guests[GuestState.from_address(capi.context_get_data(context)).id]

    def forget(self, guest: Fiber, remains: Remains | None) -> None:
        """Take an ended guest out of the table."""
        del self._guests[guest.number]
        if remains is not None:
            self._reaper.take(remains)
            if self._ledger is not None and self._ledger.free_bytes < self._ledger.bound_bytes // _FREE_OF_SPARES:
                self._reaper.go()  # counted as free already

    def slice_ticks(self, slice_us: int) -> int:
        """Return a slice in ticks of the epoch, rounded up; plus one, because the first tick may come at once."""
        return -(-slice_us // self.config.tick_us) + 1

    def _add_pool(self, wasm_config: wasmtime.Config) -> None:
        slots = self._slots
        capi.set_pooling(
            wasm_config,
            total_component_instances=slots,
            total_core_instances=slots * _CORE_INSTANCES_PER_COMPONENT,
            total_memories=slots * _MEMORIES_PER_COMPONENT,
            total_tables=slots * _TABLES_PER_COMPONENT,
            total_stacks=slots,
            max_core_instances_per_component=_CORE_INSTANCES_PER_COMPONENT,
            max_memories_per_component=_MEMORIES_PER_COMPONENT,
            max_tables_per_component=_TABLES_PER_COMPONENT,
            max_component_instance_size=1 << 20,
            max_core_instance_size=1 << 20,
            table_elements=_TABLE_ELEMENTS,
            max_memory_size=self.config.max_memory_bytes,
            linear_memory_keep_resident=self.config.warm_memory_bytes,
            table_keep_resident=1 << 16,
            async_stack_keep_resident=1 << 14,
            max_unused_warm_slots=slots,
        )
