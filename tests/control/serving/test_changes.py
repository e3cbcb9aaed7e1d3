"""What a watcher of the state was told adds up to the state, for each tenant."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

from tartlet_common.abi import Op
from tartlet_common.rpc.tenancy import Scope
from tartlet_control.serving.state import state_of
from tartlet_control.serving.watching.changes import Changes
from tartlet_control.serving.watching.steps import MOST_CALLS, MOST_STEPS, StepsSeen
from tartlet_worker.fake import FakeOptions
from tests.control.harness import Guest, Host

STEADY = ("id", "name", "tenant", "state", "engines", "pages", "sampled_tokens", "computed_tokens", "commands")


class Told:
    """What a watcher knows."""

    def __init__(self) -> None:
        self.programs: dict[str, Any] = {}
        self.engines: dict[str, Any] = {}

    def take(self, change: Any) -> None:
        if change is None:
            return
        told = json.loads(change.json)
        if change.whole:
            self.programs.clear()
            self.engines.clear()
        self.programs |= {p["id"]: p for p in told["programs"]}
        self.engines |= {e["id"]: e for e in told["engines"]}
        for name in change.programs_gone:
            del self.programs[name]
        for name in change.engines_gone:
            del self.engines[name]


def steady(programs: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(tuple(str(p[key]) for key in STEADY) for p in programs)


def test_changes_add_up_to_the_state_and_a_state_at_rest_has_none() -> None:
    chance = random.Random(7)
    host = Host(FakeOptions(num_pages=64), engines=2)
    scopes = [Scope(None), Scope("a"), Scope("b")]
    watchers = [(scope, Changes(host.core, scope), Told()) for scope in scopes]
    guests: list[Guest] = []
    for _ in range(60):
        if len(guests) < 3 or chance.random() < 0.3:
            guests.append(host.start(tenant=chance.choice("ab")))
        elif chance.random() < 0.2:
            host.end(guests.pop(chance.randrange(len(guests))))
        else:
            guest = chance.choice(guests)
            guest.table(guest.tickets, new=1)
        host.run()
        for scope, changes, told in watchers:
            if chance.random() < 0.5:
                told.take(asyncio.run(changes.next()))
                state = state_of(host.core, scope)
                assert steady(list(told.programs.values())) == steady(state["programs"])
                assert set(told.engines) == {e["id"] for e in state["engines"]}
                assert asyncio.run(changes.next()) is None


def test_steps_and_calls_are_kept_while_somebody_looks_and_no_longer() -> None:
    host = Host(FakeOptions())
    seen = StepsSeen(host.core.settler)
    one, other = host.start(), host.start()
    for guest in (one, other):
        guest.alloc(Op.ALLOC_EMB, [1])
    host.run()
    assert host.core.settler.on_watched is None
    with seen.engines() as steps, seen.program(host.core.lifecycle.programs[one.program_id]) as calls:
        for _ in range(MOST_STEPS + 3):
            for guest in (one, other):
                guest.embed([1], [5], [0])
            host.run()
        (of_engine,) = steps.values()
        assert len(of_engine) == MOST_STEPS
        numbers = [step[0] for step in of_engine]
        assert numbers == sorted(set(numbers))
        assert max(step[-1] for step in of_engine) == 2  # programs in one step
        taken = calls.take()
        assert (len(taken["calls"]), taken["left_out"]) == (MOST_STEPS + 3, 0)
        assert {call["queue"] for call in taken["calls"]} == {0}
        for at in range(MOST_CALLS + 5):
            calls.add({"queue": at})
        taken = calls.take()
        assert (taken["calls"][0]["queue"], len(taken["calls"]), taken["left_out"]) == (5, MOST_CALLS, 5)
    assert host.core.settler.on_watched is None
    assert not steps
