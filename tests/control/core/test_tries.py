"""How often a program is given to another runtime, and what a launch with a key hears meanwhile."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tartlet_common.errors.registry import JournalUnavailable, RuntimeLost, TartletError, Unavailable
from tartlet_control.core.lifecycle import StartRequest
from tartlet_control.core.runtimes.tries import ALONE, DOUBTFUL, MOST, SETTLE_S
from tartlet_control.core.sessions import ANSWER_S, BEGINS_S
from tests.control.core.test_takeovers import durable_host
from tests.control.harness import Host


class Fleet:
    """Runtimes of one store that die of poison programs, and what became of the programs."""

    def __init__(self, *, poison: set[str], innocent: set[str], silent: bool = False) -> None:
        self.host = Host()
        self.core = self.host.core
        self.poison, self.silent = poison, silent
        self.ended: dict[str, TartletError | None] = {}
        self.deaths = self.handle = 0
        self.core.lifecycle.on_end = lambda program, error: self.ended.__setitem__(program.id, error)
        self.session = self.host.session
        self.core.on_journals(self.session, "store")
        for program_id in sorted(poison | innocent):
            self.host.start(program_id, durable=True, epoch=1)
        self.die()

    def die(self) -> None:
        """Lose the runtime; another one is there at once."""
        self.deaths += 1
        before, name = self.session, f"rt{self.deaths}"
        self.session = self.core.on_runtime(name, name, f"unix:{name}", [], journals="store")
        self.core.lose_runtime(before)

    def turn(self) -> list[str]:
        """Let the runtime begin what it was given again, which kills it if there is poison; return the programs."""
        given, self.session.outbox.notices.takeovers = self.session.outbox.notices.takeovers, []
        ids = [program_id for program_id, _, _ in given]
        for program_id, epoch, _ in given:
            self.handle += 1
            handle = self.handle
            self.core.on_start(self.session, StartRequest(handle, program_id, durable=True, adopts=True, epoch=epoch))
            if program_id in self.poison:
                self.die()
                break
            if not self.silent:
                stored = handle.to_bytes(4, "little"), (0).to_bytes(8, "little")
                self.core.on_stored(self.session, *stored)
        self.host.clock.advance(SETTLE_S)
        self.core.tick()
        return ids


def test_a_program_that_kills_whoever_takes_it_over_ends_after_a_few_tries_and_alone() -> None:
    fleet = Fleet(poison={"m"}, innocent={"a", "b", "x", "y"})
    for _ in range(20):
        fleet.turn()
    assert {program_id: type(error) for program_id, error in fleet.ended.items()} == {"m": RuntimeLost}
    assert fleet.deaths == 1 + MOST, "the first one died for another reason"
    assert {p.id for p in fleet.session.programs.values()} == {"a", "b", "x", "y"}
    assert not fleet.core.takeovers.orphans
    fleet.core.check_ledgers()


def test_two_programs_that_kill_runtimes_both_end_and_nobody_else() -> None:
    fleet = Fleet(poison={"c", "m"}, innocent={"a", "b", "x"})
    for _ in range(40):
        fleet.turn()
    assert {program_id: type(error) for program_id, error in fleet.ended.items()} == dict.fromkeys("cm", RuntimeLost)
    assert fleet.deaths <= 1 + 2 * MOST
    assert {p.id for p in fleet.session.programs.values()} == {"a", "b", "x"}


def test_programs_whose_runtimes_died_are_tried_by_halves_and_time_ends_none() -> None:
    fleet = Fleet(poison=set(), innocent=set("abcdefgh"), silent=True)
    assert len(fleet.turn()) == 8
    fleet.die()
    half = fleet.turn()
    assert len(half) == 4
    for _ in range(3):  # they run their pasts again, which takes long
        fleet.host.clock.advance(fleet.core.settings.takeover_grace_s / 2)
        fleet.core.tick()
    assert not fleet.ended
    assert {fleet.core.lifecycle.programs[name].session for name in half} == {fleet.session}
    fleet.die()
    other = fleet.turn()
    assert set(half).isdisjoint(other), "who has waited longest comes first"
    assert len(other) == 4
    fleet.die()
    fleet.silent = False
    while fleet.core.takeovers.orphans:
        assert len(fleet.turn()) <= 2
    assert not fleet.ended


@pytest.mark.parametrize("count", [1, 2, 3, 10, 100])
def test_a_poison_program_costs_about_as_many_runtimes_as_the_count_of_programs_has_digits(count: int) -> None:
    for number in {0, count // 2, count - 1}:
        names = [f"p{n:03}" for n in range(count)]
        poison = names.pop(number)
        fleet = Fleet(poison={poison}, innocent=set(names))
        while poison not in fleet.ended or fleet.core.takeovers.orphans:
            fleet.turn()
            assert fleet.deaths <= 1 + max(MOST, count.bit_length() - 1 + ALONE)
        assert list(fleet.ended) == [poison]
        assert {p.id for p in fleet.session.programs.values()} == set(names)


class SlowFleet(Fleet):
    """Runtimes that share their time among the pasts that they run again."""

    def __init__(self, *, poison: set[str], innocent: set[str], rerun_s: float) -> None:
        self.rerun_s = rerun_s
        self.left_s: dict[str, tuple[int, float]] = {}
        """Handle, and what is left to run again, of each program that doesn't live yet."""
        self.since_s: dict[str, float] = {}
        """Since when each program lives."""
        self.lived: set[str] = set()
        super().__init__(poison=poison, innocent=innocent)

    def die(self) -> None:
        self.left_s, self.since_s = {}, {}
        super().die()

    def pass_time(self, passed_s: float) -> None:
        given, self.session.outbox.notices.takeovers = self.session.outbox.notices.takeovers, []
        for program_id, epoch, _ in given:
            self.handle += 1
            self.left_s[program_id] = self.handle, self.rerun_s
            start = StartRequest(self.handle, program_id, durable=True, adopts=True, epoch=epoch)
            self.core.on_start(self.session, start)
        share_s = passed_s / max(1, len(self.left_s))
        self.host.clock.advance(passed_s)
        for program_id, (handle, left_s) in list(self.left_s.items()):
            if left_s > share_s:
                self.left_s[program_id] = handle, left_s - share_s
            elif program_id in self.poison:
                self.die()
                return
            else:
                del self.left_s[program_id]
                self.since_s[program_id] = self.host.clock.now()
                self.core.on_stored(self.session, handle.to_bytes(4, "little"), (0).to_bytes(8, "little"))
        self.core.tick()
        self.lived |= {name for name, since_s in self.since_s.items() if self.host.clock.now() >= since_s + SETTLE_S}


@pytest.mark.parametrize("seed", range(12))
def test_all_healthy_programs_come_back_though_runtimes_are_killed_again_and_again(seed: int) -> None:
    rng = random.Random(seed)
    names = {f"p{n:03}" for n in range(rng.choice([3, 20, 100]))}
    poison = {"p001"} if seed % 2 else set[str]()
    fleet = SlowFleet(poison=poison, innocent=names - poison, rerun_s=rng.choice([0.02, 0.1, 0.3]))
    bound_s = 60 + 5 * len(names) * fleet.rerun_s  # most of them wait for others again and again
    now, kill_s = fleet.host.clock.now, 0.0
    began_s = now()
    while fleet.lived != names - poison or set(fleet.ended) != poison:
        if now() >= kill_s:
            fleet.die()
            kill_s = now() + rng.uniform(3, 9)
        fleet.pass_time(0.2)
        assert now() - began_s < bound_s, (len(fleet.lived), fleet.ended)
    fleet.core.check_ledgers()


def test_deaths_count_little_where_another_program_has_begun_beside_the_one_that_is_tried_alone() -> None:
    fleet = Fleet(poison=set(), innocent={"v"}, silent=True)
    assert fleet.turn() == ["v"]
    fleet.die()
    weak = round((MOST - 1) / DOUBTFUL)
    for n in range(weak):
        assert "v" not in fleet.ended, f"{n} programs of others have killed their runtimes"
        assert fleet.turn() == ["v"]
        fleet.handle += 1
        fleet.core.on_start(fleet.session, StartRequest(fleet.handle, f"evil{n}", tenant="evil"))
        fleet.die()
    assert isinstance(fleet.ended["v"], RuntimeLost), "it may be the cause, so there is an end"


def test_a_program_that_gives_new_commands_is_proven() -> None:
    fleet = Fleet(poison=set(), innocent={"a"}, silent=True)
    for _ in range(3 * MOST):
        assert fleet.turn() == ["a"]
        fleet.core.lifecycle.programs["a"].commands += 1
        fleet.core.tick()
        fleet.die()
    assert not fleet.ended
    for _ in range(3 * MOST):  # a runtime that stops hasn't died of its programs
        before = fleet.session
        fleet.turn()
        fleet.session = fleet.core.on_runtime(f"next{_}", "one", "unix:next", [], journals="store")
        fleet.core.on_stopping(before)
        fleet.core.lose_runtime(before)
    assert not fleet.ended


def test_a_program_ends_whose_journal_is_damaged_for_good() -> None:
    fleet = Fleet(poison=set(), innocent={"a"})
    ((program_id, epoch, _),) = fleet.session.outbox.notices.takeovers
    damaged = JournalUnavailable(detail="byte 7 of 9 is damaged", for_good=True)
    fleet.core.on_start(fleet.session, StartRequest(0, program_id, adopts=True, epoch=epoch, lost=damaged))
    assert [type(error) for error in fleet.ended.values()] == [RuntimeLost]


def test_a_key_is_answered_at_once_while_its_program_has_no_runtime() -> None:
    host, guest = durable_host()
    core = host.core
    begun = StartRequest(2, "begun", idempotency_key="k", durable=True, epoch=1)
    core.takeovers.on_found(host.session, [], is_last=True)
    core.on_start(host.session, begun)
    core.on_stored(host.session, (2).to_bytes(4, "little"), (0).to_bytes(8, "little"))
    core.on_start(host.session, replace(begun, handle=3, program_id="unbegun", idempotency_key="l"))
    core.lose_runtime(host.session)
    other = core.on_runtime("rt2", "two", "unix:rt2", [], journals="another store")
    core.takeovers.on_found(other, [], is_last=True)
    core.on_start(other, replace(begun, handle=1, program_id="asked"))
    assert other.outbox.notices.started == [(1, None, "begun")], "it exists, and recovers"
    core.on_start(other, replace(begun, handle=2, program_id="asked too", idempotency_key="l"))
    assert len(other.outbox.notices.started) == 1, "a runtime may come that knows whether it has begun"
    host.clock.advance(BEGINS_S)
    core.tick()
    handle, error, existing = other.outbox.notices.started[1]
    assert (handle, type(error), existing) == (2, Unavailable, "")
    assert guest.program_id in core.takeovers.orphans


def test_a_key_that_may_name_a_program_of_a_store_that_nobody_lists_is_answered_in_time() -> None:
    host = Host()
    core = host.core
    core.on_journals(host.session, "store")
    core.on_start(host.session, StartRequest(1, "q", idempotency_key="k", durable=True, epoch=1))
    host.clock.advance(ANSWER_S)
    core.tick()
    assert [(handle, type(error)) for handle, error, _ in host.session.outbox.notices.started] == [(1, Unavailable)]
