"""Programs that need more memory together than an engine has: all finish, with the tokens that they have alone."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tartlet_common.abi import Op
from tartlet_common.errors.registry import OutOfPages
from tartlet_control.core.places.memory import REST_S
from tartlet_control.order.orders import LIVE
from tartlet_worker.fake import FakeOptions
from tests.control.harness import Guest, Host

SIZE = 4
STEP_S = 0.001
"""The device time of each step. Tenants take turns by it, so that the machine's own times would make runs differ."""
OPTIONS = FakeOptions(page_size=SIZE, num_pages=60, num_embeds=512, num_slots=128, max_batch_commands=32)


@dataclass
class Decoder:
    """A program that fills a prompt and reads each of its tokens, as one with a tool between them does."""

    guest: Guest
    prompt: list[int]
    tokens: int
    at: int = 0
    ticket: int = 0

    def begin(self) -> None:
        g, count = self.guest, len(self.prompt)
        g.table(0, new=-(-count // SIZE))
        g.alloc(Op.ALLOC_EMB, range(count + 1))
        g.alloc(Op.ALLOC_SLOT, [0])
        g.embed(list(range(count)), self.prompt, list(range(count)))
        g.forward_table(0, 0, list(range(count)), [count])
        self.ticket = g.sample(count, 0)
        self.at = count

    def go_on(self) -> bool:
        """Ask for the next token once the last one is there. Returns whether any is still to come."""
        g, count = self.guest, len(self.prompt)
        if not g.answered(self.ticket):
            return True
        if self.at == count + self.tokens:
            if g.settled is None:
                g.host.core.on_end(g.host.session, g.handle, failed=False)
            return False
        self.ask()
        return True

    def ask(self) -> None:
        """Ask for the next token."""
        g, count = self.guest, len(self.prompt)
        if self.at % SIZE == 0:
            g.table(0, keep=self.at, new=1)
        g.embed([0], [0], [self.at], slots=True)
        g.forward_table(0, self.at, [0], [count])
        self.ticket = g.sample(count, 0)
        self.at += 1


def wave(
    count: int, pages: int, seed: int = 1, host_pages: int = 0, tenants: int = 2, **settings: Any
) -> tuple[Host, list[Decoder]]:
    picks = random.Random(seed)
    host = Host(replace(OPTIONS, num_pages=pages, host_pages=host_pages), **settings)
    programs = []
    for i in range(count):
        prompt = [picks.randrange(200) for _ in range(picks.randrange(8, 40))]
        programs.append(Decoder(host.start(tenant=f"t{i % tenants}", name="wave"), prompt, picks.randrange(10, 40)))
    return host, programs


def finish(host: Host, programs: list[Decoder]) -> None:
    host.device_s = STEP_S
    for program in programs:
        program.begin()
    for _ in range(3000):
        host.run()
        host.clock.advance(0.06)
        if not [p for p in programs if p.go_on()]:
            host.run()
            host.check_idle()
            return
    waits = [(p.guest.handle, p.at, p.guest.killed) for p in programs if not p.guest.answered(p.ticket)]
    raise AssertionError(f"these never end: {waits}")


@pytest.mark.parametrize(("order", "host_pages"), [*((order, 0) for order in LIVE), ("round-robin", 24), ("plas", 200)])
def test_a_wave_over_the_memory_finishes_with_equal_outputs(order: str, host_pages: int) -> None:
    roomy, expected = wave(12, pages=600)
    finish(roomy, expected)
    host, programs = wave(12, pages=60, host_pages=host_pages, order=order)  # they need about 160 at once
    finish(host, programs)
    assert [p.guest.killed for p in programs] == [None] * 12
    assert [p.guest.tokens() for p in programs] == [p.guest.tokens() for p in expected]
    assert host.core.rebuilder.counters.gave_way > 0
    assert not host.core.memory.stalled
    assert host.engine.pools[0].num_free + host.engine.pools[0].num_cached == 60
    assert host.engine.host.pool.num_held == 0


def run_ahead(host: Host, programs: list[Decoder]) -> None:
    """Queue each program's commands at once, as programs do that generate text."""
    host.device_s = STEP_S
    for program in programs:
        program.begin()
        while program.at < len(program.prompt) + program.tokens:
            program.ask()
    for _ in range(3000):
        host.pump()
        host.clock.advance(0.02 if host.answer() else 0.06)
        for program in programs:
            if program.guest.answered(program.ticket) and program.guest.settled is None:
                host.core.on_end(host.session, program.guest.handle, failed=False)
        if all(program.guest.settled for program in programs):
            host.run()
            host.check_idle()
            return
    raise AssertionError(f"these never end: {[p.guest.handle for p in programs if not p.guest.settled]}")


def run_until(host: Host, begin: list[Decoder], holds: Callable[[], bool]) -> None:
    """Queue the commands of these programs, and let all run until something holds."""
    host.device_s = STEP_S
    for program in begin:
        program.begin()
        for _ in range(program.tokens):
            program.ask()
    for _ in range(2000):
        host.pump()
        host.clock.advance(STEP_S if host.answer() else 0.06)
        if holds():
            return
    raise AssertionError(f"it never holds: {[len(p.guest.tokens()) for p in begin]}")


@functools.cache
def undisturbed(go: Callable[[Host, list[Decoder]], None], seed: int) -> tuple[int, list[Decoder]]:
    """Returns how many steps a wave takes that has all the memory that it wants, and its programs."""
    host, programs = wave(12, pages=600, seed=seed)
    go(host, programs)
    return len(host.steps), programs


@pytest.mark.parametrize("tenants", [1, 2])
@pytest.mark.parametrize("go", [finish, run_ahead])
@pytest.mark.parametrize(
    ("order", "host_pages", "seeds"), [("fcfs", 200, (1,)), *((order, 0, (1, 2, 3, 4)) for order in LIVE)]
)
def test_at_one_and_a_half_times_the_memory_little_is_computed_again(
    go: Callable[[Host, list[Decoder]], None], order: str, host_pages: int, seeds: tuple[int, ...], tenants: int
) -> None:
    again = computed = 0
    for seed in seeds:
        steps, expected = undisturbed(go, seed)
        peak = sum(-(-(len(p.prompt) + p.tokens) // SIZE) for p in expected)
        host, programs = wave(12, int(peak / 1.5), seed=seed, host_pages=host_pages, tenants=tenants, order=order)
        go(host, programs)
        assert [p.guest.tokens() for p in programs] == [p.guest.tokens() for p in expected]
        assert host.core.rebuilder.counters.gave_way > 0
        assert host.engine.host.pool.num_held == 0
        assert len(host.steps) <= 1.7 * steps, "programs wait for memory, and the engine never does"
        again += host.core.rebuilder.counters.tokens
        computed += sum(p.at for p in programs)
    assert again <= 0.2 * computed, (again, computed)


@pytest.mark.parametrize("order", LIVE)
def test_a_program_that_waits_behind_suspended_ones_keeps_no_other_waiting(order: str) -> None:
    host = Host(replace(OPTIONS, num_pages=220, num_embeds=4096, num_slots=256, max_batch_commands=4), order=order)
    prompt = [5 + n % 97 for n in range(120)]
    flood = [Decoder(host.start(tenant="flood", name="w"), prompt, 200) for _ in range(20)]
    few = [Decoder(host.start(tenant="few", name="w"), prompt, 70) for _ in range(3)]
    run_until(host, flood, lambda: sum(len(p.guest.tokens()) > 1 for p in flood) > 3)
    run_until(host, few, lambda: all(len(p.guest.tokens()) > 30 for p in few))
    assert host.core.rebuilder.waiting
    assert [p.guest.killed for p in (*flood, *few)] == [None] * 23


def test_an_idle_program_gives_way_and_goes_on_when_it_is_asked_to() -> None:
    host, [idle, busy] = wave(2, pages=20)
    idle.prompt, busy.prompt = [7] * 40, [9] * 50
    idle.begin()
    host.run()
    first = idle.guest.tokens()
    busy.begin()
    host.run()
    host.clock.advance(0.1)
    host.run()
    assert busy.guest.answered(busy.ticket)
    assert host.engine.pools[0].num_free + host.engine.pools[0].num_cached == 20 - 13
    assert idle.go_on()
    busy.tokens = 0
    for _ in range(5):
        busy.go_on()
        host.clock.advance(0.1)
        host.run()
    assert len(idle.guest.tokens()) == len(first) + 1
    assert (idle.guest.killed, busy.guest.killed) == (None, None)


def test_only_programs_whose_state_cant_be_made_again_end_for_room() -> None:
    host = Host(FakeOptions(page_size=SIZE, num_pages=8, num_embeds=64, num_slots=16))
    old, new = host.start(), host.start()
    for guest in (old, new):
        guest.alloc(Op.ALLOC_KVPAGE, range(4))
        guest.alloc(Op.ALLOC_EMB, range(2))
        guest.embed([0], [5], [0])
        guest.forward([], [0], [0], [1])
    host.run()
    ticket = old.alloc(Op.ALLOC_KVPAGE, [9], wait=True)
    host.run()
    assert old.answered(ticket)
    assert isinstance(new.killed, OutOfPages)
    third = host.start()
    third.alloc(Op.ALLOC_KVPAGE, range(4))
    host.run()
    assert isinstance(third.killed, OutOfPages), "nobody computes, so nothing would ever come free"
    for guest in (old, new, third):
        host.end(guest)
    host.check_idle()


def test_pages_kept_in_host_memory_are_given_back_when_their_program_or_engine_goes() -> None:
    host, programs = wave(6, pages=30, host_pages=60)
    for program in programs:
        program.begin()
    host.run()
    host.clock.advance(REST_S)
    host.run()
    kept = [p for p in host.core.rebuilder.waiting if p.kept_on is not None]
    assert kept
    assert host.engine.host.pool.num_held == sum(len(place.kept) for place in kept)
    [gone] = [p for p in programs if p.guest.program_id == kept[0].program.id]
    host.end(gone.guest, failed=True)
    assert host.engine.host.pool.num_held == sum(len(place.kept) for place in kept[1:])
    host.join("e0", replace(OPTIONS, num_pages=200))  # the engine's successor: it has nothing of the first
    rest = [p for p in programs if p is not gone]
    roomy, expected = wave(6, pages=600)
    finish(roomy, expected)
    for _ in range(400):
        host.run()
        host.clock.advance(0.06)
        if not [p for p in rest if p.go_on()]:
            break
    alone = {p.guest.program_id: p.guest.tokens() for p in expected}
    assert all(p.guest.tokens() == alone[p.guest.program_id] for p in rest)


@pytest.mark.parametrize(("device_s", "copies"), [(1.0, True), (1e-9, False)])
def test_pages_go_to_host_memory_only_where_that_costs_less_than_computing_them(device_s: float, copies: bool) -> None:
    host, programs = wave(6, pages=30, host_pages=60)
    host.device_s = device_s  # of each step; copying a page takes a microsecond each way
    for program in programs:
        program.begin()
    host.run()
    host.clock.advance(REST_S + 2 * device_s)
    host.run()
    left = [place for place in host.core.rebuilder.waiting if any(line.length for line in place.book.tables.values())]
    assert left
    assert [bool(place.kept) for place in left] == [copies] * len(left)
    assert any(len(step.swaps.out_page) for step in host.steps) == copies


def test_a_tenant_s_pages_are_kept_though_another_s_fill_the_host_memory() -> None:
    def suspended(tenants: str, host_pages: int) -> tuple[Host, list[Decoder], list[int]]:
        host = Host(replace(OPTIONS, num_pages=200, host_pages=host_pages))
        programs = [Decoder(host.start(tenant=t, name="w"), [i] * 40, 3) for i, t in enumerate(tenants)]
        for program in programs:
            program.begin()
        host.run()
        places = [place for p in programs for place in host.core.lifecycle.programs[p.guest.program_id].places.values()]
        for place in places:
            assert host.core.rebuilder.give_way(place, OutOfPages(kind="KV pages", total=200), host.clock.now())
            host.run()
        return host, programs, [len(place.kept) for place in places]

    host, programs, kept = suspended("fffc", 30)
    assert kept == [10, 10, 0, 10], "the flood has twice its share, and loses what it kept last"
    assert suspended("fff", 30)[2] == [10, 10, 10], "one tenant alone may have all"
    assert suspended("fffcc", 30)[2] == [10, 10, 0, 10, 0], (
        "nobody loses anything for a tenant that would be over its own"
    )
    assert host.engine.host.pool.num_held == 30
    finish_rest(host, programs)
    roomy, expected, _ = suspended("fffc", 0)
    finish_rest(roomy, expected)
    assert [p.guest.tokens() for p in programs] == [p.guest.tokens() for p in expected]
    assert host.engine.host.pool.num_held == 0


def finish_rest(host: Host, programs: list[Decoder]) -> None:
    """Let programs that have begun go on to their ends."""
    for _ in range(200):
        host.clock.advance(0.06)
        if not [program for program in programs if program.go_on()]:
            break
        host.run()
    host.run()
    host.check_idle()


def test_pages_come_back_beside_a_step_of_others_and_are_read_by_a_later_one() -> None:
    host, programs = wave(12, pages=60, host_pages=200)
    finish(host, programs)
    bring = [step for step in host.steps if len(step.swaps.in_page)]
    beside = [step for step in bring if not np.isin(step.tables.rows, step.swaps.in_page).any()]
    assert len(beside) > len(bring) / 2
    assert all(step.batches for step in beside), "nobody waits for a step that computes nothing"
    alone = [step for step in bring if len({lane for batch in step.batches for lane in batch.lane.tolist()}) == 1]
    assert len(beside) + len(alone) >= len(bring) - 1, "a step that reads the pages that it brings holds up no others"


def test_programs_whose_forks_wait_for_what_waits_for_memory_give_way() -> None:
    """Neither computes, so neither earns the credit for which the other would give way."""
    host = Host(replace(OPTIONS, num_pages=18))
    guests = [host.start(name="fork") for _ in range(2)]
    prompt = list(range(32))
    for g in guests:
        g.alloc(Op.ALLOC_EMB, range(40))
        g.alloc(Op.ALLOC_SLOT, [0, 1])
        g.table(0, new=8)
        g.embed(prompt, [1] * 32, prompt)
        g.forward_table(0, 0, prompt, [32])
        g.sample(32, 0)
    host.run()
    for g in guests:
        g.table(0, keep=32, new=4)
        g.embed([0], [0], [32], slots=True)
        g.forward_table(0, 32, [0], [33])
        g.put(Op.CREATE_QUEUE, queue=1)
        g.table(1, source=0, keep=16, new=1, queue=1)
        g.embed([1], [5], [16], queue=1)
        g.forward_table(1, 16, [1], [34], queue=1)
    last = [g.sample(34, 1, queue=1, wait=True) for g in guests]
    for _ in range(200):
        host.run()
        host.clock.advance(0.06)
        for g, ticket in zip(guests, last, strict=True):
            if g.answered(ticket) and g.settled is None:
                host.core.on_end(host.session, g.handle, failed=False)
    assert [g.killed for g in guests] == [None, None]
    assert all(g.answered(ticket) for g, ticket in zip(guests, last, strict=True))


def test_work_that_waits_for_memory_counts_as_waiting_work() -> None:
    host = Host(replace(OPTIONS, num_pages=14))
    host.device_s = 0.5
    programs = [Decoder(host.start(name="w"), [i] * 40, 12) for i in range(10)]  # 10 pages each: one fits
    for program in programs:
        program.begin()
    host.run()
    assert host.core.memory.stalled or host.core.rebuilder.waiting
    assert host.core.batchers[host.engine].waiting_s == 0.0
    assert host.core.waiting_s(host.engine) >= 0.5, "a step for the prompts, and for what gave way"
    other = host.join("e1", replace(OPTIONS, num_pages=200))
    most = 0
    for _ in range(20):
        host.clock.advance(0.3)
        if not [program for program in programs if program.go_on()]:
            break
        host.run()
        most = max(most, len(other.program_ids))
    host.run()
    assert most == 9, "those that hold nothing don't wait for the full engine"
    assert all(program.guest.settled is not None for program in programs)
    assert [host.core.waiting_s(engine) for engine in (host.engine, other)] == [0.0, 0.0]
