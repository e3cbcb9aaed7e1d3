"""Core-Wasm guests on both boundaries: what they may do, and how each of them ends."""

from __future__ import annotations

import struct
import time

import pytest
import wasmtime
from hypothesis import given
from hypothesis import strategies as st

from tartlet_common.errors.registry import (
    NotAllowed,
    ProgramCpuExceeded,
    ProgramFailed,
    ProgramKilled,
    ProgramMemoryExceeded,
    ProgramTrapped,
    TartletError,
)
from tartlet_runtime.wasm import (
    Delivery,
    Fiber,
    GuestLimits,
    LinkedModule,
    OutcomeKind,
    Phase,
    QuietHooks,
    WaitRequest,
    WasmHost,
)
from tartlet_runtime.wasm.compiling.sections import has_start
from tests.runtime.wasm.driving import SECOND_NS, START_NS, Driver, submitted

pytestmark = pytest.mark.timeout(60)


def test_a_guest_waits_with_its_maximum_and_time_limit(driver: Driver, probe: LinkedModule) -> None:
    guest = driver.run(driver.start(probe))
    assert guest.phase is Phase.WAITING
    assert guest.wait_request == WaitRequest(max_records=7, timeout_us=1234)
    guest.kill()


def test_every_byte_value_crosses_both_ways(driver: Driver, probe: LinkedModule) -> None:
    data = bytes(range(256)) * 16
    guest = driver.run(driver.start(probe), b"e", data, b"second", b"")
    assert guest.outcome is not None
    assert guest.outcome.kind is OutcomeKind.OK
    assert submitted(guest) == [data, b"second"]


def test_a_delivery_that_does_not_fit_is_kept_for_the_next_wait(driver: Driver, probe: LinkedModule) -> None:
    guest = driver.run(driver.start(probe), b"s", b"123456789")
    assert submitted(guest) == [struct.pack("<i", -9), b"123456789"]


@pytest.mark.parametrize(
    ("order", "kind", "error", "text"),
    [
        (b"r\0", OutcomeKind.OK, None, ""),
        (b"r\5", OutcomeKind.ERROR, ProgramFailed, "status 5"),
        (b"u", OutcomeKind.TRAP, ProgramTrapped, "unreachable"),
        (b"z", OutcomeKind.TRAP, ProgramTrapped, "divide by zero"),
        (b"o", OutcomeKind.TRAP, ProgramTrapped, "out of bounds"),
        (b"d", OutcomeKind.TRAP, ProgramTrapped, "out of bounds"),
        (b"D" * 2000, OutcomeKind.TRAP, ProgramTrapped, "call stack overflowed"),
        (b"m", OutcomeKind.TRAP, ProgramMemoryExceeded, "33554432 bytes"),
        (b"x", OutcomeKind.TRAP, NotAllowed, "no_such_call"),
        (b"b", OutcomeKind.TRAP, ProgramTrapped, "submit() points outside"),
        (b"B", OutcomeKind.TRAP, ProgramTrapped, "wait() points outside"),
        (b"L", OutcomeKind.TRAP, ProgramTrapped, "over the limit"),
    ],
)
def test_how_a_guest_ends(
    driver: Driver, probe: LinkedModule, order: bytes, kind: OutcomeKind, error: type[TartletError] | None, text: str
) -> None:
    limits = GuestLimits(memory_bytes=32 << 20)
    outcome = driver.run(driver.start(probe, limits=limits), order).outcome
    assert outcome is not None
    assert outcome.kind is kind
    if error is None:
        assert outcome.error is None
    else:
        assert type(outcome.error) is error
        assert text in str(outcome.error)


def test_an_endless_loop_yields_each_slice_while_others_progress(driver: Driver, probe: LinkedModule) -> None:
    spinner = driver.run(driver.start(probe, limits=GuestLimits(cpu_slice_us=2000)))
    spinner.deliver(Delivery(b"l", 0))
    worker = driver.run(driver.start(probe), b"e")
    for i in range(20):
        assert spinner.step() is Phase.READY
        worker.deliver(Delivery(b"%d" % i, 0))
        driver.settle(worker)
        assert worker.phase is Phase.WAITING
    assert submitted(worker) == [b"%d" % i for i in range(20)]
    assert spinner.cpu_ns < 20 * 20_000_000
    spinner.kill()
    worker.kill()


def test_computing_past_the_limit_ends_the_guest(driver: Driver, probe: LinkedModule) -> None:
    guest = driver.run(driver.start(probe, limits=GuestLimits(cpu_burst_s=0.02)), b"l")
    assert guest.outcome is not None
    assert isinstance(guest.outcome.error, ProgramCpuExceeded)
    assert 0.02 < guest.cpu_ns / 1e9 < 2


def test_a_slice_ends_and_the_computation_goes_on(driver: Driver, probe: LinkedModule) -> None:
    guest = driver.run(driver.start(probe), b"c")
    assert submitted(guest) == [b"counted"]


def test_submissions_keep_their_order_and_none_is_lost(driver: Driver, probe: LinkedModule) -> None:
    guest = driver.run(driver.start(probe), b"F")
    assert [struct.unpack_from("<H", data)[0] for data in submitted(guest)] == list(range(20_000))


def test_a_flood_of_submissions_is_cut_into_slices(driver: Driver, host: WasmHost, probe: LinkedModule) -> None:
    guest = driver.run(driver.start(probe))
    guest.deliver(Delivery(b"f", 0))
    for _ in range(5):
        submitted(guest).clear()
        assert guest.step() is Phase.READY
        assert 0 < sum(map(len, submitted(guest))) < 2 * host.config.soft_submit_bytes
    guest.kill()


def test_time_moves_by_deliveries_and_readings_only(driver: Driver, probe: LinkedModule) -> None:
    guest = driver.run(driver.start(probe), b"t")
    assert struct.unpack("<2q", submitted(guest)[0]) == (START_NS + SECOND_NS + 1000, START_NS + SECOND_NS + 2000)


def test_randomness_is_a_function_of_the_seed(driver: Driver, probe: LinkedModule) -> None:
    drawn = [submitted(driver.run(driver.start(probe, seed=seed), b"t"))[1] for seed in (b"a", b"a", b"b")]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 40


@pytest.mark.parametrize("order", [None, b"l"], ids=["suspended", "spinning"])
def test_kill_ends_a_guest_wherever_it_is(
    driver: Driver, host: WasmHost, probe: LinkedModule, order: bytes | None
) -> None:
    guest = driver.run(driver.start(probe))
    if order is not None:
        guest.deliver(Delivery(order, 0))
        guest.step()
    before = host.num_guests
    guest.kill("enough")
    assert guest.phase is Phase.ENDED
    assert guest.outcome is not None
    assert guest.outcome.kind is OutcomeKind.KILLED
    assert isinstance(guest.outcome.error, ProgramKilled)
    assert guest.outcome.error.fields == {"reason": "enough"}
    assert host.num_guests == before - 1
    guest.kill("again")
    host.drain()


def test_a_guest_can_be_killed_before_it_starts_and_before_its_first_step(host: WasmHost, probe: LinkedModule) -> None:
    fresh = host.create(probe)
    fresh.kill()
    started = host.create(probe)
    started.start()
    started.kill()
    host.drain()
    assert fresh.phase is started.phase is Phase.ENDED


class Raising(QuietHooks):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def on_submit(self, data: bytes) -> None:
        raise self.error


@pytest.mark.parametrize("error", [NotAllowed(what="this"), ZeroDivisionError()], ids=["typed", "bug"])
def test_a_hook_that_raises_ends_its_guest_only(
    driver: Driver, host: WasmHost, probe: LinkedModule, error: Exception
) -> None:
    bad, good = driver.run(driver.start(probe, hooks=Raising(error)), b"e"), driver.run(driver.start(probe), b"e")
    for guest in (bad, good):
        guest.deliver(Delivery(b"x", 0))
    driver.settle(bad, good)
    assert bad.outcome is not None
    assert bad.outcome.kind is OutcomeKind.FAULT
    assert bad.outcome.cause is error
    assert isinstance(bad.outcome.error, TartletError)
    assert good.phase is Phase.WAITING
    good.kill()


class Killing(QuietHooks):
    """Kills guests from within a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.victims: list[Fiber] = []

    def on_submit(self, data: bytes) -> None:
        super().on_submit(data)
        self.kill_all()

    def on_wait(self, request: WaitRequest) -> Delivery | None:
        self.kill_all()
        return None

    def kill_all(self) -> None:
        for guest in self.victims:
            guest.kill("by a hook")


def test_a_hook_may_kill_its_guest_and_others(driver: Driver, host: WasmHost, probe: LinkedModule) -> None:
    hooks = Killing()
    killer, first, last = (driver.run(driver.start(probe, hooks=h)) for h in (hooks, None, None))
    for guest in (killer, first, last):
        guest.deliver(Delivery(b"e", 0))
    hooks.victims = [first, killer, last]
    host.step_many((first, killer, last))
    driver.settle(first, killer, last)
    assert {guest.outcome.kind for guest in (first, killer, last) if guest.outcome} == {OutcomeKind.KILLED}
    host.drain()


class Replaying(QuietHooks):
    def __init__(self, deliveries: list[bytes]) -> None:
        super().__init__()
        self.deliveries = deliveries

    def on_wait(self, request: WaitRequest) -> Delivery | None:
        return Delivery(self.deliveries.pop(0), START_NS) if self.deliveries else None


def test_a_hook_may_answer_waits_at_once(driver: Driver, probe: LinkedModule) -> None:
    hooks = Replaying([b"e", *(b"%d" % i for i in range(1000)), b""])
    guest = driver.run(driver.start(probe, hooks=hooks))
    assert guest.outcome is not None
    assert guest.outcome.kind is OutcomeKind.OK
    assert hooks.submitted == [b"%d" % i for i in range(1000)]


def test_896_guests_at_once(driver: Driver, host: WasmHost, probe: LinkedModule) -> None:
    guests = [driver.start(probe) for _ in range(896)]
    for order in (b"e", b"one", b"two"):
        driver.settle(*guests)
        assert {guest.phase for guest in guests} == {Phase.WAITING}
        for guest in guests:
            guest.deliver(Delivery(order, 0))
    driver.settle(*guests)
    assert all(submitted(guest) == [b"one", b"two"] for guest in guests)
    begin = time.monotonic()
    for guest in guests:
        guest.kill()
    assert time.monotonic() - begin < 1  # freeing them is the reaper's
    host.drain()


def test_a_guest_listed_twice_is_stepped_once(driver: Driver, host: WasmHost, probe: LinkedModule) -> None:
    guest = driver.run(driver.start(probe))
    guest.deliver(Delivery(b"r\0", 0))
    host.step_many((guest, guest))
    host.step_many((guest, guest))
    assert guest.phase is Phase.ENDED


def test_a_spare_is_a_guest_like_any_other(driver: Driver, host: WasmHost, probe: LinkedModule) -> None:
    alive = host.num_guests
    assert host.top_up(probe, 2)
    assert host.top_up(probe, 2)
    assert not host.top_up(probe, 2)
    assert host.num_spares == 2
    assert host.num_guests == alive
    limits = GuestLimits(memory_bytes=32 << 20)
    hungry = driver.run(driver.start(probe, limits=limits), b"m")
    drawn = [submitted(driver.run(driver.start(probe, seed=b"a"), b"t")) for _ in range(2)]  # a spare, and a new one
    assert host.num_spares == 0
    assert hungry.outcome is not None
    assert str(hungry.outcome.error) == "the program used more than its 33554432 bytes of memory"
    assert drawn[0] == drawn[1]


def test_a_spare_is_not_for_a_program_whose_limit_is_below_what_it_has(driver: Driver, host: WasmHost) -> None:
    text = """(module (memory (export "memory") 20) (func (export "tartlet_main") (result i32) i32.const 0))"""
    module = host.load(host.aot.compile(bytes(wasmtime.wat2wasm(text))))
    limits = GuestLimits(memory_bytes=1 << 20)
    fresh = driver.run(driver.start(module, limits=limits)).outcome
    assert host.top_up(module, 1)
    beside_spare = driver.run(driver.start(module, limits=limits)).outcome
    assert host.num_spares == 1
    host.unload(module)
    assert fresh is not None
    assert beside_spare is not None
    assert (str(fresh.error), fresh.kind) == (str(beside_spare.error), beside_spare.kind)
    assert fresh.kind is OutcomeKind.TRAP


def test_a_module_whose_start_runs_code_has_no_spares(host: WasmHost) -> None:
    text = """(module (memory (export "memory") 1) (func $start (drop (memory.grow (i32.const 600)))) (start $start)
        (func (export "tartlet_main") (result i32) i32.const 0))"""
    wasm = bytes(wasmtime.wat2wasm(text))
    assert has_start(wasm)
    for compiled in (host.aot.compile(wasm), host.aot.compile(wasm)):  # made now, and found
        module = host.load(compiled)
        host.expect(module, time.monotonic())
        assert not host.top_up(module, 1)
        while host.tend():
            pass
        assert host.num_spares == 0
        host.unload(module)


@given(st.binary(max_size=64))
def test_any_bytes_have_an_answer_about_their_start(data: bytes) -> None:
    assert has_start(data) in (True, False)


def test_spares_of_a_core_module_follow_its_demand_and_go_with_it(host: WasmHost, probe: LinkedModule) -> None:
    for _ in range(3):
        host.expect(probe, time.monotonic())
    while host.tend():
        pass
    assert host.num_spares == 3
    host.unload(probe)
    assert not host.tend()
    assert host.num_spares == 0


def test_spares_can_be_given_up(host: WasmHost, probe: LinkedModule) -> None:
    assert host.top_up(probe, 1)
    host.unload(probe)
    assert host.num_spares == 0


@pytest.mark.parametrize(("size", "kind"), [(1 << 20, OutcomeKind.OK), ((1 << 20) + 1, OutcomeKind.TRAP)])
def test_a_guest_can_not_hold_up_the_host_by_asking_for_much_randomness(
    driver: Driver, host: WasmHost, size: int, kind: OutcomeKind
) -> None:
    text = f"""(module (import "tartlet" "random" (func $random (param i32 i32))) (memory (export "memory") 20)
        (func (export "tartlet_main") (result i32) (call $random (i32.const 0) (i32.const {size})) i32.const 0))"""
    guest = driver.run(driver.start(host.load(host.aot.compile(bytes(wasmtime.wat2wasm(text))))))
    assert guest.outcome is not None
    assert guest.outcome.kind is kind
