"""What a program was told and had submitted gives the book that control had, and a new control goes on from there."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tartlet_common.abi import Op
from tartlet_common.errors.registry import InvalidArgument
from tartlet_control.rebuild.comparing import differences
from tartlet_control.recovery.checking import BookChecks
from tests.control.harness import Guest, Host
from tests.control.rebuild.test_recovery import OPTIONS, SIZE, Writer, begun, ended


class Stumbler(Writer):
    """Goes on behind failed commands for a while, before it resets their queue, and cancels at times."""

    def act(self) -> None:
        guest, table = self.guest, self.pick.choice(list(self.lengths))
        match self.pick.choice(["stumble", "too far", "reset", "cancel", *["go on"] * 20]):
            case "stumble":
                guest.alloc(Op.DEALLOC_EMB, [9999], queue=table)
                for _ in range(self.pick.randint(0, 3)):
                    self.decode(table)
            case "too far":
                guest.forward_table(table, self.lengths[table] + SIZE, [2 * table], [2 * table + 1], queue=table)
            case "reset":
                guest.put(Op.RESET, queue=table)
            case "cancel":
                guest.put(Op.CANCEL, queue=table, a=self.pick.randint(1, 200), wait=True)
            case _:
                super().act()


def check_book(host: Host, guest: Guest) -> None:
    """Fold the commands that control has noted in the program's book, and compare."""
    program = host.core.lifecycle.programs.get(guest.program_id)
    if program is not None and program.live:
        assert not differences(program, guest.history(), guest.told(), host.core.models.at)


def run(
    seed: int, deaths: float, *, engine_deaths: float = 0.0, checks: bool = False, kind: type[Writer] = Writer
) -> list[dict[int, object]]:
    """Run random programs, kill control at random, and return what every program was told."""
    host = Host(OPTIONS, engines=2)
    chance = random.Random(seed + 1000)
    writers = begun(host, seed, kind)
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
    told = ended(host, writers)
    for writer in writers:
        assert writer.guest.settled is not None
        assert writer.guest.settled.commands == len(writer.guest.sent)
    for engine in host.core.engines.values():
        assert engine.tables.num_held == engine.prefixes.num_branches
    return told


@pytest.mark.parametrize("seed", range(4))
def test_the_fold_equals_the_book_at_any_moment(seed: int) -> None:
    run(seed, 0.0, checks=True)


@pytest.mark.parametrize("seed", range(6))
def test_the_fold_equals_the_book_of_programs_that_go_on_behind_failures(seed: int) -> None:
    run(seed, 0.0, checks=True, kind=Stumbler)


@pytest.mark.parametrize("resets", [False, True])
def test_the_fold_equals_the_book_while_a_failure_waits_behind_commands_on_the_engine(*, resets: bool) -> None:
    host = Host(OPTIONS)
    writer = Writer(host.start(), random.Random(1))
    writer.begin(0, list(range(40, 50)))
    host.run()
    writer.decode(0)
    host.pump()
    program = host.core.lifecycle.programs[writer.guest.program_id]
    assert program.dispatched
    writer.guest.alloc(Op.DEALLOC_EMB, [9999])
    writer.decode(0)  # refused, and so in no log
    if resets:
        writer.guest.put(Op.RESET)
    writer.decode(0)
    host.flush()
    check_book(host, writer.guest)
    host.run()
    check_book(host, writer.guest)


@pytest.mark.parametrize("dies", [False, True])
def test_a_failure_that_survived_a_cancel_poisons_its_queue_in_the_next_control_too(*, dies: bool) -> None:
    host = Host(OPTIONS)
    writer = Writer(host.start(), random.Random(1))
    writer.begin(0, list(range(40, 50)))
    host.run()
    guest = writer.guest
    writer.decode(0)
    failing = guest.table(0, keep=99 * SIZE, new=1)
    guest.put(Op.CANCEL, a=1, wait=True)
    host.flush()
    host.collect()
    assert [poison.ticket for poison in guest.poisons()] == [failing]
    if dies:
        host.die()
    behind = guest.sample(1, 0, wait=True)
    host.run()
    assert isinstance(guest.answer(behind).error, InvalidArgument)


def test_forks_go_on_when_control_dies_behind_a_source_of_which_all_has_ended() -> None:
    host = Host(OPTIONS)
    writer = Writer(host.start(), random.Random(1))
    writer.begin(0, list(range(40, 50)))
    host.run()
    guest = writer.guest
    for fork in (1, 2):
        guest.put(Op.CREATE_QUEUE, queue=fork)
        guest.table(fork, 0, keep=SIZE, queue=fork)
    last = [guest.sync(), guest.sync(1), guest.sync(2)]
    host.flush()  # nobody hears what came of it
    host.die()
    host.run()
    assert all(guest.answered(ticket) for ticket in last)
    check_book(host, guest)


@pytest.mark.parametrize("seed", range(8))
def test_programs_are_told_the_same_and_once_whatever_controls_die(seed: int) -> None:
    assert run(seed, 0.15) == run(seed, 0.0)


@pytest.mark.parametrize("seed", range(4))
def test_programs_are_told_the_same_whatever_controls_and_engines_die(seed: int) -> None:
    assert run(seed, 0.1, engine_deaths=0.02) == run(seed, 0.0)


def test_a_book_that_is_wrong_is_found_while_programs_run(tmp_path: Path) -> None:
    host = Host(OPTIONS, engines=2)
    checks = BookChecks(host.core, tmp_path, random.Random(1))
    checks.attach()
    writer = Writer(host.start(), random.Random(2))
    writer.begin(0, list(range(40, 50)))
    for _ in range(20):
        writer.act()
        host.run()
    assert checks.checked
    assert (checks.programs, checks.wrong) == (1, 0)
    program = host.core.lifecycle.programs[writer.guest.program_id]
    (place,) = program.places.values()
    for line in place.book.tables.values():
        line.length += 1
    checks.check(program)
    assert checks.wrong == 1
    (wrong,) = tmp_path.glob("wrong-*")
    assert "tables of" in wrong.read_text()
    (counts,) = tmp_path.glob("counts-*")
    assert counts.read_text().split() == [str(checks.programs), str(checks.checked), str(checks.wrong)]


def test_books_are_compared_while_a_table_is_exported_behind_a_forward() -> None:
    """No answer tells that the forward before an export has ended, so the fold finds the export open."""
    host = Host(OPTIONS)
    guest = host.start()
    embeds = list(range(SIZE + 1))
    guest.put(Op.CREATE_QUEUE, queue=1)
    guest.table(0, new=2, queue=1)
    guest.alloc(Op.ALLOC_EMB, embeds, queue=1)
    guest.embed(embeds, embeds, embeds, queue=1)
    guest.forward_table(0, 0, embeds, queue=1)
    guest.alloc(Op.DEALLOC_EMB, embeds, queue=1)
    exported = guest.put(
        Op.EXPORT_KVPAGE, queue=1, a=0, b=SIZE + 1, c=4, payload=(60).to_bytes(4, "little") + b"name", wait=True
    )
    while not guest.answered(exported):
        host.pump()
        check_book(host, guest)
        host.answer()
        check_book(host, guest)
