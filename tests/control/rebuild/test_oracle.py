"""An oracle that shares no code with the books says the same as they, and finds wrong notes that the fold repeats."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType

import pytest

from tartlet_common.abi import CopyInto, Event, MaskWhat, Op
from tartlet_control.calls.names import NameCall
from tartlet_control.rebuild import notes
from tartlet_control.rebuild.comparing import differences
from tartlet_control.rebuild.oracle import LOST, retell
from tartlet_control.tables.programs import Command
from tartlet_worker.fake.model import VOCAB_SIZE
from tests.control.harness import Host
from tests.control.rebuild.test_fold import Stumbler, check_book, run
from tests.control.rebuild.test_recovery import OPTIONS, SIZE, Writer, begun


class Meddler(Stumbler):
    """Makes contexts that aren't plain in every way, at times, and uses pages of its own."""

    pages = 0

    def act(self) -> None:
        table = self.pick.choice(list(self.lengths))
        ways = [self.hide, self.mask, self.leave_a_gap, self.take_other_positions, self.use_pages, self.prioritize]
        if self.pick.random() < 0.3:
            self.pick.choice(ways)(table)
        else:
            super().act()

    def sample(self, table: int) -> None:
        if self.pick.random() < 0.1:  # any token ends the text
            stop = [*range(VOCAB_SIZE)]
            self.guest.sample(2 * table + 1, table, seed=3, temperature=1.0, stop=stop, queue=table)
        else:
            super().sample(table)

    def hide(self, table: int) -> None:
        what, rows = self.pick.choice([*MaskWhat]), self.rows[table]
        first = self.pick.randrange(rows)
        at = (first * SIZE, SIZE) if what == MaskWhat.DROP else (self.pick.randrange(rows * SIZE), 1)
        self.guest.put(Op.MASK_TABLE, queue=table, a=table, b=at[0], c=at[1], payload=int(what).to_bytes(4, "little"))

    def mask(self, table: int) -> None:
        at = self.lengths[table]
        self.grow(table, at + 1)
        self.guest.embed([2 * table], [40], [at], queue=table)
        bits = bytes([255] * (at // 8 + 1))
        self.guest.forward_table(table, at, [2 * table], [2 * table + 1], queue=table, mask=bits)
        self.lengths[table] = at + 1
        self.sample(table)

    def leave_a_gap(self, table: int) -> None:
        self.grow(table, self.lengths[table] + 2)
        self.lengths[table] += 1
        self.decode(table)

    def take_other_positions(self, table: int) -> None:
        at = self.lengths[table]
        self.grow(table, at + 1)
        self.guest.embed([2 * table], [table], [at + 7], slots=True, queue=table)
        self.guest.forward_table(table, at, [2 * table], [2 * table + 1], queue=table)
        self.lengths[table] = at + 1
        self.guest.dist([2 * table + 1], 3, queue=table)

    def use_pages(self, table: int) -> None:
        g, self.pages = self.guest, self.pages + 2
        mine, other = self.pages, self.pages + 1
        g.alloc(Op.ALLOC_KVPAGE, [mine, other], queue=table)
        g.embed([2 * table], [50], [0], queue=table)
        g.forward([], [2 * table], [mine], [2 * table + 1], queue=table)
        g.put(Op.COPY_KVPAGE, queue=table, a=0, b=1, c=1, payload=_u32(mine, other))
        g.put(Op.MASK_KVPAGE, queue=table, a=mine, b=1)
        end, into = self.lengths[table], self.pick.choice([*CopyInto])
        self.grow(table, end + 1)
        g.put(Op.COPY_TABLE, queue=table, a=table, b=end if into else 0, c=1, payload=_u32(mine, 0, into))
        self.lengths[table] += int(into)
        if self.pick.random() < 0.5:
            g.alloc(Op.DEALLOC_KVPAGE, [mine], queue=table)

    def prioritize(self, table: int) -> None:
        self.guest.put(Op.SET_QUEUE_PRIORITY, queue=table, a=9, wait=self.pick.random() < 0.5)


def _u32(*words: int) -> bytes:
    return b"".join(word.to_bytes(4, "little") for word in words)


@pytest.mark.parametrize("seed", range(8))
def test_the_oracle_and_the_fold_equal_the_book_of_programs_that_do_everything(seed: int) -> None:
    run(seed, 0.0, checks=True, kind=Meddler)


MUTANTS = {
    "another token than the one that was embedded": (
        "line.append(content[0], size)",
        "line.append(content[0] ^ 1, size)",
    ),
    "another prompt": ("[content[0] for content in contents], size", "[content[0] + 1 for content in contents], size"),
    "other positions": ("zip(c.sources, c.positions", "zip(c.sources, c.sources"),
    "a stop token that ends nothing": ("token, ended = outcome[0], outcome[1]", "token, ended = outcome[0], 0"),
    "a fork with a row less": ("c.by.keep_tokens // size, size", "c.by.keep_tokens // size - 1, size"),
    "embeds that are never freed": ("held.pop(i, None)", "held.get(i)"),
    "a reset without effect": ("book.failed.discard(c.queue.id)", "pass"),
    "a history without what was sampled": ("history.output.append(token)", "pass"),
    "an output of another slot": ("range(line.length - len(c.oemb), line.length)", "range(len(c.oemb))"),
    "a copy that isn't noticed": ('.spoil(c.first, c.length, "copy_table")', ".add(0)"),
    "a mask that isn't noticed": ("if c.mask:\n        return MASKED", "if False:\n        return MASKED"),
    "a skipped command that marks nothing": ("if status == _SKIPPED:", "if status == -1:"),
}


def mutated(what: str) -> ModuleType:
    """Returns the module of notes with a mistake in it."""
    right, wrong = MUTANTS[what]
    source = inspect.getsource(notes)
    assert source.count(right) == 1
    module = ModuleType("mutant")
    exec(compile(source.replace(right, wrong), "mutant", "exec"), module.__dict__)
    return module


def found(seed: int) -> set[str]:
    """Runs random programs until a part is told differently; returns such parts."""
    host = Host(OPTIONS, engines=2, prefix_cache=False)
    writers: list[Writer] = begun(host, seed, Meddler)
    for _ in range(25):
        for writer in writers:
            writer.act()
        host.pump()
        host.answer()
        for guest in (writer.guest for writer in writers):
            program = host.core.lifecycle.programs[guest.program_id]
            try:
                parts = differences(program, guest.history(), guest.told(), host.core.models.at)
            except IndexError:  # the fold takes a sample for executed that was skipped
                parts = {"history": (None, None)}
            if parts:
                return set(parts)
    return set()


@pytest.mark.parametrize("what", MUTANTS)
def test_notes_that_are_wrong_in_book_and_fold_are_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "_NOTES", mutated(what)._NOTES)
    parts = next(filter(None, map(found, range(6))), set())
    assert parts == {"history"} or any("by the oracle" in part for part in parts)


def test_the_fold_alone_finds_no_wrong_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "_NOTES", mutated("another token than the one that was embedded")._NOTES)
    assert found(1) == {"tables of fake, by the oracle"}


def test_what_an_oracle_tells_of_a_fork_a_rewind_and_a_mask() -> None:
    host = Host(OPTIONS)
    guest = host.start()
    guest.alloc(Op.ALLOC_EMB, range(8))
    guest.alloc(Op.ALLOC_SLOT, [0])
    guest.table(0, new=2)
    guest.embed([0, 1, 2, 3, 4], [50, 51, 52, 53, 54], [0, 1, 2, 3, 4])
    guest.forward_table(0, 0, [0, 1, 2, 3, 4], [5])
    guest.put(Op.CREATE_QUEUE, queue=1)
    guest.table(1, 0, keep=SIZE, new=1, queue=1)
    told = guest.sample(5, 0)
    guest.embed([6], [60], [4])
    guest.forward_table(0, 4, [6], [7])
    guest.put(Op.MASK_TABLE, queue=1, a=1, b=2, c=1, payload=_u32(MaskWhat.HIDE))
    guest.alloc(Op.DEALLOC_EMB, [0, 1, 2, 3, 6])
    host.run()
    held = retell(guest.history(), guest.told(), {0, 1}, SIZE).content()
    assert held == {
        "tables": {
            0: (0, 5, 5, None, 1, True, [0, 1], [50, 51, 52, 53, 60], 0),
            1: (1, 4, 2, 2, 1, False, [0, 2], [50, 51], 0),
        },
        "embeds": {4: (54, 4), 5: (0, 4, False), 7: (0, 4, True)},
        "slots": {0: (guest.answer(told).a, 0, None)},
        "pages": {},
        "failed": set(),
        "matchers": {},
    }
    guest.alloc(Op.ALLOC_KVPAGE, [9])
    guest.forward([], [4], [9], [7])
    guest.alloc(Op.DEALLOC_EMB, [99])
    host.run()
    held = retell(guest.history(), guest.told(), {0, 1}, SIZE).content()
    assert (held["pages"], held["embeds"][7], held["failed"]) == ({9: "forward"}, LOST, {0})


def test_freeing_past_the_limit_of_commands_frees_nothing_in_the_next_control_either() -> None:
    host = Host(OPTIONS)
    guest = host.start(command_limit=3)
    guest.alloc(Op.ALLOC_EMB, [0, 1])
    guest.alloc(Op.ALLOC_SLOT, [0])
    guest.table(0, new=1)
    host.run()
    guest.embed([0], [50], [0])
    guest.forward_table(0, 0, [0], [1])
    guest.sample(1, 0)
    too_many = guest.alloc(Op.DEALLOC_EMB, [0, 1])
    host.run()
    assert [poison.ticket for poison in guest.poisons()] == [too_many]
    check_book(host, guest)
    host.die()
    guest.put(Op.RESET)
    again = guest.sample(1, 0, wait=True)
    host.run()
    assert guest.answer(again).event is Event.RESULT


def below(kind: type[Command]) -> Iterator[type[Command]]:
    for each in kind.__subclasses__():
        yield each
        yield from below(each)


def test_every_command_of_a_program_has_a_note() -> None:
    # A command whose queue waits when control dies stands in the log that a fold makes, if it changes books or not.
    sent = {kind for kind in below(Command) if kind.__module__.startswith("tartlet_control.calls.")}
    assert NameCall in sent
    assert {kind.__name__ for kind in sent - {*notes._NOTES}} <= {"Barrier"}  # control's own
