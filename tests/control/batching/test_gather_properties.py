"""Any policy, limits and timing give the same answers and pages as executing one command after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tartlet_common.abi import Event, Op, u32
from tartlet_control.batching import policies
from tartlet_control.batching.view import Plan, View
from tartlet_control.calls.registry import RUNS_LAYERS
from tartlet_control.order.orders import LIVE
from tartlet_worker.fake import FakeOptions
from tests.control.harness import Guest, Host
from tests.control.serial import FAILED, OK, SKIPPED, Command, Serial

PAGES, EMBEDS, SLOTS, PAGE_SIZE = 4, 5, 2, 2
QUEUES = 2

page = st.integers(0, PAGES - 1)
embed = st.integers(0, EMBEDS - 1)
slot = st.integers(0, SLOTS - 1)
KINDS = (
    "embed",
    "embed",
    "forward",
    "forward",
    "forward",
    "forward",
    "sample",
    "sample",
    "copy",
    "mask",
    "swap",
    "bad",
)


@st.composite
def commands(draw: st.DrawFn) -> list[Command]:
    """Draw one command, or a few that belong together. Nearly all of them are valid."""
    kind = draw(st.sampled_from(KINDS))
    match kind:
        case "embed":
            slots = draw(st.booleans())
            embeds = draw(st.lists(embed, min_size=1, max_size=3, unique=True))
            sources = [draw(slot if slots else st.integers(0, 255)) for _ in embeds]
            positions = [draw(st.integers(0, 9)) for _ in embeds]
            return [("embed", {"embeds": embeds, "sources": sources, "positions": positions, "slots": slots})]
        case "forward":
            iemb = draw(st.lists(embed, min_size=1, max_size=3))
            okv = draw(st.lists(page, min_size=0 if draw(st.booleans()) else 2, max_size=2, unique=True))
            room = len(okv) * PAGE_SIZE - len(iemb)
            okv = okv if room >= 0 else []
            args = {
                "ikv": draw(st.lists(page, max_size=3, unique=True)),
                "iemb": iemb,
                "okv": okv,
                "oemb": draw(st.lists(embed, max_size=len(iemb), unique=True)),
                "offset": draw(st.integers(0, room)) if okv else 0,
            }
            return [("forward", args)]
        case "sample":
            stop = draw(st.sampled_from([[], [], list(range(130))]))
            return [
                ("sample", {"embed": draw(embed), "slot": draw(slot), "stop": stop, "seed": draw(st.integers(0, 9))})
            ]
        case "copy":
            span = draw(st.sampled_from([(0, 0, 2), (0, 1, 1), (1, 0, 1)]))
            return [("copy", {"src": draw(page), "dst": draw(page), "span": span})]
        case "mask":
            return [("mask", {"page": draw(page), "bits": draw(st.integers(0, 3))})]
        case "swap":
            ids = {"kind": "page", "ids": [draw(page)]}
            return [("dealloc", ids), ("alloc", ids)]
    bad: Command = ("forward", {"ikv": [PAGES], "iemb": [0], "okv": [], "oemb": [], "offset": 0})
    return [bad, ("reset", {})] if draw(st.booleans()) else [("reset", {})]


def put(guest: Guest, queue: int, command: Command, base: dict[str, int]) -> int:
    """Submit a command with its queue's share of the program's ids."""
    kind, a = command
    p, e, t = base["page"], base["embed"], base["slot"]
    match kind:
        case "embed":
            shift = t if a["slots"] else 0
            sources = [x + shift for x in a["sources"]]
            return guest.embed(
                [x + e for x in a["embeds"]], sources, a["positions"], slots=a["slots"], queue=queue, wait=True
            )
        case "forward":
            lists = [
                [x + p for x in a["ikv"]],
                [x + e for x in a["iemb"]],
                [x + p for x in a["okv"]],
                [x + e for x in a["oemb"]],
            ]
            return guest.forward(*lists, offset=a["offset"], queue=queue, wait=True)
        case "sample":
            return guest.sample(
                a["embed"] + e, a["slot"] + t, temperature=1.0, seed=a["seed"], stop=a["stop"], queue=queue, wait=True
            )
        case "copy":
            src, dst, n = a["span"]
            return guest.put(
                Op.COPY_KVPAGE, queue=queue, a=src, b=dst, c=n, payload=u32([a["src"] + p, a["dst"] + p]), wait=True
            )
        case "mask":
            return guest.put(Op.MASK_KVPAGE, queue=queue, a=a["page"] + p, b=a["bits"], wait=True)
        case "alloc" | "dealloc":
            ops = {"page": (Op.ALLOC_KVPAGE, Op.DEALLOC_KVPAGE), "embed": (Op.ALLOC_EMB,), "slot": (Op.ALLOC_SLOT,)}
            op = ops[a["kind"]][kind == "dealloc"]
            return guest.alloc(op, [x + base[a["kind"]] for x in a["ids"]], queue=queue, wait=True)
    return guest.put(Op.RESET, queue=queue, wait=True)


START: list[Command] = [
    ("alloc", {"kind": "page", "ids": list(range(PAGES))}),
    ("alloc", {"kind": "embed", "ids": list(range(EMBEDS))}),
    ("alloc", {"kind": "slot", "ids": list(range(SLOTS))}),
]


def effects(c: Any) -> tuple[set[Any], set[Any]]:
    """Return what a command reads and writes, without the pages it reads: the worker orders those within a batch."""
    match type(c).__name__:
        case "EmbedTxt":
            return {("slot", v) for v in c.sources if c.from_slots}, {("embed", v) for v in c.embeds}
        case "Forward":
            at = [divmod(c.okv_offset + i, PAGE_SIZE) for i in range(c.tokens)] if c.okv else []
            writes = {("page", c.okv[p], s) for p, s in at} | {("embed", v) for v in c.oemb}
            return {("embed", v) for v in c.iemb}, writes
        case "CopyKvPage":
            return {("page", c.src)}, {("page", c.dst)}
        case "MaskKvPage":
            return set(), {("page", c.page)}
        case "Sample":
            return {("embed", c.embed)}, {("slot", c.slot)}
    return set(), set()


def clash(first: Any, second: Any) -> bool:
    (r1, w1), (r2, w2) = effects(first), effects(second)
    return bool(w1 & (r2 | w2) or r1 & w2)


def observed(policy: str) -> Any:
    """Wrap a policy so that its promises are checked at every call."""
    inner: Any = {
        "adaptive": policies.adaptive,
        "eager": policies.eager,
        "k-only": lambda v, t: policies.k_only(3, v, t),
        "t-only": lambda v, t: policies.t_only(0.01, v, t),
    }[policy]

    def plan(view: View, now: float) -> Plan:
        before = [(q, list(q.pending)) for q in view.queues]
        result: Plan = inner(view, now)
        assert [(q, list(q.pending)) for q in view.queues] == before, "plan changes nothing"
        if view.in_flight >= view.depth:
            assert not result.dispatches
        taken: dict[Any, list[Any]] = {}
        for d in result.dispatches:
            assert {c.kind for c in d.commands} == {d.kind}
            assert len(d.commands) <= view.limits.batch_commands
            assert sum(c.tokens for c in d.commands) <= view.limits.batch_tokens or len(d.commands) == 1
            for c in d.commands:
                taken.setdefault(c.queue, []).append(c)
            for i, c in enumerate(d.commands):
                assert not any(c.queue is o.queue and clash(o, c) for o in d.commands[:i])
        assert sum(d.kind in RUNS_LAYERS for d in result.dispatches) <= 1 or policy == "eager"
        for queue, got in taken.items():
            assert list(queue.pending)[: len(got)] == got, "a queue is served from its head, in order"
        if policy == "eager":
            assert [len(d.commands) for d in result.dispatches] in ([], [1])
        if not result.dispatches and before and not view.in_flight:
            assert result.look_at is not None, "what waits is looked at again"
            assert result.look_at > now
        return result

    return plan


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    programs=st.lists(
        st.lists(st.lists(commands(), max_size=14), min_size=QUEUES, max_size=QUEUES), min_size=1, max_size=3
    ),
    policy=st.sampled_from(["adaptive", "adaptive", "eager", "k-only", "t-only"]),
    order=st.sampled_from(LIVE),
    batch_commands=st.sampled_from([1, 2, 64]),
    batch_tokens=st.sampled_from([2, 64]),
    timing=st.randoms(use_true_random=False),
)
def test_every_schedule_equals_serial_execution(
    programs: list[list[list[list[Command]]]],
    policy: str,
    order: str,
    batch_commands: int,
    batch_tokens: int,
    timing: Any,
) -> None:
    options = FakeOptions(
        page_size=PAGE_SIZE, num_pages=64, num_embeds=64, num_slots=32,
        max_batch_commands=batch_commands, max_batch_tokens=batch_tokens,
    )  # fmt: skip
    host = Host(options, batching=policy, order=order)
    host.batcher._policy = observed(policy)
    guests = [host.start() for _ in programs]
    bases = [{"page": 10 * q, "embed": 10 * q, "slot": 10 * q} for q in range(QUEUES)]
    waiting: list[tuple[Guest, int, list[Command]]] = []
    expected: dict[tuple[int, int], tuple[str, int]] = {}
    serials = {}
    for guest, queues in zip(guests, programs, strict=True):
        guest.put(Op.CREATE_QUEUE, queue=1)
        for q, listed in enumerate(queues):
            full = [*START, *(c for group in listed for c in group)]
            serial = serials[guest.handle, q] = Serial(options)
            serial.run(full)
            waiting.append((guest, q, list(zip(full, serial.outcomes, strict=True))))  # type: ignore[arg-type]
    host.flush()
    haste = timing.choice([0.1, 0.6])
    while waiting:  # frames of random pieces, steps answered at random times
        guest, q, rest = timing.choice(waiting)
        for _ in range(timing.randint(1, 6)):
            if rest:
                command, outcome = rest.pop(0)
                expected[guest.handle, put(guest, q, command, bases[q])] = outcome
        if not rest:
            waiting.remove((guest, q, rest))
        host.clock.advance(timing.choice([0.0, 0.001, 0.02]))
        if timing.random() < haste:
            host.pump()
        if timing.random() < 0.4:
            host.answer()
    host.run()
    _same_answers(guests, expected)
    _same_pages(host, guests, serials)
    for guest in guests:
        host.end(guest)
    assert [p.num_held for p in host.engine.pools] == [0, 0, 0]
    host.check_idle()


def _same_answers(guests: list[Guest], expected: dict[tuple[int, int], tuple[str, int]]) -> None:
    events = {OK: Event.RESULT, FAILED: Event.FAILURE, SKIPPED: Event.SKIPPED}
    by_handle = {guest.handle: guest for guest in guests}
    assert all(guest.killed is None for guest in guests)
    for (handle, ticket), (status, token) in expected.items():
        answer = by_handle[handle].answer(ticket)
        assert answer.event is events[status], (ticket, answer, status)
        assert status != OK or answer.a == token


def _same_pages(host: Host, guests: list[Guest], serials: dict[tuple[int, int], Serial]) -> None:
    engine, fake = host.engines[0]
    for guest in guests:
        held = host.core.lifecycle.programs[guest.program_id].places[0].held
        for q in range(QUEUES):
            serial = serials[guest.handle, q]
            mine = {v - 10 * q: p for v, p in held[0].items() if v // 10 == q}
            assert set(mine) == serial.held["page"]
            for virtual, physical in mine.items():
                for table in ("kv", "pos", "written", "hidden"):
                    got, want = getattr(fake.state, table)[physical], getattr(serial.engine.state, table)[virtual]
                    if physical in engine.clear[0]:  # will be cleared by the next step, if there ever is one
                        got = np.zeros_like(got)
                    assert np.array_equal(got, want), (guest.handle, q, virtual, table)
