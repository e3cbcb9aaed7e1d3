"""Programs that control knows from their journals alone, because their runtimes died before control began."""

from __future__ import annotations

import pytest

from tartlet_common.errors.registry import Superseded
from tartlet_control.core.core import Core
from tartlet_control.core.lifecycle import Kept, StartRequest
from tartlet_control.core.runtimes.searches import Found
from tartlet_control.tables.keys import RETURN_S
from tartlet_control.tables.outbox import Adopted
from tartlet_control.tables.programs import RuntimeSession
from tests.control.harness import Host

GRACE_S = 2 * RETURN_S
FOUND = Found("p", 2, "t", "key")
OWN = StartRequest(1, "p", "t", "key", running=True, durable=True, epoch=2)


def searched(host: Host, name: str = "rt2") -> RuntimeSession:
    """Let a runtime join, which lists its store."""
    session = host.core.on_runtime(name, "i", f"unix:{name}", [], journals="store")
    assert session.outbox.notices.find_journals
    host.core.takeovers.on_found(session, [FOUND], is_last=True)
    return session


def wait_for_runtimes(host: Host) -> None:
    host.clock.advance(GRACE_S - RETURN_S)
    host.core.tick()


def offered(core: Core, session: RuntimeSession) -> list[tuple[str, int, bool]]:
    return list(session.outbox.notices.takeovers)


def knows_all(core: Core) -> bool:
    return core.takeovers.knows_all


def test_one_runtime_lists_a_store_and_another_one_only_if_it_goes() -> None:
    core = Host(runtime_grace_s=GRACE_S).core
    first = core.on_runtime("rt1", "i", "unix:1", [], journals="store")
    second = core.on_runtime("rt2", "i", "unix:2", [], journals="store")
    elsewhere = core.on_runtime("rt3", "i", "unix:3", [], journals="another")
    asked = [s.outbox.notices.find_journals for s in (first, second, elsewhere)]
    assert asked == [True, False, True]
    core.lose_runtime(first)
    assert second.outbox.notices.find_journals
    core.takeovers.on_found(second, [], is_last=True)
    late = core.on_runtime("rt4", "i", "unix:4", [], journals="store")
    assert not late.outbox.notices.find_journals


def test_control_knows_all_programs_once_the_stores_are_listed_and_a_key_waits_for_that() -> None:
    host = Host(runtime_grace_s=GRACE_S)
    core = host.core
    core.on_journals(host.session, "another")
    core.takeovers.on_found(host.session, [], is_last=True)
    assert knows_all(core)
    session = core.on_runtime("rt2", "i", "unix:rt2", [])
    assert not knows_all(core), "it can't reach its store"
    core.on_journals(session, "store")
    host.clock.advance(GRACE_S)
    core.on_start(session, StartRequest(5, "other", "t", "key"))
    core.tick()
    assert not session.outbox.notices.started, "the store may have a program of this key"
    assert not knows_all(core)
    core.takeovers.on_found(session, [FOUND], is_last=True)
    assert knows_all(core)
    core.tick()
    assert session.outbox.notices.started == [(5, None, "p")]


def test_a_program_that_only_its_journal_knows_is_given_to_a_runtime_after_the_grace_and_its_key_names_it() -> None:
    host = Host(runtime_grace_s=GRACE_S)
    core = host.core
    session = searched(host)
    assert not offered(core, session), "its runtime may come back"
    wait_for_runtimes(host)
    assert offered(core, session) == [("p", 3, True)]
    core.on_start(session, StartRequest(5, "other", "t", "key"))
    assert session.outbox.notices.started[-1] == (5, None, "p")
    core.on_start(session, StartRequest(9, "p", "t", "key", durable=True, adopts=True, history=True, epoch=3))
    assert session.outbox.notices.adopted == [Adopted(9, 0, 0.0)]
    program = core.lifecycle.programs["p"]
    assert program.awaits_history
    core.lose_runtime(session)  # before the history has come
    other = core.on_runtime("rt5", "i", "unix:5", [], journals="store")
    assert offered(core, other) == [("p", 4, True)]


@pytest.mark.parametrize("running", [True, False])
def test_a_runtime_that_comes_back_within_the_grace_keeps_its_program(running: bool) -> None:
    host = Host(runtime_grace_s=GRACE_S)
    session = searched(host)
    request = StartRequest(1, "p", "t", "key", running=running, durable=True, epoch=2)
    owner = host.core.on_runtime("rt1", "i", "unix:1", [request] if running else [], journals="store")
    if not running:  # control had not answered its start
        host.core.on_start(owner, request)
    wait_for_runtimes(host)
    assert host.core.lifecycle.programs["p"].session is owner
    assert not offered(host.core, session)


def test_a_runtime_that_comes_back_too_late_is_superseded() -> None:
    host = Host(runtime_grace_s=GRACE_S)
    session = searched(host)
    wait_for_runtimes(host)
    late = host.core.on_runtime("rt1", "i", "unix:1", [OWN], journals="store")
    assert isinstance(late.outbox.notices.started[-1][1], Superseded)
    assert offered(host.core, session) == [("p", 3, True)]


def test_a_program_that_has_ended_elsewhere_is_not_begun_again() -> None:
    host = Host(runtime_grace_s=GRACE_S)
    session = searched(host)
    host.core.on_runtime("rt1", "i", "unix:1", [], [Kept("p", "t", "key")], journals="store")
    wait_for_runtimes(host)
    assert not offered(host.core, session)


def test_a_program_that_nobody_takes_frees_its_key() -> None:
    host = Host(runtime_grace_s=GRACE_S)
    session = searched(host)
    host.core.lose_runtime(session)
    wait_for_runtimes(host)
    host.clock.advance(host.core.settings.takeover_grace_s)
    host.core.tick()
    assert host.core.takeovers.orphans, "no runtime was there"
    host.core.on_runtime("rt3", "i", "unix:3", [], journals="another")
    host.clock.advance(host.core.settings.takeover_grace_s)
    host.core.tick()
    assert not host.core.takeovers.orphans
    assert not host.core.lifecycle.keys.named("t", "key")
