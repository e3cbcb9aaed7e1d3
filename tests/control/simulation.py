"""A discrete-event simulation: control's own core with an engine and guests that only take time, without noise.

Every program embeds, forwards and samples a token, waits for it, thinks, and goes on (run-ahead 0). A step takes
`fixed_s` plus `token_s` for each token; frames take `hop_s` between processes; a runtime needs `think_s` for a frame
and `guest_s` for each program in it, and sends what they say every `part_s`, marked as a part until all have spoken.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tartlet_common.abi import Op
from tartlet_common.engine.step import BatchResult, Sample, Step, StepResult
from tartlet_worker.fake import FakeOptions
from tests.control.harness import Guest, Host

EMPTY_I32, EMPTY_F32 = np.zeros(0, np.int32), np.zeros(0, np.float32)


@dataclass(frozen=True)
class Costs:
    """The costs of a simulated load, in seconds."""

    fixed_s: float
    token_s: float
    hop_s: float = 0.0003
    think_s: float = 0.001
    guest_s: float = 30e-6
    part_s: float = 0.0025
    launch_s: float = 0.03  # over which the programs start; 0: in one frame


@dataclass
class Simulation:
    """One load under one policy."""

    costs: Costs
    programs: int
    tokens: int
    policy: str
    seen: tuple[int, ...] = ()  # steps of so many tokens have been seen before
    steps: int = 0
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)

    def run(self) -> float:
        """Run the load; returns tokens per second."""
        options = FakeOptions(num_pages=1024, num_embeds=1024, num_slots=1024, page_size=16)
        self.host = Host(options, batching=self.policy)
        self.order = itertools.count()
        self.free_at = 0.0
        self.begin = self.host.clock.now()
        for tokens in self.seen:
            self.host.batcher.times.add(tokens, self.costs.fixed_s + self.costs.token_s * tokens)
        rng = random.Random(1)
        guests = [self.host.start() for _ in range(self.programs)]
        self.left = {guest.handle: self.tokens for guest in guests}
        for group in [[guest] for guest in guests] if self.costs.launch_s else [guests]:
            self.at(self.begin + rng.random() * self.costs.launch_s, self.arrive(group, first=True))
        while self.events:
            when, _, event = heapq.heappop(self.events)
            self.host.clock.advance(max(0.0, when - self.host.clock.now()))
            self.more = False
            event()
            if not self.more or self.host.core.takes_parts:
                self.pump()
        assert not any(self.left.values())
        return self.programs * self.tokens / (self.host.clock.now() - self.begin)

    def at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self.events, (when, next(self.order), event))

    def come_back(self, guests: list[Guest]) -> None:
        costs, begin = self.costs, self.host.clock.now() + self.costs.think_s
        parts = itertools.groupby(enumerate(guests, 1), lambda nth: int(nth[0] * costs.guest_s / costs.part_s))
        for _, part in parts:
            said = list(part)
            last = said[-1][0]
            arrives = self.arrive([guest for _, guest in said], more=last < len(guests))
            self.at(begin + last * costs.guest_s, arrives)

    def arrive(self, guests: list[Guest], *, first: bool = False, more: bool = False) -> Callable[[], None]:
        def event() -> None:
            self.more = more
            for guest in guests:
                if first:
                    guest.alloc(Op.ALLOC_KVPAGE, range(2))
                    guest.alloc(Op.ALLOC_EMB, [0])
                    guest.alloc(Op.ALLOC_SLOT, [0])
                guest.embed([0], [0], [0], slots=True)
                guest.forward([0, 1], [0], [0], [0])
                guest.sample(0, 0)
            self.host.flush()

        return event

    def pump(self) -> None:
        host, engine = self.host, self.host.engine
        look_at = host.core.pump()
        if look_at is not None:
            self.at(look_at, lambda: None)
        for step in engine.outgoing:
            self.steps += 1
            tokens = sum(len(b.lane) for b in step.batches if not isinstance(b, Sample)) // 2
            takes_s = self.costs.fixed_s + self.costs.token_s * tokens
            self.free_at = max(host.clock.now() + self.costs.hop_s, self.free_at) + takes_s
            self.at(self.free_at + self.costs.hop_s, self.answer(step, tokens, takes_s))
        engine.outgoing.clear()

    def answer(self, step: Step, tokens: int, takes_s: float) -> Callable[[], None]:
        def event() -> None:
            host = self.host
            before = {h: len(g.answers) for h, g in host.guests.items()}
            results = tuple(_went_well(b) for b in step.batches)
            host.core.on_result(host.engine, StepResult(step.number, results, tokens, takes_s))
            host.collect()
            back = []
            for handle, guest in host.guests.items():
                if len(guest.answers) > before[handle]:
                    self.left[handle] -= 1
                    if self.left[handle]:
                        back.append(guest)
            if back:
                self.come_back(back)

        return event


def _went_well(batch: Any) -> BatchResult:
    n = len(batch.lane)
    m = n if isinstance(batch, Sample) else 0
    return BatchResult(
        np.zeros(n, np.uint8), np.zeros(n, np.uint32), np.zeros(m, np.int32), np.zeros(m, np.uint8),
        np.ones(m, np.float32), EMPTY_I32, EMPTY_I32, EMPTY_F32,
    )  # fmt: skip
