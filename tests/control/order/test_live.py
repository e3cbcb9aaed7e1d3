"""The order of programs in control's core: full batches, priorities, accounts of device time, calls, live changes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tartlet_common.abi import Op, Priority
from tartlet_common.engine.pools import Home
from tartlet_common.errors.registry import InvalidArgument
from tartlet_control.order.orders import LIVE
from tartlet_control.serving.frames import start_request
from tartlet_control.serving.state import engines_of
from tartlet_control.tables.programs import ProgramState
from tartlet_protos import control_pb2
from tartlet_worker.fake import FakeOptions
from tests.control.harness import Guest, Host, decode_text

ONE_AT_A_TIME = FakeOptions(page_size=4, num_pages=64, num_embeds=64, num_slots=64, max_batch_commands=1)


def state(guest: Guest) -> ProgramState:
    return guest.host.core.lifecycle.programs[guest.program_id]


def prepared(host: Host, queues: int = 1) -> Guest:
    guest = host.start()
    for q in range(queues):
        if q:
            guest.put(Op.CREATE_QUEUE, queue=q)
        guest.alloc(Op.ALLOC_EMB, [q], queue=q)
    host.run()
    return guest


def served(host: Host, guests: list[Guest]) -> list[tuple[int, int]]:
    """Run what waits; returns guest and queue of each command, in the order in which the engine got them."""
    before = len(host.steps)
    host.run()
    lanes = {q.lane: (g.handle, q.id) for g in guests for q in state(g).queues.values()}
    return [lanes[lane] for step in host.steps[before:] for batch in step.batches for lane in batch.lane.tolist()]


@pytest.mark.parametrize("order", LIVE)
def test_a_priority_orders_the_queues_of_its_own_program_only(order: str) -> None:
    host = Host(ONE_AT_A_TIME, order=order)
    host.device_s = 0.0
    first, second = prepared(host, queues=3), prepared(host)
    first.put(Op.SET_QUEUE_PRIORITY, queue=2, a=int(Priority.HIGH))
    first.put(Op.SET_QUEUE_PRIORITY, queue=0, a=int(Priority.LOW))
    second.put(Op.SET_QUEUE_PRIORITY, a=int(Priority.HIGH))
    for q in range(3):
        first.forward([], [q], [], [q], queue=q)
    second.forward([], [0], [], [0])
    assert served(host, [first, second]) == [(1, 2), (1, 1), (1, 0), (2, 0)]


@pytest.mark.parametrize(("order", "expected"), [("fcfs", [1, 2]), ("plas", [2, 1]), ("atlas", [2, 1])])
def test_the_program_with_less_service_goes_first(order: str, expected: list[int]) -> None:
    host = Host(ONE_AT_A_TIME, order=order, order_quanta_s="0.1,0.4", order_starved_at=0)
    old, new = prepared(host), prepared(host)
    old.forward([], [0], [], [0])
    host.pump()
    answer(host, device_s=0.5)
    host.clock.advance(1.0)
    old.forward([], [0], [], [0])
    new.forward([], [0], [], [0])
    assert [handle for handle, _ in served(host, [old, new])] == expected


def answer(host: Host, device_s: float) -> None:
    """Answer the oldest step, as if the device had taken so long."""
    engine, fake, step = host._waiting.pop(0)
    host.core.on_result(engine, replace(fake.step(step), device_s=device_s))
    host.collect()


def test_a_step_is_charged_by_the_tokens_that_each_program_computes() -> None:
    host = Host(FakeOptions(page_size=4, num_pages=64, num_embeds=64, num_slots=64))
    guests = [host.start() for _ in range(2)]
    for guest, tokens in zip(guests, (3, 1), strict=True):
        guest.alloc(Op.ALLOC_EMB, range(tokens))
        guest.embed(list(range(tokens)), [1] * tokens, list(range(tokens)))
    host.run()
    before = [state(guest).account.service_s for guest in guests]
    for guest, tokens in zip(guests, (3, 1), strict=True):
        guest.forward([], list(range(tokens)), [], [0])
    host.pump()
    answer(host, device_s=0.8)
    spent = [state(g).account.service_s - b for g, b in zip(guests, before, strict=True)]
    assert spent == pytest.approx([0.6, 0.2])


def test_reading_each_token_goes_on_with_the_call_and_a_long_pause_begins_another() -> None:
    host = Host()
    guest = host.start()
    decode_text(guest, [1, 2, 3], 2, ahead=False)
    host.run()
    thread = state(guest).queues[0].thread
    began = thread.arrived_s
    host.clock.advance(0.01)
    guest.forward([0], [3], [0], [3], offset=0)
    host.run()
    assert (thread.arrived_s, thread.active) == (began, True)
    host.clock.advance(5.0)
    guest.forward([0], [3], [0], [3], offset=0)
    host.pump()
    assert thread.arrived_s == pytest.approx(host.clock.now())
    assert thread.wait_s(host.clock.now()) == pytest.approx(0.0)


def test_waiting_counts_from_the_command_until_its_step() -> None:
    host = Host(ONE_AT_A_TIME, steps_in_flight=1)
    first, second = prepared(host), prepared(host)
    first.forward([], [0], [], [0])
    second.forward([], [0], [], [0])
    host.pump()
    host.clock.advance(2.0)
    now = host.clock.now()
    waited = [state(g).account.wait_s(now, [state(g).queues[0].thread]) for g in (first, second)]
    assert waited == pytest.approx([0.0, 2.0])
    host.run()
    assert state(second).account.wait_s(now + 9, [state(second).queues[0].thread]) == pytest.approx(2.0)


def test_a_starved_program_goes_before_those_with_less_service() -> None:
    host = Host(ONE_AT_A_TIME, order="plas", order_quanta_s="0.1", order_starved_at=4, steps_in_flight=1)
    old, new = prepared(host), prepared(host)
    old.forward([], [0], [], [0])
    host.pump()
    answer(host, device_s=0.5)
    new.forward([], [0], [], [0])  # on the engine while the old one waits
    host.pump()
    old.forward([], [0], [], [0])
    host.flush()
    host.clock.advance(3.0)  # six times its service
    new.forward([], [0], [], [0])
    host.flush()
    assert [handle for handle, _ in served(host, [old, new])] == [1, 2]


def test_programs_that_ended_teach_gittins_what_their_like_need() -> None:
    host = Host(ONE_AT_A_TIME, order="gittins")
    for name, device_s in [("short", 0.01), ("long", 5.0)] * 4:
        guest = host.start(program_id=f"{name}-{len(host.guests)}", name=name)
        guest.alloc(Op.ALLOC_EMB, [0])
        guest.forward([], [0], [], [0])
        host.pump()
        answer(host, device_s)
        host.end(guest)
    guests = []
    for name in ("long", "short"):
        guests.append(host.start(program_id=name, name=name))
        guests[-1].alloc(Op.ALLOC_EMB, [0])
        guests[-1].forward([], [0], [], [0])
    host.flush()
    assert [handle for handle, _ in served(host, guests)] == [guests[1].handle, guests[0].handle]


def test_runs_of_another_source_of_the_same_name_teach_gittins_nothing() -> None:
    assert start_request(control_pb2.ProgramStart(digest="aa")).digest == "aa"
    host = Host(ONE_AT_A_TIME, order="gittins")
    for digest, device_s in [("aa", 0.01), ("bb", 5.0)] * 4:
        guest = host.start(program_id=f"{digest}-{len(host.guests)}", name="main.py", digest=digest)
        guest.alloc(Op.ALLOC_EMB, [0])
        guest.forward([], [0], [], [0])
        host.pump()
        answer(host, device_s)
        host.end(guest)
    guests = []
    for digest in ("bb", "aa"):
        guests.append(host.start(program_id=digest, name="main.py", digest=digest))
        guests[-1].alloc(Op.ALLOC_EMB, [0])
        guests[-1].forward([], [0], [], [0])
    host.flush()
    assert [handle for handle, _ in served(host, guests)] == [guests[1].handle, guests[0].handle]


def test_a_pool_follows_its_own_order_from_the_next_step_on() -> None:
    host = Host(engines=0)
    core, home = host.core, Home("team", "gpu")
    fake = host.join("elsewhere")
    spec = fake.spec
    of_pool = core.on_engine("e", "inc", spec, home)
    core.orders.change(home.path, "plas", (0.5, 1.0), 8.0, core.batchers)
    assert (core.batchers[of_pool].order.name, core.batchers[fake].order.name) == ("plas", "round-robin")
    assert core.batchers[of_pool].order.bounds_s == (0.5, 1.0)
    later = core.on_engine("later", "inc", spec, home)
    assert core.batchers[later].order.name == "plas"
    core.orders.change(home.path, "", (), 8.0, core.batchers)
    assert core.batchers[of_pool].order is core.orders.default


def test_a_pool_says_when_its_calls_are_stopped_or_takes_what_control_says() -> None:
    host = Host(engines=0)
    core, home = host.core, Home("team", "gpu")
    of_pool = core.on_engine("pooled", "inc", host.join("e").spec, home)
    own = core.orders.default
    core.set_order(home.path, "fcfs", (), 0.0, preempt="quantum", every=3)
    assert (core.batchers[of_pool].order.preempt, core.batchers[of_pool].order.every) == ("quantum", 3)
    [told] = engines_of(core, {}).orders
    assert (told.preempt, told.every) == ("quantum", 3)
    core.set_order(home.path, "fcfs", (), 0.0)
    assert (core.batchers[of_pool].order.preempt, core.batchers[of_pool].order.every) == (own.preempt, own.every)
    [told] = engines_of(core, {}).orders
    assert (told.preempt, told.every) == ("", 0)
    wrongs: list[dict[str, Any]] = [{"preempt": "never"}, {"every": 5000}]
    for wrong in wrongs:
        with pytest.raises(InvalidArgument):
            core.set_order(home.path, "fcfs", (), 0.0, **wrong)
    for quanta_s in (0.0,), (math.inf,), (math.nan,), (1.0, math.inf), (1.0, math.nan), (2.0, 1.0), (-1.0, 1.0):
        with pytest.raises(InvalidArgument):
            core.set_order(home.path, "plas", quanta_s, 0.0)
    for starved_at in (-1.0, math.inf, math.nan):
        with pytest.raises(InvalidArgument):
            core.set_order(home.path, "plas", (), starved_at)
    assert core.batchers[of_pool].order.preempt == own.preempt


@pytest.mark.parametrize(("name", "beta"), [("plas", 8.0), ("mlfq", 8.0), ("gittins", 64.0)])
def test_each_order_has_its_own_bound_of_starvation_unless_one_is_named(name: str, beta: float) -> None:
    host, home = Host(engines=0, order=name), Home("team", "gpu")
    core = host.core
    assert core.orders.default.starved_at == beta
    assert Host(order=name, order_starved_at=3).core.orders.default.starved_at == 3.0
    of_pool = core.on_engine("pooled", "inc", host.join("e").spec, home)
    core.set_order(home.path, name, (), None)
    assert core.batchers[of_pool].order.starved_at == beta
    assert [order.HasField("starved_at") for order in engines_of(core, {}).orders] == [False]
    core.set_order(home.path, name, (), 0.0)
    assert core.batchers[of_pool].order.starved_at == 0.0
    assert [(o.HasField("starved_at"), o.starved_at) for o in engines_of(core, {}).orders] == [(True, 0.0)]


@pytest.mark.parametrize(
    ("name", "quanta_s", "starved_at"),
    [("srpt", [1], 8), ("plas", [2, 1], 8), ("plas", [0], 8), ("plas", [float("nan")], 8), ("plas", [1], -1)],
)
def test_an_order_that_makes_no_sense_is_refused(name: str, quanta_s: list[float], starved_at: float) -> None:
    host = Host()
    with pytest.raises(InvalidArgument):
        host.core.orders.change("team/gpu", name, quanta_s, starved_at, host.core.batchers)
    assert host.batcher.order is host.core.orders.default
