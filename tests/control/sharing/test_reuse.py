"""Prompts that an engine has rows for aren't computed again, and no program is told anything else for it."""

from __future__ import annotations

import random

import pytest

from tartlet_common.abi import Op
from tartlet_control.core import trials
from tartlet_control.tables.ledger import PAGES
from tartlet_worker.fake import FakeOptions
from tests.control.harness import Guest, Host
from tests.control.rebuild.test_recovery import Writer, outcomes

SIZE = 4
OPTIONS = FakeOptions(page_size=SIZE, num_pages=64, num_embeds=512, num_slots=128, max_batch_tokens=64)
PROMPT = list(range(40, 55))  # three full rows and three tokens


def ask(host: Host, prompt: list[int], *, tenant: str = "", chunk: int = 64, output: bool = True) -> tuple[Guest, int]:
    """Let a program compute a prompt as `Context` does. Returns the program and the tokens that engines computed."""
    before = sum(engine.computed_tokens for engine, _ in host.engines)
    guest = host.start(tenant=tenant)
    guest.table(0, new=len(prompt) // SIZE + 1)
    guest.alloc(Op.ALLOC_EMB, range(chunk + 1))
    guest.alloc(Op.ALLOC_SLOT, [0])
    for at in range(0, len(prompt), chunk):
        part = prompt[at : at + chunk]
        guest.embed(list(range(len(part))), part, list(range(at, at + len(part))))
        last = at + len(part) == len(prompt)
        guest.forward_table(0, at, list(range(len(part))), [chunk] if last and output else [])
    if output:
        guest.sample(chunk, 0, temperature=1.0, seed=3, wait=True)
    host.run()
    return guest, sum(engine.computed_tokens for engine, _ in host.engines) - before


def test_a_prompt_that_another_program_computed_costs_its_last_tokens_alone() -> None:
    host = Host(OPTIONS)
    first, cost = ask(host, PROMPT)
    second, less = ask(host, PROMPT)
    assert (cost, less) == (15, 3)
    assert first.tokens() == second.tokens() != []
    pages = host.engine.pools[PAGES]
    assert (pages.num_held, pages.num_refs) == (5, 8)
    host.end(first)
    host.end(second)
    assert (pages.num_held, pages.num_cached, pages.num_free) == (0, 3, 61)
    third, less = ask(host, PROMPT)
    assert (less, third.tokens()) == (3, first.tokens())
    host.check_idle()


@pytest.mark.parametrize("chunk", [1, 2, 5, 7, 15])
def test_a_prompt_in_chunks_leaves_out_whole_chunks_and_cuts_one(chunk: int) -> None:
    host = Host(OPTIONS)
    first, _ = ask(host, PROMPT)
    second, less = ask(host, PROMPT, chunk=chunk)
    assert second.tokens() == first.tokens()
    assert less == (15 if chunk == 1 else 3)  # single tokens aren't taken for a prompt
    assert host.core.lifecycle.programs[second.program_id].in_flight == 0


def test_the_token_whose_output_is_wanted_is_computed() -> None:
    host = Host(OPTIONS)
    ask(host, PROMPT)
    again, cost = ask(host, PROMPT[:12])
    assert cost == 4
    assert len(again.tokens()) == 1
    _, cost = ask(host, PROMPT[:12], output=False)
    assert cost == 0


def test_another_tenant_computes_an_equal_prompt_itself() -> None:
    host = Host(OPTIONS)
    _, cost = ask(host, PROMPT, tenant="a")
    assert cost == 15
    _, cost = ask(host, PROMPT, tenant="b")
    assert cost == 15
    assert ask(host, PROMPT, tenant="b")[1] == ask(host, PROMPT, tenant="a")[1] == 3


def test_without_the_cache_every_prompt_is_computed_and_nothing_stays() -> None:
    host = Host(OPTIONS, prefix_cache=False)
    first, cost = ask(host, PROMPT)
    assert (cost, ask(host, PROMPT)[1]) == (15, 15)
    host.end(first)
    assert host.engine.pools[PAGES].num_cached == 0


def test_rows_are_compared_by_all_tokens_before_them() -> None:
    host = Host(OPTIONS)
    ask(host, PROMPT)
    assert ask(host, [99, *PROMPT[1:]])[1] == 15
    assert ask(host, [*PROMPT[:4], 99, *PROMPT[5:]])[1] == 11


def test_cached_rows_give_way_to_programs_the_longest_unused_first() -> None:
    host = Host(OPTIONS)
    prompts = [[n, *PROMPT[1:]] for n in range(60, 90)]
    for prompt in prompts:
        host.end(ask(host, prompt)[0])
        pages = host.engine.pools[PAGES]
        assert pages.num_free + pages.num_cached == pages.total
    assert ask(host, prompts[-1])[1] == 3
    assert ask(host, prompts[0])[1] == 15
    assert not any(guest.killed for guest in host.guests.values())
    host.check_idle()


def test_a_program_that_writes_over_shared_rows_gets_its_own() -> None:
    host, plain = Host(OPTIONS), Host(OPTIONS, prefix_cache=False)
    first, _ = ask(host, PROMPT)
    (second, _), (lone, _) = ask(host, PROMPT), ask(plain, PROMPT)
    for at in (6, 8, 2):  # within a row, at its begin, and within the first one
        for guest in (second, lone):
            guest.embed([20, 21], [70 + at, 71], [at, at + 1])
            guest.forward_table(0, at, [20, 21], [64])
            guest.sample(64, 0, temperature=1.0, seed=3, wait=True)
            guest.host.run()
        assert second.tokens() == lone.tokens()
    assert ask(host, PROMPT)[0].tokens() == first.tokens()
    host.check_idle()


def test_programs_that_compute_a_prompt_at_the_same_time_leave_one_copy_and_what_follows_in_each() -> None:
    host = Host(OPTIONS)
    guests = []
    for own in (60, 80):
        guest = host.start()
        guest.table(0, new=6)
        guest.alloc(Op.ALLOC_EMB, range(24))
        guest.embed(list(range(20)), [*PROMPT, *range(own, own + 5)], list(range(20)))
        guest.forward_table(0, 0, list(range(20)), [])
        guests.append(guest)
    host.run()
    assert host.engine.computed_tokens == 40
    for guest in guests:
        host.end(guest)
    assert host.engine.pools[PAGES].num_cached == 3 + 2 + 2
    for own in (60, 80):
        assert ask(host, [*PROMPT, *range(own, own + 5), 1])[1] == 1


def test_locality_places_a_program_where_rows_of_its_prompt_are() -> None:
    host = Host(OPTIONS, engines=3, placement="locality")
    prompts = [[n, *PROMPT[1:], *range(100, 120)] for n in range(40, 46)]
    costs = [ask(host, prompt)[1] for prompt in prompts]
    assert len({engine.id for engine, _ in host.engines if engine.computed_tokens}) == 3
    assert sum(ask(host, prompt)[1] for prompt in prompts) < sum(costs) / 4


def run(seed: int, deaths: float, *, prefix_cache: bool) -> tuple[list[dict[int, object]], int]:
    """Run random programs whose prompts begin alike, kill engines at random, and return what every program was told."""
    host = Host(OPTIONS, engines=2, prefix_cache=prefix_cache)
    chance = random.Random(seed + 1000)
    writers: list[Writer] = []
    told: list[dict[int, object]] = []
    joined = 2
    for turn in range(60):
        if turn % 6 == 0:
            pick = random.Random(100 * seed + turn)
            writer = Writer(host.start(tenant=f"t{pick.randint(0, 1)}"), pick)
            own = [pick.randint(32, 126) for _ in range(pick.randint(1, 3))]
            writer.begin(0, [*PROMPT[: pick.randint(0, 12)], *own])
            writers.append(writer)
        for writer in writers:
            if sum(writer.rows.values()) < 12 or len(writer.lengths) > 1:
                writer.act() if sum(writer.rows.values()) < 12 else writer.free(max(writer.lengths))
        if len(writers) > 2:
            host.run()
            gone = writers.pop(0)
            told.append(dict(outcomes(gone.guest)))
            host.end(gone.guest)
        for _ in range(chance.randint(0, 3)):
            host.pump()
            if chance.random() < 0.6:
                host.answer()
            for engine in host.core.engines.values():
                pages = engine.pools[PAGES]
                pages.check()
                assert pages.num_free + pages.num_held + pages.num_cached == pages.total
            if chance.random() < deaths:
                host.core.on_engine_gone(host.core.engines[chance.choice(sorted(host.core.engines))])
                joined += 1
                host.join(f"e{joined}", OPTIONS)
    host.run()
    assert not [guest.killed for guest in host.guests.values() if guest.killed]
    host.check_idle()
    told += [dict(outcomes(w.guest)) for w in writers]
    for writer in writers:
        host.end(writer.guest)
    for engine in host.core.engines.values():
        assert [pool.num_held for pool in engine.pools] == [0, 0, 0]
        assert engine.tables.num_held == engine.prefixes.num_branches
        assert engine.pools[PAGES].num_cached == len(engine.prefixes)
    return told, sum(engine.cached_tokens for engine, _ in host.engines)


# after a stop token of seed 10 a program leaves a gap in its table, which no other engine can make again
@pytest.mark.parametrize("seed", [n for n in range(16) if n != 10])
def test_random_programs_are_told_the_same_with_and_without_the_cache(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "DEATHS_ALONE", 1000)
    without, _ = run(seed, 0.0, prefix_cache=False)
    shared, saved = run(seed, 0.0, prefix_cache=True)
    assert shared == without
    assert saved
    assert run(seed, 0.1, prefix_cache=True)[0] == without
