"""Placements in control's core: hints from what waits, live changes, and programs that move as engines join."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest

from tartlet_common.abi import Op
from tartlet_common.engine.pools import Home
from tartlet_common.engine.spec import EngineSpec
from tartlet_common.errors.registry import InvalidArgument
from tartlet_control.placement.policies import PLACEMENTS
from tartlet_control.placement.view import Beginning
from tartlet_worker.fake import FakeOptions
from tests.control.harness import Guest, Host

OPTIONS = FakeOptions(page_size=4, num_pages=64, num_embeds=256, num_slots=256, max_batch_commands=2)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def begin(host: Host, prompt: list[int] = PROMPT) -> Guest:
    guest, count = host.start(), len(prompt)
    guest.table(0, new=-(-count // 4))
    guest.alloc(Op.ALLOC_EMB, range(count + 1))
    guest.alloc(Op.ALLOC_SLOT, [0])
    guest.embed(list(range(count)), prompt, list(range(count)))
    guest.forward_table(0, 0, list(range(count)), [count])
    guest.sample(count, 0)
    return guest


def decode(guest: Guest, at: int) -> None:
    guest.embed([0], [0], [at], slots=True)
    if at % 4 == 0:
        guest.table(0, keep=at, new=1)
    guest.forward_table(0, at, [0], [len(PROMPT)])
    guest.sample(len(PROMPT), 0)


def engine_of(guest: Guest) -> str:
    [place] = guest.host.core.lifecycle.programs[guest.program_id].places.values()
    assert place.engine is not None
    return place.engine.id


@pytest.mark.parametrize(
    ("placement", "expected"),
    [(name, {"e0": 3, "e1": 3}) for name in ("sticky", "least-used", "round-robin")],
)
def test_programs_that_start_together_are_spread(placement: str, expected: dict[str, int]) -> None:
    host = Host(OPTIONS, engines=2, placement=placement)
    guests = [begin(host) for _ in range(6)]
    host.run()
    assert Counter(map(engine_of, guests)) == expected
    assert len({tuple(guest.tokens()) for guest in guests}) == 1


def test_locality_is_told_the_first_tokens_and_follows_the_pages() -> None:
    host = Host(replace(OPTIONS, max_batch_commands=16), engines=2, placement="locality")
    asked: list[Beginning] = []

    def held(beginning: Beginning) -> Mapping[str, int]:
        asked.append(beginning)
        return {"e1": len(beginning.tokens)}

    host.core.placing.held = held
    guests = [begin(host) for _ in range(3)]
    host.run()
    assert [engine_of(guest) for guest in guests] == ["e1"] * 3
    assert {a.tokens for a in asked} == {tuple(PROMPT)}
    assert {(a.tenant, a.page_size) for a in asked} == {("", 4)}


def test_a_pools_placement_changes_live() -> None:
    host = Host(OPTIONS, engines=0)
    core, home = host.core, Home("ns", "pool", shared=True)
    for name in ("a", "b"):
        engine = core.on_engine(name, name, host_spec(), home)
        assert core.placing.policy(core.models.at(engine.model_index)).name == "sticky"
    model = core.models.at(engine.model_index)
    core.set_order("ns/pool", "plas", [1.0], 8, "autellix", 64)
    assert (core.placing.policy(model).name, core.placing.policy(model).short_tokens) == ("autellix", 64)
    with pytest.raises(InvalidArgument):
        core.set_order("ns/pool", "plas", [1.0], 8, "nearest", 64)
    assert core.placing.policy(model).name == "autellix", "what is refused changes nothing"
    core.set_order("ns/pool", "plas", [1.0], 8)
    assert core.placing.policy(model).name == "sticky"


def host_spec() -> EngineSpec:
    return Host(OPTIONS).engine.spec


def test_an_engine_that_joins_takes_programs_from_one_with_too_many_and_answers_stay_equal() -> None:
    def tokens(*, join: bool) -> tuple[list[list[int]], Counter[str]]:
        host = Host(OPTIONS)
        guests = [begin(host) for _ in range(8)]
        host.run()
        if join:
            host.join("e1", OPTIONS)
        for at in range(len(PROMPT), len(PROMPT) + 12):
            for guest in guests:
                decode(guest, at)
            host.pump()
            host.clock.advance(0.3)
            host.run()
        host.check_idle()
        return [guest.tokens() for guest in guests], Counter(map(engine_of, guests))

    alone, _ = tokens(join=False)
    spread, where = tokens(join=True)
    assert spread == alone
    assert where["e1"] >= 3, where


def test_an_engine_is_relieved_only_once_it_was_overloaded_for_long() -> None:
    host = Host(OPTIONS, engines=2)
    host.core.cordon("e1")
    guests = [begin(host) for _ in range(8)]
    host.run()
    host.core.resume("e1")
    host.clock.advance(20)  # long after both joined
    moved = []
    for at in range(len(PROMPT), len(PROMPT) + 14):
        for guest in guests:
            decode(guest, at)
        host.pump()
        host.clock.advance(0.3)
        host.run()
        moved.append(sum(engine_of(guest) == "e1" for guest in guests))
    assert moved[5] == 0, moved
    assert moved[-1] >= 2, moved
    host.check_idle()


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
def test_only_locality_computes_each_prompt_once(placement: str) -> None:
    host = Host(replace(OPTIONS, num_pages=256, max_batch_commands=16), engines=2, placement=placement)
    host.device_s = 0.01
    prompts = [[group * 100 + n for n in range(40)] for group in range(2)]
    for turn in range(12):
        begin(host, prompts[turn % 3 % 2])  # it stays, so that the engines differ in load
        host.run()
        host.clock.advance(0.1)
    computed = sum(state.computed_tokens for state, _ in host.engines)
    once = 2 * 40 + 10 * 4  # the last row of a prompt is computed again
    if placement == "locality":
        assert computed <= once
    else:
        assert once < computed <= once + 2 * 40


def converse(guest: Guest, prompt: list[int], tokens: int = 3) -> str:
    """Compute one context, close it before its engine has answered, and return the engine."""
    count = len(prompt)
    guest.table(0, new=-(-(count + tokens) // 4))
    guest.alloc(Op.ALLOC_EMB, range(count + 1))
    guest.alloc(Op.ALLOC_SLOT, [0])
    guest.embed(list(range(count)), prompt, list(range(count)))
    guest.forward_table(0, 0, list(range(count)), [count])
    sampled = guest.sample(count, 0)
    for at in range(count, count + tokens - 1):
        guest.embed([count], [0], [at], slots=True)
        guest.forward_table(0, at, [count], [count])
        guest.sample(count, 0)
    guest.host.pump()
    while guest.host.answer() and not guest.answered(sampled):
        guest.host.pump()
    where = engine_of(guest)
    guest.table(0)
    guest.alloc(Op.DEALLOC_EMB, range(count + 1))
    guest.alloc(Op.DEALLOC_SLOT, [0])
    return where


SHORT, LONG = PROMPT[:4], PROMPT * 2
ROOMY = replace(OPTIONS, max_batch_commands=64)


def load_only(host: Host, engine_id: str, programs: int) -> list[Guest]:
    """Place programs with a call each on one engine; those of the others move there as well."""
    others = [engine.id for engine, _ in host.engines if engine.id != engine_id]
    for other in others:
        host.core.cordon(other)
    guests = [begin(host) for _ in range(programs)]
    host.run()
    for other in others:
        host.core.resume(other)
    return guests


def test_algorithm_2_places_each_context_of_a_program_that_holds_nothing() -> None:
    host = Host(ROOMY, engines=3, placement="autellix", placement_short_tokens=8)
    guest = host.start()
    first = converse(guest, SHORT)
    load_only(host, first, 3)
    home = converse(guest, LONG)
    load_only(host, home, 6)
    wheres = [converse(guest, prompt) for prompt in (LONG, SHORT, LONG, SHORT)]
    host.run()
    assert home != first, "the first long context goes where the fewest calls are"
    assert wheres[0] == wheres[2] == home, "long contexts return to their program's engine"
    assert home not in {wheres[1], wheres[3]}, "short ones go where the fewest calls are"
    host.check_idle()
    alone = Host(ROOMY)
    lone = alone.start()
    for prompt in (SHORT, LONG, LONG, SHORT, LONG, SHORT):
        converse(lone, prompt)
    alone.run()
    assert guest.tokens() == lone.tokens(), "an answer doesn't depend on the engine"
    for each in list(host.guests.values()):
        host.end(each)
    assert [engine.program_ids for engine, _ in host.engines] == [{}, {}, {}]
    host.check_idle()


@pytest.mark.parametrize("placement", ["sticky", "least-used", "round-robin"])
def test_only_sticky_decides_once_for_a_program(placement: str) -> None:
    host = Host(ROOMY, engines=3, placement=placement)
    guest = host.start()
    home = converse(guest, SHORT)
    load_only(host, home, 6)
    wheres = [converse(guest, prompt) for prompt in (LONG, SHORT, LONG)]
    match placement:
        case "sticky":
            assert set(wheres) == {home}
        case "least-used":
            assert home not in wheres, "six calls wait there, and none elsewhere"
        case _:
            assert len(set(wheres)) == 3, "each call goes to the next engine"


def test_a_program_that_holds_anything_stays_where_it_is() -> None:
    host = Host(replace(ROOMY, num_slots=4), engines=2, placement="autellix")
    guest = host.start()
    converse(guest, SHORT)
    guest.alloc(Op.ALLOC_EMB, [60])
    host.run()
    [kept] = [engine.id for engine, _ in host.engines if guest.program_id in engine.program_ids]
    begun = load_only(host, kept, 2)
    assert converse(guest, SHORT) == kept, "it holds an embed"
    guest.alloc(Op.DEALLOC_EMB, [60])
    host.run()
    for each in begun:
        each.alloc(Op.ALLOC_SLOT, [1])  # all slots of that engine are taken now
    host.run()
    [elsewhere] = {"e0", "e1"} - {kept}
    waits = guest.alloc(Op.ALLOC_SLOT, [7, 8], wait=True)
    host.run()
    assert engine_of(guest) == elsewhere
    assert guest.answered(waits)
    for each in list(host.guests.values()):
        host.end(each)
    assert [engine.program_ids for engine, _ in host.engines] == [{}, {}]
    host.check_idle()
