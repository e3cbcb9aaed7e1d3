"""Adapters come and go while engines run: what a model offers, and that one in use stays."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tartlet_common.abi import Event, Op
from tartlet_common.engine.spec import ADAPTER_TRAIT
from tartlet_common.errors import registry as errors
from tartlet_common.rpc.error_proto import error_to_proto
from tartlet_control.core.places import adapters
from tartlet_control.core.places.adapters import AdapterReport
from tartlet_control.rebuild.used_adapters import adapters_of
from tartlet_control.serving.specs import adapter_report, spec_from_json
from tartlet_control.serving.state import engine_state, engines_of
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.programs import Place
from tartlet_protos import engine_pb2
from tartlet_worker.fake import FakeEngine, FakeOptions
from tartlet_worker.fake.adapters import adapter_named
from tests.control.harness import Guest, Host
from tests.control.placement.test_placing import engine_of
from tests.control.sharing.test_adapters import PROMPT, begin, fill

OPTIONS = FakeOptions(page_size=4, num_pages=64, num_embeds=512, num_slots=128, max_batch_tokens=64, live_adapters=True)
A, B = (adapter_named(name).number for name in "ab")
REFUSED = errors.AdapterRefused(path="/c", detail="DoRA (use_dora) aren't served")


def has(fake: FakeEngine, names: str) -> AdapterReport:
    """Let an engine offer other adapters. What it had stays until control says otherwise."""
    assert fake.adapters is not None
    offered = tuple(adapter_named(name) for name in names)
    for name in names:
        fake.adapters.load(fake.adapters.check(name, Path()))()
    there = fake.state.adapters
    return AdapterReport(offered, tuple(adapter for _, adapter in sorted(there.items()) if adapter not in offered))


def offer(host: Host, at: int, names: str) -> None:
    """Let an engine of the host report that it offers other adapters."""
    state, fake = host.engines[at]
    host.core.adapters.report(state, has(fake, names))


def join(host: Host, name: str, names: str = "") -> EngineState:
    """Let an engine join with adapters."""
    fake = FakeEngine(OPTIONS)
    state = host.core.on_engine(name, f"inc-{name}", replace(fake.spec, adapters=has(fake, names).offered))
    host.engines.append((state, fake))
    return state


def unload(host: Host) -> list[int]:
    """Do what control does a few times a second; return what engines are told to forget, once they have."""
    host.core.tick()
    told = []
    for state, fake in host.engines:
        assert fake.adapters is not None
        for number in state.unload:
            fake.adapters.remove(number)
            told.append(number)
        state.unload.clear()
    return told


def offered(host: Host) -> list[str]:
    """Return the adapters of which runtimes and programs are told."""
    [first, *_] = host.core.models
    return [adapter["name"] for adapter in json.loads(first.info()["spec_json"])["adapters"]]


def fails(host: Host, adapter: int) -> errors.TartletError:
    """Return how a new program's `forward` under an adapter fails."""
    guest = begin(host)
    guest.table(0, new=1)
    guest.embed([0], [65], [0])
    ticket = guest.forward_table(0, 0, [0], [1], adapter=adapter, wait=True)
    host.run()
    return guest.answer(ticket).error


def over_table(guest: Guest) -> int:
    return fill(guest, PROMPT, A)


def over_pages(guest: Guest) -> int:
    guest.alloc(Op.ALLOC_KVPAGE, range(4))
    guest.embed(list(range(15)), PROMPT, list(range(15)))
    guest.forward([0, 1, 2, 3], list(range(15)), [0, 1, 2, 3], [64], adapter=A)
    return guest.sample(64, 0, wait=True)


def over_another(guest: Guest) -> int:
    """Compute a table without an adapter, and go on under one."""
    fill(guest, PROMPT, 0)
    return fill(guest, [60], A, start=15)


def test_a_model_offers_what_all_its_engines_offer() -> None:
    host = Host(OPTIONS, engines=2)
    [model] = host.core.models
    assert ADAPTER_TRAIT in model.spec.traits
    assert isinstance(fails(host, A), errors.UnknownAdapter)
    offer(host, 0, "ab")
    assert offered(host) == []
    offer(host, 1, "a")
    assert offered(host) == ["a"]
    assert [model] == list(host.core.models)
    error = fails(host, B)
    assert isinstance(error, errors.UnknownAdapter)
    assert error.fields["available"] == ["a"]
    guest = begin(host)
    ticket = over_table(guest)
    host.run()
    assert guest.answer(ticket).event is Event.RESULT
    host.core.on_engine_gone(host.engines.pop()[0])
    assert offered(host) == ["a", "b"]


def test_runtimes_are_told_of_each_change() -> None:
    host = Host(OPTIONS)
    notices = host.session.outbox.notices
    for names in ("a", "ab", ""):
        notices.models_changed = False
        offer(host, 0, names)
        assert notices.models_changed
        assert offered(host) == list(names)


@pytest.mark.parametrize("use", [over_table, over_pages, over_another])
def test_an_adapter_in_use_stays_until_its_program_is_done(use: Callable[[Guest], int]) -> None:
    host = Host(OPTIONS)
    offer(host, 0, "ab")
    guest = begin(host)
    use(guest)
    host.run()
    offer(host, 0, "b")
    assert offered(host) == ["b"]
    assert unload(host) == []
    assert isinstance(fails(host, A), errors.UnknownAdapter)  # another program's
    guest.table(1, new=1)
    guest.embed([0], [65], [0])
    guest.forward_table(1, 0, [0], [1], adapter=A)
    ticket = guest.sample(1, 0, wait=True)
    host.run()
    assert guest.answer(ticket).event is Event.RESULT
    assert unload(host) == []
    host.end(guest)
    assert unload(host) == [A]
    assert unload(host) == []
    assert host.engine.spec.adapter(A) is None
    assert [*host.engines[0][1].state.adapters] == [B]
    assert isinstance(fails(host, A), errors.UnknownAdapter)
    host.check_idle()


def test_an_adapter_stays_for_commands_that_wait_and_goes_when_its_context_is_given_back() -> None:
    host = Host(OPTIONS)
    offer(host, 0, "a")
    guest = begin(host)
    ticket = over_table(guest)
    host.pump()  # on the engine, without an answer
    offer(host, 0, "")
    assert unload(host) == []
    host.run()
    assert guest.answer(ticket).event is Event.RESULT
    assert unload(host) == []
    guest.table(0, keep=0)
    host.run()
    assert unload(host) == [A]
    failed = fill(guest, PROMPT, A)
    host.run()
    assert isinstance(guest.answer(failed).error, errors.UnknownAdapter)
    assert guest.killed is None


def test_an_adapter_that_is_offered_again_before_it_was_unloaded_stays() -> None:
    host = Host(OPTIONS)
    offer(host, 0, "a")
    guest = begin(host)
    over_table(guest)
    host.run()
    offer(host, 0, "")
    assert unload(host) == []
    offer(host, 0, "a")
    host.end(guest)
    assert unload(host) == []
    assert offered(host) == ["a"]


def test_an_adapter_that_is_offered_again_is_not_unloaded_by_a_word_that_was_held_up() -> None:
    host = Host(OPTIONS)
    offer(host, 0, "a")
    offer(host, 0, "")
    host.core.tick()
    assert host.engine.unload == [A]
    offer(host, 0, "a")
    guest = begin(host)
    over_table(guest)
    host.run()
    offer(host, 0, "")
    assert unload(host) == []


def test_an_engine_that_lacks_what_the_others_offer_stands_by_until_it_has_it() -> None:
    host = Host(OPTIONS)
    offer(host, 0, "a")
    late = join(host, "late")
    assert offered(host) == ["a"]
    assert late.model_index != host.engine.model_index
    offer(host, 1, "ab")
    assert late.model_index == host.engine.model_index
    assert host.core.models.at(late.model_index).engines == [host.engine, late]
    assert offered(host) == ["a"]
    offer(host, 0, "ab")
    assert offered(host) == ["a", "b"]
    lacking = join(host, "lacking", "a")
    assert lacking.model_index != late.model_index
    offer(host, 0, "a")  # what it lacks is offered no more
    assert lacking.model_index == late.model_index
    guest = begin(host)
    ticket = over_table(guest)
    host.run()
    assert guest.answer(ticket).event is Event.RESULT


@pytest.mark.parametrize("dies", ["engine", "control"])
def test_a_context_is_made_again_under_an_adapter_that_is_offered_no_more(dies: str) -> None:
    def tokens(host: Host, *, disturbed: bool) -> list[int]:
        offer(host, 0, "a")
        guest = begin(host)
        fill(guest, PROMPT, A)
        host.run()
        if disturbed:
            offer(host, 0, "")
            if dies == "control":
                host.die()
            else:
                other = join(host, "without")
                other_id = other.id
                two = join(host, "with", "a")
                host.core.adapters.report(two, has(host.engines[-1][1], ""))
                host.core.on_engine_gone(host.engines.pop(0)[0])
                host.run()
                assert other_id == "without"
                assert not other.program_ids
        host.run()
        fill(guest, [60, 61], A, start=15)
        host.run()
        assert guest.killed is None
        if disturbed:
            assert unload(host) == []
            assert isinstance(fails(host, A), errors.UnknownAdapter)
            host.end(guest)
            assert unload(host) == [A]
        return guest.tokens()

    assert tokens(Host(OPTIONS), disturbed=True) == tokens(Host(OPTIONS), disturbed=False)


def test_a_program_whose_adapter_went_with_its_last_engine_ends_by_the_type_of_the_loss() -> None:
    host = Host(OPTIONS, rebuild_grace_s=5.0)
    offer(host, 0, "a")
    guest = begin(host)
    over_table(guest)
    host.run()
    offer(host, 0, "")
    join(host, "without")
    host.core.on_engine_gone(host.engines.pop(0)[0])
    host.run()
    assert guest.killed is None
    host.clock.advance(6.0)
    host.core.tick()
    host.collect()
    assert isinstance(guest.killed, errors.WorkerLost)


def test_refused_adapters_are_shown_and_the_others_are_offered() -> None:
    host = Host(OPTIONS)
    state, fake = host.engines[0]
    host.core.adapters.report(state, has(fake, "a")._replace(refused={"c": REFUSED}))
    assert offered(host) == ["a"]
    assert engine_state(state, host.core)["refused"] == {"c": str(REFUSED)}
    [seen] = engines_of(host.core, {}).engines
    assert dict(seen.refused) == {"c": str(REFUSED)}
    offer(host, 0, "a")
    assert engine_state(state, host.core)["refused"] == {}


def test_reports_are_checked() -> None:
    spec = FakeEngine(OPTIONS).spec
    good = json.dumps([asdict(adapter_named("a"))])
    report = engine_pb2.AdapterReport(adapters_json=good, retiring_json="[]", refused={"c": error_to_proto(REFUSED)})
    read = adapter_report(spec, report)
    assert (read.offered, read.retiring) == ((adapter_named("a"),), ())
    assert read.refused["c"].fields == REFUSED.fields
    wrong: Any
    for wrong in ("", "{}", "[1]", '[{"name": "a"}]', "[" * 100_000):
        for fields in ({"adapters_json": wrong}, {"retiring_json": wrong}):
            told = engine_pb2.AdapterReport(**({"adapters_json": good, "retiring_json": "[]"} | fields))
            with pytest.raises(errors.MalformedSubmission):
                adapter_report(spec, told)
    with pytest.raises(errors.MalformedSubmission):
        adapter_report(replace(spec, live_adapters=False), report)
    sent = replace(spec, adapters=(adapter_named("a"),), retiring=(adapter_named("b"),))
    assert spec_from_json(json.dumps(asdict(sent))) == sent


def test_engines_whose_adapters_come_and_go_serve_apart_from_others() -> None:
    host = Host(OPTIONS)
    offer(host, 0, "a")
    fixed = host.join("fixed", replace(OPTIONS, live_adapters=False, adapters=("a",)))
    assert fixed.model_index != host.engine.model_index


def test_a_tick_looks_at_each_place_once_however_many_engines_retire_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "_PLACES_A_TICK", 2)
    host, looks = Host(OPTIONS, engines=4), list[Place]()
    for at in range(4):
        offer(host, at, "a")
    guests = [begin(host) for _ in range(4)]
    for guest in guests:
        over_table(guest)
    host.run()
    for at in range(4):
        offer(host, at, "")

    def look(place: Place) -> set[int]:
        looks.append(place)
        return adapters_of(place)

    monkeypatch.setattr(adapters, "adapters_of", look)
    told = [unload(host) for _ in range(6)]
    assert len(looks) == 8, "twice, and not in the two ticks behind each"
    in_use = {engine_of(guest) for guest in guests}
    assert [number for numbers in told for number in numbers] == [A] * (4 - len(in_use))
    for guest in guests:
        host.end(guest)
    assert [number for _ in range(6) for number in unload(host)] == [A] * len(in_use)


def test_adapters_that_are_gone_leave_nothing_behind() -> None:
    host = Host(OPTIONS)
    [model] = host.core.models
    offer(host, 0, "a")
    digest = model.adapter_digest(A)
    assert digest != str(A)
    guest = begin(host)
    over_table(guest)
    host.run()
    for names in ("b", "c", "b"):
        offer(host, 0, names)
        assert model.adapter_digest(A) == digest, "a program uses it"
    host.end(guest)
    unload(host)
    offer(host, 0, "b")
    assert model.adapter_digest(A) == str(A)
    assert model.adapter_digest(B) != str(B)
