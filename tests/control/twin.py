"""Control's own core on the load of a simulation: engines and programs only take time, without noise.

The programs are traces of `tartlet_control.simulation`. Each call is a context of its own, as an agent's calls are, and
what a step takes is what it takes in the simulation. So core and simulation can be compared call by call.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tartlet_common.abi import Op
from tartlet_control.batching.batcher import SentStep
from tartlet_control.calls.output import Sample
from tartlet_control.calls.registry import RUNS_LAYERS
from tartlet_control.simulation.costs import Costs
from tartlet_control.simulation.load import Trace
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.programs import Command
from tartlet_worker.fake import FakeOptions
from tests.control.harness import Guest, Host

SIZE = 4


@dataclass
class _Call:
    """One context: it prefills, decodes a token after the other, and is freed."""

    guest: Guest
    queue: int
    prefill: int
    left: int
    at: int = 0
    tickets: deque[int] = field(default_factory=deque)

    def begin(self, ahead: int) -> None:
        guest, count, queue = self.guest, self.prefill, self.queue
        ids = [1000 * queue + n for n in range(count + 1)]
        guest.table(queue, new=-(-(count + self.left) // SIZE), queue=queue)
        guest.alloc(Op.ALLOC_EMB, ids, queue=queue)
        guest.alloc(Op.ALLOC_SLOT, [queue], queue=queue)
        guest.embed(ids[:-1], [1] * count, list(range(count)), queue=queue)
        guest.forward_table(queue, 0, ids[:-1], ids[-1:], queue=queue)
        self.at = count - 1
        self._sample()
        self.go_on(ahead)

    def go_on(self, ahead: int) -> None:
        """Ask for as many tokens as may be asked for before the next one is known."""
        while self.left and len(self.tickets) <= ahead:
            embed, queue = 1000 * self.queue + self.prefill, self.queue
            self.guest.embed([embed], [queue], [self.at], slots=True, queue=queue)
            self.guest.forward_table(queue, self.at, [embed], [embed], queue=queue)
            self._sample()

    def _sample(self) -> None:
        embed = 1000 * self.queue + self.prefill
        self.tickets.append(self.guest.sample(embed, self.queue, queue=self.queue, wait=True))
        self.at, self.left = self.at + 1, self.left - 1

    def close(self) -> None:
        guest, queue = self.guest, self.queue
        guest.table(queue, queue=queue)
        guest.alloc(Op.DEALLOC_EMB, [1000 * queue + n for n in range(self.prefill + 1)], queue=queue)
        guest.alloc(Op.DEALLOC_SLOT, [queue], queue=queue)


@dataclass
class _Run:
    number: int
    trace: Trace
    guest: Guest
    wave: int = -1
    calls: dict[int, _Call] = field(default_factory=dict)
    queues: int = 1


class Twin:
    """One load in control's core."""

    def __init__(self, traces: list[Trace], costs: Costs, engines: int = 1, *, ahead: int = 0, **settings: Any) -> None:
        """`ahead`: tokens that a program asks for before it knows the one before; `settings`: of control."""
        options = FakeOptions(
            page_size=SIZE, num_pages=1 << 14, num_embeds=1 << 14, num_slots=1 << 10, max_batch_commands=costs.slots
        )
        usual: dict[str, Any] = {"batching": "k-only", "batching_k": 1, "steps_in_flight": 1, "prefix_cache": False}
        self.host = Host(options, engines=engines, **usual | settings)
        self.host.clock.advance(60.0)  # the engines joined long ago
        self.costs = costs
        self.traces = traces
        self.ahead = ahead
        self.runs: dict[str, _Run] = {}
        self.response_s = [0.0] * len(traces)
        self.engines: list[list[str]] = [[] for _ in traces]
        """The engine of each wave of each program."""
        self._begin_s = self.host.clock.now()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._free_s: dict[EngineState, float] = {}

    def run(self) -> None:
        """Run the load until all programs have ended."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[None]:
        """Run the load until all programs have ended; yields before each moment at which something happens."""
        host = self.host
        for number, trace in enumerate(self.traces):
            self._at(self._begin_s + trace.arrival_s, lambda number=number: self._arrive(number))  # type: ignore[misc]
        while self._events:
            yield
            now = self._events[0][0]
            host.clock.advance(max(0.0, now - host.clock.now()))
            while self._events and self._events[0][0] <= now:
                heapq.heappop(self._events)[2]()
            self._pump()
        assert all(self.response_s), "all programs end"
        host.check_idle()

    def _at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), event))

    def _pump(self) -> None:
        host = self.host
        host.pump()
        if host.look_at is not None and host.look_at > host.clock.now():
            self._at(host.look_at, lambda: None)
        sent, host._waiting = host._waiting, []
        for state, fake, step in sent:
            known = next(s for s in host.core.batchers[state].in_flight if s.number == step.number)
            took_s = self._takes_s(known)
            ends_s = self._free_s[state] = max(host.clock.now(), self._free_s.get(state, 0.0)) + took_s

            def answer(
                state: Any = state, fake: Any = fake, step: Any = step, known: SentStep = known, took_s: float = took_s
            ) -> None:
                host._waiting.append((state, fake, step))
                host.device_s = took_s
                host.answer()
                self._answered(state, [command for batch in known.batches for command in batch])

            self._at(ends_s, answer)

    def _takes_s(self, sent: SentStep) -> float:
        through = [c for batch in sent.batches if batch[0].kind in RUNS_LAYERS for c in batch]
        prompts = sum(c.tokens for c in through if c.tokens > 1)
        return self.costs.step_s(len(through)) + self.costs.prefill_s * prompts if through else 1e-6

    def _answered(self, state: EngineState, commands: list[Command]) -> None:
        for command in commands:
            run = self.runs.get(command.queue.program.id)
            if run is None or type(command) is not Sample:
                continue
            call = run.calls[command.queue.id]
            if len(self.engines[run.number]) <= run.wave:
                self.engines[run.number].append(state.id)
            assert self.engines[run.number][run.wave] == state.id, "contexts that are open together are on one engine"
            assert call.tickets.popleft() == command.ticket
            if call.left:
                call.go_on(self.ahead)
            elif not call.tickets:
                call.close()
                del run.calls[command.queue.id]
                if not run.calls:
                    self._next_wave(run)

    def _arrive(self, number: int) -> None:
        trace = self.traces[number]
        guest = self.host.start(f"program {number}", name=trace.name)
        run = self.runs[guest.program_id] = _Run(number, trace, guest)
        self._next_wave(run)

    def _next_wave(self, run: _Run) -> None:
        run.wave += 1
        if run.wave == len(run.trace.waves):
            self.host.flush()
            self.host.core.on_end(self.host.session, run.guest.handle, failed=False)
            self.response_s[run.number] = self.host.clock.now() - self._begin_s - run.trace.arrival_s
            return
        pause_s = run.trace.pauses_s[run.wave] if run.trace.pauses_s else 0.0
        if pause_s:
            self._at(self.host.clock.now() + pause_s, lambda: self._begin(run))
        else:
            self._begin(run)

    def _begin(self, run: _Run) -> None:
        for number, (prefill, decode) in enumerate(run.trace.waves[run.wave]):
            if number >= run.queues:
                run.guest.put(Op.CREATE_QUEUE, queue=number)
                run.queues += 1
            call = run.calls[number] = _Call(run.guest, number, prefill, decode)
            call.begin(self.ahead)
