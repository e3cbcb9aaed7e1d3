"""Samples that follow grammars go on when engines or control die: a matcher follows from its grammar and its tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from inferlet._wire.options import Options
from tartlet_common.abi import Event, GrammarKind, Op
from tartlet_common.errors import registry as errors
from tartlet_control.core import trials
from tartlet_control.rebuild.comparing import differences
from tartlet_control.tables import grammars
from tartlet_worker.fake import model
from tests.control.compiling import CompilingHost
from tests.control.harness import Guest
from tests.control.rebuild.test_recovery import OPTIONS, Writer, begun, ended

TEXTS = [
    (GrammarKind.REGEX, b"[a-z ]*"),
    (GrammarKind.REGEX, b"([a-c][0-9]){2,9}"),
    (GrammarKind.JSON_SCHEMA, b'{"type":"array","items":{"type":"integer"}}'),
    (GrammarKind.LARK, b'start: ("ab" | "ba")+ "!"'),
]
FOLLOWS = Options(follows=True)


@pytest.fixture
def host() -> Iterator[CompilingHost]:
    host = CompilingHost(OPTIONS)
    yield host
    host.close()


@dataclass
class Follower(Writer):
    """Writes texts as `Writer` does, some of which follow grammars."""

    held: dict[int, bytes] = field(default_factory=dict)  # texts of grammars by number
    ready: list[int] = field(default_factory=list)  # those whose compilation the program knows of
    following: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)  # by table: what the next one names
    last: int = 0

    def define(self) -> None:
        """Have a grammar compiled."""
        kind, text = self.pick.choice(TEXTS)
        self.last += 1
        self.held[self.last] = text
        self.guest.put(Op.GRAMMAR, a=self.last, b=kind, payload=text, wait=True)

    def turn(self) -> None:
        """Free grammars, and define others. All that was sent before has been answered."""
        self.ready = list(self.held)
        for number in self.pick.sample(self.ready, self.pick.randint(0, len(self.ready))):
            self.guest.put(Op.DEALLOC_GRAMMAR, a=number)
            self.ready.remove(number)
            del self.held[number]
            self.following = {t: how for t, how in self.following.items() if how[0] != number}
        for _ in range(self.pick.randint(1, 3)):
            self.define()

    def fill(self, table: int, tokens: list[int]) -> None:
        self.following.pop(table, None)  # else a text that is complete would go on, which fails
        super().fill(table, tokens)

    def sample(self, table: int) -> None:
        how = self.following.get(table)
        if how is None or (not how[0] and self.pick.random() < 0.2):  # the matcher stays as it is meanwhile
            super().sample(table)
        else:
            options = FOLLOWS.pack(model.VOCAB_SIZE, None, how)
            self.following[table] = 0, ()
            self.sampled.append(follow(self.guest, 2 * table + 1, table, options, queue=table, draw=table))

    def act(self) -> None:
        table = self.pick.choice(list(self.lengths))
        match self.pick.choice(["begin", *["go on"] * 4]):
            case "begin" if self.ready:
                number = self.pick.choice(self.ready)
                before = {b"[a-z ]*": b"it is", b"([a-c][0-9]){2,9}": b"a1"}.get(self.held[number], b"")
                self.following[table] = number, tuple(before[: self.pick.randint(0, 9)])
                self.decode(table)
            case _:
                super().act()


def follow(guest: Guest, embed: int, slot: int, options: bytes, *, queue: int = 0, draw: int = 0) -> int:
    params = np.array([(1.0, 0, 1.0, 0.0, 7, draw, 0)], "<f4,<u4,<f4,<f4,<u8,<u4,<u4").tobytes()
    return guest.put(Op.SAMPLE, queue=queue, a=embed, b=slot, payload=params + options, wait=True)


@dataclass
class Deaths:
    """Kills control, and kills and drains engines, at random. Another engine joins for each."""

    host: CompilingHost
    chance: random.Random
    control: float = 0.0
    engines: float = 0.0
    drains: float = 0.0
    joined: int = 2

    def strike(self) -> None:
        host, chance = self.host, self.chance
        if chance.random() < self.control:
            host.die()
        if chance.random() < self.engines:
            name = chance.choice(sorted(host.core.engines))
            host.core.on_engine_gone(host.core.engines[name])
            host.engines = [each for each in host.engines if each[0].id != name]
            self._join()
        if chance.random() < self.drains:
            host.core.cordon(chance.choice(sorted(host.core.engines)), drain=True)
            self._join()

    def _join(self) -> None:
        self.joined += 1
        self.host.join(f"e{self.joined}", OPTIONS)


def run(seed: int, **how: float) -> list[dict[int, object]]:
    """Run random programs that follow grammars, with deaths, and return what every program was told."""
    host = CompilingHost(OPTIONS, engines=2)
    chance = random.Random(seed + 1000)
    deaths = Deaths(host, chance, **how)  # type: ignore[arg-type]
    writers = begun(host, seed, Follower)
    for at in range(32):
        if at % 8 == 0:
            host.run()
        for writer in writers:
            assert isinstance(writer, Follower)
            if at % 8 == 0:
                writer.turn()
            writer.act()
        for _ in range(chance.randint(0, 3)):
            host.pump()
            if chance.random() < 0.6:
                host.answer()
            if not how:
                compare(host, writers)
            deaths.strike()
    told = ended(host, writers)
    assert not any(engine.grammars.held for engine in host.core.engines.values())
    host.close()
    return told


def compare(host: CompilingHost, writers: Sequence[Writer]) -> None:
    """Compare each program's book with the fold of its history."""
    for writer in writers:
        program = host.core.lifecycle.programs[writer.guest.program_id]
        assert not differences(program, writer.guest.history(), writer.guest.told(), host.core.models.at)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("how", [{"engines": 0.15}, {"control": 0.12}, {"drains": 0.1, "engines": 0.02}])
def test_programs_are_told_the_same_whatever_dies(
    seed: int, how: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "DEATHS_ALONE", 1000)
    undisturbed = run(seed)
    assert run(seed, **how) == undisturbed


def _begin(host: CompilingHost, text: bytes, kind: int = GrammarKind.REGEX) -> Guest:
    """Let a program fill a table, and its slot follow a grammar."""
    guest = host.start()
    guest.put(Op.GRAMMAR, a=1, b=kind, payload=text, wait=True)
    guest.alloc(Op.ALLOC_EMB, [0, 1])
    guest.alloc(Op.ALLOC_SLOT, [0])
    guest.table(0, new=4)
    guest.embed([0], [65], [0])
    guest.forward_table(0, 0, [0], [1])
    host.run()
    return guest


def _token(guest: Guest, grammar: tuple[int, tuple[int, ...]] = (0, ())) -> str:
    ticket = follow(guest, 1, 0, FOLLOWS.pack(model.VOCAB_SIZE, None, grammar))
    guest.host.run()
    told = guest.answer(ticket)
    assert told.event is Event.RESULT, told.error
    return chr(told.a)


def _lose_engine(host: CompilingHost, name: str = "again") -> None:
    host.core.on_engine_gone(host.engine)
    host.engines.clear()
    host.join(name, OPTIONS)


@pytest.mark.parametrize("dies", ["engine", "control"])
def test_a_matcher_goes_on_whose_grammar_was_freed(host: CompilingHost, dies: str) -> None:
    guest = _begin(host, b"abcdefgh")
    assert _token(guest, (1, tuple(b"ab"))) == "c"
    guest.put(Op.DEALLOC_GRAMMAR, a=1)
    assert _token(guest) == "d"
    for letter in "efg":
        if dies == "control":
            host.die()
        else:
            _lose_engine(host, "again" + letter)
        assert _token(guest) == letter
    assert not host.engine.grammars.held, "it is forgotten once the matcher is there"
    host.end(guest)


@pytest.mark.parametrize("dies", ["engine", "control"])
def test_a_sample_that_was_sent_before_its_grammar_was_freed_is_sent_again(host: CompilingHost, dies: str) -> None:
    guest = _begin(host, b"abc")
    sent = follow(guest, 1, 0, FOLLOWS.pack(model.VOCAB_SIZE, None, (1, tuple(b"a"))))
    host.pump()
    guest.put(Op.DEALLOC_GRAMMAR, a=1)
    host.pump()
    if dies == "control":
        host.die()
    else:
        host.discard()
        _lose_engine(host)
    host.run()
    assert chr(guest.answer(sent).a) == "b"
    assert _token(guest) == "c"


@pytest.mark.parametrize("dies", ["engine", "control"])
def test_a_grammar_that_was_asked_for_is_answered_once_whatever_dies(host: CompilingHost, dies: str) -> None:
    guest = host.start()
    good = guest.put(Op.GRAMMAR, a=1, b=GrammarKind.REGEX, payload=b"a+", wait=True)
    bad = guest.put(Op.GRAMMAR, a=2, b=GrammarKind.REGEX, payload=b"(", wait=True)
    host.pump()
    if dies == "control":
        host.die()
    else:
        _lose_engine(host)
    late = guest.put(Op.GRAMMAR, a=3, b=GrammarKind.REGEX, payload=b"b+", wait=True)
    host.run()
    assert guest.answer(good).event is guest.answer(late).event is Event.RESULT
    assert isinstance(guest.answer(bad).error, errors.GrammarRefused)
    guest.alloc(Op.ALLOC_EMB, [0, 1])
    guest.alloc(Op.ALLOC_SLOT, [0])
    guest.table(0, new=4)
    guest.embed([0], [65], [0])
    guest.forward_table(0, 0, [0], [1])
    assert _token(guest, (3, ())) == "b"


def test_a_program_ends_whose_grammar_the_next_engine_refuses(host: CompilingHost) -> None:
    guest = _begin(host, b"[ab]+")
    _token(guest, (1, ()))
    host.refused.add(b"[ab]+")
    _lose_engine(host)
    host.run()
    assert isinstance(guest.killed, errors.WorkerLost)
    assert guest.killed.fields["call"] == "grammar"


def test_matchers_of_more_texts_than_control_keeps_end_with_their_engine(
    host: CompilingHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammars, "MAX_TOKENS", 3)
    guest = _begin(host, b"a+")
    for first in (1, 0, 0, 0):
        _token(guest, (first, ()))
    host.core.on_engine_gone(host.engine)
    host.collect()
    assert isinstance(guest.killed, errors.WorkerLost)
    assert guest.killed.fields["call"] == "sample with a grammar"


def test_a_slot_outlives_the_table_from_which_it_was_sampled(host: CompilingHost) -> None:
    guest = _begin(host, b"abc")
    assert _token(guest, (1, ())) == "a"
    guest.table(0)
    host.run()
    _lose_engine(host)
    guest.put(Op.RESET)
    guest.table(0, new=4)
    guest.embed([0], [65], [0])
    guest.forward_table(0, 0, [0], [1])
    assert _token(guest) == "b"
