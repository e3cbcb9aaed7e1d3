"""How often a program is given to another runtime, and what a launch with a key hears meanwhile."""

from __future__ import annotations

from dataclasses import replace

from tartlet_common.errors.registry import JournalUnavailable, RuntimeLost, TartletError, Unavailable
from tartlet_control.core.lifecycle import StartRequest
from tartlet_control.core.runtimes.tries import ALONE_FROM, DOUBTFUL, MOST, SETTLE_S
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


def test_programs_whose_runtimes_died_are_tried_one_by_one_and_time_ends_none() -> None:
    fleet = Fleet(poison=set(), innocent={"a", "b", "c"}, silent=True)
    for _ in range(ALONE_FROM):
        assert len(fleet.turn()) == 3
        fleet.die()
    (first,) = fleet.turn()
    for _ in range(3):  # it runs its past again, which takes long
        fleet.host.clock.advance(fleet.core.settings.takeover_grace_s / 2)
        fleet.core.tick()
    assert not fleet.ended
    assert fleet.core.lifecycle.programs[first].session is fleet.session
    fleet.silent = False
    while fleet.core.takeovers.orphans:
        assert len(fleet.turn()) <= 1
    assert not fleet.ended


def test_deaths_count_little_where_another_program_has_begun_beside_the_one_that_is_tried_alone() -> None:
    fleet = Fleet(poison=set(), innocent={"v"}, silent=True)
    for _ in range(ALONE_FROM):
        assert fleet.turn() == ["v"]
        fleet.die()
    weak = round((MOST - ALONE_FROM) / DOUBTFUL)
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
