"""Children end with their parents, whatever ends these and whichever control knows of them."""

from __future__ import annotations

import pytest

from tartlet_common.capabilities import Grant
from tartlet_common.errors.registry import NotAllowed, ParentEnded, ProgramKilled, TartletError
from tartlet_control.core.lifecycle import Kept, StartRequest
from tests.control.harness import Guest, Host


def family() -> tuple[Host, Guest, Guest, Guest]:
    host = Host()
    parent = host.start("parent")
    return host, parent, host.start("child", parent="parent"), host.start("free", parent="parent", detached=True)


def killed(*guests: Guest) -> list[type[TartletError] | None]:
    return [None if guest.killed is None else type(guest.killed) for guest in guests]


@pytest.mark.parametrize("failed", [False, True])
def test_a_child_ends_with_its_parent_and_a_detached_one_does_not(failed: bool) -> None:
    host, parent, child, free = family()
    assert killed(parent, child, free) == [None, None, None]
    host.end(parent, failed=failed)
    assert killed(parent, child, free) == [None, ParentEnded, None]
    host.end(child, failed=True)
    assert [*host.core.lifecycle.programs] == ["free"]


def test_a_killed_parent_s_children_end_when_its_runtime_has_ended_it() -> None:
    host, parent, child, _ = family()
    host.core.lifecycle.kill(host.core.lifecycle.programs["parent"], ProgramKilled(reason="x"))
    host.collect()
    assert killed(parent, child) == [ProgramKilled, None]
    host.end(parent, failed=True)
    assert killed(parent, child) == [ProgramKilled, ParentEnded]


def test_a_child_that_comes_too_late_is_refused() -> None:
    host, parent, _, _ = family()
    host.end(parent)
    late, free = host.start("late", parent="parent"), host.start("later", parent="parent", detached=True)
    assert isinstance(late.started, ParentEnded)
    assert free.started is None


def announced(*kept: str) -> Host:
    """Returns a new control that has heard of a child, and of ended programs."""
    host = Host()
    child = StartRequest(3, "child", parent="parent", running=True)
    host.core.on_runtime("rt2", "two", "unix:rt2", [child], [Kept(i) for i in kept])
    host.core.tick()
    return host


def end_of_child(host: Host) -> type[TartletError] | None:
    kills = dict(host.core.sessions["rt2"].outbox.notices.kills)
    return type(kills[3]) if 3 in kills else None


def test_a_new_control_ends_children_of_a_parent_that_has_ended_meanwhile() -> None:
    assert end_of_child(announced("parent")) is ParentEnded


def test_a_new_control_waits_for_the_parent_s_runtime() -> None:
    host = announced()
    settings = host.core.settings
    host.core.on_runtime("rt3", "three", "unix:rt3", [StartRequest(1, "parent", running=True)])
    host.clock.advance(2 * (settings.runtime_grace_s + settings.takeover_grace_s))
    host.core.tick()
    assert end_of_child(host) is None
    host.core.lose_runtime(host.core.sessions["rt3"])
    assert end_of_child(host) is ParentEnded


def test_a_parent_that_nobody_announces_has_ended() -> None:
    host = announced()
    assert end_of_child(host) is None
    host.clock.advance(host.core.settings.runtime_grace_s + host.core.settings.takeover_grace_s)
    host.core.tick()
    assert end_of_child(host) is ParentEnded


def test_a_parent_starts_what_its_launch_its_entry_and_the_ceiling_allow() -> None:
    host = Host(allowed_spawn="reader*, a=writer")
    grants = (Grant("launch", spawn=("reader.*", "writer")), Grant("entry"))
    for tenant in ("a", "b"):
        parent = host.start(f"parent-{tenant}", tenant=tenant, grants=grants)
        for name, allowed in (("reader", False), ("reader.x", True), ("writer", tenant == "a"), ("other", False)):
            child = host.start(f"{name}-{tenant}", parent=parent.program_id, name=name, tenant=tenant)
            assert (child.started is None) == allowed
            assert allowed or isinstance(child.started, NotAllowed)


def test_what_a_child_has_is_never_more_than_the_ceiling_when_its_parent_is_gone() -> None:
    host = Host(allowed_spawn="")
    late = host.start("late", parent="gone", detached=True, name="reader")
    assert isinstance(late.started, NotAllowed)
