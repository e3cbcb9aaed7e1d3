"""Shares of tenants: who goes first on one engine, whatever the numbers of programs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tartlet_common.abi import Op
from tartlet_common.errors.registry import InvalidArgument
from tartlet_control.order.shares import Shares, weights_of
from tartlet_worker.fake import FakeOptions
from tests.control.harness import Guest, Host

STEPS = 200
FLOOD = {"flood": 20, "calm": 4}
SMALL = FakeOptions(page_size=4, num_pages=256, num_embeds=256, num_slots=64, max_batch_commands=4)


def flooded(host: Host, programs: dict[str, int]) -> dict[str, float]:
    """Let programs always have a command that waits; return the device time of each tenant after `STEPS` steps."""
    guests: list[Guest] = []
    for tenant, count in programs.items():
        guests += [host.start(tenant=tenant) for _ in range(count)]
    for guest in guests:
        guest.alloc(Op.ALLOC_EMB, [0])
    host.run()
    states = [host.core.lifecycle.programs[guest.program_id] for guest in guests]
    before = [state.account.service_s for state in states]
    for _ in range(STEPS):
        for guest, state in zip(guests, states, strict=True):
            if not state.queues[0].pending:
                guest.forward([], [0], [], [0])
        host.flush()
        host.pump()
        while len(host._waiting) > 1:
            answer(host)
    spent: dict[str, float] = dict.fromkeys(programs, 0.0)
    for state, base in zip(states, before, strict=True):
        spent[state.tenant] += state.account.service_s - base
    return spent


def answer(host: Host) -> None:
    """Answer the oldest step, as if each of its commands had taken 10 ms."""
    engine, fake, step = host._waiting.pop(0)
    commands = sum(len(batch.lane) for batch in step.batches)
    host.core.on_result(engine, replace(fake.step(step), device_s=0.01 * commands))
    host.collect()


@pytest.mark.parametrize("order", ["round-robin", "plas"])
@pytest.mark.parametrize(("setting", "ratio"), [("", 1.0), ("calm=3", 1 / 3)])
def test_a_flood_of_programs_leaves_the_other_tenant_its_share(order: str, setting: str, ratio: float) -> None:
    host = Host(SMALL, order=order, tenant_shares=setting)
    spent = flooded(host, {"flood": 20, "calm": 4})
    assert spent["flood"] / spent["calm"] == pytest.approx(ratio, rel=0.1)


def prompted(prompt: int, seconds: float) -> tuple[float, float]:
    """Let 20 programs flood an engine with prompts while 4 of another tenant read each token; return their shares."""
    host = Host(FakeOptions(page_size=4, num_pages=4096, num_embeds=32768, num_slots=256, max_batch_tokens=2048))
    guests = {tenant: [host.start(tenant=tenant) for _ in range(count)] for tenant, count in FLOOD.items()}
    for tenant, own in guests.items():
        for guest in own:
            guest.alloc(Op.ALLOC_EMB, range(prompt if tenant == "flood" else 1))
    host.run()
    programs = [
        (t, guest, host.core.lifecycle.programs[guest.program_id]) for t, own in guests.items() for guest in own
    ]
    before = [state.account.service_s for _, _, state in programs]
    begin_s = host.clock.now()
    while host.clock.now() - begin_s < seconds:
        for tenant, guest, state in programs:
            queue = state.queues[0]
            if tenant == "flood":
                for _ in range(2 - len(queue.pending)):
                    guest.forward([], list(range(prompt)), [], [0])
            elif not queue.pending and queue.dispatched == queue.settled:
                guest.forward([], [0], [], [0])
        host.flush()
        host.pump()
        engine, fake, step = host._waiting.pop(0)
        result = fake.step(step)
        took_s = 0.01 + 0.0005 * result.computed_tokens
        host.clock.advance(took_s)
        host.core.on_result(engine, replace(result, device_s=took_s))
        host.collect()
    spent = dict.fromkeys(FLOOD, 0.0)
    for (tenant, _, state), base in zip(programs, before, strict=True):
        spent[tenant] += (state.account.service_s - base) / (host.clock.now() - begin_s)
    return spent["flood"], spent["calm"]


@pytest.mark.parametrize(("prompt", "seconds"), [(64, 5.0), (1000, 15.0)])
def test_a_flood_of_prompts_leaves_programs_that_read_each_token_their_share(prompt: int, seconds: float) -> None:
    flood, calm = prompted(prompt, seconds)
    assert calm > 0.9 * 0.5
    assert flood > 0.9 * 0.5


def test_what_one_tenant_leaves_the_other_has() -> None:
    host = Host(SMALL)
    spent = flooded(host, {"flood": 20, "calm": 1})
    assert spent["calm"] / STEPS == pytest.approx(0.01, rel=0.15)  # one command in each step: all that it asked for
    assert spent["flood"] / STEPS == pytest.approx(0.03, rel=0.1)  # the rest of each step


def test_idle_time_gives_no_credit() -> None:
    shares = Shares()
    for _ in range(100):
        shares.settled(shares.sent({"busy": 10}), {"busy": 10}, 0.1)
    assert shares.time("new") >= shares.time("busy") - 0.2


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50)), max_size=30), st.integers(1, 5))
def test_mixing_keeps_all_entries_and_each_tenants_order(entries: list[tuple[str, int]], weight: int) -> None:
    shares = Shares({"a": float(weight)})
    numbered = [(tenant, tokens, n) for n, (tenant, tokens) in enumerate(entries)]
    mixed = shares.mix(numbered, lambda e: e[0], lambda e: e[1])
    assert sorted(mixed, key=lambda e: e[2]) == numbered
    for tenant in "abc":
        assert [e for e in mixed if e[0] == tenant] == [e for e in numbered if e[0] == tenant]


def test_many_tenants_that_have_gone_are_forgotten() -> None:
    shares = Shares()
    for n in range(5000):
        tenant = f"t{n}"
        shares.settled(shares.sent({tenant: 1, "stays": 1}), {tenant: 1, "stays": 1}, 0.02)
    assert len(shares._times) <= 2049
    assert shares.time("stays") > 49


@pytest.mark.parametrize("text", ["a", "a=", "=1", "a=0", "a=-1", "a=nan", "a=1e9", "a=1,b"])
def test_weights_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        weights_of(text)
