"""Engines, runtimes and programs that come, leave and come back."""

from __future__ import annotations

import pytest

from tartlet_common.abi import Event, Op
from tartlet_common.errors import registry as errors
from tartlet_control.core.lifecycle import StartRequest
from tartlet_control.serving.state import state_of
from tartlet_control.tables.models import MAX_FORMS
from tartlet_worker.fake import FakeOptions
from tests.control.harness import Guest, Host, decode_text

PROMPT = [5, 6, 7, 8, 9]


def test_an_engine_that_leaves_ends_its_programs_and_no_others() -> None:
    host = Host(engines=2)
    a, b = host.start(), host.start()
    decode_text(a, PROMPT, 6)
    decode_text(b, PROMPT, 6)
    host.pump()
    host.answer()  # the first forward over the program's own pages
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


def other_form(page_size: int = 8) -> FakeOptions:
    return FakeOptions(page_size=page_size, num_pages=32, num_embeds=256, num_slots=256)


def states(host: Host) -> dict[str, str]:
    return {e["id"]: e["state"] for e in state_of(host.core)["engines"]}


def engine_of(host: Host, guest: Guest) -> str:
    (place,) = host.core.lifecycle.programs[guest.program_id].places.values()
    assert place.engine is not None
    return place.engine.id


def test_another_form_of_a_model_stands_by_until_the_first_has_no_ready_engine() -> None:
    host = Host(engines=2)
    before = host.start()
    decode_text(before, PROMPT, 3)
    host.run()
    late = host.start()  # has asked for the model, and not used it yet
    host.join("n0", other_form())
    assert states(host) == {"e0": "ready", "e1": "ready", "n0": "standby"}
    assert [m.info()["index"] for m in host.core.models] == [0, 1]
    left = next(e for e in ("e0", "e1") if e != engine_of(host, before))
    host.core.cordon(left, drain=True)
    during = host.start()
    decode_text(during, PROMPT, 3)
    host.run()
    assert engine_of(host, during) == engine_of(host, before)
    host.core.cordon(engine_of(host, before), drain=True)
    assert states(host)["n0"] == "ready"
    assert [m.info()["index"] for m in host.core.models] == [1, 0]
    after = host.start()
    for guest in (before, late, after):
        decode_text(guest, PROMPT, 3)
    host.run()
    assert engine_of(host, after) == "n0"
    assert engine_of(host, before) == engine_of(host, late) == engine_of(host, during)
    assert not any(g.killed for g in (before, late, during, after))
    for guest in (before, late, during, after):
        host.end(guest)
    host.check_idle()


def test_who_asks_for_an_unknown_model_is_told_of_those_that_have_engines() -> None:
    host = Host()
    host.join("other", FakeOptions(model="other"))
    for expected in (["fake", "other"], ["other"]):
        with pytest.raises(errors.UnknownModel) as unknown:
            host.core.models.named("nobody")
        assert unknown.value.fields["available"] == expected
        host.core.on_engine_gone(host.engine)


def test_a_program_that_names_a_model_begins_where_an_engine_of_it_takes_programs() -> None:
    host = Host()
    host.core.cordon("e0")
    assert isinstance(host.start(model="fake").started, errors.NoEngine)
    assert host.start(model="fake", running=True).started is None, "it was there before this control"
    assert host.start().started is None, "it may need none"
    host.core.resume("e0")
    assert host.start(model="fake").started is None


def test_a_form_that_was_cordoned_comes_back_before_the_others() -> None:
    host = Host()
    host.join("n0", other_form())
    host.core.cordon("e0")
    assert states(host) == {"e0": "cordoned", "n0": "ready"}
    host.core.resume("e0")
    assert states(host) == {"e0": "ready", "n0": "standby"}
    host.core.on_engine_gone(host.engine)
    assert states(host) == {"n0": "ready"}
    assert [m["index"] for m in state_of(host.core)["models"]] == [1]
    host.join("e1")  # the index of the form that has gone is used again, behind the one that serves
    assert states(host) == {"n0": "ready", "e1": "standby"}
    assert [(m["index"], m["standby"]) for m in state_of(host.core)["models"]] == [(1, False), (0, True)]


def test_a_model_has_so_many_forms_and_no_more() -> None:
    host = Host()
    for n in range(MAX_FORMS - 1):
        host.join(f"n{n}", other_form(n + 5))
    with pytest.raises(errors.EngineMismatch) as e:
        host.join("e9", other_form(32))
    assert e.value.fields["field"] == "page_size"
    host.core.on_engine_gone(host.engine)
    host.join("e9", other_form(32))
    assert len(list(host.core.models)) == MAX_FORMS


def test_the_default_is_the_first_by_name_of_the_models_that_have_a_ready_engine() -> None:
    """Runtimes take the first model that control announces, and control must take the same one."""
    host = Host(FakeOptions(model="b"))
    host.join("later", FakeOptions(model="c"))
    host.join("last", FakeOptions(model="a"))

    def announced() -> list[str]:
        default = host.core.models.named("")
        names = [model.name for model in host.core.models]
        assert default is not None
        assert default.name == names[0]
        return names

    assert announced() == ["a", "b", "c"], "in whichever order they came"
    host.core.on_engine_gone(host.core.engines["last"])
    host.core.cordon("e0")
    assert announced() == ["c", "a", "b"], "those that nobody serves come last"


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


def test_a_program_s_first_command_waits_while_the_only_engine_restarts() -> None:
    host = Host(rebuild_grace_s=60.0)
    guest, late = host.start(model="fake"), host.start(model="fake")
    host.core.on_engine_gone(host.engine)
    decode_text(guest, PROMPT, 3)
    host.run()
    assert not guest.tokens()
    assert guest.killed is None
    host.join("next")
    host.run()
    assert len(guest.tokens()) == 3
    host.end(guest)

    host.core.on_engine_gone(host.core.engines["next"])
    late.alloc(Op.ALLOC_EMB, [0], wait=True)
    host.run()
    host.clock.advance(61)
    host.core.tick()
    host.run()
    assert isinstance(late.killed, errors.NoEngine)
    host.end(late)
    host.check_idle()


def test_a_kill_that_the_runtime_may_not_have_heard_is_told_again() -> None:
    host = Host()
    guest = host.start()
    decode_text(guest, PROMPT, 2)
    host.run()
    host.core.on_engine_gone(host.engine)
    host.collect()
    session = host.core.on_runtime("rt", "one", "", [StartRequest(guest.handle, guest.program_id)])
    assert [(h, type(e)) for h, e in session.outbox.notices.kills] == [(guest.handle, errors.WorkerLost)]
