"""Which call control's core lets go first, step by step: starvation, and how long a choice stands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tartlet_common.abi import Op
from tartlet_worker.fake import FakeOptions
from tests.control.harness import Guest, Host

STEP_S = 0.0625
ONE_AT_A_TIME = FakeOptions(page_size=4, num_pages=64, num_embeds=64, num_slots=64, max_batch_commands=1)


def two(**settings: Any) -> tuple[Host, list[Guest]]:
    """Start two programs that take turns on an engine."""
    host = Host(ONE_AT_A_TIME, steps_in_flight=1, **settings)
    guests = [host.start() for _ in range(2)]
    for guest in guests:
        guest.alloc(Op.ALLOC_EMB, [0])
    host.run()
    return host, guests


def serve(host: Host, guests: list[Guest], *, device_s: float = STEP_S) -> list[int]:
    """Run what waits, in steps of so long; returns the program of each step."""
    lanes = {q.lane: g.handle for g in guests for q in host.core.lifecycle.programs[g.program_id].queues.values()}
    turns: list[int] = []
    host.pump()
    while host._waiting:
        engine, fake, step = host._waiting.pop(0)
        turns += [lanes[lane] for batch in step.batches for lane in batch.lane.tolist()]
        host.clock.advance(device_s)
        host.core.on_result(engine, replace(fake.step(step), device_s=device_s))
        host.pump()
    return turns


def ask(guest: Guest, steps: int) -> None:
    for _ in range(steps):
        guest.forward([], [0], [], [0])


@pytest.mark.parametrize("order", ["plas", "atlas"])
def test_a_program_that_starved_goes_first_for_one_quantum_and_then_where_its_service_puts_it(order: str) -> None:
    host, (old, new) = two(order=order, order_quanta_s="0.1,0.4", order_starved_at=4)
    ask(old, 1)
    assert serve(host, [old, new], device_s=0.5) == [1]
    host.clock.advance(1.0)  # its next call is another one
    ask(old, 4)
    host.flush()
    host.clock.advance(100.0)
    ask(new, 4)
    assert serve(host, [old, new]) == [1, 1, 2, 2, 2, 2, 1, 1]


def test_a_new_call_of_a_program_that_waited_long_is_demoted_by_mlfq_as_any_other() -> None:
    host, (old, new) = two(order="mlfq", order_quanta_s="0.1,0.4", order_starved_at=4)
    host.core.lifecycle.programs[old.program_id].account.waited_s = 1000.0
    for guest in (old, new):
        ask(guest, 4)
    assert serve(host, [old, new]) == [1, 1, 2, 2, 2, 2, 1, 1], "what computes goes on"


@pytest.mark.parametrize(
    ("preempt", "every", "expected"),
    [
        ("step", 1, [1, 2, 1, 2, 1, 2, 1, 2, 1, 2]),
        ("step", 2, [1, 1, 2, 2, 1, 1, 2, 2, 1, 2]),
        ("quantum", 1, [1, 1, 1, 2, 2, 2, 1, 1, 2, 2]),
        ("call", 1, [1, 1, 1, 1, 1, 2, 2, 2, 2, 2]),
    ],
)
def test_a_choice_stands_as_long_as_the_settings_say(preempt: str, every: int, expected: list[int]) -> None:
    quanta = f"{2.5 * STEP_S},{5 * STEP_S}"
    host, guests = two(order="round-robin", order_quanta_s=quanta, order_preempt=preempt, order_every=every)
    for guest in guests:
        ask(guest, 5)
    assert serve(host, guests) == expected
