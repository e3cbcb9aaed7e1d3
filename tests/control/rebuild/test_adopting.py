"""Programs get back the rows that their engine still has when control dies, and never another row."""

from __future__ import annotations

import random

import pytest

from tartlet_common.abi import Op, u32
from tartlet_control.tables.ledger import PAGES
from tests.control.harness import Host
from tests.control.rebuild.test_recovery import OPTIONS, SIZE, Writer, begun, ended, outcomes


def run(seed: int, deaths: float) -> tuple[list[dict[int, object]], int]:
    """Run random programs, kill control at random. Returns what programs were told, and the tokens that were adopted.

    Between control's last word and its death, engines run some of the steps that they have.
    """
    host = Host(OPTIONS, engines=2)
    chance = random.Random(seed + 1000)
    adopted = 0
    writers = begun(host, seed)
    for _ in range(40):
        for writer in writers:
            writer.act()
        for _ in range(chance.randint(0, 3)):
            host.pump()
            if chance.random() < 0.6:
                host.answer()
            if chance.random() < 0.5:
                host.label()
            if chance.random() < deaths:
                host.die(executed=chance.randint(0, 3))
                host.pump()
                adopted += sum(engine.adopted_tokens for engine in host.core.engines.values())
                host.core.check_ledgers(recount=True)
    told = ended(host, writers)
    for engine in host.core.engines.values():
        engine.left.evict(engine.pools[PAGES].total)
        engine.prefixes.clear()
        assert engine.pools[PAGES].num_free == engine.pools[PAGES].total
    return told, adopted


@pytest.mark.parametrize("first", range(0, 8, 4))
def test_programs_are_told_the_same_when_they_get_rows_back_that_an_earlier_control_had_computed(first: int) -> None:
    adopted = 0
    for seed in range(first, first + 4):
        told, more = run(seed, 0.2)
        adopted += more
        assert (told, 0) == run(seed, 0.0), seed
    assert adopted


def test_a_long_context_costs_a_row_or_two_when_control_dies() -> None:
    host = Host(OPTIONS)
    writer = Writer(host.start(), random.Random(1))
    writer.begin(0, [65] * 9)
    for _ in range(200):
        writer.decode(0)
    host.run()
    host.label()
    host.pump()
    length = writer.lengths[0]
    host.die()
    host.run()
    assert host.engine.adopted_tokens == length // SIZE * SIZE
    assert host.core.rebuilder.counters.tokens <= SIZE
    writer.decode(0)
    host.run()
    host.die()
    host.run()
    assert host.engine.adopted_tokens == length // SIZE * SIZE, "digests outlive several controls"
    host.check_idle()


def test_a_row_that_was_written_again_is_not_given_to_a_program_that_had_the_same() -> None:
    host = Host(OPTIONS, prefix_cache=False)
    writers = [Writer(host.start(), random.Random(n)) for n in range(2)]
    for writer in writers:
        writer.begin(0, [65] * 41)
    host.run()
    host.label()
    host.pump()
    assert len(host.known[host.engine]) == 2 * (41 // SIZE)
    again = writers[1]
    again.lengths[0] = 8
    again.fill(0, [66] * 4)  # the third row holds other tokens now, and the digests behind it are of rows that are gone
    host.pump()
    host.die(executed=9)
    for writer in writers:
        writer.decode(0)
    host.run()
    alone = Host(OPTIONS, prefix_cache=False)
    undisturbed = [Writer(alone.start(), random.Random(n)) for n in range(2)]
    for writer in undisturbed:
        writer.begin(0, [65] * 41)
    undisturbed[1].lengths[0] = 8
    undisturbed[1].fill(0, [66] * 4)
    for writer in undisturbed:
        writer.decode(0)
    alone.run()
    assert [outcomes(w.guest) for w in writers] == [outcomes(w.guest) for w in undisturbed]
    assert host.engine.adopted_tokens


def test_rows_of_another_tenant_or_of_another_text_are_not_adopted_and_give_way() -> None:
    host = Host(OPTIONS)
    writer = Writer(host.start(), random.Random(1))
    writer.begin(0, [65] * 41)
    host.run()
    host.label()
    host.pump()
    host.session.programs.clear()
    writer.guest.sent.clear()
    host.die()
    engine = host.engine
    assert (len(engine.left), engine.pools[PAGES].num_cached) == (10, 10)
    other = host.start()
    other.table(0, new=engine.pools[PAGES].total)
    other.put(Op.SYNCHRONIZE, wait=True)
    host.run()
    assert engine.pools[PAGES].num_held == engine.pools[PAGES].total
    host.end(other)
    host.check_idle()
    assert engine.pools[PAGES].num_free == engine.pools[PAGES].total


@pytest.mark.parametrize("how", ["queue", "program", "setting", "shared"])
def test_a_program_that_keeps_out_of_the_prefix_cache_gets_its_own_rows_alone(how: str) -> None:
    host = Host(OPTIONS, prefix_cache=how != "setting")
    writers = [Writer(host.start(), random.Random(n)) for n in range(2)]
    for writer in writers:
        if how in ("queue", "program"):
            writer.guest.put(Op.SET_PREFIX_CACHE, a=0, b=int(how == "program"))
        writer.begin(0, [65] * 41)
        host.run()
    host.label()
    host.pump()
    digests = list(host.known[host.engine].values())
    rows = 41 // SIZE
    assert len(set(digests)) == (rows if how == "shared" else 2 * rows)
    mine = writers[0].guest
    host.session.programs.pop(mine.handle)
    mine.sent.clear()  # it never comes back
    host.die()
    host.run()
    assert host.engine.adopted_tokens == rows * SIZE
    assert (len(host.engine.left) == 0) == (how == "shared"), "nobody else gets the other program's rows"
    queues = host.session.programs[writers[1].guest.handle].queues
    assert {queue.caches for queue in queues.values() if queue.id >= 0} == {how == "shared"}, (
        "that outlives control as well"
    )


def test_rows_behind_a_hidden_token_get_no_digest_and_are_not_given_back() -> None:
    host = Host(OPTIONS)
    writer = Writer(host.start(), random.Random(1))
    writer.begin(0, [65] * (2 * SIZE))
    writer.guest.put(Op.MASK_TABLE, a=0, b=1, c=1, payload=u32([1]))
    writer.fill(0, [65] * (3 * SIZE))
    host.run()
    host.label()
    host.pump()
    assert len(host.known[host.engine]) <= 2, "the rows behind it were computed without the token"
