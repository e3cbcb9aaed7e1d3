"""Places in control's table of programs: launches share them by tenant, and what runs keeps its own."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count, islice
from typing import Any

from tartlet_common.clock import ManualClock
from tartlet_common.config.settings import ControlSettings
from tartlet_common.errors.registry import Overloaded
from tartlet_control.core.core import Core
from tartlet_control.core.lifecycle import StartRequest
from tartlet_control.core.runtimes.searches import Found
from tartlet_control.core.sessions import BEGINS_S
from tartlet_control.tables.keys import RETURN_S
from tartlet_control.tables.programs import RuntimeSession

PLACES = 16
HANDLES = count(100)


def core_of(places: int = PLACES) -> tuple[Core, RuntimeSession]:
    core = Core(ControlSettings(max_programs=places), ManualClock(start=100.0), strict=True)
    return core, core.on_runtime("first", "i", "unix:1", [])


def launch(core: Core, session: RuntimeSession, tenant: str, programs: int, **fields: Any) -> list[StartRequest]:
    """Launch programs; returns those that control has let start."""
    asked = [StartRequest(n, f"{tenant}{n}", tenant=tenant, **fields) for n in islice(HANDLES, programs)]
    for request in asked:
        core.on_start(session, request)
    return [r for r in asked if r.handle not in refused(session)]


def refused(session: RuntimeSession) -> dict[int, type[Exception]]:
    return {handle: type(error) for handle, error, _ in session.outbox.notices.started if error is not None}


def running(tenant: str, programs: int) -> list[StartRequest]:
    return [StartRequest(n, f"{tenant}{n}", tenant=tenant, running=True) for n in range(1, programs + 1)]


def by_tenant(core: Core) -> Counter[str]:
    return Counter(program.tenant for program in core.lifecycle.programs.values())


def test_the_last_places_are_for_tenants_below_their_share() -> None:
    core, session = core_of()
    assert len(launch(core, session, "flood", PLACES)) == PLACES - PLACES // 8
    assert set(refused(session).values()) == {Overloaded}
    assert len(launch(core, session, "calm", 2)) == 1, "one is for a tenant without any"
    assert len(launch(core, session, "third", 2)) == 1
    assert by_tenant(core) == {"flood": 14, "calm": 1, "third": 1}


def test_a_key_names_its_program_though_all_places_are_taken() -> None:
    core, session = core_of()
    assert isinstance(core.clock, ManualClock)
    core.clock.advance(RETURN_S)
    [first] = launch(core, session, "flood", 1, idempotency_key="k")
    launch(core, session, "flood", PLACES)
    core.clock.advance(BEGINS_S)
    session.outbox.notices.started.clear()
    core.on_start(session, StartRequest(900, "again", tenant="flood", idempotency_key="k"))
    core.on_start(session, StartRequest(901, "other", tenant="flood", idempotency_key="another"))
    [(_, error, named), (_, full, _)] = session.outbox.notices.started
    assert (error, named) == (None, first.program_id)
    assert isinstance(full, Overloaded)


def test_two_floods_leave_places_for_many_others() -> None:
    core, session = core_of(160)
    launch(core, session, "a", 160)
    assert len(launch(core, session, "b", 160)) == 10, "half of the last eighth"
    assert not launch(core, session, "a", 1)
    others = [len(launch(core, session, f"other-{n}", 3)) for n in range(12)]
    assert others == [1] * 10 + [0] * 2
    assert by_tenant(core).total() == 160


def test_what_ran_before_control_went_away_runs_on_whichever_runtime_is_back_first() -> None:
    for tenants in (("flood", 14), ("calm", 2)), (("calm", 2), ("flood", 14)):
        core, _ = core_of()
        back = [
            core.on_runtime(tenant, "i", f"unix:{tenant}", running(tenant, programs)) for tenant, programs in tenants
        ]
        assert [refused(session) for session in back] == [{}, {}]
        assert by_tenant(core) == {"flood": 14, "calm": 2}


def test_launches_before_a_runtime_is_back_end_nothing_that_runs_there() -> None:
    core, session = core_of()
    launch(core, session, "flood", PLACES)
    late = core.on_runtime("late", "i", "unix:late", running("calm", 8))
    assert refused(late) == {}
    assert by_tenant(core) == {"flood": 14, "calm": 8}
    for handle in range(1, 7):
        assert not launch(core, session, "other", 1), "programs that run count against launches"
        core.on_end(late, handle, failed=False)
    assert not launch(core, session, "flood", 1)
    core.on_end(late, 7, failed=False)
    assert len(launch(core, session, "other", 1)) == 1


def test_a_program_that_only_its_journal_knows_goes_on_though_all_places_are_taken() -> None:
    core, session = core_of()
    clock, settings = core.clock, core.settings
    assert isinstance(clock, ManualClock)
    store = core.on_runtime("store", "i", "unix:store", [], journals="store")
    core.takeovers.on_found(store, [Found("old", 2, "calm", "")], is_last=True)
    launch(core, session, "flood", PLACES)
    launch(core, session, "calm", 1)
    launch(core, session, "third", 1)
    clock.advance(settings.runtime_grace_s + settings.takeover_grace_s / 2)
    core.tick()
    [(program_id, epoch, _)] = store.outbox.notices.takeovers
    core.on_start(store, StartRequest(1, program_id, tenant="calm", adopts=True, durable=True, epoch=epoch))
    assert refused(store) == {}
    assert by_tenant(core) == {"flood": 14, "calm": 2, "third": 1}


def test_a_program_goes_on_with_its_next_run_though_its_place_was_taken_meanwhile() -> None:
    core, _ = core_of()
    store = core.on_runtime("store", "i", "unix:store", [], journals="store")
    [first] = launch(core, store, "flood", 1, durable=True, run=b"1")
    launch(core, store, "flood", PLACES)
    core.on_end(store, first.handle, failed=False, goes_on=True)
    assert len(launch(core, store, "flood", 1)) == 1, "it has the place of the run that ended"
    core.on_start(store, replace(first, handle=1, run=b"2"))
    assert 1 not in refused(store)
    assert first.program_id in core.lifecycle.programs
    core.on_start(store, StartRequest(2, "new", tenant="flood"))
    assert refused(store)[2] is Overloaded
