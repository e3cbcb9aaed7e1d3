"""Engines, runtimes and programs that come, leave and come back."""

from __future__ import annotations

import pytest

from tartlet_common import errors
from tartlet_common.abi import Event, Op
from tartlet_control.lifecycle import StartRequest
from tartlet_worker.fake import FakeOptions
from tests.control.harness import Host, decode_text

PROMPT = [5, 6, 7, 8, 9]


def test_an_engine_that_leaves_ends_its_programs_and_no_others() -> None:
    host = Host(engines=2)
    a, b = host.start(), host.start()
    decode_text(a, PROMPT, 6)
    decode_text(b, PROMPT, 6)
    host.pump()
    places = {g.program_id: host.core.lifecycle.programs[g.program_id].places[0].engine for g in (a, b)}
    assert places["p1"] is not places["p2"]
    host.core.on_engine_gone(host.engine)
    host.run()
    assert isinstance(a.killed, errors.WorkerLost)
    assert b.killed is None
    assert len(b.tokens()) == 6
    host.end(a)
    assert a.settled is not None


def test_a_runtime_that_stays_away_loses_its_programs() -> None:
    host = Host(runtime_grace_s=5.0)
    guest = host.start()
    decode_text(guest, PROMPT, 3)
    host.run()
    host.core.on_runtime_gone(host.session)
    host.clock.advance(4.9)
    host.core.tick()
    assert host.engine.pools[0].num_held
    host.clock.advance(0.2)
    host.core.tick()
    assert not host.engine.pools[0].num_held
    assert not host.core.lifecycle.programs
    host.check_idle()


def test_a_runtime_that_comes_back_finds_its_programs() -> None:
    host = Host(runtime_grace_s=5.0)
    keep, drop = host.start(), host.start()
    decode_text(keep, PROMPT, 3)
    decode_text(drop, PROMPT, 3)
    host.run()
    host.core.on_runtime_gone(host.session)
    host.clock.advance(1)
    asked = keep.put(Op.USAGE, wait=True)
    drop.put(Op.USAGE, wait=True)
    host.flush()  # answers wait for the runtime's return
    again = host.core.on_runtime("rt", "one", "unix:rt", [StartRequest(keep.handle, keep.program_id)])
    assert again is host.session
    told = len(drop.answers)
    host.collect()
    assert keep.answer(asked).event is Event.RESULT
    assert len(drop.answers) == told
    assert list(host.core.lifecycle.programs) == [keep.program_id]
    assert keep.usage()["pages"] == 2
    host.check_idle()


def test_a_program_that_comes_back_under_another_handle_ends_if_answers_may_be_lost() -> None:
    host = Host()
    guest, idle = host.start(), host.start()
    decode_text(guest, PROMPT, 3)
    host.run()
    announced = [StartRequest(7, guest.program_id), StartRequest(8, idle.program_id)]
    session = host.core.on_runtime("rt", "one", "unix:rt", announced)
    assert [(h, type(e)) for h, e in session.outbox.notices.kills] == [(7, errors.ControlLost)]
    assert session.programs[8].live
    host.check_idle()


def test_programs_announced_with_lost_state_end_in_control_lost() -> None:
    host = Host()
    session = host.core.on_runtime("other", "x", "", [StartRequest(1, "a", lost_state=True), StartRequest(2, "b")])
    kills = session.outbox.notices.kills
    assert [(h, type(e)) for h, e in kills] == [(1, errors.ControlLost)]
    assert host.core.lifecycle.programs["b"].live


def test_an_idempotency_key_names_one_program() -> None:
    host = Host()
    host.start("first", idempotency_key="k", tenant="t")
    host.session.outbox.take()
    host.core.on_start(host.session, StartRequest(9, "second", idempotency_key="k", tenant="t"))
    _, notices = host.session.outbox.take()
    assert notices.started == [(9, None, "first")]
    assert "second" not in host.core.lifecycle.programs


def test_engines_of_one_model_must_agree() -> None:
    host = Host()
    with pytest.raises(errors.EngineMismatch) as e:
        host.join("e9", FakeOptions(page_size=8))
    assert e.value.fields["field"] == "page_size"


def test_a_cordoned_engine_takes_no_new_programs() -> None:
    host = Host(engines=2)
    host.core.cordon("e0")
    guest = host.start()
    guest.alloc(Op.ALLOC_EMB, [0])
    host.run()
    place = host.core.lifecycle.programs["p1"].places[0]
    assert place.engine is not None
    assert place.engine.id == "e1"
    host.core.cordon("e1")
    other = host.start()
    ticket = other.alloc(Op.ALLOC_EMB, [0], wait=True)
    host.run()
    assert isinstance(other.answer(ticket).error, errors.NoEngine)
    host.core.resume("e0")
    other.put(Op.RESET)
    ticket = other.alloc(Op.ALLOC_EMB, [0], wait=True)
    host.run()
    assert other.answer(ticket).event is Event.RESULT


def test_a_kill_that_the_runtime_may_not_have_heard_is_told_again() -> None:
    host = Host()
    guest = host.start()
    decode_text(guest, PROMPT, 2)
    host.run()
    host.core.on_engine_gone(host.engine)
    host.collect()
    session = host.core.on_runtime("rt", "one", "", [StartRequest(guest.handle, guest.program_id)])
    assert [(h, type(e)) for h, e in session.outbox.notices.kills] == [(guest.handle, errors.WorkerLost)]
