"""Programs without a runtime: their commands go on, their answers are kept, and the right runtime gets them once."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tartlet_common.abi import Op
from tartlet_common.errors.registry import JournalUnavailable, Overloaded, RuntimeLost, Superseded, UnknownProgram
from tartlet_common.rpc.tenancy import EVERYONE, Scope
from tartlet_control.core import lifecycle
from tartlet_control.core.lifecycle import Kept, StartRequest
from tartlet_control.core.runtimes.takeovers import ALL_COMMANDS, RETRY_S
from tartlet_control.core.sessions import UNRECORDED
from tartlet_control.tables.outbox import Adopted
from tartlet_control.tables.programs import RuntimeSession
from tests.control.harness import Answer, Guest, Host


def durable_host(run: bytes = b"") -> tuple[Host, Guest]:
    host = Host()
    host.core.on_journals(host.session, "store")
    return host, host.start("p", durable=True, epoch=1, run=run)


def decode(guest: Guest, rounds: int) -> None:
    """Asks for tokens one after the other, each awaited, and for some that fail alone."""
    for n in range(rounds):
        guest.embed([1], [n + 5], [n], wait=n % 3 == 0)
        guest.forward([1], [1], [1], [2], offset=n % 4, wait=n % 2 == 0)
        guest.sample(2, 1, seed=n, wait=True)
        if n % 4 == 3:
            guest.put(Op.STORE_SET, a=1, payload=b"k%d" % n, wait=True)
            guest.put(Op.STORE_GET, payload=b"k", wait=True)


def set_up(guest: Guest) -> None:
    guest.alloc(Op.ALLOC_KVPAGE, [1], wait=True)
    guest.alloc(Op.ALLOC_EMB, [1, 2])
    guest.alloc(Op.ALLOC_SLOT, [1], wait=True)


def taken(session: RuntimeSession) -> tuple[str, int]:
    """Returns the one takeover that a runtime was asked for."""
    ((program_id, epoch, _),) = session.outbox.notices.takeovers
    session.outbox.notices.takeovers.clear()
    return program_id, epoch


def undisturbed() -> list[Answer]:
    host, guest = durable_host()
    set_up(guest)
    decode(guest, 8)
    host.run()
    decode(guest, 8)
    host.run()
    return guest.answers


@pytest.mark.parametrize("seed", range(12))
def test_what_was_not_stored_comes_again_once_and_in_order_whenever_the_runtime_dies(seed: int) -> None:
    rng = random.Random(seed)
    host, guest = durable_host()
    set_up(guest)
    decode(guest, 8)
    host.pump()
    for _ in range(rng.randrange(20)):  # steps may be under way when it dies
        host.answer()
        host.pump()
    sent, heard = guest.tickets, list(guest.answers)
    stored = rng.randint(0, len(heard))
    first = rng.randint(0, stored)
    host.core.on_stored(host.session, (1).to_bytes(4, "little"), first.to_bytes(8, "little"))
    assert not host.core.takeovers.lacks_runtime("p")
    host.core.on_runtime_gone(host.session)
    assert host.core.takeovers.lacks_runtime("p")
    host.core.lose_runtime(host.session)
    other = host.core.on_runtime("rt2", "two", "unix:rt2", [], journals="store")
    assert host.core.lifecycle.locate("p", EVERYONE)[0] == ""
    if rng.random() < 0.5:  # what goes on meanwhile is kept too
        host.session = RuntimeSession("nobody", "", "")
        host.run()
    program_id, epoch = taken(other)
    host.session = other
    guest.answers = heard[:stored]
    host.core.on_start(other, StartRequest(1, program_id, durable=True, adopts=True, epoch=epoch, heard=stored))
    (adopted,) = other.outbox.notices.adopted
    assert (adopted.handle, adopted.commands) == (1, sent)
    host.run()
    decode(guest, 8)
    host.run()
    assert guest.answers == undisturbed()
    assert host.core.lifecycle.locate("p", EVERYONE)[0] == "unix:rt2"
    host.end(guest)
    host.core.check_ledgers()


def test_of_two_runtimes_that_were_named_only_the_last_one_is_the_owner() -> None:
    host, _ = durable_host()
    core = host.core
    core.lose_runtime(host.session)
    second = core.on_runtime("rt2", "two", "unix:rt2", [], journals="store")
    elsewhere = core.on_runtime("rt4", "four", "unix:rt4", [], journals="another store")
    asked = taken(second)
    core.lose_runtime(second)
    third = core.on_runtime("rt3", "three", "unix:rt3", [], journals="store")
    assert taken(third) == (asked[0], asked[1] + 1)
    assert not elsewhere.outbox.notices.takeovers
    late = StartRequest(1, "p", durable=True, adopts=True, epoch=asked[1])
    core.on_start(second, late)
    assert isinstance(second.outbox.notices.started[-1][1], Superseded)
    core.on_start(third, replace(late, epoch=asked[1] + 1))
    assert third.programs[1].id == "p"
    core.on_start(third, replace(late, handle=2))
    assert isinstance(third.outbox.notices.started[-1][1], UnknownProgram)


@pytest.mark.parametrize("late_is_owner", [True, False])
def test_of_two_runtimes_that_announce_a_program_the_one_with_the_higher_epoch_goes_on(late_is_owner: bool) -> None:
    core = Host().core
    epochs = (1, 2) if late_is_owner else (2, 1)
    copies = [StartRequest(n + 4, "p", running=True, history=True, durable=True, epoch=epochs[n]) for n in range(2)]
    sessions = [core.on_runtime(f"rt{n}", "one", f"unix:rt{n}", [copies[n]], journals="store") for n in range(2)]
    owner, stale = sessions[::-1] if late_is_owner else sessions
    told = [*stale.outbox.notices.kills, *((h, e) for h, e, _ in stale.outbox.notices.started if e is not None)]
    assert [(handle, type(error)) for handle, error in told] == [(4 if late_is_owner else 5, Superseded)]
    assert not owner.outbox.notices.kills
    assert [error for _, error, _ in owner.outbox.notices.started] == [None]
    assert core.lifecycle.programs["p"].session is owner
    assert not stale.programs
    assert core.lifecycle.locate("p", EVERYONE)[0] == owner.address
    core.lose_runtime(owner)
    assert core.takeovers.orphans["p"].epoch == 3
    core.check_ledgers()


def test_an_owner_that_control_did_not_know_keeps_a_program_that_was_offered_to_others() -> None:
    core = Host().core
    stale = StartRequest(1, "p", running=True, history=True, durable=True, epoch=1)
    first = core.on_runtime("rt1", "one", "unix:rt1", [stale], journals="store")
    core.lose_runtime(first)
    named = core.on_runtime("rt2", "one", "unix:rt2", [], journals="store")
    epoch = taken(named)[1]
    owner = core.on_runtime("rt3", "one", "unix:rt3", [replace(stale, epoch=epoch)], journals="store")
    assert core.lifecycle.programs["p"].session is owner
    again = core.on_runtime("rt1", "one", "unix:rt1", [stale], journals="store")
    assert isinstance(again.outbox.notices.started[-1][1], Superseded)
    core.on_start(named, StartRequest(1, "p", durable=True, adopts=True, epoch=epoch))
    assert isinstance(named.outbox.notices.started[-1][1], UnknownProgram)
    assert core.lifecycle.programs["p"].session is owner


def test_a_program_ends_when_nobody_can_take_it() -> None:
    host, guest = durable_host()
    set_up(guest)
    host.run()
    core = host.core
    other = core.on_runtime("rt2", "two", "unix:rt2", [], journals="store")
    core.lose_runtime(host.session)
    epoch = taken(other)[1]
    refused = StartRequest(0, "p", adopts=True, epoch=epoch, lost=Overloaded(what="this runtime", limit=1))
    core.on_start(other, refused)
    core.tick()
    assert not other.outbox.notices.takeovers, "it is asked again, but not at once"
    host.clock.advance(RETRY_S)
    core.tick()
    assert taken(other)[1] == epoch + 1
    ended = []
    core.lifecycle.on_end = lambda program, error: ended.append((program.id, error))
    host.clock.advance(core.settings.takeover_grace_s)
    core.tick()
    assert not ended, "a runtime is at work"
    core.on_start(other, replace(refused, epoch=epoch + 1))
    host.clock.advance(core.settings.takeover_grace_s)
    core.tick()
    ((program_id, error),) = ended
    assert (program_id, type(error)) == ("p", RuntimeLost)
    assert not core.lifecycle.programs
    core.check_ledgers()


def test_a_program_waits_for_a_runtime_and_for_its_journal_as_long_as_neither_is_there() -> None:
    host, guest = durable_host()
    core = host.core
    core.lose_runtime(host.session)
    grace_s = core.settings.takeover_grace_s
    for _ in range(3):
        host.clock.advance(grace_s)
        core.tick()
    other = core.on_runtime("rt2", "two", "unix:rt2", [])
    host.clock.advance(grace_s)
    core.tick()  # it can't reach its Redis
    core.on_journals(other, "store")
    for _ in range(3):
        away = StartRequest(0, "p", adopts=True, epoch=taken(other)[1], lost=JournalUnavailable(detail="no Redis"))
        core.on_start(other, away)
        host.clock.advance(grace_s)
        core.tick()
    program_id, epoch = taken(other)
    core.on_start(other, StartRequest(7, program_id, durable=True, adopts=True, epoch=epoch))
    assert core.lifecycle.programs[guest.program_id].session is other


def test_a_program_without_a_journal_ends_with_its_runtime() -> None:
    host, guest = durable_host()
    plain = host.start("q")
    core = host.core
    core.on_stored(host.session, guest.handle.to_bytes(4, "little"), UNRECORDED.to_bytes(8, "little"))
    core.on_runtime("rt2", "two", "unix:rt2", [], journals="store")
    core.lose_runtime(host.session)
    assert plain.program_id not in core.lifecycle.programs
    assert guest.program_id not in core.lifecycle.programs, "it went on without its journal"


def test_the_end_of_a_program_is_told_by_another_runtime_for_whoever_asks() -> None:
    host, guest = durable_host()
    set_up(guest)
    host.end(guest)
    assert guest.settled is not None
    core = host.core
    other = core.on_runtime("rt2", "two", "unix:rt2", [], journals="store")
    core.lose_runtime(host.session)
    assert not other.outbox.notices.takeovers, "nobody has asked"
    core.takeovers.recall("p", Scope("another tenant"))
    assert not core.takeovers.orphans
    core.takeovers.recall("p", EVERYONE)
    program_id, epoch = taken(other)
    core.on_start(other, StartRequest(7, program_id, durable=True, adopts=True, epoch=epoch))
    assert other.outbox.notices.adopted == [Adopted(7, ALL_COMMANDS, 0.0)]
    assert other.outbox.notices.settled == [replace(guest.settled, handle=7)]
    assert core.lifecycle.locate("p", EVERYONE)[0] == "unix:rt2"


def test_who_asks_for_a_program_that_runs_again_leaves_it_alone() -> None:
    host, guest = durable_host()
    set_up(guest)
    host.end(guest)
    core = host.core
    other = core.on_runtime("rt2", "two", "unix:rt2", [], journals="store")
    host.start("p", durable=True, epoch=1)
    core.lose_runtime(host.session)
    program_id, epoch = taken(other)
    core.on_start(other, StartRequest(7, program_id, durable=True, adopts=True, epoch=epoch))
    core.takeovers.recall("p", EVERYONE)
    assert not core.takeovers.orphans
    assert not other.outbox.notices.takeovers
    assert core.lifecycle.locate("p", EVERYONE)[0] == "unix:rt2"
    assert "p" not in core.lifecycle.ended_at, "it would be taken for one that has ended"


@pytest.mark.parametrize("stored", ["first", "second"])
def test_a_program_between_two_runs_goes_on_at_another_runtime(stored: str) -> None:
    host, guest = durable_host(run=b"first")
    set_up(guest)
    host.run()
    core = host.core
    core.on_end(host.session, guest.handle, failed=False, goes_on=True)
    host.run()
    assert guest.settled is not None
    other = core.on_runtime("rt2", "two", "unix:rt2", [], journals="store")
    core.lose_runtime(host.session)
    program_id, epoch = taken(other)  # though nobody asks for the program
    late = StartRequest(2, "p", durable=True, epoch=1, run=b"second")
    back = core.on_runtime("rt", "later", "unix:rt", [], journals="store")
    core.on_start(back, late)
    assert isinstance(back.outbox.notices.started[-1][1], Superseded)
    adoption = StartRequest(7, program_id, durable=True, adopts=True, epoch=epoch, run=stored.encode())
    core.on_start(other, adoption)
    assert not core.takeovers.orphans
    if stored == "first":  # it runs to its end again, and then asks for the second one
        assert other.outbox.notices.adopted == [Adopted(7, ALL_COMMANDS, 0.0)]
        assert other.outbox.notices.settled == [replace(guest.settled, handle=7)]
        core.on_start(other, replace(late, handle=7, epoch=epoch))
    else:
        assert other.outbox.notices.adopted == [Adopted(7, 0, 0.0)]
        assert not other.outbox.notices.settled
    program = core.lifecycle.programs["p"]
    assert (program.session, program.handle, program.epoch, program.run) == (other, 7, epoch, b"second")
    assert core.lifecycle.locate("p", EVERYONE)[0] == "unix:rt2"
    core.check_ledgers()


def test_an_end_that_control_has_forgotten_meanwhile_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "ENDED_KEPT", 2)
    host, guest = durable_host()
    set_up(guest)
    host.end(guest)
    core = host.core
    other = core.on_runtime("rt2", "two", "unix:rt2", [], journals="store")
    core.lose_runtime(host.session)
    core.takeovers.recall("p", EVERYONE)
    epoch = taken(other)[1]
    core.on_kept(other, [Kept("later"), Kept("still later")])
    core.on_start(other, StartRequest(7, "p", durable=True, adopts=True, epoch=epoch))
    assert isinstance(other.outbox.notices.started[-1][1], UnknownProgram)
    assert not other.outbox.notices.adopted
    assert not core.takeovers.orphans


def test_a_kill_reaches_the_next_runtime() -> None:
    host, guest = durable_host()
    core = host.core
    core.lose_runtime(host.session)
    core.lifecycle.kill(core.lifecycle.programs[guest.program_id], Overloaded(what="a test", limit=1))
    other = core.on_runtime("rt2", "two", "unix:rt2", [], journals="store")
    core.on_start(other, StartRequest(1, "p", durable=True, adopts=True, epoch=taken(other)[1]))
    assert [(h, type(e)) for h, e in other.outbox.notices.kills] == [(1, Overloaded)]


def test_a_key_names_a_program_only_once_its_journal_is_known_to_be_stored() -> None:
    host, _ = durable_host()
    core, asked = host.core, StartRequest(7, "q", idempotency_key="k", durable=True, epoch=1)
    core.takeovers.on_found(host.session, [], is_last=True)
    other = core.on_runtime("rt2", "two", "unix:rt2", [], journals="store")
    core.on_start(host.session, asked)
    core.on_start(other, replace(asked, handle=1, program_id="q2"))
    assert other.outbox.notices.started == [], "q's runtime may die before q's journal is stored"
    core.lose_runtime(host.session)
    core.tick()
    assert other.outbox.notices.started == []
    (epoch,) = (epoch for program_id, epoch, _ in other.outbox.notices.takeovers if program_id == "q")
    lost = StartRequest(2, "q", durable=True, adopts=True, epoch=epoch, lost=UnknownProgram(program="q"))
    core.on_start(other, lost)
    core.tick()
    assert other.outbox.notices.started == [(1, None, "")], "q has never begun, so the key names q2"
    third = core.on_runtime("rt3", "three", "unix:rt3", [], journals="store")
    core.on_stored(other, (1).to_bytes(4, "little"), (0).to_bytes(8, "little"))
    core.on_start(third, replace(asked, program_id="q3"))
    assert third.outbox.notices.started == [(7, None, "q2")]
    core.check_ledgers()


def test_the_key_of_a_program_that_began_nowhere_is_free_if_its_runtime_did_not_know_its_store() -> None:
    core = Host().core
    first = core.on_runtime("rt1", "one", "unix:rt1", [])
    asked = StartRequest(1, "q", idempotency_key="k", durable=True, epoch=1)
    core.on_start(first, asked)
    core.on_runtime_gone(first)
    other = core.on_runtime("rt2", "two", "unix:rt2", [], journals="store")
    core.takeovers.on_found(other, [], is_last=True)
    core.on_start(other, replace(asked, program_id="q2"))
    assert other.outbox.notices.started == []
    core.lose_runtime(first)
    core.tick()
    assert other.outbox.notices.started == [(1, None, "")]
