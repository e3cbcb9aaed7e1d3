"""What a program was told and had submitted gives the book that control had, and a new control goes on from there."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tartlet_control.calls.tables import Share
from tartlet_control.rebuild.fold import fold
from tartlet_control.rebuild.logs import settle
from tartlet_control.tables.lineage import Book, Line
from tartlet_control.tables.programs import Place, ProgramState
from tests.control.harness import Guest, Host
from tests.control.rebuild.test_recovery import OPTIONS, SIZE, Writer, outcomes


def content(book: Book) -> dict[str, Any]:
    """Return what a book says, without the identity of its parts."""
    rows: dict[int, int] = {}
    numbers = {id(line): number for number, line in book.tables.items()}

    def of(line: Line) -> Any:
        shared = [rows.setdefault(id(row), len(rows)) for row in line.rows]
        tokens = line.tokens(0, line.plain, SIZE)
        return line.queue_id, line.length, line.plain, line.limit, line.shared, line.is_plain, shared, tokens

    def held(embed: Any) -> Any:
        if embed is None or len(embed) != 3:
            return embed
        line, slot, writes = embed
        number = numbers.get(id(line))
        return number, slot, number is not None and line.kept(slot, writes)

    slots = {i: s and (s[0], s[1], s[2] and (list(s[2].prompt), list(s[2].output))) for i, s in book.slots.items()}
    return {
        "tables": {n: of(book.tables[n]) for n in sorted(book.tables)},
        "embeds": {i: held(embed) for i, embed in book.embeds.items()},
        "slots": slots,
        "pages": book.pages,
        "failed": book.failed,
        "matchers": book.matchers,
    }


def check_book(host: Host, guest: Guest) -> None:
    """Fold the commands that control has noted in the program's book, and compare."""
    program = host.core.lifecycle.programs.get(guest.program_id)
    if program is None or not program.live:
        return
    place = program.places.get(0)
    if place is None or place.recovery is not None or place.replay is not None:
        return
    settle(place)
    if any(number < 0 for number in place.book.tables):  # a `table` whose rows are taken, and which waits for its turn
        return
    open_ = {c.ticket for c in place.log} | {c.ticket for q in program.queues.values() for c in q.pending}
    noted = [(record, payload) for record, payload in guest.history() if record.ticket not in open_]
    told = [(record, payload) for record, payload in guest.told() if record.ticket not in open_]
    alone = ProgramState(program.id, program.handle, host.session, program.default_model)
    fold(alone, noted, told, host.core.models.at)
    other = alone.places.get(0) or Place(alone, place.model)
    for queue in alone.queues.values():  # nobody awaits their last commands, so no answer says that they have ended
        queue.poison = None
    finish(alone, other)
    assert content(other.book) == content(place.book)


def finish(program: ProgramState, place: Place) -> None:
    """Note what the fold leaves open: all of it has ended well, because failures are told."""
    for command in place.log:
        if type(command) is not Share or command.outcome is None:
            command.outcome = ()
    settle(place)


def run(seed: int, deaths: float, *, engine_deaths: float = 0.0, checks: bool = False) -> list[dict[int, Any]]:
    """Run random programs, kill control at random, and return what every program was told."""
    host = Host(OPTIONS, engines=2)
    chance = random.Random(seed + 1000)
    writers = []
    for n in range(3):
        pick = random.Random(100 * seed + n)
        writer = Writer(host.start(), pick)
        writer.begin(0, [pick.randint(32, 126) for _ in range(pick.randint(1, 9))])
        writers.append(writer)
    joined = 2
    for _ in range(40):
        for writer in writers:
            writer.act()
        for _ in range(chance.randint(0, 3)):
            host.pump()
            if chance.random() < 0.6:
                host.answer()
            if checks:
                for writer in writers:
                    check_book(host, writer.guest)
            if chance.random() < deaths:
                host.die()
            if chance.random() < engine_deaths:
                gone = chance.choice(sorted(host.core.engines))
                host.core.on_engine_gone(host.core.engines[gone])
                host.engines = [(state, fake) for state, fake in host.engines if state.id != gone]
                joined += 1
                host.join(f"e{joined}", OPTIONS)
    host.run()
    assert [w.guest.killed for w in writers] == [None] * 3
    host.check_idle()
    told: list[dict[int, Any]] = [dict(outcomes(w.guest)) for w in writers]
    for writer in writers:
        host.end(writer.guest)
        assert writer.guest.settled is not None
        assert writer.guest.settled.commands == len(writer.guest.sent)
    for engine in host.core.engines.values():
        assert [p.num_held for p in engine.pools] == [0, 0, 0]
        assert engine.tables.num_held == engine.prefixes.num_branches
    return told


@pytest.mark.parametrize("seed", range(4))
def test_the_fold_equals_the_book_at_any_moment(seed: int) -> None:
    run(seed, 0.0, checks=True)


@pytest.mark.parametrize("seed", range(8))
def test_programs_are_told_the_same_and_once_whatever_controls_die(seed: int) -> None:
    assert run(seed, 0.15) == run(seed, 0.0)


@pytest.mark.parametrize("seed", range(4))
def test_programs_are_told_the_same_whatever_controls_and_engines_die(seed: int) -> None:
    assert run(seed, 0.1, engine_deaths=0.02) == run(seed, 0.0)
