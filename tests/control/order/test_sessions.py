"""Sessions: whose service a run is charged to, when a session ends, and what the orders make of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tartlet_common.abi import Op
from tartlet_control.order.book import Program
from tartlet_control.order.sessions import ALONE, Belonging, Sessions
from tests.control.harness import Guest, Host
from tests.control.order.test_live import ONE_AT_A_TIME, answer, served, state


@pytest.mark.parametrize("order", ["plas", "atlas"])
def test_a_session_s_next_run_goes_behind_a_program_with_less_service(order: str) -> None:
    host = Host(ONE_AT_A_TIME, order=order, order_quanta_s="0.1,0.4", order_starved_at=0)

    def ready(belonging: Belonging = ALONE) -> Guest:
        guest = host.start(belonging=belonging)
        guest.alloc(Op.ALLOC_EMB, [0])
        host.run()
        return guest

    first = ready(Belonging("s"))
    first.forward([], [0], [], [0])
    host.pump()
    answer(host, device_s=0.5)
    host.end(first)
    host.clock.advance(1.0)
    second, fresh = ready(Belonging("child", parent="s")), ready()
    assert state(second).account.service_s >= 0.5
    for guest in (second, fresh):
        guest.forward([], [0], [], [0])
    assert [handle for handle, _ in served(host, [second, fresh])] == [3, 2]


def test_gittins_learns_what_a_session_used_in_all_at_its_end() -> None:
    host = Host(ONE_AT_A_TIME, session_idle_s=60)
    learned = host.core.lifecycle.history
    for _ in range(2):
        guest = host.start(belonging=Belonging("s"), name="agent")
        guest.alloc(Op.ALLOC_EMB, [0])
        host.run()
        guest.forward([], [0], [], [0])
        host.pump()
        answer(host, device_s=0.5)
        host.end(guest)
    assert list(learned.keys) == []
    host.clock.advance(61)
    host.core.tick()
    assert list(learned.keys) == [("", "agent", "")]
    assert len(host.core.lifecycle.accounts.sessions) == 0


def test_a_session_ends_behind_its_last_run_when_it_is_told_to() -> None:
    sessions = Sessions()
    account = sessions.join("a", Belonging("s"), lambda: Program(1), 0.0)
    assert sessions.join("a", Belonging("s", ends=True), lambda: Program(2), 0.0) is account
    assert sessions.leave("a", "s", 1.0) == []
    assert sessions.leave("a", "s", 1.0) == [account]
    assert sessions.end("a", "s") == []
    sessions.join("a", Belonging("s"), lambda: Program(3), 2.0)
    assert sessions.end("b", "s") == []  # another tenant's
    assert sessions.end("a", "s") == []
    assert len(sessions.leave("a", "s", 3.0)) == 1


_steps = st.lists(
    st.tuples(
        st.sampled_from(["join", "leave", "end", "expire"]),
        st.sampled_from("ab"),
        st.sampled_from(["r", "s", "t"]),
        st.sampled_from(["", "r", "s"]),
        st.booleans(),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(_steps)
def test_accounts_end_once_and_tenants_share_none(steps: list[tuple[str, str, str, str, bool]]) -> None:
    sessions = Sessions(idle_s=5.0, most=2)
    running: list[tuple[str, str]] = []
    owner: dict[int, str] = {}
    ended: list[int] = []
    made = 0

    def make() -> Program:
        nonlocal made
        made += 1
        return Program(made)

    for now, (what, tenant, name, parent, ends) in enumerate(steps):
        gone: list[Program] = []
        match what:
            case "join":
                account = sessions.join(tenant, Belonging(name, parent, ends), make, float(now))
                assert owner.setdefault(account.number, tenant) == tenant
                assert account.number not in ended
                running.append((tenant, name))
            case "leave" if (tenant, name) in running:
                running.remove((tenant, name))
                gone = sessions.leave(tenant, name, float(now))
            case "end":
                gone = sessions.end(tenant, name)
            case "expire":
                gone = sessions.expire(float(now))
        ended += [account.number for account in gone]
        assert len(set(ended)) == len(ended)
        assert len(sessions) <= len(set(running)) + 2 * 2 + 1  # a parent that was named alone is idle too
    for tenant, name in running:
        ended += [account.number for account in sessions.leave(tenant, name, 100.0)]
    ended += [account.number for account in sessions.expire(200.0)]
    assert len(sessions) == 0
    assert sorted(ended) == list(range(1, made + 1))
