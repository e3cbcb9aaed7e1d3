"""Programs whose engine dies, at any moment, go on elsewhere and get the tokens that they would have got."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from tartlet_common.abi import SAMPLE_OPTIONS, Event, Op, SampleFlag
from tartlet_common.engine.step import EmbedTxt
from tartlet_common.errors import registry as errors
from tartlet_control.core import trials
from tartlet_control.recovery.restorer import Restorer
from tartlet_protos import control_pb2
from tartlet_worker.fake import FakeOptions
from tests.control.harness import Guest, Host

SIZE = 4
OPTIONS = FakeOptions(page_size=SIZE, num_pages=256, num_embeds=512, num_slots=128, max_batch_tokens=64)
PENALTIES = np.array([(SampleFlag.PENALTIES, 0, 0, 0, 0, 0, 0, 1.3, 0.5, 0.2)], SAMPLE_OPTIONS).tobytes()


@dataclass
class Writer:
    """Writes texts over page tables, as `Context` does: runs ahead, forks, rewinds, frees; chosen by a seed."""

    guest: Guest
    pick: random.Random
    lengths: dict[int, int] = field(default_factory=dict)  # tokens in each table, by table and queue
    rows: dict[int, int] = field(default_factory=dict)
    sampled: list[int] = field(default_factory=list)
    spare: int = 0

    def begin(self, table: int, tokens: list[int]) -> None:
        """Fill a new table in its own queue, and leave the output of the last token in an embed of the table's."""
        g, n = self.guest, len(tokens)
        if table:
            g.put(Op.CREATE_QUEUE, queue=table, a=0)
        g.alloc(Op.ALLOC_EMB, [2 * table, 2 * table + 1], queue=table)
        g.alloc(Op.ALLOC_SLOT, [table], queue=table)
        g.table(table, new=n // SIZE + 1, queue=table)
        self.rows[table], self.lengths[table] = n // SIZE + 1, 0
        self.fill(table, tokens)

    def fill(self, table: int, tokens: list[int]) -> None:
        g, at, n = self.guest, self.lengths[table], len(tokens)
        self.grow(table, at + n)
        embeds = list(range(100 + 16 * table, 100 + 16 * table + n))
        g.alloc(Op.ALLOC_EMB, embeds, queue=table)
        g.embed(embeds, tokens, list(range(at, at + n)), queue=table)
        g.forward_table(table, at, embeds, [2 * table + 1], queue=table)
        g.alloc(Op.DEALLOC_EMB, embeds, queue=table)
        self.lengths[table] = at + n
        self.sample(table)

    def grow(self, table: int, tokens: int) -> None:
        need = -(-tokens // SIZE)
        if need > self.rows[table]:
            self.guest.table(table, keep=self.rows[table] * SIZE, new=need - self.rows[table], queue=table)
            self.rows[table] = need

    def sample(self, table: int) -> None:
        g = self.guest
        stop = [self.pick.randint(32, 126)] if self.pick.random() < 0.15 else []
        self.sampled.append(
            g.sample(2 * table + 1, table, temperature=1.0, seed=7, draw=table, stop=stop, queue=table, wait=True)
            if self.pick.random() < 0.7
            else self.penalised(table)
        )

    def penalised(self, table: int) -> int:
        params = np.array([(1.0, 0, 1.0, 0.0, 7, table, 0)], "<f4,<u4,<f4,<f4,<u8,<u4,<u4").tobytes()
        return self.guest.put(Op.SAMPLE, queue=table, a=2 * table + 1, b=table, payload=params + PENALTIES, wait=True)

    def decode(self, table: int) -> None:
        g, at = self.guest, self.lengths[table]
        self.grow(table, at + 1)
        g.embed([2 * table], [table], [at], slots=True, queue=table)
        g.forward_table(table, at, [2 * table], [2 * table + 1], queue=table)
        self.lengths[table] = at + 1
        self.sample(table)

    def fork(self, source: int, table: int) -> None:
        g, rows = self.guest, self.lengths[source] // SIZE
        if not rows:
            return
        g.put(Op.CREATE_QUEUE, queue=table, a=0)
        begins_with_rows = self.pick.random() < 0.5
        if begins_with_rows:
            g.table(table, source, keep=rows * SIZE, queue=table)
        g.alloc(Op.ALLOC_EMB, [2 * table, 2 * table + 1], queue=table)
        g.alloc(Op.ALLOC_SLOT, [table], queue=table)
        if not begins_with_rows:
            g.table(table, source, keep=rows * SIZE, queue=table)
        self.rows[table] = rows
        self.lengths[table] = rows * SIZE
        self.shared = rows
        self.fill(table, [self.pick.randint(32, 126) for _ in range(self.pick.randint(1, 6))])
        self.floor[source] = max(self.floor.get(source, 0), rows * SIZE)
        self.floor[table] = rows * SIZE

    floor: dict[int, int] = field(default_factory=dict)

    def rewind(self, table: int) -> None:
        """Compute from an earlier slot on again."""
        low = self.floor.get(table, 0)
        if self.lengths[table] > low:
            self.lengths[table] = self.pick.randint(low, self.lengths[table] - 1)
            if self.pick.random() < 0.5:
                self.rows[table] = max(1, -(-self.lengths[table] // SIZE))
                self.guest.table(table, keep=self.rows[table] * SIZE, queue=table)
            self.fill(table, [self.pick.randint(32, 126) for _ in range(self.pick.randint(1, 5))])

    def free(self, table: int) -> None:
        g = self.guest
        g.table(table, queue=table)
        g.alloc(Op.DEALLOC_EMB, [2 * table, 2 * table + 1], queue=table)
        g.alloc(Op.DEALLOC_SLOT, [table], queue=table)
        del self.lengths[table], self.rows[table]

    def act(self) -> None:
        tables = list(self.lengths)
        action = self.pick.choice(["decode"] * 6 + ["fork", "fork", "rewind", "free", "fail", "sync"])
        table = self.pick.choice(tables)
        free = [n for n in range(1, 24) if n not in self.used]
        match action:
            case "decode":
                for _ in range(self.pick.randint(1, 4)):
                    self.decode(table)
            case "fork" if free:
                self.used.add(free[0])
                self.fork(table, free[0])
            case "rewind":
                self.rewind(table)
            case "free" if len(tables) > 1:
                self.free(table)
            case "fail":
                self.guest.alloc(Op.DEALLOC_EMB, [9999], queue=table)
                self.guest.put(Op.RESET, queue=table)
            case "sync":
                self.guest.put(Op.SYNCHRONIZE, queue=table, wait=True)

    used: set[int] = field(default_factory=set)


def outcomes(guest: Guest) -> dict[int, tuple[Event, int, int, int, bytes]]:
    """Return what each awaited command was told."""
    told = {a.ticket: (a.event, a.a, a.b, a.c, a.payload) for a in guest.answers if a.awaited}
    assert len(told) == sum(a.awaited for a in guest.answers), "each is told once"
    return told


def begun(host: Host, seed: int, kind: type[Writer] = Writer) -> list[Writer]:
    """Start three programs with prompts."""
    writers = []
    for n in range(3):
        pick = random.Random(100 * seed + n)
        writer = kind(host.start(), pick)
        writer.begin(0, [pick.randint(32, 126) for _ in range(pick.randint(1, 9))])
        writers.append(writer)
    return writers


def ended(host: Host, writers: list[Writer]) -> list[dict[int, object]]:
    """Let programs finish and end, none of them killed, and nothing held. Returns what every program was told."""
    host.run()
    assert [w.guest.killed for w in writers] == [None] * len(writers)
    host.check_idle()
    told: list[dict[int, object]] = [dict(outcomes(w.guest)) for w in writers]
    for writer in writers:
        host.end(writer.guest)
        assert writer.guest.settled is not None
    for engine in host.core.engines.values():
        assert [p.num_held for p in engine.pools] == [0, 0, 0]
    return told


def run(
    seed: int, deaths: float, options: FakeOptions = OPTIONS, engines: int = 2, drains: float = 0.0
) -> list[dict[int, object]]:
    """Run random programs, kill and drain engines at random, and return what every program was told."""
    host = Host(options, engines=engines)
    chance = random.Random(seed + 1000)
    writers = begun(host, seed)
    joined = engines
    for _ in range(40):
        for writer in writers:
            writer.act()
        for _ in range(chance.randint(0, 3)):
            host.pump()
            if chance.random() < 0.6:
                host.answer()
            if chance.random() < deaths:
                host.core.on_engine_gone(host.core.engines[chance.choice(sorted(host.core.engines))])
                joined += 1
                host.join(f"e{joined}", options)
            if chance.random() < drains:
                drained = host.core.cordon(chance.choice(sorted(host.core.engines)), drain=True)
                joined += 1
                host.join(f"e{joined}", options)
                if chance.random() < 0.7:
                    host.run()
                    assert host.core.unused(drained)
                    host.core.on_engine_gone(drained)
    told = ended(host, writers)
    for engine in host.core.engines.values():
        assert engine.tables.num_held == engine.prefixes.num_branches
    return told


@pytest.mark.parametrize("seed", range(25))
def test_programs_are_told_the_same_whatever_engines_die(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "DEATHS_ALONE", 1000)  # they die too often to tell a poison pill
    undisturbed = run(seed, 0.0)
    assert run(seed, 0.15) == undisturbed


@pytest.mark.parametrize("seed", range(25))
def test_programs_are_told_the_same_whatever_engines_are_drained_or_die(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "DEATHS_ALONE", 1000)
    assert run(seed, 0.03 if seed % 2 else 0.0, drains=0.1) == run(seed, 0.0)


def test_programs_stay_on_a_drained_engine_until_another_has_room() -> None:
    small = FakeOptions(page_size=SIZE, num_pages=64, num_embeds=512, num_slots=128, max_batch_tokens=64)
    host = Host(small, engines=2)
    mover, other = host.start(), host.start()
    for guest in (mover, other):
        guest.alloc(Op.ALLOC_EMB, [0, 1])
        guest.alloc(Op.ALLOC_SLOT, [0])
        guest.table(0, new=40)
        guest.embed([0], [65], [0])
        guest.forward_table(0, 0, [0], [1])
    host.run()
    drained = host.core.cordon("e0", drain=True)
    host.run()
    assert len(drained.program_ids) == 1
    first = mover.sample(1, 0, wait=True)
    host.run()
    assert mover.answer(first).event is Event.RESULT
    host.end(other)
    assert host.core.unused(drained)
    again = mover.sample(1, 0, wait=True)
    host.run()
    assert mover.answer(again).a == mover.answer(first).a
    assert mover.killed is None
    host.check_idle()


def test_a_program_over_pages_of_its_own_ends_and_the_call_is_named() -> None:
    host = Host(OPTIONS)
    guest = host.start()
    guest.alloc(Op.ALLOC_KVPAGE, [0])
    guest.alloc(Op.ALLOC_EMB, [0])
    guest.embed([0], [65], [0])
    guest.forward([], [0], [0])
    host.run()
    host.core.on_engine_gone(host.engine)
    host.collect()
    assert isinstance(guest.killed, errors.WorkerLost)
    assert guest.killed.fields["call"] == "forward"


def test_an_output_of_a_freed_table_is_lost_until_it_is_written_again() -> None:
    host = Host(OPTIONS)
    guest = host.start()
    guest.alloc(Op.ALLOC_EMB, [0, 1])
    guest.alloc(Op.ALLOC_SLOT, [0])
    guest.table(0, new=1)
    guest.embed([0], [65], [0])
    guest.forward_table(0, 0, [0], [1])
    guest.table(0)
    host.run()
    host.core.on_engine_gone(host.engine)
    host.join("again", OPTIONS)
    lost = guest.sample(1, 0, wait=True)
    guest.put(Op.RESET)
    guest.table(0, new=1)
    guest.forward_table(0, 0, [0], [1])
    found = guest.sample(1, 0, wait=True)
    host.run()
    assert isinstance(guest.answer(lost).error, errors.EmbedLost)
    assert guest.answer(found).event is Event.RESULT
    assert guest.killed is None


def test_a_program_waits_for_an_engine_and_ends_if_none_comes() -> None:
    host = Host(OPTIONS, rebuild_grace_s=5.0)
    guest = host.start()
    guest.alloc(Op.ALLOC_EMB, [0])
    guest.embed([0], [65], [0])
    host.run()
    host.core.on_engine_gone(host.engine)
    host.clock.advance(4.9)
    host.core.tick()
    assert guest.killed is None
    host.clock.advance(0.2)
    host.core.tick()
    host.collect()
    assert isinstance(guest.killed, errors.WorkerLost)


def _prompt(guest: Guest, token: int) -> None:
    guest.alloc(Op.ALLOC_EMB, [0, 1])
    guest.alloc(Op.ALLOC_SLOT, [0])
    guest.table(0, new=8)
    guest.embed([0], [token], [0])
    guest.forward_table(0, 0, [0], [1])
    guest.sample(1, 0)


def _kill_with(host: Host, pill: int) -> int:
    """Run the programs; each engine dies of a step in which the token `pill` is embedded. Returns the deaths."""
    deaths = 0
    for _ in range(200):
        host.pump()
        if not host._waiting:
            return deaths
        state, _, step = host._waiting[0]
        if any(pill in batch.token.tolist() for batch in step.batches if isinstance(batch, EmbedTxt)):
            deaths += 1
            host.discard()
            host.core.on_engine_gone(state)
            host.join(f"again{deaths}", OPTIONS)
            continue
        host.answer()
    raise AssertionError("the pill never ends")


@pytest.mark.parametrize("others", [0, 1, 12])
def test_a_poison_pill_ends_alone(others: int) -> None:
    host = Host(OPTIONS, steps_in_flight=2)
    bystanders = [host.start() for _ in range(others)]
    for guest in bystanders:
        _prompt(guest, 65)
    pill = host.start()
    _prompt(pill, 66)
    assert _kill_with(host, 66) <= 4
    host.run()
    assert isinstance(pill.killed, errors.WorkerLost)
    assert [g.killed for g in bystanders] == [None] * others
    assert [len(g.tokens()) for g in bystanders] == [1] * others
    host.end(pill)
    host.check_idle()


def test_a_long_program_survives_many_deaths_if_it_gets_on_in_between() -> None:
    host = Host(OPTIONS)
    guest = host.start()
    writer = Writer(guest, random.Random(3))
    writer.begin(0, [65, 66])
    for n in range(6):
        host.run()
        writer.decode(0)
        host.pump()
        host.discard()
        host.core.on_engine_gone(next(iter(host.core.engines.values())))
        host.join(f"again{n}", OPTIONS)
        host.run()
    assert guest.killed is None
    assert len(outcomes(guest)) == 7


@pytest.mark.parametrize("answers", [bytes(7), b""])
def test_a_history_that_makes_no_sense_costs_its_program_alone(answers: bytes) -> None:
    host = Host(OPTIONS)
    bystander, guest = host.start(), host.start(running=True, history=True)
    part = control_pb2.ProgramHistory(answers=answers, commands=bytes(7)).SerializeToString()
    restorer = Restorer(host.core)
    restorer.on_part(host.session, guest.handle, part, more=False)
    restorer.fold_next(host.session)
    _prompt(bystander, 65)
    host.run()
    assert isinstance(guest.killed, errors.ControlLost)
    assert (bystander.killed, len(bystander.tokens())) == (None, 1)


@pytest.mark.parametrize("token", [260, (1 << 31) - 1, (1 << 32) - 1])
def test_a_history_that_tells_of_a_token_that_is_none_reaches_no_engine(token: int) -> None:
    """A client may have uploaded it: such a token would be embedded, or penalised, and break the engine's step."""
    host = Host(OPTIONS)
    guest, bystander = host.start(), host.start()
    writer = Writer(guest, random.Random(1))
    writer.begin(0, [65, 66])
    host.run()
    told = [(record._replace(a=token) if record.c else record, payload) for record, payload in guest.told()]
    guest.told = lambda: told  # type: ignore[method-assign]
    _prompt(bystander, 65)
    host.die()
    writer.decode(0)
    host.run()
    assert isinstance(guest.killed, errors.ControlLost)
    assert (bystander.killed, len(bystander.tokens())) == (None, 1)
